"""`make wheel` and `make wheel-test`: build the distributions, and try them in empty environments.

    python -m tools.wheel_test build     # sdist, wheel, the wheel of other shipped models
    python -m tools.wheel_test try       # with the newest dependencies, then with the lowest
    python -m tools.wheel_test try --resolution lowest-direct --with 'torch==2.13.0+cpu'

`try` installs the wheel into a new environment, runs cells from an empty folder, and removes both.
The lowest torch from PyPI is a CUDA build of some GB: `--with` gives another one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
MODELS = ROOT / "tools" / "embedded"
MOST_BYTES = 12_000_000
"""Size limit of the wheel and of the sdist; further shipped models are in a separate wheel."""
STRAY = ("tests/", "results/", "benchmarks/", ".parquet", ".jsonl", ".pyc", "shared/")
"""Parts of names that must not be in a distribution."""
RESOLUTIONS = ("highest", "lowest-direct")
CELLS = (
    ["run", "method=vcc", "length=512", "n=2", "threads=1", "measure=quality"],
    ["run", "method=bigbird", "task=ruler_niah_single_1", "length=512", "n=2", "threads=1",
     "measure=glance", "model=embedded"],
)  # fmt: skip
"""Commands that are run from the wheel; the second needs the wheel of other models."""


def build() -> list[str]:
    """Builds the distributions into dist/. Returns their faults."""
    shutil.rmtree(DIST, ignore_errors=True)
    for folder, targets in ((ROOT, ("sdist", "wheel")), (MODELS, ("wheel",))):
        words = [word for target in targets for word in ("--target", target)]
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(DIST), *words]
        subprocess.run(command, cwd=folder, check=True)
    return [fault for path in sorted(DIST.iterdir()) for fault in faults(path)]


def faults(path: Path) -> Iterator[str]:
    """Faults of a distribution: its size, stray files, and paths of this machine."""
    size = path.stat().st_size
    if size > MOST_BYTES and "models" not in path.name:
        yield f"{path.name}: {size:,} bytes; at most {MOST_BYTES:,}"
    here = {str(ROOT).encode(), f"{Path.home()}/".encode()}
    for name, content in contents(path):
        if any(part in name for part in STRAY):
            yield f"{path.name}: {name} doesn't belong there"
        if found := [each.decode() for each in here if each in content]:
            yield f"{path.name}: {name} contains {found[0]}"


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if file := archive.extractfile(member):
                yield member.name, file.read()


def tried(resolution: str, extra: Sequence[str]) -> None:
    """Installs the wheel with this resolution of its dependencies, and runs it. Raises
    CalledProcessError when a step fails."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("BENCH_", "PYTHON", "VIRTUAL"))
    }
    clean["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    clean.setdefault("UV_FIND_LINKS", ",".join(pip_setting("find-links")))
    clean.setdefault("UV_EXTRA_INDEX_URL", " ".join(pip_setting("extra-index-url")))
    with tempfile.TemporaryDirectory() as place:
        python = f"{place}/venv/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{place}/venv"], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python, "--resolution", resolution]
        [wheel] = DIST.glob("longctx_bench-*.whl")
        # Named here too: for indirect requirements uv takes the newest version.
        direct = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        subprocess.run([*install, str(wheel), *direct, *extra], env=clean, check=True)
        elsewhere = Path(place, "elsewhere")
        elsewhere.mkdir()
        clean["PATH"] = f"{place}/venv/bin:{clean['PATH']}"
        clean["XDG_CACHE_HOME"] = f"{place}/cache"
        bench = [f"{place}/venv/bin/bench"]
        for words in (["--version"], ["ls", "tasks"], CELLS[0]):
            subprocess.run([*bench, *words], cwd=elsewhere, env=clean, check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
        [models] = DIST.glob("longctx_bench_models-*.whl")
        subprocess.run([*install, "--no-deps", str(models)], env=clean, check=True)
        subprocess.run([*bench, *CELLS[1]], cwd=elsewhere, env=clean, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        rows = list(elsewhere.glob("results/runs/*.parquet"))
        if len(rows) != len(CELLS):
            raise SystemExit(f"{len(rows)} rows in {elsewhere}, not {len(CELLS)}")
        shown = [uv, "pip", "freeze", "--python", python]
        frozen = subprocess.run(shown, env=clean, check=True, capture_output=True, text=True).stdout
        main = ("torch", "transformers", "numpy", "pandas", "pyarrow", "datasets", "hydra-core")
        found = [line for line in frozen.splitlines() if line.partition("==")[0] in main]
    print(f"{resolution}, Python {sys.version.split()[0]}: runs; {', '.join(found)}")


def pip_setting(name: str) -> list[str]:
    """The values of one of pip's settings, which uv doesn't read."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    found = [line.partition("=") for line in listed]
    values = (value.strip("'").split() for key, _, value in found if key.endswith(f".{name}"))
    return list(dict.fromkeys(word for value in values for word in value))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=("build", "try"))
    parser.add_argument("--resolution", choices=RESOLUTIONS, action="append")
    parser.add_argument("--with", dest="extra", action="append", default=[], metavar="REQUIREMENT")
    given = parser.parse_args()
    if given.step == "build":
        sys.exit("\n".join(build()) or None)
    if not any(DIST.glob("longctx_bench-*.whl")):
        sys.exit("no wheel in dist; make wheel builds one")
    for resolution in given.resolution or RESOLUTIONS:
        tried(resolution, given.extra)


if __name__ == "__main__":
    main()
