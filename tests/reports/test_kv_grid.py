"""The table of KV caches: a line for each method, and what the lines say."""

from bench.status import Status, Verdict
from reports import kv_grid
from tests import made


def cell(method, **columns):
    given = {"value": 100.0, "base_value": 100.0, "tpot_ratio": 0.8, "tpot_verdict": Verdict.FASTER,
             "ratio": 1.1, "verdict": Verdict.SLOWER, "kv_held_ratio": 0.25, "kv_read_ratio": 0.2,
             "decode_top1_agree": 0.5, "length": 2048}  # fmt: skip
    return made.full(method=method, **given | columns)


VANILLA = {"tpot_ratio": None, "ratio": None, "tpot_ns": 2e6, "lat_median_ns": 50e6,
           "kv_bytes_held": 3 << 20, "kv_bytes_read_per_token": 1 << 20}  # fmt: skip


def test_each_method_has_a_line():
    rows = [
        cell("snapkv·0.25"),
        cell("vanilla", **VANILLA),
        cell("kivi·2", tpot_ratio=None, decode_top1_agree=None),
        cell("h2o·0.25", status=Status.ERROR),
        cell("tova·0.25", length=8192, status=Status.SKIPPED),
    ]
    grid = kv_grid.grid(rows)
    assert grid.lines[0][1] == "vanilla" and len(grid.lines) == 4
    lines = {line[1]: line[2:] for line in grid.lines}
    assert lines["vanilla"] == ("100.0", "2.00 ms", "50 ms", "3.0 MiB", "1.0 MiB", "")
    assert lines["snapkv·0.25"] == (
        "100.0",
        "×0.80 faster",
        "×1.10 slower",
        "×0.25",
        "×0.20",
        "50 %",
    )
    assert lines["kivi·2"][1] == lines["kivi·2"][5] == "–"
    assert lines["h2o·0.25"][0] == "failed"
    assert kv_grid.grid([]) is None


def test_inputs_that_are_shorter_than_the_length_are_told():
    rows = [
        cell("vanilla", **VANILLA, tokens_seen_mean=1296.6),
        cell("tova", tokens_seen_mean=2040),
    ]
    assert [line[0] for line in kv_grid.grid(rows).lines] == ["1,297 of 2,048", "2,048"]


def test_the_sentence_names_what_keeps_the_score():
    rows = [
        cell("vanilla", **VANILLA),
        cell("snapkv·0.25"),
        cell("h2o·0.25", value=60.0),
        cell("quest·0.25", kv_held_ratio=1.0, tpot_verdict=Verdict.UNDECIDED),
    ]
    (sentence,) = kv_grid.findings(rows)
    assert sentence == (
        "Length 2,048: within 5 points of vanilla's score are snapkv·0.25, quest·0.25; of these, "
        "less than nine tenths of vanilla's bytes hold snapkv·0.25; faster for each new token are "
        "snapkv·0.25."
    )


def test_no_sentence_where_vanilla_is_at_chance():
    low = {"value": 6.0, "base_value": 6.0, "base_ci_lo": 0.0, "chance": 0.6}
    assert not [*kv_grid.findings([cell("vanilla", **VANILLA), cell("snapkv·0.25", **low)])]
