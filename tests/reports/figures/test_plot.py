"""The kinds of figures, from made rows and from those of the reference."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from bench.request.plugins import ROOT
from reports.figures import published, sheet, style
from reports.figures.catalogue import figures
from reports.figures.cells import failures, load
from reports.figures.kinds import by_length, iceformer, over_parameter, pareto
from reports.figures.sheet import FORMATS, save
from reports.figures.ticks import score_axis, thousands
from reports.looks import looks
from tests.reports.figures.made_rows import COSTS, LINES, LRA, NO_BASE, failed, measured, store


@pytest.fixture(scope="module")
def reference():
    return load(ROOT / "results/reference")


def test_every_figure_is_drawn_from_the_reference_rows(tmp_path, reference):
    """Each on its own, as one that fails doesn't stop `bench plot`; one with many panels."""
    panels = {"pareto_latency": 6}
    drawn = {name: kind.draw(reference, panels.get(name, 2)) for name, kind in figures().items()}
    for number, (name, figure) in enumerate(drawn.items()):
        if figure is not None:
            save(figure, name, tmp_path, [FORMATS[number % len(FORMATS)]], "full")
    assert sum(figure is not None for figure in drawn.values()) >= 13


def test_every_kind_of_figure_is_drawn(made, tmp_path):
    rows = load(made)
    for number, (name, kind) in enumerate(figures().items()):
        drawn = kind.draw(rows, 2)
        assert drawn is not None, name
        (path,) = save(drawn, name, tmp_path, ["png"], ("full", "column")[number % 2])
        assert path.stat().st_size > 5_000


def test_hostile_names_are_drawn_as_they_are(tmp_path):
    names = ("_x$^2$", "<script>alert(1)</script>", "$\\frac{", "--><b>", "方法", "a\nb")
    rows = [
        measured(name, 512, costs=(i, 0.01 * (i + 1), 0, 0.004, 0), task="$\\bad", model="<m>")
        for i, name in enumerate(names)
    ]
    drawn = pareto.plot(load(store(tmp_path / "rows", rows)), 2, pareto.LATENCY)
    (path,) = save(drawn, "p", tmp_path, ["svg"], "full")
    assert "<script" not in path.read_text()
    ElementTree.parse(path)


def test_failures_stand_in_the_plot_and_its_legend(made):
    rows = load(made, ["length=4096", "task=narrativeqa"])
    drawn = pareto.plot(rows, 2, pareto.LATENCY)
    words = [text for _, text in drawn.legend]
    assert "out of memory" in words and "timed out" in words
    panel = next(p for p in rows.settings("length") if p["length"].iloc[0] == 4096)
    ended = failures(panel, "lat_median_ns")
    assert set(ended["method"]) == {"vanilla_eager", "bigbird"}


def test_two_models_stand_at_the_bytes_of_their_caches(tmp_path):
    rows = [
        measured(method, 1024, **LINES, model=model, kv_bytes_held=mib << 20,
                 base_kv_bytes_held=(8 if model == "large" else 2) << 20)
        for method, model, mib in (("iceformer", "large", 2), ("iceformer", "small", 1),
                                   ("vanilla", "large", 8), ("vanilla", "small", 2))
    ]  # fmt: skip
    both = load(store(tmp_path / "both", rows))
    drawn = over_parameter.models(both, 2, over_parameter.HELD)
    axes = Figure().add_subplot()
    labels = drawn.panels[0].paint(axes)
    assert sorted(x for _, x, _ in labels) == [1, 2, 2, 8]
    assert [text for _, text in drawn.legend] == ["large", "small"]
    assert over_parameter.models(both, 2, over_parameter.READ) is None, "no bytes were read"
    one = load(store(tmp_path / "one", rows[::2]))
    assert over_parameter.models(one, 2, over_parameter.HELD) is None


def test_absolute_costs_are_drawn_where_vanilla_did_not_fit(tmp_path):
    no_base = NO_BASE | {"base_value": None, "value_diff": None}
    rows = load(store(tmp_path, [measured(m, 512, **no_base) for m in ("vcc", "bigbird")]))
    (panel,) = rows.settings("length")
    points, ratio = pareto.dots(rows, panel, pareto.LATENCY)
    assert not ratio
    assert {p.method for p in points} == {"vcc", "bigbird"}
    assert "dominated" not in {p.standing for p in points}  # no pairs: the order isn't sure


