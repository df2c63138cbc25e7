"""The heat map of RULER's scores: what stands in each cell."""

from matplotlib.figure import Figure

from bench.status import Status
from reports.figures.cells import load
from reports.figures.kinds import heat_maps
from reports.figures.sheet import save
from reports.ruler import TASKS, short
from tests.reports.figures.made_rows import store, written
from tests.reports.made_ruler import failed, score, scores


def test_each_cell_has_its_number_or_says_why_not(tmp_path):
    rows = scores({"vanilla": [80], "snapkv": [70]}, [1024], TASKS[:11])
    rows.append(failed("snapkv", "qa_1", 1024, Status.ERROR))
    rows.append(score("vanilla", "qa_1", 1024, 0.0))
    loaded = load(store(tmp_path / "rows", rows))
    panel = loaded.cells.assign(name=[short(t) for t in loaded.cells["task"]])
    axes = Figure().subplots()
    heat_maps._paint_ruler(loaded, panel, axes)
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
