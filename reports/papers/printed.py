"""The numbers that the papers print: reports/published/*.csv, each cell validated on reading."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import RequestError, unknown

FOLDER = Path(__file__).parents[1] / "published"
PAPERS = ("vcc", "iceformer", "fourier", "bigbird", "lra")
COLUMNS = (
    "paper", "table", "method", "model_size", "params", "length", "task", "metric", "value",
    "unit", "hardware", "split", "extra", "source",
)  # fmt: skip
TEXT_COLUMNS = (
    "paper", "table", "method", "model_size", "length", "task", "metric", "printed", "meaning",
    "source",
)  # fmt: skip
SPLITS = ("", "train", "validation", "dev", "heldout", "test")
NAME = re.compile(r"[a-z0-9][a-zA-Z0-9_.]*")
SIZE = re.compile(r"[a-z0-9][a-z0-9.\-]*")
PARAMETERS = re.compile(r"\d+[MB]")
ROUNDING = re.compile(r"-?\d+(?:\.(\d+))?")
IN_KEY = ("k", "h", "recall")
"""Entries of `extra` that distinguish two cells of one table."""


class Unit(NamedTuple):
    """A unit and the range that its values lie in, ends included."""

    name: str
    lo: float
    hi: float


PERCENT, OVER_VANILLA = Unit("%", 0, 100), Unit("x vanilla", 1e-3, 1e3)
METRICS = {
    **dict.fromkeys(
        ("accuracy", "auc", "em", "f1", "f1_ans", "f1_full", "f1_joint", "f1_long", "f1_short",
         "f1_sup", "f1_verified", "rouge1", "rouge2", "rougeL", "score", "mcc", "spearman"),
        PERCENT,
    ),
    **dict.fromkeys(
        ("runtime_total_ms", "runtime_encoder_ms", "runtime_vcc_layers_ms"), Unit("ms", 0.1, 1e6)
    ),
    **dict.fromkeys(("speed_ratio", "speed_ratio_max", "memory_ratio"), OVER_VANILLA),
    **dict.fromkeys(("relative_score", "relative_score_min"), Unit("% of vanilla", 0, 200)),
    **dict.fromkeys(("attention_time_s", "total_time_s"), Unit("s", 1e-5, 1e5)),
    **dict.fromkeys(("peak_memory_gb", "peak_memory_saving_gb_max"), Unit("GB", 0, 1e4)),
    "speed_ratio_vs_best_efficient": Unit("x", 1e-3, 1e3),
    "flops_ratio": Unit("x fourier_bart", 1e-3, 1e3),
    "steps_per_second": Unit("steps/s", 1e-3, 1e4),
    "bpc": Unit("bits/char", 0, 10),
    "zeroscrolls_score": Unit("points", 0, 100),
    "log_perplexity_change": Unit("log perplexity", -10, 10),
}  # fmt: skip


@dataclass(frozen=True)
class Printed:
    """One cell as a paper prints it. `value` is None where it prints text such as FAIL, explained
    by `meaning`. `margin` is how far the true value may lie from the printed one: half of its last
    digit, or the error of reading a plot. `where` is file:line."""

    paper: str
    table: str
    method: str
    model_size: str
    params: str
    length: int | None
    task: str
    metric: str
    value: float | None
    text: str
    unit: str
    hardware: str
    split: str
    source: str
    where: str
    margin: float = 0.0
    meaning: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def approximate(self) -> bool:
        """Read off a plot."""
        return self.source == "plot"

    @property
    def key(self) -> tuple[Any, ...]:
        same = (self.paper, self.table, self.method, self.model_size, self.length)
        inner = tuple(self.extra.get(name) for name in IN_KEY)
        return (*same, self.task, self.metric, self.split, *inner)


def load_printed(paper: str, folder: Path = FOLDER) -> list[Printed]:
    """The cells of one paper in the order of its file; after the numbers, text such as FAIL.

    Raises RequestError naming file, line and what was expected.
    """
    if paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    cells: list[Printed] = []
    seen: dict[tuple[Any, ...], str] = {}
    for where, record in _records(folder / f"{paper}.csv", COLUMNS):
        cell = _number_cell(where, record)
        if cell.paper != paper:
            raise _wrong(where, "paper", cell.paper, f"'{paper}'")
        if cell.key in seen:
            raise RequestError(f"published/{where}: this cell is a duplicate of {seen[cell.key]}")
        seen[cell.key] = where
        cells.append(cell)
    texts = _records(folder / "non_numeric_cells.csv", TEXT_COLUMNS)
    return cells + [
        cell for where, record in texts if (cell := _text_cell(where, record)).paper == paper
    ]


def _records(path: Path, columns: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    """(file:line, fields by column) of each line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            head = next(reader, [])
            if tuple(head) != columns:
                raise RequestError(
                    f"published/{path.name}:1: columns are {', '.join(head) or 'none'}; "
                    f"expected {', '.join(columns)}"
                )
            records = []
            for fields in reader:
                where = f"{path.name}:{reader.line_num}"
                if len(fields) != len(columns):
                    expected = f"expected {len(columns)}"
                    raise RequestError(f"published/{where}: {len(fields)} fields, {expected}")
                records.append((where, dict(zip(columns, fields, strict=True))))
            return records
    except (csv.Error, UnicodeDecodeError) as error:
        raise RequestError(f"published/{path.name}: not readable as CSV: {error}") from error
    except OSError as error:
        raise RequestError(f"can't read {path}: {error.strerror}") from error