def test_a_paired_difference_tells_more_than_two_scores(tmp_path):
    # The scores' intervals overlap by far; the difference on the same samples is sure.
    worse = {"value": 90.0, "ci_lo": 80.0, "ci_hi": 97.0, "base_value": 95.0,
             "base_ci_lo": 88.0, "base_ci_hi": 99.0, "value_diff": -5.0,
             "value_diff_ci_lo": -7.0, "value_diff_ci_hi": -3.0}  # fmt: skip
    slow = (0.0, 0.09, 2e-5, 0.006, 0.0)
    rows = load(store(tmp_path, [measured("mine", 512, costs=slow, **worse)]))
    points, _ = pareto.dots(rows, rows.settings("length")[0], pareto.LATENCY)
    assert {p.method: p.standing for p in points} == {"vanilla": "front", "mine": "dominated"}


def test_a_metric_that_is_better_low_turns_the_front(tmp_path):
    more = {"higher_is_better": False, "value_diff": None}
    values = {"vcc": 10.0, "bigbird": 5.0, "vanilla": 1.0}
    made = [measured(method, 512, value=value, **more) for method, value in values.items()]
    rows = load(store(tmp_path, made))
    points, _ = pareto.dots(rows, rows.settings("length")[0], pareto.LATENCY)
    assert next(p for p in points if p.method == "vanilla").standing == "front"


def test_a_latency_is_drawn_as_vanillas_times_the_paired_ratio(tmp_path):
    """The method was timed in an hour in which everything took four times as long."""
    late = {"lat_ratio": 0.9, "lat_median_ns": 10**9, "lat_base_median_ns": 11 * 10**8}
    made = [measured("vanilla", n) for n in (512, 1024)]
    made += [measured("vcc", n, **late) for n in (512, 1024)]
    rows = load(store(tmp_path, made))
    (panel,) = rows.settings()
    curves = by_length.curves(rows, panel, by_length.LATENCY)
    drawn = {curve.method: curve.cells["y"].to_numpy() for curve in curves}
    assert drawn["vcc"] == pytest.approx(0.9 * drawn["vanilla"])


def test_the_table_tells_exponent_prediction_and_crossover(made):
    rows = load(made, ["task=narrativeqa"])
    (panel,) = rows.settings()
    curves = by_length.curves(rows, panel, by_length.LATENCY)
    head, *lines = by_length.table(rows, panel, by_length.LATENCY, curves)
    assert [text for _, text in head] == ["", "exponent", "predicted 4K", "below vanilla from"]
    told = {line[0][1]: [text for _, text in line[1:]] for line in lines}
    assert [name.partition("·")[0] for name in told] == list(COSTS)  # the order of every legend
    assert told["vanilla"][2] == ""
    assert told["vanilla_eager"][2] == "not yet"
    assert told["vcc"][2].startswith("1,")
    assert told["iceformer·quantized"][2].startswith("3,")
    assert told["fourier"][2] == "≤ 512"
    assert "(2K)" in told["vanilla_eager"][1] or told["vanilla_eager"][1] == "–"


def test_what_panels_share_is_told_once_and_the_machine_in_each(tmp_path):
    rows = [measured(method, 512, threads=n, task=t)
            for method in ("vcc", "bigbird") for n, t in ((1, "a"), (2, "b"))]  # fmt: skip
    drawn = pareto.plot(load(store(tmp_path / "rows", rows)), 2, pareto.LATENCY)
    (path,) = save(drawn, "p", tmp_path, ["svg"], "full")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())
    assert sum("EPYC" in text for text in texts) == 2
    assert sum("2 threads" in text for text in texts) == 1


