"""Everything that needs a GPU, in one command and at most nine minutes: `make gpu`.

    make gpu                                  # rows, log and summary in results/gpu
    make gpu DEVICE=h200 OUT=DIR FROM=DIR     # continues from another folder's rows
    make gpu PIECES='frontier decoding'       # these pieces, with all the time
    make gpu DRY=1                            # without a GPU: the plan, and each cell's CPU twin
    make gpu DRY=1 SHARE=40                   # the same for every fortieth cell

The pieces (benchmarks/gpu_pieces.py) run one after the other, each in its part of the time; cells
that don't fit are listed, and the same command continues with them. Every cell is stored when it
ends, so a killed run keeps its rows. Nothing is installed and no network is used.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TextIO

from benchmarks.gpu_pieces import CONFORMANCE, CUDA_LOST, PIECES, ROWS, SUMMARY, Piece

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 540.0
DRY_SECONDS = 3600.0
ENDING_S = 15.0
"""Seconds for the end of an interrupted piece, and for the summary."""
LOOK_S = 5.0
LATEST = 1.5
"""A piece may take its part of the time multiplied by this: the first cells of a sweep always
start, and may exceed its time."""
NOT_NEEDED = ("matplotlib",)
LOG = "log.txt"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, or one that must be there: h200")
    parser.add_argument("--out", type=Path, default=None, help="results/gpu, or results/gpu-dry")
    parser.add_argument("--from", dest="earlier", type=Path, help="a folder of an earlier run")
    parser.add_argument("--pieces", nargs="+", choices=[p.name for p in PIECES], metavar="PIECE")
    parser.add_argument("--seconds", type=float, help="for all; 540, or an hour for the twins")
    parser.add_argument("--dry", action="store_true", help="plan it, and run the CPU twins")
    parser.add_argument("--share", type=int, default=1, help="every so many cells alone")
    options = parser.parse_args()
    seconds = options.seconds or (DRY_SECONDS if options.dry else SECONDS)
    end = time.monotonic() + seconds - ENDING_S
    if lacking := missing():
        print(f"gpu: {sys.executable}: {lacking}", file=sys.stderr)
        return 2
    from bench import files
    from bench.errors import RequestError

    try:
        device = None if options.dry else checked_device(options.device)
    except RequestError as wrong:
        print(f"gpu: {wrong}; make gpu DRY=1 plans it without one", file=sys.stderr)
        return 2
    out: Path = (options.out or ROOT / "results" / ("gpu-dry" if options.dry else "gpu")).resolve()
    try:
        files.check_own(out)
    except RequestError as wrong:
        print(f"gpu: {wrong}", file=sys.stderr)
        return 2
    files.record(out)
    if options.earlier:
        shutil.copytree(options.earlier, out, dirs_exist_ok=True)
    chosen = [piece for piece in PIECES if piece.name in (options.pieces or [piece.name])]
    if options.dry:
        show_plan(chosen, options.device, options.share)
    return run(chosen, out, device, end, options.share)


def missing() -> str:
    """The requirements of the project that this Python lacks, with the command that installs them;
    empty if it lacks none."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return "needs packaging, and what pyproject.toml lists"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lacking = []
    for text in project["dependencies"]:
        wanted = Requirement(text)
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            if wanted.name not in NOT_NEEDED:
                lacking.append(text)
            continue
        if not wanted.specifier.contains(found.partition("+")[0], prereleases=True):
            lacking.append(f"{text} (here {found})")
    if not lacking:
        return ""
    plain = " ".join(f"'{text.partition(' (')[0]}'" for text in lacking)
    return (
        f"needs {', '.join(lacking)}; with a network: pip download -d wheels {plain}; then here: "
        f"pip install --no-index --find-links wheels {plain}, or PYTHON=the one of an environment "
        "that has them"
    )


def checked_device(name: str) -> str:
    """The name of the device. Raises RequestError if this machine doesn't have it."""
    from bench.errors import RequestError
    from bench.request import parameters, plugins

    device = plugins.conf("device", name)
    if device["kind"] == "cpu":
        raise RequestError(f"device={name} is no GPU")
    parameters.check_device(device)
    return name


