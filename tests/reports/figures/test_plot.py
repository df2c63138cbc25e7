"""bench plot: every kind of figure from made rows, files, and what it says when it can't."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from bench.cli.main import main
from bench.request.plugins import ROOT
from bench.store.store import Store
from reports.figures import published, style
from reports.figures.catalogue import figures
from reports.figures.cells import load
from reports.figures.command import plot
from reports.figures.kinds import by_length, iso_cost, lra, pareto
from reports.figures.sheet import FORMATS, save
from reports.figures.ticks import score_axis, thousands
from reports.looks import looks
from tests.reports.figures.made_rows import COSTS, failed, frontier, measured, store
from tests.reports.made_ruler import scores

LRA = {"benchmark": "lra", "weights_kind": "from-scratch", "metric": "accuracy"}
STUDIES = {
    "recall": (
        "host_id,cpu_model,threads,data,metric,keys,queries,dims,k,search,parameters,total_ns,"
        "total_min_ns,total_max_ns,recall\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,topk,{},1000,900,1100,1.0\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,dci,\"{'k0': 1}\",500,400,600,0.5\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,zzz,{},700,600,800,0.8\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,broken,{},,,,\n"
    ),
    "spectrum": (
        "model,weights_kind,weights_sha256,task,dataset_sha256,length,rows,tokens_mean,layer,"
        "frequency,power\n"
        + "".join(
            f"t5,embedded,e,narrativeqa,d,512,4,500,{layer},{0.125 + i / 4},{1.5 - i * layer / 4}\n"
            for layer in range(3)
            for i in range(2)
        )
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Rows that every kind of figure finds something in."""
    folder = tmp_path_factory.mktemp("rows")
    rows = frontier(lengths=(512, 1024, 2048, 4096))
    for task in ("lra_listops", "lra_image"):
        rows += [measured(m, 1024, task=task, **LRA) for m in ("vanilla", "bigbird")]
        rows += [measured("iceformer", 1024, params={"k": k}, task=task, **LRA) for k in (3, 10)]
    for length in (1024, 2048):
        where = {"task": "longeval_lines", "benchmark": "longeval", "metric": "accuracy"}
        kv = {"kv_bytes_held": 1 << 20, "kv_bytes_read_per_token": 1 << 19, "tpot_ns": 10**6}
        base = {f"base_{name}": 2 * cost for name, cost in kv.items()}
        ends = {"tpot_ratio_ci_lo": 0.45, "tpot_ratio_ci_hi": 0.55}
        ratios = dict.fromkeys(("kv_held_ratio", "kv_read_ratio", "tpot_ratio"), 0.5)
        rows.append(measured("vanilla", length, **where))
        for model in ("embedded", "larger"):
            costs = {**kv, **base, **ends, **ratios, "model": model}
            rows.append(measured("iceformer", length, **where, **costs))
    for r in (0.2, 0.5, 1.0):
        told = {"task": "eli5", "metric": "rougeL", "metrics": json.dumps({"rouge1": 40 * r})}
        rows.append(measured("fourier", 512, params={"r": r}, **told))
    store(folder, rows + scores({"vanilla": [80], "snapkv": [70]}, [1024]))
    (folder / "studies").mkdir()
    for name, text in STUDIES.items():
        (folder / "studies" / f"{name}-1.csv").write_text(text)
    return folder


def test_every_figure_is_drawn_from_the_reference_rows(tmp_path):
    """Each on its own, as one that fails doesn't stop `bench plot`."""
    rows = load(ROOT / "results/reference")
    drawn = {name: kind.draw(rows, 6) for name, kind in figures().items()}
    for number, (name, figure) in enumerate(drawn.items()):
        if figure is not None:
            save(figure, name, tmp_path, [FORMATS[number % len(FORMATS)]], "full")
    assert sum(figure is not None for figure in drawn.values()) >= 13


def test_a_figure_that_fails_is_named_and_the_others_are_drawn(made, tmp_path, capsys, monkeypatch):
    def fail(rows, most):
        raise TypeError("'<' not supported")

    known = figures()
    monkeypatch.setitem(known, "fidelity_speed", known["fidelity_speed"]._replace(draw=fail))
    monkeypatch.setattr("reports.figures.command.figures", lambda: known)
    code, error = run(capsys, "--results", made, "--out", tmp_path, "--format", "svg")
    assert code == 1
    assert "fidelity_speed: TypeError: '<' not supported" in error
    assert len(list(tmp_path.glob("*.svg"))) == len(known) - 1