def _number_cell(where: str, record: Mapping[str, str]) -> Printed:
    unit = _validated(where, record)
    if record["unit"] != unit.name:
        raise _wrong(where, "unit", record["unit"], f"'{unit.name}' for {record['metric']}")
    value = _number(where, record["value"])
    if not unit.lo <= value <= unit.hi:
        raise _wrong(where, "value", record["value"], f"{unit.lo:g} to {unit.hi:g} {unit.name}")
    if record["split"] not in SPLITS:
        raise _wrong(where, "split", record["split"], f"one of {', '.join(filter(None, SPLITS))}")
    extra = _extra(where, record["extra"])
    fields: dict[str, Any] = {
        **record, "value": value, "text": record["value"], "where": where, "extra": extra,
        "length": _length(where, record["length"]), "margin": _margin(where, record, extra),
    }  # fmt: skip
    return Printed(**fields)


def _text_cell(where: str, record: Mapping[str, str]) -> Printed:
    """A cell in which a paper prints text, such as FAIL, instead of a number."""
    size = record["model_size"]
    counted = bool(PARAMETERS.fullmatch(size))  # a number of parameters, where no size is printed
    record = {**record, "model_size": "" if counted else size}
    unit = _validated(where, record)
    if record["paper"] not in PAPERS:
        raise RequestError(f"published/{where}: {unknown('paper', record['paper'], PAPERS)}")
    return Printed(
        paper=record["paper"], table=record["table"], method=record["method"],
        model_size=record["model_size"], params=size if counted else "",
        length=_length(where, record["length"]), task=record["task"], metric=record["metric"],
        value=None, text=record["printed"], unit=unit.name, hardware="", split="",
        source=record["source"], where=where, meaning=record["meaning"],
    )  # fmt: skip


def _validated(where: str, record: Mapping[str, str]) -> Unit:
    """The unit of the record's metric; its names are checked on the way."""
    for name in ("method", "task"):
        if not NAME.fullmatch(record[name]):
            raise _wrong(where, name, record[name], "a name of letters, digits, '_' and '.'")
    for name in ("table", "source"):
        if not record[name].strip():
            raise _wrong(where, name, record[name], "text that is not empty")
    if record["model_size"] and not SIZE.fullmatch(record["model_size"]):
        raise _wrong(where, "model_size", record["model_size"], "a size such as base, or nothing")
    if record["metric"] not in METRICS:
        raise RequestError(f"published/{where}: {unknown('metric', record['metric'], METRICS)}")
    return METRICS[record["metric"]]


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(where, "value", text, "a number")
    return value


def _length(where: str, text: str) -> int | None:
    if text and (not text.isdecimal() or not 1 <= int(text) <= 1 << 22):
        raise _wrong(where, "length", text, "a number of tokens, or nothing")
    return int(text) if text else None


def _extra(where: str, text: str) -> dict[str, Any]:
    try:
        extra = json.loads(text or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise _wrong(where, "extra", text, "a JSON object, or nothing")
    return extra


def _margin(where: str, record: Mapping[str, str], extra: Mapping[str, Any]) -> float:
    if record["source"] != "plot":
        digits = ROUNDING.fullmatch(record["value"].strip())
        return 0.5 * 10.0 ** -len(digits[1] or "") if digits else 0.0
    for name, scale in (("uncertainty", 1.0), ("uncertainty_rel", float(record["value"]))):
        error = extra.get(name)
        if isinstance(error, int | float) and not isinstance(error, bool) and error >= 0:
            return float(error) * scale
    raise _wrong(where, "extra.uncertainty", str(error), "a number, as it's off a plot")


def _wrong(where: str, name: str, given: str, expected: str) -> RequestError:
    return RequestError(f"published/{where}: {name} is '{given:.60}', expected {expected}")
