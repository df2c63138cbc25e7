"""Attention of a prompt by this project's sparse prefill methods and by OpenVINO GenAI's, on one
model and one real text, in turns in this process: `python -m benchmarks.prefill_engines`.

A prompt is read without the model's head, by OpenVINO with it. Attention of this project is timed
by itself; OpenVINO's is the time of a prompt less that of its XAttention with a threshold of 0.01,
which reads almost no block (its tri-shape saves no time). `read` is the share of the causal tiles
of scores that are read, `ideal` the part of 1 / read that the speed-up over torch's fused attention
reaches. Needs the extra openvino and a model that was made of a GGUF file.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import torch

from bench.engines.base import Start
from bench.engines.openvino import OpenVINO
from bench.execution import arms
from bench.measure.latency import AttentionTimer
from bench.models.checkpoints import load_tokenizer
from bench.request.cell import Cell
from bench.request.compose import compose
from bench.terminal.output import aligned
from methods.a_shape import AShape
from methods.base import Method
from methods.flexprefill import FlexPrefill
from methods.vanilla import Vanilla
from methods.vertical_slash import VerticalSlash
from methods.xattention import XAttention

OWN: dict[str, Method] = {
    "vanilla, fused": Vanilla(),
    "xattention": XAttention(),
    "xattention, bfloat16 products": XAttention(products="bfloat16"),
    "flexprefill": FlexPrefill(),
    "flexprefill, bfloat16 products": FlexPrefill(products="bfloat16"),
    "vertical_slash": VerticalSlash(),
    "a_shape": AShape(),
}
ENGINES = {
    "openvino dense": OpenVINO(),
    "openvino xattention": OpenVINO(attention="xattention"),
    "openvino, no block": OpenVINO(attention="xattention", threshold=0.01),
}
FLOOR = "openvino, no block"
Times = dict[str, tuple[list[float], list[float]]]
"""Name → seconds of a prompt, and in attention."""


def measure(length: int, rounds: int, model: str, own: list[str], engines: list[str]) -> Times:
    words = [f"model={model}", "task=perplexity", f"length={length}", "n=1", "threads=1"]
    cell = Cell.of(compose([*words, "measure=quality"]))
    family = arms.load(cell, Vanilla())
    torch.set_num_threads(1)
    _, [encoded] = arms.inputs(cell, cell.build_task(), family.tokenizer)
    ids, sequence = arms.collate([encoded], "cpu")
    folder = Path(cell.model["path"])
    start = Start(folder, load_tokenizer(folder), length + 8, 1)
    sessions = {name: ENGINES[name].start(start) for name in engines}
    times: Times = {name: ([], []) for name in [*own, *engines]}

    def encode(name: str) -> Callable[[], None]:
        def run() -> None:
            family.method = timed = AttentionTimer(OWN[name])
            began = perf_counter_ns()
            family.encode(ids, sequence)
            times[name][0].append((perf_counter_ns() - began) / 1e9)
            times[name][1].append(sum(timed.attend_ns) / 1e9)

        return run

    def ask(name: str) -> Callable[[], None]:
        def run() -> None:
            # A new first token: nothing of an earlier prompt may be reused.
            prompt = [random.randrange(100, 1000), *ids[0, 1:].tolist()]
            answer = sessions[name].generate(prompt, 1, exactly=True)
            times[name][0].append(answer.first_ns / 1e9)

        return run

    calls = [*map(encode, own), *map(ask, engines)]
    with torch.inference_mode():
        for _ in range(rounds + 1):  # the first one warms up
            random.shuffle(calls)
            for call in calls:
                call()
    for session in sessions.values():
        session.close()
    return {name: (first[1:], inside[1:]) for name, (first, inside) in times.items()}


def table(times: Times) -> list[list[str]]:
    lines = [["", "prompt, s", "attention, s", "÷ fused", "read", "ideal"]]
    first = {name: statistics.median(one) for name, (one, _) in times.items()}
    fused = statistics.median(times["vanilla, fused"][1])
    for name, (_, inside) in times.items():
        own = name in OWN
        if not own and FLOOR not in first:
            continue
        attention = statistics.median(inside) if own else first[name] - first[FLOOR]
        read = 1 - getattr(OWN.get(name), "skipped", 0.0) if own else None
        speed_up = fused / attention if attention > 0 else 0.0
        ideal = f"{speed_up * read:.2f}" if read is not None and read < 1 else ""
        share = "" if read is None else f"{read:.2f}"
        times_fused = f"×{attention / fused:.2f}" if attention > 0 else ""
        lines.append([name, f"{first[name]:.2f}", f"{attention:.2f}", times_fused, share, ideal])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--own", nargs="+", choices=OWN, default=[*OWN])
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=[*ENGINES])
    given = parser.parse_args()
    for length in given.lengths:
        times = measure(length, given.rounds, given.model, given.own, given.engines)
        print(f"{given.model}, {length:,} tokens, 1 thread, medians of {given.rounds}")
        print("\n".join(aligned(table(times), right=range(1, 6))), flush=True)


if __name__ == "__main__":
    main()
