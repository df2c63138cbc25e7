"""A child that ends in the way that its request names."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

from bench.errors import RequestError
from bench.execution import worker
from bench.host import linux
from methods.parts.workload import Unsupported
from tasks.base import DataError


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    report("work", 0, 3)
    end = request["end"]
    if end == "raise":
        raise ArithmeticError("seven is not eight")
    if end == "unsupported":
        raise Unsupported("not with these layers")
    if end == "refuse":
        raise RequestError("no such file")
    if end == "data":
        raise DataError("row 7: its query has 300 tokens")
    if end == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if end == "exit":
        print("last words", flush=True)
        os._exit(9)
    if end == "hang":
        time.sleep(600)
    if end == "compute":
        while time.process_time() < 0.5:
            pass
    if end == "allocate":
        held = []
        while True:
            held.append(bytearray(64 << 20))
    if end == "print":
        line = b"x" * 999 + b"\n"
        for _ in range(100_000):
            sys.stdout.buffer.write(line)
    if end == "offline":
        from datasets import config
        from huggingface_hub import constants

        return {
            "hub": constants.HF_HUB_OFFLINE,
            "datasets": config.HF_DATASETS_OFFLINE,
            "cpus": linux.usable_cpus(),
        }
    if end == "look":
        return {"forked": "tests.execution.cuda_started" in sys.modules or "torch" in sys.modules}
    if end == "tell":
        report.send("note", of="é" * 100_000)
    if end == "orphan":
        subprocess.Popen(["sleep", "600"])
    return {"answer": 42}