def test_eight_methods_of_a_panel_have_a_look_and_budgets_are_joined(tmp_path):
    names = (*COSTS, "longformer", "luna", "mra", "reformer")
    rows = [measured(name, 512, costs=(i, 0.01 * (i + 1), 0, 0.004, 0))
            for i, name in enumerate(names)]  # fmt: skip
    more = {"costs": (0, 0.001, 0, 0.004, 0)}
    rows += [measured("snapkv", 512, params={"budget": b}, **more) for b in (0.25, 0.5, 0.75)]
    found = load(store(tmp_path, rows))
    drawn = pareto.plot(found, 1, pareto.LATENCY)
    words = [text for _, text in drawn.legend]
    methods = words[: words.index("other methods")]
    assert len(methods) == style.MOST_METHODS and {"vanilla", "snapkv"} <= {*methods}
    axes = Figure().add_subplot()
    labels = drawn.panels[0].paint(axes)
    color = found.looks["snapkv·0.25"].color
    joined = [
        line for line in axes.lines if line.get_color() == color and len(line.get_xdata()) == 3
    ]
    assert len(joined) == 1 and [text for text, *_ in labels if text == "0.25"] == ["0.25"]
    assert style.OTHERS.color in {line.get_color() for line in axes.lines}


def test_an_interval_that_goes_on_ends_in_an_arrow():
    inf = float("inf")
    cases = {(0.5, 2): [], (0, 2): ["<"], (0.5, inf): [">"], (0, inf): ["<", ">"]}
    for ends, markers in cases.items():
        axes = Figure().add_subplot()
        sheet.bar(axes, ends, 1.0, (0.1, 10.0), color="black")
        assert [line.get_marker() for line in axes.lines[1:]] == markers