def test_versions_are_compared_among_rows_of_one_composition(tmp_path, capsys):
    """A method with another within it has the code of both, so that its version is another."""
    part = {"prefill": {"name": "vertical_slash", "target": "methods.x:VerticalSlash"}}
    costs = COSTS["iceformer"]
    plain = measured("snapkv", 512, method_version="plain", costs=costs)
    within = measured("snapkv", 512, method_version="with", params=part, costs=costs)
    folder = store(tmp_path, [plain, within | {"created_utc": "2027-01-01T00:00:00+00:00"}])
    rows = load(folder)
    assert len(rows.cells[rows.cells["method"].str.contains("snapkv")]) == 2
    assert not rows.warnings


def test_every_kind_of_figure_is_drawn(made, tmp_path):
    rows = load(made)
    for number, (name, kind) in enumerate(figures().items()):
        drawn = kind.draw(rows, 2)
        assert drawn is not None, name
        (path,) = save(drawn, name, tmp_path, ["png"], ("full", "column")[number % 2])
        assert path.stat().st_size > 5_000


def test_all_formats_are_whole_and_the_same_each_time(made, tmp_path, capsys):
    for folder in ("a", "b"):
        words = ["pareto_latency", "task=narrativeqa", "length=512", "--results", str(made)]
        words += ["--out", str(tmp_path / folder)]
        assert plot(words) == 0
    for form in ("png", "svg", "pdf"):
        first, second = (tmp_path / f / f"pareto_latency.{form}" for f in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    ElementTree.parse(tmp_path / "a" / "pareto_latency.svg")
    assert "pareto_latency.png, .svg, .pdf" in capsys.readouterr().out


def test_hostile_names_are_drawn_as_they_are(tmp_path):
    names = ("_x$^2$", "<script>alert(1)</script>", "$\\frac{", "--><b>", "方法", "a\nb")
    rows = [
        measured(name, 512, costs=(i, 0.01 * (i + 1), 0, 0.004, 0), task="$\\bad", model="<m>")
        for i, name in enumerate(names)
    ]
    drawn = pareto.latency(load(store(tmp_path / "rows", rows)), 2)
    (path,) = save(drawn, "p", tmp_path, ["svg"], "full")
    assert "<script" not in path.read_text()
    ElementTree.parse(path)


def test_failures_stand_in_the_plot_and_its_legend(made):
    rows = load(made, ["length=4096", "task=narrativeqa"])
    drawn = pareto.latency(rows, 2)
    words = [text for _, text in drawn.legend]
    assert "out of memory" in words and "timed out" in words
    panel = next(p for p in rows.settings("length") if p["length"].iloc[0] == 4096)
    ended = pareto.failures(panel, pareto.LATENCY)
    assert set(ended["method"]) == {"vanilla_eager", "bigbird"}


def test_two_models_stand_at_the_bytes_of_their_caches(tmp_path):
    where = {"task": "longeval_lines", "benchmark": "longeval", "metric": "accuracy"}
    rows = [
        measured(method, 1024, **where, model=model, kv_bytes_held=mib << 20,
                 base_kv_bytes_held=(8 if model == "large" else 2) << 20)
        for method, model, mib in (("iceformer", "large", 2), ("iceformer", "small", 1),
                                   ("vanilla", "large", 8), ("vanilla", "small", 2))
    ]  # fmt: skip
    both = load(store(tmp_path / "both", rows))
    (panel,) = iso_cost.panels(both, iso_cost.HELD)
    assert sorted(panel["kv_bytes_held"] / (1 << 20)) == [1, 2, 2, 8]
    drawn = iso_cost.held(both, 2)
    assert [text for _, text in drawn.legend] == ["large", "small"]
    assert iso_cost.read(both, 2) is None, "no bytes were read"
    assert iso_cost.held(load(store(tmp_path / "one", rows[::2])), 2) is None


def test_absolute_costs_are_drawn_where_vanilla_did_not_fit(tmp_path):
    no_base = {
        "ratio": None, "ratio_ci_lo": None, "ratio_ci_hi": None, "base_median_ns": None,
        "base_rss_peak_delta_bytes": None, "mem_ratio": None, "baseline_status": "oom_host",
        "base_value": None, "value_diff": None,
    }  # fmt: skip
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
    rows = load(
        store(
            tmp_path,
            [
                measured("vcc", 512, value=10.0, higher_is_better=False, value_diff=None),
                measured("bigbird", 512, value=5.0, higher_is_better=False, value_diff=None),
                measured("vanilla", 512, value=1.0, higher_is_better=False),
            ],
        )
    )
    points, _ = pareto.dots(rows, rows.settings("length")[0], pareto.LATENCY)
    assert next(p for p in points if p.method == "vanilla").standing == "front"


def test_a_latency_is_drawn_as_vanillas_times_the_paired_ratio(tmp_path):
    """The method was timed in an hour in which everything took four times as long."""
    late = {"ratio": 0.9, "lat_median_ns": 10**9, "base_median_ns": 11 * 10**8}
    made = [measured("vanilla", n) for n in (512, 1024)]
    made += [measured("vcc", n, **late) for n in (512, 1024)]
    rows = load(store(tmp_path, made))
    (panel,) = rows.settings()
    arms = by_length.measured(rows, panel, by_length.LATENCY)
    drawn = {name: cells["y"].to_numpy() for name, _, cells in arms}
    assert drawn["vcc"] == pytest.approx(0.9 * drawn["vanilla"])


def test_the_table_tells_exponent_prediction_and_crossover(made):
    rows = load(made, ["task=narrativeqa"])
    (panel,) = rows.settings()
    head, *lines = by_length.table(rows, panel, by_length.LATENCY)
    assert [text for _, text in head] == ["", "exponent", "predicted 4K", "below vanilla from"]
    told = {line[0][1]: [text for _, text in line[1:]] for line in lines}
    assert [name.partition("·")[0] for name in told] == list(COSTS)  # the order of every legend
    assert told["vanilla"][2] == ""
    assert told["vanilla_eager"][2] == "not yet"
    assert told["vcc"][2].startswith("1,")
    assert told["iceformer·quantized"][2].startswith("3,")
    assert told["fourier"][2] == "≤ 512"
    assert "(2K)" in told["vanilla_eager"][1] or told["vanilla_eager"][1] == "–"


def test_what_panels_share_is_told_once(tmp_path):
    rows = [measured("vcc", 512, threads=n, task=t) for n, t in ((1, "a"), (2, "b"))]
    rows += [measured("bigbird", 512, threads=n, task=t) for n, t in ((1, "a"), (2, "b"))]
    drawn = pareto.latency(load(store(tmp_path / "rows", rows)), 2)
    (path,) = save(drawn, "p", tmp_path, ["svg"], "full")
    texts = re.findall(r"<!-- (.*?) -->", path.read_text())
    assert sum("EPYC" in text for text in texts) == 1
    assert sum("2 threads" in text for text in texts) == 1


@pytest.mark.parametrize(
    ("tokens", "said"), [(512, "512"), (4096, "4K"), (1000, "1,000"), (12000, "12k")]
)
def test_lengths_are_said_shortly(tokens, said):
    assert thousands(tokens) == said


def test_published_figures_are_ratios_of_one_table(monkeypatch):
    def cell(method, length, value):
        return published.printed.Printed(
            "vcc", "Table 2", method, "base", "", length, "a", "runtime_encoder_ms", value, "",
            "ms", "A100", "dev", "paper", "vcc.csv:2",
        )  # fmt: skip

    cells = [cell("t5", 4096, 500.0), cell("vcc", 4096, 125.0), cell("vcc", 8192, 200.0),
             cell("t5", 8192, None)]  # fmt: skip
    monkeypatch.setattr(published.printed, "load_printed", {"vcc": cells}.get)
    assert published.vcc_encoder() == [(4096, 0.25)]


def run(capsys, *words):
    """(exit code, what went to standard error) of `bench plot`."""
    with pytest.raises(SystemExit) as ended:
        main(["plot", *map(str, words)])
    return ended.value.code, capsys.readouterr().err


def test_wrong_requests_are_one_line_each(made, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, said in (
        ([ "--results", empty], "no rows in"),
        (["--results", tmp_path / "gone"], "no folder"),
        (["pareto_latncy", "--results", made], "Did you mean pareto_latency?"),
        (["--results", made, "--format", "gif"], "unknown format 'gif'"),
        (["--results", made, "--panels", "0"], "--panels 0"),
        (["--results", made, "mehtod=vcc"], "Did you mean 'method'?"),
        (["--results", made, "method=vxx"], "vcc"),
    ):  # fmt: skip
        code, error = run(capsys, *words, "--out", tmp_path / "out")
        assert code == 2, words
        assert said in error and error.count("\n") == 1, error


def test_rows_of_one_method_say_what_is_missing(tmp_path, capsys):
    folder = store(tmp_path, [failed("vanilla", 512, "ok")])
    code, error = run(capsys, "pareto_latency", "--results", folder, "--out", tmp_path / "out")
    assert code == 2
    assert "nothing to draw: it needs two methods" in error
    code, error = run(capsys, "--results", folder, "--out", tmp_path / "out")
    assert code == 1
    assert error.count("nothing to draw") == len(figures())


def test_a_corrupt_shard_is_set_aside_and_named(tmp_path, capsys):
    folder = store(tmp_path, frontier(lengths=(512,)))
    (folder / "rows-torn.parquet").write_bytes(b"PAR1 not a shard")
    words = ("pareto_latency", "--results", folder, "--out", tmp_path / "out", "--format", "png")
    code, error = run(capsys, *words)
    assert code == 0
    assert "set aside" in error and "rows-torn.parquet" in error
    assert (tmp_path / "out" / "pareto_latency.png").exists()


def test_a_figure_of_others_is_left_as_it_is(tmp_path, capsys):
    folder = store(tmp_path, frontier(lengths=(512,)))
    words = ("pareto_latency", "--results", folder, "--out", tmp_path, "--format", "png")
    (tmp_path / "pareto_latency.png").write_text("mine")
    code, error = run(capsys, *words)
    assert code == 2 and "pareto_latency.png holds what bench didn't write" in error
    assert (tmp_path / "pareto_latency.png").read_text() == "mine"
    (tmp_path / "pareto_latency.png").unlink()
    assert [run(capsys, *words)[0] for _ in range(2)] == [0, 0]


def test_a_wrong_study_is_one_line(made, tmp_path, capsys):
    folder = store(tmp_path, [measured("vcc", 512)])
    (folder / "studies").mkdir()
    (folder / "studies" / "recall-1.csv").write_text("search,total_ns\ntopk,many\n")
    code, error = run(capsys, "iceformer_3", "--results", folder, "--out", tmp_path / "out")
    assert code == 2
    assert "recall-1.csv" in error and error.count("\n") == 1


def test_studies_are_drawn_where_there_are_no_rows(tmp_path, capsys):
    (tmp_path / "studies").mkdir()
    for name, text in STUDIES.items():
        (tmp_path / "studies" / f"{name}-1.csv").write_text(text)
    words = ("--results", tmp_path, "--format", "png", "--out", tmp_path / "out")
    code, error = run(capsys, "iceformer_3", *words, "fourier_1")
    assert code == 0, error
    code, error = run(capsys, *words)
    assert code == 0 and error.count("nothing to draw") == len(figures()) - 2


def test_the_best_constant_answer_is_drawn_where_a_score_is_at_chance(tmp_path):
    low = {"value": 18.0, "ci_lo": 9.0, "ci_hi": 30.0, "chance": 16.0, "at_chance": True}
    rows = [measured("vanilla", 512), measured("bigbird", 512, chance=16.0, at_chance=False)]
    drawn = pareto.latency(load(store(tmp_path / "above", rows)), 2)
    assert "best constant answer" not in [text for _, text in drawn.legend]
    rows = load(store(tmp_path / "at", [*rows, measured("vcc", 512, **low)]))
    assert "best constant answer" in [text for _, text in pareto.latency(rows, 2).legend]
    assert pareto.constant(rows.settings("length")[0]) == 16.0


def test_a_panel_says_with_which_weights_its_scores_were_measured(tmp_path):
    same, own = "same weights", "each trained for itself"
    rows = [measured("vanilla", 512), measured("bigbird", 512, quality_comparison=same)]
    (panel,) = pareto.latency(load(store(tmp_path / "one", rows)), 2).panels
    assert "scores: same weights" in panel.facts
    rows += [measured("vcc", 512, quality_comparison=own), measured("fourier", 512)]
    (panel,) = pareto.latency(load(store(tmp_path / "all", rows)), 2).panels
    assert panel.facts[-1] == (
        "scores: each trained for itself (vcc); same weights (bigbird); "
        "weights not recorded (fourier)"
    )


def test_tasks_of_lra_stand_in_one_panel_whatever_model_each_has(tmp_path):
    rows = []
    for task in ("lra_listops", "lra_image"):
        for method in ("vanilla", "bigbird", "vcc"):
            rows.append(measured(method, 512, task=task, model=f"for-{task}", **LRA))
        rows.append(measured("bigbird", 512, task=task, model="another", **LRA))
    figure = lra.latency(load(store(tmp_path, rows)), 2)
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
    Store(tmp_path).append(rows)
    found = load(tmp_path)
    [panel] = by_length.at_lengths(found, by_length.LATENCY)[:1]
    assert by_length.ends(found, panel, by_length.LATENCY) == [("vcc", 8192, "oom_host")]


def test_a_figure_has_rows_of_one_code_of_a_method(tmp_path):
    new = measured("vcc", 512, method_version="new", created_utc="2026-02-01T00:00:00+00:00")
    old = measured("vcc", 1024, method_version="old", created_utc="2026-01-01T00:00:00+00:00")
    Store(tmp_path).append([new, old])
    found = load(tmp_path)
    assert set(found.cells.loc[found.cells["method"] == "vcc", "length"]) == {512}
    assert any("1 row of vcc" in warning for warning in found.warnings)


def test_no_two_methods_have_the_same_colour_and_line():
    many = looks([f"method{i}" for i in range(40)])
    lines = [(look.color, style.line(look.line)) for look in many.values()]
    assert len(set(lines)) == len(lines)