def show_plan(pieces: Sequence[Piece], device: str, share: int) -> None:
    """Every cell that would run on the GPU, with estimated seconds."""
    from bench.sweep.plan import plan

    for piece in pieces:
        if piece.name == CONFORMANCE:
            every = f"every {share}th of " if share > 1 else ""
            print(f"\n{piece.name}: {every}all methods in all families and dtypes")
            continue
        words = [*piece.overrides(device), *sharing(share)]
        planned = plan(words, elsewhere=True)
        total = sum(cell.seconds for cell in planned.cells)
        print(f"\n{piece.name}: {len(planned.cells)} cells, {total:,.0f} s by estimate")
        print(f"  bench run -m {' '.join(words)}")
        for cell in planned.cells:
            print(f"  {cell.seconds:6.0f} s  {cell.title} {cell.reason}".rstrip())
    print(flush=True)


def sharing(share: int) -> list[str]:
    return [f"shard=1/{share}"] if share > 1 else []


def run(pieces: Sequence[Piece], out: Path, device: str | None, end: float, share: int) -> int:
    """Runs the pieces until `end` (monotonic seconds), each in its part of the time that is left.
    Returns 1 if one of them failed."""
    from benchmarks import gpu_summary

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    code, left_out = 0, []
    gpu_summary.write(out)
    with open(out / LOG, "a") as log:
        try:
            for i, piece in enumerate(pieces):
                left = end - time.monotonic()
                seconds = left * piece.share / sum(other.share for other in pieces[i:])
                if seconds < LOOK_S:
                    left_out.append(piece.name)
                    continue
                print(f"{piece.name}: at most {seconds:.0f} s", flush=True)
                ended = run_piece(piece, out, device, seconds, left, share, log)
                print(f"{piece.name}: {ended}", flush=True)
                code |= ended != "ended"
        finally:
            gpu_summary.write(out)
    if left_out:
        print(f"no time was left for {', '.join(left_out)}: the same command continues")
    print((out / SUMMARY).read_text())
    print(f"{out / SUMMARY}; rows: bench results --results {out / ROWS}")
    return code


def run_piece(
    piece: Piece,
    out: Path,
    device: str | None,
    seconds: float,
    left: float,
    share: int,
    log: TextIO,
) -> str:
    """Starts the piece with a time of `seconds`. Interrupts it after `left` seconds, or before that
    after LATEST * `seconds`. Returns its outcome."""
    if piece.name == CONFORMANCE:
        kind = "cuda" if device else "cpu"
        words = ["benchmarks.gpu_conformance", "--device", kind, "--out", str(out)]
        words += ["--seconds", f"{seconds:.0f}", "--share", str(share)]
    else:
        overrides = [*piece.overrides(device), *sharing(share)]
        words = ["bench", "run", "-m", *overrides, f"results={out / ROWS}"]
        words.append(f"time={seconds:.0f}s")
    deadline = time.monotonic() + min(left, LATEST * seconds)
    while True:
        code = watched(words, out, deadline, log)
        if code != CUDA_LOST:
            return {0: "ended", None: "interrupted, as the time was over"}.get(
                code, f"ended with exit code {code}: {out / LOG}"
            )


def watched(words: Sequence[str], out: Path, deadline: float, log: TextIO) -> int | None:
    """Runs a module until it ends, and writes the summary whenever there are new rows. Returns its
    exit code; None if it was interrupted at the deadline."""
    from bench.host import linux
    from benchmarks import gpu_summary

    print(f"$ python -m {' '.join(words)}", file=log, flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    orphaned: Callable[[], None] = partial(linux.die_with_parent, os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT, stdout=log, stderr=log, env=environment,
        preexec_fn=orphaned,
    )  # fmt: skip
    stored = gpu_summary.files(out)
    try:
        while time.monotonic() < deadline:
            try:
                return process.wait(min(LOOK_S, max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                if (now := gpu_summary.files(out)) != stored:
                    stored = now
                    gpu_summary.write(out)
        return None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ENDING_S / 2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
