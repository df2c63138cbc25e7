"""An oracle is marked in every report, shows a ceiling, and is never ranked or recommended."""

import json

import pytest
from matplotlib.figure import Figure

from bench.status import Verdict
from reports import result_tables, results_page, ruler, ruler_scores
from reports.figures.cells import load
from reports.figures.kinds import over_parameter, pareto
from reports.oracles import is_oracle, marked
from tests.reports import made_ruler
from tests.reports.figures.made_rows import LINES, measured, store
from tests.reports.leaderboard.pages import ONE, boards, data_of, small, stored, written
from tests.reports.test_result_tables import VANILLA, cell

WITHIN = json.dumps({"budget": 0.25, "prefill": {"name": "oracle_blocks"}})


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("oracle_topk", '{"budget": 0.25, "prefill": null}', True),
        ("oracle_blocks", None, True),
        ("snapkv", WITHIN, True),
        ("snapkv", '{"budget": 0.25, "prefill": {"name": "a_shape"}}', False),
        ("snapkv", "{", False),
        ("snapkv", '["prefill"]', False),
        ("an_oracle_of_others", "{}", False),
        (None, None, False),
    ],
)
def test_a_methods_facts_say_whether_it_is_one(method, parameters, expected):
    assert is_oracle(method, parameters) is expected


def test_a_name_has_its_mark():
    assert marked("oracle_topk·0.5", {"oracle": True}) == "oracle_topk·0.5 (oracle)"
    assert marked("snapkv", {"oracle": False}) == marked("snapkv", {}) == "snapkv"


def board_rows():
    """A board's rows, and the same with an oracle that is better and cheaper than all others."""
    methods = ("vanilla", "vcc", "fourier")
    rows = [row | {"status": "ok"} for row in small(methods=methods, **ONE)]
    best = {"value": 99.0, "ci_lo": 98.5, "ci_hi": 99.5, "lat_ratio": 0.1, "lat_verdict": "faster",
            "lat_ratio_ci_lo": 0.09, "lat_ratio_ci_hi": 0.11, "mem_ratio": 0.1,
            "value_diff": 50.0, "value_diff_ci_lo": 49.0, "value_diff_ci_hi": 51.0}  # fmt: skip
    like = next(row for row in rows if row["method"] == "vcc")
    oracle = {"method": "oracle_topk", "method_params": '{"budget": 0.5}', "row_id": "o" * 32}
    return rows, [*rows, like | best | oracle]


def test_a_board_ranks_as_without_it(tmp_path):
    without, rows = board_rows()
    [plain] = boards(stored(tmp_path / "plain", without))
    [board] = boards(stored(tmp_path / "with", rows))
    ceiling = next(entry for entry in board.entries if entry.oracle)
    assert ceiling.label == "oracle_topk·0.5 (oracle)"
    assert ceiling.rank is None and ceiling.beaten == (False, False)

    def standing(entries):
        return {e.row["row_id"]: (e.rank, e.beaten) for e in entries if not e.oracle}

    assert standing(board.entries) == standing(plain.entries)
    assert None not in {rank for rank, _ in standing(board.entries).values()}
    text = written(tmp_path / "with", tmp_path / "page.html")
    assert "oracle_topk·0.5 (oracle)" in text and "<dt>Oracle</dt>" in text
    data = data_of(text)["rows"]
    at = data["label"].index(ceiling.label)
    assert data["oracle"][at] is True and not (data.get("asGood") or [None] * 9)[at]
    assert sum(one is True for one in data["oracle"]) == 1


def figure_rows(folder):
    """Caches at two budgets, oracles that are better than all caches, and vanilla."""
    rows = [measured("vanilla", 1024, **LINES)]
    settings = [("snapkv", {"budget": b, "prefill": None}, 10 / b, b) for b in (0.5, 0.25)]
    settings += [("oracle_topk", {"budget": b, "prefill": None}, 0.0, 1.0) for b in (0.5, 0.125)]
    settings += [("oracle_topp", {"p": 0.9, "prefill": None}, 0.0, 1.0)]
    for method, params, loss, ratio in settings:
        costs = dict.fromkeys(("kv_bytes_held", "kv_bytes_read_per_token"), int(ratio * 4096))
        base = dict.fromkeys(("base_kv_bytes_held", "base_kv_bytes_read_per_token"), 4096)
        ratios = dict.fromkeys(("kv_held_ratio", "kv_read_ratio"), ratio)
        method_costs = (loss, 0.03, 1e-6, 0.004, 0.0)
        more = {"params": params, "costs": method_costs, **LINES, **costs, **base, **ratios}
        rows.append(measured(method, 1024, **more))
    return load(store(folder, rows))


