"""Printed scores of decoders' methods, and the direction of the board's row next to each."""

import json
from collections import Counter

import pytest

from bench.status import QualityVerdict, Status
from reports import decoder_tables
from reports.decoder_tables import Direction
from reports.papers import printed
from reports.wording import NONE
from tests import made as bench_made


def ours(method="snapkv", verdict=QualityVerdict.LOWER, **parameters):
    """A row of the board."""
    return bench_made.full(
        **decoder_tables.BOARD | {"method": f"{method}·{parameters}"},
        method_params=json.dumps(parameters), quality_verdict=verdict,
        value=50.0, base_value=100.0,
    )  # fmt: skip


def test_every_line_is_whole():
    lines = decoder_tables.load_scores()
    assert len(lines) == 64
    for line in lines:
        assert 0 < line["value"] <= 100 and 0 < line["full"] <= 100, line
        assert line["share"] is None or 0 < line["share"] <= 1, line
        assert line["bits"] in (None, 2, 4) and not (line["bits"] and line["share"]), line
        assert line["question"] in (None, "after"), line
        assert line["by"] in ("authors", "others") and line["table"] and line["budget"], line
        assert line["source"].startswith(("arXiv ", "https://github.com/")), line
        assert not line["length"] or int(line["length"]) >= 1024, line
    names = ("method", "model", "task", "length", "budget", "table", "source")
    keys = Counter(tuple(line[name] for name in names) for line in lines)
    assert [key for key, count in keys.items() if count > 1] == []
    assert f"| `decoders.csv` | {len(lines)} |" in (printed.FOLDER / "README.md").read_text()


def test_without_a_board_there_is_no_table():
    other = ours(budget=0.25) | {"length": 2048}
    assert decoder_tables.next_to_board([other]) == []
    failed = ours(budget=0.25) | {"status": Status.ERROR}
    assert decoder_tables.PRINTED.tables(decoder_tables.next_to_board([failed])) == []


@pytest.mark.parametrize(
    ("line", "row", "expected"),
    [
        ({}, {}, Direction.SAME),
        ({"value": 79.5}, {}, Direction.OTHER),
        ({"value": 79.5}, {"verdict": QualityVerdict.KEPT}, Direction.SAME),
        ({}, {"verdict": QualityVerdict.HIGHER}, Direction.OTHER),
        ({}, {"verdict": QualityVerdict.UNTELLABLE}, Direction.UNDECIDED),
        ({}, {"verdict": None}, Direction.UNDECIDED),
        ({"share": 0.05}, {}, Direction.UNDECIDED),
    ],
)
def test_a_direction_is_that_of_both_scores(line, row, expected):
    given = {"method": "snapkv", "share": 0.2, "bits": None, "value": 60.0, "full": 80.0}
    pair = given | line | {"ours": ours(**row, budget=0.25)}
    assert decoder_tables.direction(pair) == expected


def test_a_printed_score_is_next_to_the_nearest_row():
    after = [ours("kvzip", budget=0.5), ours("kvzip", budget=0.125) | {"question": "after"}]
    needle = ours("xattention", threshold=0.9) | decoder_tables.PREFILLS
    prefills = [needle, needle | {"length": 2048, "value": 95.0}]
    found = decoder_tables.next_to_board([*after, *prefills])
    rows = {line["method"]: line["ours"] for line in found}
    assert rows["kvzip"] is after[1] and rows["xattention"] is prefills[1]
    assert rows["snapkv"] is None
    [(grid, _)] = decoder_tables.PRINTED.tables(found)
    shown = {line[0]: line for line in grid.lines}
    assert shown["xattention"][5] == "95.0 % at 2,048 tokens"
    assert shown["kvzip"][3].endswith(", question after")


def test_choices_are_caches_that_keep_the_needle_with_their_cost():
    times = decoder_tables.COSTS | {"tpot_verdict": "slower"}
    board = [
        ours("kivi", QualityVerdict.KEPT, bits=4),
        ours("q8_0", QualityVerdict.KEPT, keys="q8_0"),
        ours("snapkv", QualityVerdict.LOWER, budget=0.25),
        ours("tova", QualityVerdict.KEPT, budget=0.5),
        ours("oracle_topk", QualityVerdict.KEPT, budget=0.25) | {"oracle": True},
        ours(verdict=None) | {"method": "vanilla", "value": 80.0},
    ]
    costs = [
        row | times | {"length": length, "tpot_ratio": ratio, "kv_bytes_held": held,
                       "kv_ratio_16bit": 0.25, "kv_read_ratio": 0.5, "tpot_median_ns": 7e6}
        for row, held in zip(board, (3, 5, 1, None, 1, 9), strict=True) if held
        for length, ratio in ((2048, 1.5), (8192, 1.25))
    ]  # fmt: skip
    after = board[0] | {"question": "after", "value": 40.0}
    text = [
        row | {"task": "perplexity", "value_diff": 0.002, "quality_verdict": verdict}
        for row, verdict in zip(board, (QualityVerdict.KEPT, QualityVerdict.LOWER), strict=False)
    ]
    choices = decoder_tables.choices([*board, after, *text, *costs])
    [(grid, _)] = decoder_tables.CHOICES.tables(choices)
    assert [line[0].partition("·")[0] for line in grid.lines] == ["kivi", "q8_0", "vanilla"]
    assert grid.lines[0][1:] == ["50.0", "40.0", "+0.002 ✓", "×1.25 slower", "×0.25", "×0.50"]
    assert grid.lines[1][2:4] == [NONE, "+0.002"]
    assert grid.lines[2][1:5] == ["80.0", NONE, NONE, "7 ms"]
    assert decoder_tables.choices(board) == []
