"""`bench ls tasks`: every task by benchmark, as its YAML has it. None is imported: it is quick."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAD = ("task", "n: train / dev / test", "tokens", "metric", "rows from", "licence")
RIGHT = (1, 2)
SPLITS = ("train", "validation", "test")
ALONE = "benchmarks of one task"
NOTE = """\
n is what the benchmark says of itself; tokens the length that it is measured at: a run reads 4,096
unless length=… says so. Embedded rows are always there; local rows are read with data=local
data.dir=FOLDER, those of the hub with data=hub after `bench fetch TASK`. hub? is one whose commit
and files nobody has checked yet: `bench fetch --probe` does. What each task is says `bench ls`."""


def table(files: Mapping[str, Path]) -> str:
    """One line a task under a line for each benchmark, at most 120 columns wide."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, path in files.items():
        conf = _read(path)
        benchmark = str(conf.get("benchmark", name))
        found.setdefault(ALONE if benchmark == name else benchmark, []).append(_line(name, conf))
    lines = [line for group in found.values() for line in group]
    widths = [max(map(len, column)) for column in zip(HEAD, *lines, strict=True)]
    said = [_joined(HEAD, widths)]
    for benchmark, group in sorted(found.items(), key=lambda one: (one[0] == ALONE, one[0])):
        said += ["", benchmark, *(_joined(line, widths) for line in group)]
    return "\n".join([*said, "", NOTE])


def _line(name: str, conf: Mapping[str, Any]) -> tuple[str, ...]:
    n, hub = conf.get("n") or {}, conf.get("hub") or {}
    sources = []
    if conf.get("files") or conf.get("member"):
        sources.append("local")
    if hub:
        sources.append("hub?" if hub.get("unverified") else "hub")
    return (
        f"  {name}",
        " / ".join(f"{n[split]:,}" if split in n else "–" for split in SPLITS),
        f"{conf.get('length', 0):,}",
        str(conf.get("metric", "–")),
        " ".join(sources) or "embedded",
        str(conf.get("licence") or "–"),
    )


def _joined(line: tuple[str, ...], widths: list[int]) -> str:
    cells = zip(line, widths, strict=True)
    return "  ".join(
        f"{cell:>{width}}" if at in RIGHT else f"{cell:<{width}}"
        for at, (cell, width) in enumerate(cells)
    ).rstrip()


def _read(path: Path) -> dict[str, Any]:
    import yaml

    # libyaml's loader, where it is there, is ten times as quick.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    conf: dict[str, Any] = yaml.load(path.read_text(), loader) or {}
    return conf