@pytest.mark.parametrize("width", ["full", "column"])
def test_no_text_leaves_the_figure_or_covers_another(tmp_path, monkeypatch, reference, width):
    """The figures of budgets, and of a table below the axes, of the reference rows."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    for name in ("pareto_tpot", "latency_by_length"):
        save(figures()[name].draw(reference, 3), name, tmp_path, ["svg"], width)
        figure = kept.pop()
        figure.draw_without_rendering()
        ticks = tick_labels(figure)
        boxes = [
            (text.get_text(), Text.get_window_extent(text))
            for text in figure.findobj(Text)
            if text.get_text() and text.get_rotation() == 0 and text not in ticks
        ]
        for place, (words, box) in enumerate(boxes):
            assert box.x0 > -1 and box.y0 > -1, words
            assert box.x1 < figure.bbox.width + 1 and box.y1 < figure.bbox.height + 1, words
            for other, its in boxes[:place]:
                across = min(box.x1, its.x1) - max(box.x0, its.x0)
                up = min(box.y1, its.y1) - max(box.y0, its.y0)
                assert min(across, up) < 2, (words, other)


def tick_labels(figure):
    """Also those outside the axes, which are not drawn."""
    ticks = [
        tick
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
    ]
    return {label for tick in ticks for label in (tick.label1, tick.label2)}


def test_a_pdf_is_a_vector_with_its_fonts(made, tmp_path):
    drawn = pareto.plot(load(made, ["task=narrativeqa"]), 1, pareto.LATENCY)
    (path,) = save(drawn, "p", tmp_path, ["pdf"], "column")
    content = path.read_bytes()
    assert b"/FontFile2" in content
    assert b"/Subtype /Image" not in content and b"/Type3" not in content


def test_lengths_are_said_shortly():
    assert [*map(thousands, (512, 4096, 1000, 12000))] == ["512", "4K", "1,000", "12k"]


def test_published_figures_are_ratios_of_one_table(monkeypatch):
    def cell(method, length, value):
        return published.printed.Printed(
            "vcc", "Table 2", method, "a", "runtime_encoder_ms", value, "", "base", length=length
        )

    cells = [cell("t5", 4096, 500.0), cell("vcc", 4096, 125.0), cell("vcc", 8192, 200.0),
             cell("t5", 8192, None)]  # fmt: skip
    monkeypatch.setattr(published.printed, "load_printed", {"vcc": cells}.get)
    assert published.vcc_encoder() == [(4096, 0.25)]


def test_the_best_constant_answer_is_drawn_where_a_score_is_at_chance(tmp_path):
    low = {"value": 18.0, "ci_lo": 9.0, "ci_hi": 30.0, "chance": 16.0, "at_chance": True}
    rows = [measured("vanilla", 512), measured("bigbird", 512, chance=16.0, at_chance=False)]
    drawn = pareto.plot(load(store(tmp_path / "above", rows)), 2, pareto.LATENCY)
    assert "best constant answer" not in [text for _, text in drawn.legend]
    rows = load(store(tmp_path / "at", [*rows, measured("vcc", 512, **low)]))
    drawn = pareto.plot(rows, 2, pareto.LATENCY)
    assert "best constant answer" in [text for _, text in drawn.legend]
    assert pareto.constant(rows.settings("length")[0]) == 16.0


def test_a_panel_says_with_which_weights_its_scores_were_measured(tmp_path):
    same, own = "same weights", "each trained for itself"
    rows = [measured("vanilla", 512), measured("bigbird", 512, quality_comparison=same)]
    (panel,) = pareto.plot(load(store(tmp_path / "one", rows)), 2, pareto.LATENCY).panels
    assert "scores: same weights" in panel.facts
    rows += [measured("vcc", 512, quality_comparison=own), measured("fourier", 512)]
    (panel,) = pareto.plot(load(store(tmp_path / "all", rows)), 2, pareto.LATENCY).panels
    assert panel.facts[-1] == (
        "scores: each trained for itself (vcc); same weights (bigbird); "
        "weights not recorded (fourier)"
    )


def test_tasks_of_lra_stand_in_one_panel_whatever_model_each_has(tmp_path):
    rows = [
        measured(method, 512, task=task, model=model or f"for-{task}", **LRA)
        for task in ("lra_listops", "lra_image")
        for method, model in (("vanilla", ""), ("bigbird", ""), ("vcc", ""), ("bigbird", "another"))
    ]
    figure = iceformer.lra_time(load(store(tmp_path, rows)), 2)
    (panel,) = figure.panels
    assert panel.title == ["LRA", "each task's own model"] and figure.left_out == 0
    axes = Figure().add_subplot()
    panel.paint(axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["listops", "image"]


def test_lengths_that_were_left_out_take_no_room(tmp_path):
    rows = [measured("vcc", length) for length in (512, 1024)]
    rows += [failed("vcc", 4096, "skipped"), failed("bigbird", 2048, "oom_host")]
    (panel,) = load(store(tmp_path, rows)).settings()
    assert by_length.reached(panel, by_length.LATENCY) == {512, 1024, 2048}


@pytest.mark.parametrize(("scores", "low", "high"), [([100, 100], 94, 100.5), ([20, 60], 16, 65)])
def test_scores_have_no_scale_above_what_they_can_be(scores, low, high):
    axes = Figure().add_subplot()
    axes.plot([1, 2], scores)
    score_axis(axes, percent=True)
    bottom, top = axes.get_ylim()
    assert bottom <= low and scores[1] < top <= high


def test_a_method_that_failed_has_one_mark_however_many_seeds(tmp_path):
    rows = [measured("vanilla", length) for length in (512, 2048)]
    rows += [measured("vcc", length, seed=seed) for length in (512, 2048) for seed in range(10)]
    rows += [failed("vcc", 8192, "oom_host", seed=seed) for seed in range(10)]
    found = load(store(tmp_path, rows))
    [panel] = by_length.at_lengths(found, by_length.LATENCY)[:1]
    assert by_length.ends(found, panel, by_length.LATENCY) == [("vcc", 8192, "oom_host")]


def test_no_two_methods_have_the_same_colour_and_line():
    many = looks([f"method{i}" for i in range(40)])
    lines = [(look.color, style.line(look.line)) for look in many.values()]
    assert len(set(lines)) == len(lines)


def test_bytes_held_have_a_line_for_all_tokens_in_16_bits(made):
    rows = load(made)
    drawn = pareto.plot(rows, 4, pareto.KV_HELD)
    assert "all tokens in 16 bits" in [text for _, text in drawn.legend]
    panel = rows.settings("length", having=rows.cells["kv_bytes_held"].notna())[0]
    assert pareto.in_16_bits(panel) == 0.5 / 1.25
    assert pareto.in_16_bits(panel.assign(dtype="bfloat16")) is None
    drawn = pareto.plot(rows, 4, pareto.KV_READ)
    assert "all tokens in 16 bits" not in [text for _, text in drawn.legend]
