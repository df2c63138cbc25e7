"""The published numbers: all are read, and every cell has known names, its unit and its range."""

import csv
import re
import shutil
from collections import Counter
from typing import NamedTuple

import pytest

from bench.errors import RequestError
from reports.papers import printed

CELLS = {"vcc": 589, "iceformer": 231, "fourier": 165, "bigbird": 361, "lra": 274}


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
SPLITS = ("", "train", "validation", "dev", "heldout", "test")
NAME = re.compile(r"[a-z0-9][a-zA-Z0-9_.]*")
SIZE = re.compile(r"[a-z0-9][a-z0-9.\-]*|")


def records(name):
    """(column → text, ...) of each line of a published file; each line has every column."""
    with (printed.FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        head, *lines = list(csv.reader(file, strict=True))
    assert lines and all(len(line) == len(head) for line in lines)
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_a_cell_off_a_plot_is_approximate_and_a_printed_one_is_not():
    cells = printed.load_printed("iceformer")
    plotted = [cell for cell in cells if cell.table == "Table 1" and cell.value is not None]
    assert plotted and all(cell.approximate for cell in plotted)
    secondary = next(cell for cell in cells if cell.table == "Table 3")
    assert not secondary.approximate and secondary.margin == pytest.approx(0.05)


def test_words_are_cells_without_a_number():
    failed = [cell for cell in printed.load_printed("lra") if cell.text == "FAIL"]
    assert failed and all(cell.value is None and cell.meaning for cell in failed)


@pytest.mark.parametrize("paper", printed.PAPERS)
def test_every_cell_is_read_once_with_known_names_and_a_value_in_the_range_of_its_unit(paper):
    cells = printed.load_printed(paper)
    keys = Counter(
        (c.table, c.method, c.model_size, c.length, c.task, c.metric, c.split,
         *map(c.extra.get, printed.IN_KEY))
        for c in cells if c.value is not None
    )  # fmt: skip
    assert keys.total() == CELLS[paper] and set(keys.values()) == {1}
    for cell in cells:
        unit = METRICS[cell.metric]
        assert (cell.paper, cell.unit) == (paper, unit.name), cell
        assert cell.value is None or (unit.lo <= cell.value <= unit.hi and cell.margin > 0), cell
        assert NAME.fullmatch(cell.method) and NAME.fullmatch(cell.task), cell
        assert SIZE.fullmatch(cell.model_size) and cell.split in SPLITS, cell
        assert cell.length is None or 1 <= cell.length <= 1 << 22, cell
        assert cell.table.strip() and cell.source.strip() and isinstance(cell.extra, dict), cell


def test_a_cell_that_is_not_readable_is_named_with_its_place(tmp_path):
    folder = shutil.copytree(printed.FOLDER, tmp_path / "published")
    text = (folder / "vcc.csv").read_text().replace(",4096,", ",4K,", 1)
    (folder / "vcc.csv").write_text(text)
    with pytest.raises(RequestError, match=r"published/vcc.csv:\d+: .*'4K'"):
        printed.load_printed("vcc", folder)


def test_an_unknown_paper_has_its_nearest_name():
    with pytest.raises(RequestError, match="Did you mean iceformer"):
        printed.load_printed("icformer")


@pytest.mark.parametrize(
    "name",
    [*printed.PAPERS, "non_numeric_cells", "hyperparameters", "dataset_lengths", "claims"],
)
def test_every_file_is_whole(name):
    assert {record["paper"] for record in records(name)} <= set(printed.PAPERS)


TWO_DECIMALS = {
    "lra": ("README leaderboard", "Table 1", "Table 3"),
    "fourier": ("Table 1",),
    "bigbird": ("Table 4", "Table 20"),
}


@pytest.mark.parametrize("paper", TWO_DECIMALS)
def test_a_digit_that_a_paper_prints_is_kept_though_it_is_a_zero(paper):
    """35.70 lies between 35.695 and 35.705, 35.7 between 35.65 and 35.75."""
    cells = [c for c in printed.load_printed(paper) if c.table in TWO_DECIMALS[paper]]
    assert {c.margin for c in cells if c.value is not None} == {0.5 * 10.0**-2}
    if paper == "lra":
        [linformer, *_] = [c for c in cells if (c.method, c.task) == ("linformer", "listops")]
        assert linformer.text == "35.70"