def test_figures_draw_it_as_a_ceiling_on_no_front(tmp_path):
    rows = figure_rows(tmp_path)
    names = {"oracle_topk·0.5", "oracle_topk·0.125", "oracle_topp·0.9"}
    assert rows.oracles == names and {rows.looks[name].color for name in names} == {"#6E6E6E"}
    drawn = pareto.plot(rows, 2, pareto.KV_READ)
    legend = [text for _, text in drawn.legend]
    assert "oracle: a ceiling" in legend and not names & set(legend)
    axes = Figure().add_subplot()
    labels = {text: x for text, x, _ in drawn.panels[0].paint(axes)}
    assert labels["oracle_topk"] == 0.125 and {"oracle_topk", "oracle_topp·0.9"} <= labels.keys()
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    curve = next(line for line in dashed if list(line.get_xdata()) == [0.125, 0.5])
    assert curve.get_color() == "#6E6E6E" and curve.get_markerfacecolor() == "white"
    (front,) = (line for line in axes.lines if line.get_linewidth() == 2.2)
    points, _ = pareto.dots(rows, rows.where(method=["vanilla", "snapkv·0.5", "snapkv·0.25"]).cells,
                            pareto.KV_READ)  # fmt: skip
    expected = sorted(p.cost.value for p in points if p.standing == "front")
    assert list(front.get_xdata()) == expected


def test_a_latency_has_no_place_for_a_budget(tmp_path):
    drawn = pareto.plot(figure_rows(tmp_path), 2, pareto.LATENCY)
    axes = Figure().add_subplot()
    labels = [text for text, _, _ in drawn.panels[0].paint(axes)]
    assert {"oracle_topk·0.5", "oracle_topk·0.125", "oracle_topp·0.9"} <= {*labels}
    across = [line for line in axes.lines if list(line.get_xdata()) == [0, 1]]
    assert len([line for line in across if line.get_linestyle() == "--"]) == 3


def test_no_figure_is_drawn_of_oracles_and_vanilla_alone(tmp_path):
    rows = figure_rows(tmp_path)
    alone = rows.where(method=["vanilla", *rows.oracles])
    assert pareto.plot(alone, 2, pareto.KV_READ) is None
    assert over_parameter.models(rows, 2, over_parameter.HELD) is None, "one model"


def test_equal_bytes_leave_it_out(tmp_path):
    folder = tmp_path / "rows"
    held = {"kv_bytes_held": 1 << 20, "base_kv_bytes_held": 2 << 20}
    rows = [
        measured(method, 1024, params={"budget": 0.5}, costs=(1.0, 0.03, 1e-6, 0.004, 0.0),
                 model=model, **LINES, **held)
        for method in ("snapkv", "oracle_topk") for model in ("large", "small")
    ]  # fmt: skip
    drawn = over_parameter.models(load(store(folder, rows)), 2, over_parameter.HELD)
    labels = [text for text, _, _ in drawn.panels[0].paint(Figure().add_subplot())]
    assert labels.count("snapkv·0.5") == 2 and "oracle_topk·0.5" not in labels


def test_tables_mark_it_and_sentences_leave_it_out():
    rows = [
        cell("vanilla", **VANILLA),
        cell("snapkv·0.25"),
        cell("oracle_topk·0.25", tpot_verdict=Verdict.FASTER, oracle=True),
    ]
    [(grid, _)] = result_tables.KV.tables(rows)
    assert "oracle_topk·0.25 (oracle) (toy weights)" in {line[1] for line in grid.lines}
    (sentence,) = result_tables.kv_findings(rows)
    assert "snapkv·0.25" in sentence and "oracle" not in sentence


@pytest.mark.parametrize("relabelled", [False, True])
def test_rulers_order_ends_with_it(relabelled):
    rows = made_ruler.scores({"vanilla": [80], "snapkv": [40], "oracle_topk": [79]}, [1024])
    parameters = {"snapkv": '{"budget": 0.25}', "oracle_topk": '{"budget": 0.25}'}
    rows = [row | {"method_params": parameters.get(row["method"])} for row in rows]
    if relabelled:  # as docs/results.md does
        rows = [results_page.as_shown(row) for row in rows]
    (found,) = ruler_scores.results(rows)
    grid = ruler.against_vanilla(found)
    assert [line[0] for line in grid.lines] == ["snapkv·0.25", "oracle_topk·0.25 (oracle)"]
