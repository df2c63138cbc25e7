"""The heat map of KV caches: methods by what they keep."""

import json

from matplotlib.figure import Figure

from reports.figures.cells import load
from reports.figures.kinds import heat_maps
from reports.figures.sheet import save
from tests.reports.figures.made_rows import store, written
from tests.reports.made_ruler import score

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
