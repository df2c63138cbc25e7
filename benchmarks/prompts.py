"""The number of prompts that generated tasks write a second: `make prompts`.

    python -m benchmarks.prompts [TASK …] [--length 4096] [--n 16] [--model embedded-llama]

Rows are made and written for the length with the model's tokenizer, without the cached rows of
earlier runs. It uses the processor time of this one process, the best of three rounds, with one
thread of the tokenizer, as in the processes of a cell; the goal is 50 a second at 4,096 tokens.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from bench.execution.cell_run import CHILD_ENVIRONMENT
from bench.models.checkpoints import load_tokenizer
from bench.request import plugins
from bench.request.cell import task_of
from tasks.base import Data
from tasks.generated import Generated

GOAL = 50
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", help="all generated ones without it")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--n", type=int, default=16, help="prompts of a round")
    parser.add_argument("--model", default="embedded-llama", help="whose tokenizer")
    options = parser.parse_args()
    os.environ |= {"TOKENIZERS_PARALLELISM": CHILD_ENVIRONMENT["TOKENIZERS_PARALLELISM"]}
    tokenizer = load_tokenizer(Path(plugins.conf("model", options.model)["path"]))
    for name in options.tasks or generated():
        rate = prompts_per_s(name, tokenizer, options.length, options.n)
        missed = "" if rate >= GOAL or options.length != 4096 else f" (goal {GOAL}, MISSED)"
        print(f"{name:<28} {rate:6.0f} prompts/s{missed}", flush=True)


def generated() -> list[str]:
    """The generated tasks; only the first of BABILong's kinds, which differ only in their facts."""
    return [
        name
        for name, conf in plugins.usable("task").items()
        if isinstance(task_of(conf), Generated)
        and (not name.startswith("babilong") or name == "babilong_qa1")
    ]


def prompts_per_s(name: str, tokenizer: Any, length: int, n: int) -> float:
    """Rows made and written a second of processor time."""
    task, seconds = task_of(plugins.conf("task", name)), []
    for seed in range(ROUNDS):
        began = time.process_time()
        for row in task.load(Data(), n, length, seed).rows:
            task.encode(row, tokenizer, length)
        seconds.append(time.process_time() - began)
    return n / min(seconds)


if __name__ == "__main__":
    main()
