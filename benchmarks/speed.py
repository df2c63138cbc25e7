"""The speed of methods against vanilla, in parts of a model with random weights: `make speed`.

    make speed                                     # at 1,024 and 4,096 tokens: 2 minutes
    make speed ARGS='--parts attention encoder --lengths 16384'
    make speed ARGS='--parts layer --methods vanilla "vcc k=32" "vcc k=64"'
    make speed ARGS='--save before.json'           # before a change, or in another checkout
    make speed ARGS='--against before.json'
    make speed OFFICIAL=DIR                        # a folder with IceFormer's official code

`bench run` measures whole models, with confidence intervals; this is for work on a kernel. Times
are CPU times of one thread, in rounds over all methods, so that their ratios hold on a busy
machine. With several --threads they are elapsed times, which need a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.benchmark import Compare, Measurement, Timer
from torch.utils.benchmark.utils.common import TaskSpec

from bench.conformance.__main__ import requested
from bench.errors import described
from bench.host import torch_host
from bench.models.bert import RobertaFamily
from bench.models.checkpoints import random_weights
from bench.models.lra import LRAFamily
from benchmarks.official import OFFICIAL
from methods import kernels
from methods.base import AttentionCall, Method, SequenceInfo

HEADS, SIZE = 8, 64
WIDE = 768
QUERY = 48  # tokens of the question, which VCC does not compress
LONGEST = {"vanilla_eager": 4096, "iceformer search=exact": 4096}
"""Tokens beyond which a method takes minutes, or more memory than a small machine has."""

Run = Callable[[], object]


@functools.cache
def clustered(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [1, 8, n, 64]. Keys lie around n / 64 centres of different norms and
    each query near some key, so that a few keys get most of its softmax, as in trained heads.
    """
    make = torch.Generator().manual_seed(0)
    count = max(n // 64, 1)
    centres = torch.randn(1, HEADS, count, SIZE, generator=make)
    centres *= torch.rand(1, HEADS, count, 1, generator=make) + 0.5

    def pick(source: Tensor) -> Tensor:
        which = torch.randint(source.shape[2], (1, HEADS, n, 1), generator=make)
        return source.gather(2, which.expand(-1, -1, -1, SIZE))

    key = pick(centres) + 0.5 * torch.randn(1, HEADS, n, SIZE, generator=make)
    query = 2 * pick(key) + 0.3 * torch.randn(1, HEADS, n, SIZE, generator=make)
    return query, key, torch.randn(1, HEADS, n, SIZE, generator=make)


def attention(method: Method, n: int, causal: bool = False) -> Run:
    """A call of `Method.attend` on 8 heads of 64."""
    inputs, call = clustered(n), AttentionCall(SequenceInfo(causal=causal), SIZE**-0.5, 0)
    return torch.no_grad()(lambda: method.attend(*inputs, call))


def layer(method: Method, n: int, layers: int = 1) -> Run:
    """A call of `Method.encode` on layers of RoBERTa-base's size."""
    config = {
        "model_type": "roberta", "num_hidden_layers": layers, "vocab_size": 8, "type_vocab_size": 1,
    }  # fmt: skip
    model = random_weights(RobertaFamily.architecture, config, 0)
    family = RobertaFamily(model, None, method)
    hidden = torch.randn(1, n, WIDE, generator=torch.Generator().manual_seed(0))
    sequence = SequenceInfo(vip=torch.arange(n)[None] < QUERY)
    return torch.no_grad()(lambda: family.method.encode(family.layers, hidden, sequence))


def lra(method: Method, n: int, backward: bool = False) -> Run:
    """Long Range Arena's encoder: 2 layers of 64, 2 heads."""
    config = {"model_type": "lra", "vocab_size": 512, "max_position_embeddings": n, "dropout": 0.0}
    family = LRAFamily(random_weights(LRAFamily.architecture, config, 0), None, method)
    ids = torch.randint(1, 512, (1, n), generator=torch.Generator().manual_seed(0))
    target = torch.zeros(1, 1, dtype=torch.long)
    if backward:
        return lambda: family.loss(ids, SequenceInfo(), target).backward()
    return torch.no_grad()(lambda: family.logits(ids, SequenceInfo(), target))


FOURIER = ["vanilla", "vanilla_eager", "fourier upsample=false kernel=torch",
           "fourier upsample=false kernel=native", "fourier"]  # fmt: skip
PARTS: dict[str, tuple[Callable[[Method, int], Run], list[str]]] = {
    "attention": (attention, [
        "vanilla", "vanilla_eager", "vanilla kernel=native",
        "vanilla kernel=native products=bfloat16", "iceformer search=quantized",
        "iceformer search=blocks", "iceformer search=dci m=8 L=4 k0=0.1", "iceformer search=exact",
        "bigbird kernel=torch", "bigbird kernel=native", "bigbird kernel=native products=bfloat16",
        *OFFICIAL,
    ]),
    "causal": (partial(attention, causal=True), ["vanilla", "iceformer search=quantized"]),
    "layer": (layer, ["vanilla", "vanilla kernel=native", "vcc plain_layers=0 kernel=torch",
                      "vcc plain_layers=0 kernel=native"]),
    "encoder": (partial(layer, layers=12), ["vanilla", "vcc"]),
    "forward": (lra, FOURIER),
    "training": (partial(lra, backward=True), FOURIER),
}  # fmt: skip
"""Name → the part of a method that it runs on n tokens, and the methods for which it is made."""


def method_of(words: str) -> Method:
    """The method of 'NAME PARAMETER=VALUE …', or an official code. Raises RequestError."""
    return OFFICIAL.get(words) or requested(f"method={words}".split())


def timers(options: argparse.Namespace) -> list[Timer]:
    """A timer of each part, method and length, each run once. Methods that can't run are printed
    with the reason."""
    made = []
    for n in options.lengths:
        for part in options.parts:
            build, methods = PARTS[part]
            for words in options.methods or methods:
                if n > LONGEST.get(words, n):
                    continue
                try:
                    run = build(method_of(words), n)
                    run()
                except Exception as error:  # official codes raise any type
                    print(f"{part} of {words} at {n:,} tokens: {described(error)}")
                    continue
                made.append(
                    Timer(
                        "run()",
                        globals={"run": run},
                        timer=time.process_time if options.threads == 1 else time.perf_counter,
                        label=part,
                        sub_label=words,
                        description=f"{n:,}",
                        env="now",
                        num_threads=options.threads,
                    )
                )
    return made


def save(file: Path, measured: Sequence[Measurement]) -> None:
    records = [{"spec": dataclasses.asdict(m.task_spec), "times": m.times} for m in measured]
    file.write_text(json.dumps(records))


def saved(file: Path) -> list[Measurement]:
    """Measurements of a file, with its name as their environment."""
    records = json.loads(file.read_text())
    return [Measurement(1, r["times"], TaskSpec(**{**r["spec"], "env": file.stem}))
            for r in records]  # fmt: skip


def ratios(measured: Sequence[Measurement]) -> list[str]:
    """A line for each method and part: its speed-up over vanilla at each length."""
    median = {(m.env, m.label, m.sub_label, m.description): m.median for m in measured}
    lines: dict[tuple[str, str], list[str]] = {}
    for (env, part, words, n), taken in median.items():
        base = median.get((env, part, "vanilla", n), math.nan)
        name = words if env == "now" else f"{words} ({env})"
        lines.setdefault((part, name), []).append(f"{base / taken:.2f}× at {n}")
    return [f"{part:9} {name:40} {', '.join(each)}" for (part, name), each in lines.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--parts", nargs="+", choices=PARTS,
                        default=[part for part in PARTS if part != "encoder"])  # fmt: skip
    parser.add_argument("--methods", nargs="+", metavar="'NAME PARAMETER=VALUE …'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--official", type=Path, help="a folder with official codes")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the measurements as JSON")
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="FILE",
                        help="measurements to compare with")  # fmt: skip
    options = parser.parse_args()
    if options.official:
        sys.path.insert(0, str(options.official.expanduser().resolve()))
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {kernels.available() or kernels.name()} kernels, "
        f"{torch_host.gemm_gflops('float32', 'cpu'):.0f} GFLOP/s in matrix products, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    torch.manual_seed(0)
    made = timers(options)
    measured = [
        each.blocked_autorange(min_run_time=0.1) for _ in range(options.rounds) for each in made
    ]
    measured = Measurement.merge(measured)
    if options.save:
        save(options.save, measured)
    for file in options.against:
        measured += saved(file)
    Compare(measured).print()
    print(*ratios(measured), sep="\n")


if __name__ == "__main__":
    main()
