"""Heat maps: the text of each cell."""

import json

from matplotlib.figure import Figure

from bench.status import Status
from reports.figures.cells import load
from reports.figures.kinds import heat_maps
from reports.figures.sheet import save
from reports.ruler_scores import TASKS, short
from tests.reports.figures.made_rows import store, written
from tests.reports.made_ruler import failed, score, scores

# --- RULER --------------------------------------------------------------------------------------


def test_each_cell_has_its_number_or_says_why_not(tmp_path):
    rows = scores({"vanilla": [80], "snapkv": [70]}, [1024], TASKS[:11])
    rows.append(failed("snapkv", "qa_1", 1024, Status.ERROR))
    rows.append(score("vanilla", "qa_1", 1024, 0.0))
    loaded = load(store(tmp_path / "rows", rows))
    panel = loaded.cells.assign(name=[short(t) for t in loaded.cells["task"]])
    axes = Figure().subplots()
    heat_maps.paint_ruler(loaded, panel, axes)
    texts, methods, tasks = written(axes)
    hatched = {
        (int(p.get_y()), int(p.get_x())) for p in axes.patches if p.get_hatch() == heat_maps.HATCH
    }
    assert methods[0] == "vanilla" and tasks[-3:] == ["qa_1 ‡", "qa_2", "mean"]
    assert texts[0, 0] == "80" and texts[1, 0] == "70" and texts[0, 11] == "0"
    assert texts[1, 11] == "err" and (1, 12) not in texts and hatched == {(0, 12), (1, 12)}
    assert texts[0, 13] == "73*" and texts[1, 13] == "70*"


def test_a_panel_for_each_length_and_a_whole_file(tmp_path):
    folder = store(tmp_path / "rows", scores({"vanilla": [80, 60], "kivi": [70, 50]}, [1024, 2048]))
    drawn = heat_maps.ruler(load(folder), 6)
    assert [panel.title[1] for panel in drawn.panels] == ["1,024 tokens", "2,048 tokens"]
    assert heat_maps.ruler(load(folder), 1).left_out == 1
    for width in ("full", "column"):
        (path,) = save(drawn, "heatmap", tmp_path, ["svg"], width)
        assert path.stat().st_size > 5_000


def test_other_benchmarks_have_no_heat_map(tmp_path):
    rows = [row | {"benchmark": "scrolls"} for row in scores({"vanilla": [80]}, [1024])]
    assert heat_maps.ruler(load(store(tmp_path, rows)), 6) is None


# --- KV caches ----------------------------------------------------------------------------------

TASK = "niah_single_2"


def cache(method, value, verdict="lower", **parameters):
    return score(
        method, TASK, 1024, value, method_params=json.dumps(parameters), quality_verdict=verdict
    )


ROWS = [
    score("vanilla", TASK, 1024, 100.0),
    cache("snapkv", 81.25, budget=0.5),
    cache("snapkv", 25.0, budget=0.25),
    cache("kivi", 98.4, "undecided", bits=4),
    cache("kivi", 35.9, bits=2),
    cache("q8_0", 100.0, "kept", keys="q8_0", values="q8_0"),
    cache("oracle_topk", 100.0, "kept", budget=0.25),
    cache("openvino", 100.0, "kept", budget=0.25, eviction="none"),
]


def test_a_line_for_each_method_and_a_column_for_each_budget(tmp_path):
    loaded = load(store(tmp_path / "rows", ROWS))
    drawn = heat_maps.caches(loaded, 6)
    (panel,) = drawn.panels
    assert panel.title == [f"ruler_{TASK}", "embedded-llama", "1,024 tokens"]
    assert "vanilla 100.0" in panel.facts
    axes = Figure().subplots()
    panel.paint(axes)
    texts, names, columns = written(axes)
    assert names == ["q8_0", "kivi", "snapkv", "oracle_topk (oracle)"]
    assert columns == ["4 or 8 bits", "2 bits", "keeps 1/2", "keeps 1/4"]
    assert texts[1, 0] == "98.4 ✓" and texts[1, 1] == "35.9" and texts[2, 3] == "25.0"
    assert (2, 0) not in texts and len(texts) == 6
    (path,) = save(drawn, "kv_heatmap", tmp_path, ["svg"], "column")
    assert "oracle_topk" in path.read_text()


def test_two_methods_are_no_board(tmp_path):
    rows = [row for row in ROWS if row["method"] in ("vanilla", "snapkv", "kivi")]
    assert heat_maps.caches(load(store(tmp_path, rows)), 6) is None
