"""The declared tables of docs/results.md, from made rows; whole tables are in snapshots/."""

import json

import pytest

from bench.rows.store import Store
from bench.status import Status, Verdict
from reports import kv_board, lra_tables, result_tables
from reports.grids import of_one_host
from tests import made as bench_made
from tests.reports import made


def told(tables):
    """The cells of the head and of each line of some tables."""
    grids = [(grid.caption, [grid.head, *grid.lines]) for grid, _ in tables]
    return "\n".join(
        "\n".join([caption, *(" | ".join(cells) for cells in lines)]) for caption, lines in grids
    )


def test_a_table_is_of_the_host_that_measured_most_of_its_rows():
    """Rows that a budget left out don't count; for equal counts, the host that measured last
    counts."""

    def row(host: str, status: str, day: int) -> dict:
        created = f"2026-01-{day:02}T00:00:00+00:00"
        return {"host_id": host, "status": status, "created_utc": created}

    left_out = [row("one", "skipped", 9)] * 3
    found, older = [row("two", "ok", 5)] * 2, [row("three", "ok", 4)] * 2
    assert of_one_host([*left_out, *older, *found]) == found
    assert of_one_host([*found, *older, older[0]]) == [*older, older[0]]
    assert of_one_host(left_out) == []


# --- KV caches ---------------------------------------------------------------------------------


def cell(method, **columns):
    given = {"value": 100.0, "base_value": 100.0, "tpot_ratio": 0.8, "tpot_verdict": Verdict.FASTER,
             "lat_ratio": 1.1, "lat_verdict": Verdict.SLOWER, "kv_held_ratio": 0.25,
             "kv_ratio_16bit": 0.52, "kv_read_ratio": 0.2,
             "decode_top1_agree": 0.5, "length": 2048, "experiment": "kv"}  # fmt: skip
    return bench_made.full(method=method, **given | columns)


VANILLA = {"tpot_ratio": None, "lat_ratio": None, "tpot_median_ns": 2e6, "lat_median_ns": 50e6,
           "kv_bytes_held": 3 << 20, "kv_bytes_read_per_token": 1 << 20}  # fmt: skip


def test_each_cache_has_a_line(snapshot):
    rows = [
        cell("snapkv·0.25", tokens_seen_mean=1296.6),
        cell("vanilla", **VANILLA),
        cell("kivi·2", tpot_ratio=None, decode_top1_agree=None),
        cell("h2o·0.25", status=Status.ERROR),
        cell("tova·0.25", length=8192, status=Status.SKIPPED),
    ]
    snapshot("caches", told(result_tables.KV.tables(rows)))
    assert result_tables.KV.tables([]) == []


@pytest.mark.parametrize(
    ("method", "parameters", "name", "kept"),
    [
        ("snapkv·0.25", {"budget": 0.25}, "snapkv", "keeps 1/4"),
        ("snapkv·64MiB", {"budget": "64MiB"}, "snapkv", "keeps 64MiB"),
        ("q4_0·q4_0", {"keys": "q4_0", "values": "q4_0"}, "q4_0", "4 or 8 bits"),
        ("kvpress·CURPress·0.75", {"press": "CURPress", "compression_ratio": 0.75},
         "kvpress·CURPress", "keeps 1/4"),
    ],
)  # fmt: skip
def test_a_line_of_the_board_is_a_cache_and_a_column_what_it_keeps(method, parameters, name, kept):
    row = cell(method, method_params=json.dumps(parameters), experiment="kv_board",
               n_scored=64, quality_verdict=None)  # fmt: skip
    [(grid, _)] = kv_board.BOARD.tables([row])
    assert (grid.head, grid.lines) == (["method", kept], [[name, "100.0 ✓"]])


def test_the_sentence_rests_on_pretrained_weights_where_there_are_some():
    real = {"weights_kind": "pretrained-swap", "model": "smollm2"}
    rows = [cell("snapkv·0.25"), cell("tova·0.25", **real)]
    (sentence,) = result_tables.kv_findings(rows)
    assert "vanilla's score are tova·0.25;" in sentence and "snapkv" not in sentence


def test_no_sentence_where_vanilla_is_at_chance():
    low = {"value": 6.0, "base_value": 6.0, "base_ci_lo": 0.0, "chance": 0.6}
    rows = [cell("vanilla", **VANILLA), cell("snapkv·0.25", **low)]
    assert not [*result_tables.kv_findings(rows)]


# --- LRA ---------------------------------------------------------------------------------------


def row_of(**changes):
    [row] = made.rows(tasks=("lra_text",), lengths=(256,), devices=("cpu",), methods=("vanilla",),
                      kinds=(("local", "finetuned"),))  # fmt: skip
    own = {"weights_kind": "from-scratch", "recipe": "lra_small_text", "at_chance": False}
    return {**row, **own, "status": "ok", "quality_verdict": None, **changes}


def seeds(method, *values, **changes):
    key = f"{method}{changes}"
    return [
        row_of(method=method, seed=seed, value=value, cell_key=f"{key}{seed}", **changes)
        for seed, value in enumerate(values)
    ]


def test_scores_are_means_over_seeds(tmp_path, snapshot):
    rows = [
        *seeds("vanilla", 80.0, 82.0),
        *seeds("luna", 50.0, at_chance=True),
        *seeds("linformer", 80.0),
        row_of(method="linformer", seed=1, value=50.0, cell_key="linformer1", at_chance=True),
        *seeds("mra", 70.0, weights_kind="pretrained-swap"),
        *seeds("vcc", 99.0, recipe="lra_text"),
    ]
    Store(tmp_path).append({**row, "row_id": row["cell_key"]} for row in rows)
    records = lra_tables.seeds(Store(tmp_path).rows().to_pylist())
    snapshot("lra_scores", told(lra_tables.SCORES.tables(records)))


def test_several_seeds_widen_the_verdict_on_what_was_trained_for_itself():
    own = {"task": "lra_listops", "recipe": "lra_listops", "length": 2000, "method": "linformer"}
    own |= {"data_source": "embedded", "value": 36.0, "base_value": 39.0}
    own |= {"quality_comparison": "each trained for itself", "training": None}
    own |= {"ci_lo": 34.0, "ci_hi": 38.0}
    own |= {"value_diff_ci_lo": -4.0, "value_diff_ci_hi": -2.0}
    rows = [
        row_of(**own, seed=seed, cell_key=str(seed), row_id=str(seed), value_diff=difference)
        for seed, difference in enumerate((-3.0, -2.0, -4.0))
    ]
    [(grid, _)] = lra_tables.PUBLISHED.tables(lra_tables.at_published_length(rows))
    column = grid.head.index("difference from vanilla")
    assert {line[column].split(") ")[1] for line in grid.lines} == {"undecided, seeds ± 1.0"}
