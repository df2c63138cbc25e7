"""The numbers that the papers print (reports/published/*.csv), and their format."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown

FOLDER = Path(__file__).parents[1] / "published"
PAPERS = ("vcc", "iceformer", "fourier", "bigbird", "lra")
PARAMETERS = re.compile(r"\d+[MB]")
"""A number of parameters, which stands where no size is printed."""
ROUNDING = re.compile(r"-?\d+(?:\.(\d+))?")
IN_KEY = ("k", "h", "recall")
"""Entries of `extra` that distinguish two cells of one table."""


@dataclass(frozen=True)
class Printed:
    """One cell as a paper prints it. `value` is None where it prints text such as FAIL, explained
    by `meaning`. `margin` is the largest distance of the true value from the printed one: half of
    its last digit, or the error of reading a plot."""

    paper: str
    table: str
    method: str
    task: str
    metric: str
    value: float | None
    text: str
    model_size: str = ""
    params: str = ""
    length: int | None = None
    unit: str = ""
    hardware: str = ""
    split: str = ""
    source: str = ""
    margin: float = 0.0
    meaning: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def approximate(self) -> bool:
        """Whether the value was read from a plot."""
        return self.source == "plot"


def load_printed(paper: str, folder: Path = FOLDER) -> list[Printed]:
    """The cells of one paper in the order of its file; after the numbers, text such as FAIL.

    Raises RequestError for an unknown paper, and for an unreadable cell, with its location.
    """
    if paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    numbers = _cells(folder / f"{paper}.csv", _number_cell)
    texts = _cells(folder / "non_numeric_cells.csv", _text_cell)
    return numbers + [cell for cell in texts if cell.paper == paper]


def _cells(path: Path, read: Callable[[dict[str, str]], dict[str, Any]]) -> list[Printed]:
    """The cells of a file; `read` gives the fields that aren't columns."""
    cells = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        for record in reader:
            try:
                own = read(record)
                length = int(record["length"]) if record["length"] else None
                cells.append(Printed(**{**record, **own, "length": length}))
            except (KeyError, TypeError, ValueError) as error:
                where = f"published/{path.name}:{reader.line_num}"
                raise RequestError(f"{where}: {error}") from error
    return cells


def _number_cell(record: dict[str, str]) -> dict[str, Any]:
    value, extra = record["value"], json.loads(record["extra"] or "{}")
    margin = _margin(record, extra)
    return {"value": float(value), "text": value, "extra": extra, "margin": margin}


def _text_cell(record: dict[str, str]) -> dict[str, Any]:
    """A cell in which a paper prints text, such as FAIL, instead of a number."""
    own = {"value": None, "text": record.pop("printed")}
    size = record["model_size"]
    return own | {"model_size": "", "params": size} if PARAMETERS.fullmatch(size) else own


def _margin(record: Mapping[str, str], extra: Mapping[str, Any]) -> float:
    if record["source"] != "plot":
        digits = ROUNDING.fullmatch(record["value"].strip())
        return 0.5 * 10.0 ** -len(digits[1] or "") if digits else 0.0
    if "uncertainty" in extra:
        return float(extra["uncertainty"])
    return float(extra["uncertainty_rel"]) * float(record["value"])


METRICS = {
    "runtime_total_ms": "runtime, total",
    "runtime_encoder_ms": "runtime, encoder",
    "runtime_vcc_layers_ms": "runtime, VCC layers",
    "attention_time_s": "time in attention",
    "speed_ratio": "speed",
    "memory_ratio": "peak memory",
    "steps_per_second": "steps per second",
    "peak_memory_gb": "peak memory",
    "relative_score": "score kept",
    "zeroscrolls_score": "score",
    "output_error": "output error",
    "em": "EM", "f1": "F1", "auc": "AUC", "mcc": "MCC", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "f1_ans": "F1, answer", "f1_sup": "F1, support",
    "f1_joint": "F1, joint", "f1_long": "F1, long", "f1_short": "F1, short",
    "f1_full": "F1, full", "f1_verified": "F1, verified",
}  # fmt: skip
UNITS = {"%": "", "points": "", "x vanilla": "× vanilla", "% of vanilla": " % of vanilla"}


def metric_name(metric: str) -> str:
    return METRICS.get(metric, metric)


def printed_text(printed: Printed) -> str:
    """The printed value with its unit, as printed; from a plot, with the readable precision."""
    if printed.value is None:
        return printed.text
    unit = UNITS.get(printed.unit, f" {printed.unit}")
    about = "≈ " if printed.approximate else ""
    long = printed.approximate and len(printed.text) > 5
    return f"{about}{f'{printed.value:.3g}' if long else printed.text}{unit}"
