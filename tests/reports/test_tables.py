"""Published beside measured: every verdict, from made rows."""

from __future__ import annotations

import json

import pytest

from bench import config, plugins
from bench.cell import PLANS
from bench.errors import RequestError
from bench.store import Store
from reports import build, definitions, measured, papers, tables_command, verdicts
from reports.commands import cell_commands, commands
from reports.document import document
from reports.elements import Grid, Heading, Items, Paragraph
from reports.formats import markdown
from reports.measured import Rows
from tests.bench import made

ALL = definitions.load()
TABLES = [definition.name for definition in ALL]
NEWER_PLANS = {"training"}


def table(name, folder=None):
    definition = definitions.load([name])[0]
    methods = {m.method for m in definition.methods.values() if m.method}
    tasks = {t.task for t in definition.tasks.values() if t.task}
    rows = Rows([folder] if folder else [], methods, tasks)
    return build.build(definition, papers.load(definition.paper), rows)


def one(found, **wanted):
    """The only cell with these fields of its printed part."""
    fits = [
        cell
        for cell in found.cells
        if all(getattr(cell.printed, name) == value for name, value in wanted.items())
    ]
    assert len(fits) == 1, [cell.printed for cell in fits]
    return fits[0]


def real(**more):
    """A row as a full run of a finetuned base checkpoint on the benchmark's own rows gives it."""
    columns = {
        "method": "vcc", "task": "hotpotqa", "split": "validation", "data_source": "hub",
        "model": "my-roberta-base", "weights_kind": "finetuned", "length": 4096,
        "method_params": json.dumps({"k": 16, "h": 70}), "metric": "squad_em_f1",
        "device": "cuda", "dtype": "float16", "n_scored": 7405, "n_samples_planned": None,
    }  # fmt: skip
    return made.row(**{**columns, **more})


def scored(value, half=0.5, **more):
    columns = {
        "value": value, "ci_lo": value - half, "ci_hi": value + half,
        "metrics": json.dumps({"f1": value, "exact_match": value - 14}),
    }  # fmt: skip
    return real(**{**columns, **more})


def ratio(value, spread=1.02, **more):
    columns = {
        "ratio": value, "ratio_ci_lo": value / spread, "ratio_ci_hi": value * spread,
        "ratio_p": 0.0001, "n_pairs": 100, "verdict": "faster",
    }  # fmt: skip
    return real(**{**columns, **more})


F1 = {"method": "vcc", "model_size": "base", "task": "hotpotqa", "metric": "f1"}  # printed 74.6
EM = {**F1, "metric": "em"}  # printed 60.9
TIME = {**F1, "metric": "runtime_total_ms"}  # printed 114.6 ms of 422.3


@pytest.fixture
def judged(tmp_path):
    def judge(*rows, name="vcc_table1", **wanted):
        Store(tmp_path).append(rows)
        return one(table(name, tmp_path), **(wanted or F1))

    return judge


# -- the definitions ---------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_what_there_is(name):
    definition = definitions.load([name])[0]
    tables = {cell.table for cell in papers.load(definition.paper)}
    assert set(definition.parts) <= tables
    for method in definition.methods.values():
        assert bool(method.method) != bool(method.cannot), method
        if method.method:
            given = {*method.params, *(k for own in method.by_task.values() for k in own)}
            assert given <= set(plugins.conf("method", method.method)), method
    for task in definition.tasks.values():
        assert bool(task.task) != bool(task.cannot), task
        if task.task:
            plugins.conf("task", task.task)
    assert set(definition.reference) <= set(definition.methods)
    for names in definition.averages.values():
        assert set(names) <= set(definition.tasks)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_nothing_measured_prints_what_is_published(name):
    found = table(name)
    assert found.cells
    verdict = {cell.judged.verdict for cell in found.cells}
    assert verdict <= {"not run", "cannot"}
    assert all(c.judged.reason for c in found.cells if c.judged.verdict == "cannot")
    text = markdown.write(document(found))
    for cell in found.cells:
        if cell.printed.value is not None and not cell.printed.approximate:
            assert cell.printed.text in text
    assert "nothing yet" in text


@pytest.mark.parametrize("name", TABLES)
def test_each_cell_that_was_not_run_has_a_command_that_composes(name):
    found = table(name)
    per_cell = cell_commands(found)
    for cell in found.cells:
        if cell.judged.verdict == "not run":
            assert per_cell[id(cell)].startswith("bench run ")
    for _, command in commands(found):
        first, second, *words = command.split()
        assert (first, second) == ("bench", "run")
        words = [word for word in words if word != "-m"]
        assert config.checked(words)
        measure = next(w for w in words if w.startswith("measure=")).partition("=")[2]
        assert measure in {*PLANS, *NEWER_PLANS}


def test_one_command_composes_whole():
    words = dict(commands(table("fourier_table3")))["BART-large"].split()[2:]
    request = config.compose([word for word in words if word != "-m"])
    assert request["method"]["name"] == "vanilla" and request["n"] is None


def test_every_table_is_there():
    assert set(TABLES) == {
        *(f"vcc_table{n}" for n in (1, 2, 3, 6, 7)),
        *(f"iceformer_table{n}" for n in (1, 2, 3, 7)),
        *(f"fourier_table{n}" for n in (1, 2, 3, 4)),
        "bigbird_qa", "bigbird_classification", "bigbird_summarization",
        "lra_leaderboard", "lra_speed",
    }  # fmt: skip


def test_a_table_that_is_not_there_has_its_nearest_name():
    with pytest.raises(RequestError, match=r"unknown table 'vcc_tabel1'. Did you mean vcc_table1"):
        definitions.load(["vcc_tabel1"])


# -- scores ------------------------------------------------------------------


def test_a_score_within_the_tolerance_is_reproduced(judged):
    cell = judged(scored(75.1))
    assert cell.judged.verdict == "reproduced" and cell.judged.delta == pytest.approx(0.5)
    assert cell.measured.lo == 74.6


def test_a_score_beyond_it_differs(judged):
    cell = judged(scored(70.0))
    assert cell.judged == verdicts.Judged("differs", "", pytest.approx(-4.6))


def test_few_rows_reproduce_nothing_however_near_the_score(judged):
    cell = judged(scored(74.6, half=12.0, n_scored=32))
    assert cell.judged.verdict == "cannot" and "too wide to tell (n=32)" in cell.judged.reason


def test_few_rows_differ_from_nothing_either(judged):
    assert judged(scored(60.0, half=15.0)).judged.verdict == "cannot"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"data_source": "embedded"}, "embedded rows"),
        ({"weights_kind": "embedded"}, "embedded weights"),
        ({"weights_kind": "pretrained-swap"}, "pretrained-swap weights"),
        ({"model": "embedded"}, "model embedded; the paper's is base"),
        ({"split": "test"}, "test split; the paper's is dev"),
        ({"method_params": json.dumps({"k": 8, "h": 70})}, "k=8; the paper's is 16"),
        ({"method_params": json.dumps({"k": 16, "h": 90})}, "h=90; the paper's is 70"),
    ],
)
def test_what_is_not_the_papers_cell_is_shown_and_never_compared(judged, more, reason):
    cell = judged(scored(74.6, **more))
    assert cell.judged.verdict == "cannot" and reason in cell.judged.reason
    assert cell.measured.value == 74.6 and cell.judged.delta is None


def test_another_length_is_another_line(judged):
    assert judged(scored(74.6, length=2048)).judged.verdict == "not run"


def test_another_printed_size_is_another_line(judged):
    assert judged(scored(74.6, model="my-roberta-large")).judged.verdict == "not run"


def test_a_row_that_may_be_compared_goes_before_a_newer_that_may_not(judged):
    cell = judged(scored(74.6), scored(10.0, data_source="embedded"))
    assert cell.judged.verdict == "reproduced"


def test_a_figure_without_a_stored_interval_gets_the_widest_possible(judged):
    cell = judged(scored(74.9), **EM)
    assert cell.measured.value == pytest.approx(60.9)
    assert cell.measured.hi - cell.measured.lo == pytest.approx(2.22, abs=0.02)
    assert cell.judged.verdict == "reproduced"


def test_a_metric_that_the_task_lacks_is_told(judged):
    row = scored(30.0, task="wikihop", metric="exact_match", metrics='{"exact_match": 30.0}')
    row |= {"model": "t5-base-wikihop", "method": "vanilla", "method_params": "{}"}
    cell = judged(
        row, name="vcc_table2", method="t5", model_size="base", length=4096, task="wikihop",
        metric="f1",
    )  # fmt: skip
    assert "exact_match, has no f1" in cell.judged.reason


def test_weights_that_only_longer_pretraining_tells_apart_are_not_compared(judged):
    cell = judged(scored(75.0), **{**F1, "method": "vcc_star"})
    assert cell.judged.verdict == "cannot" and "longer pretraining" in cell.judged.reason


def test_a_mean_over_tasks_is_formed_of_all_or_not_at_all(tmp_path):
    for number, task in enumerate(("listops", "text", "retrieval", "image")):
        row = scored(60.0, task=f"lra_{task}", metric="accuracy", model="lra-full", split="test")
        row |= {"method": "vanilla", "method_params": "{}", "length": 8192}
        Store(tmp_path).append([row | {"weights_kind": "from-scratch", "seed": number}])
    wanted = {"method": "vanilla", "task": "lra_avg"}
    some = one(table("fourier_table1", tmp_path), **wanted).judged
    assert some == verdicts.Judged("not run", "not run: 4 of 5 tasks are measured")
    row |= {"task": "lra_pathfinder", "weights_kind": "from-scratch", "row_id": None}
    Store(tmp_path).append([row | {"cell_key": "pathfinder"}])
    cell = one(table("fourier_table1", tmp_path), **wanted)  # printed 54.39
    assert cell.measured.value == pytest.approx(60.0) and cell.judged.verdict == "differs"
    assert cell.measured.hi == pytest.approx(60 + 0.5 / 5**0.5)


@pytest.mark.parametrize(
    "more",
    [
        {"method_params": "[1]", "metrics": '"x"'},
        {"length": None, "split": None, "model": None, "batch": None, "threads": None},
        {"value": float("nan"), "ci_lo": None, "ci_hi": None, "n_scored": None, "metric": None},
        {"host_id": None, "created_utc": "long ago", "weights_kind": None, "data_source": None},
    ],
)
def test_a_row_that_lacks_what_others_have_stops_nothing(tmp_path, more):
    Store(tmp_path).append([scored(75.0) | more, ratio(0.5, task="quality") | more])
    found = table("vcc_table1", tmp_path)
    assert "reproduced" not in {c.judged.verdict for c in found.cells if "length" in more}
    for write in tables_command.FORMATS.values():
        assert write(found)


# -- ratios ------------------------------------------------------------------


def unfused(value=2.0, **more):
    return ratio(value, method="vanilla_eager", method_params="{}", **more)


def test_ratios_are_formed_against_the_papers_vanilla(judged):
    """0.54 of fused at 2.0 of fused is 0.27 of unfused; printed 114.6 / 422.3 = 0.271."""
    cell = judged(ratio(0.54), unfused(), **TIME)
    assert cell.ratio == pytest.approx(0.2714, abs=1e-4)
    assert cell.measured.value == pytest.approx(0.27)
    assert cell.judged.verdict == "reproduced" and cell.judged.delta == pytest.approx(-0.5, abs=0.1)


def test_a_ratio_beyond_the_factor_differs(judged):
    assert judged(ratio(0.8), unfused(), **TIME).judged.verdict == "differs"


def test_a_ratio_to_fused_attention_is_not_the_papers(judged):
    cell = judged(ratio(0.27), **TIME)
    assert cell.judged.verdict == "cannot" and "method=vanilla_eager" in cell.judged.reason
    assert cell.measured.value == pytest.approx(0.27)


@pytest.mark.parametrize("more", [{"host_id": "there"}, {"threads": 8}, {"model": "roberta-base"}])
def test_unfused_attention_of_another_cell_or_host_is_no_baseline(judged, more):
    assert judged(ratio(0.54), unfused(**more), **TIME).judged.verdict == "cannot"


def test_too_few_pairs_are_told(judged):
    few = {"ratio_ci_lo": 0.0, "ratio_ci_hi": float("inf"), "n_pairs": 4}
    cell = judged(ratio(0.54) | few, unfused(), **TIME)
    assert cell.judged.verdict == "cannot" and "too wide to tell (4 pairs)" in cell.judged.reason


def test_a_noisy_host_reproduces_nothing(judged):
    cell = judged(ratio(0.54, noisy=True), unfused(), **TIME)
    assert cell.judged.verdict == "cannot" and "too busy" in cell.judged.reason


def test_speed_counts_with_random_weights_and_embedded_rows(judged):
    loose = {"weights_kind": "random", "data_source": "embedded", "model": "random-roberta-base"}
    assert judged(ratio(0.54, **loose), unfused(**loose), **TIME).judged.verdict == "reproduced"


def test_a_length_without_a_printed_vanilla_has_no_printed_ratio():
    wanted = {"model_size": "base", "length": 16384, "task": "qasper"}
    cell = one(table("vcc_table2"), method="vcc", metric="runtime_encoder_ms", **wanted)
    assert cell.judged == verdicts.Judged("cannot", build.NO_VANILLA)


def test_a_row_that_ended_badly_says_how(judged):
    cell = judged(real(status="oom_host", status_detail="killed\nat 9 GiB"), **TIME)
    assert cell.judged == verdicts.Judged("cannot", "oom_host: killed")
    cell = judged(real(status="unsupported", status_detail="no relative bias", length=4096))
    assert cell.judged.reason == "unsupported: no relative bias"


def test_an_ok_row_goes_before_a_failed_one(judged):
    assert judged(scored(74.6), real(status="error", status_detail="x")).judged.verdict != "cannot"


def test_memory_of_the_whole_process_is_compared_as_a_ratio(judged):
    lra = {"task": "lra_text", "model": "random-lra", "length": 4000, "device": "cpu"}
    bytes_ = {"rss_base_bytes": 1 << 30, "rss_peak_delta_bytes": 1 << 30}
    small = {"rss_base_bytes": 1 << 30, "rss_peak_delta_bytes": 1 << 28}
    cell = judged(
        real(**lra, **small, method="iceformer"),
        real(**lra, **bytes_, method="vanilla_eager"),
        name="iceformer_table2", method="iceformer", task="text",
    )  # fmt: skip
    assert cell.measured.value == pytest.approx(0.625)
    assert cell.printed.approximate and cell.ratio is not None


def test_rates_and_speeds_are_turned_into_method_over_vanilla():
    wanted = {"method": "performer", "length": 4096}
    speed = one(table("lra_speed"), metric="speed_ratio", **wanted)
    steps = one(table("lra_speed"), metric="steps_per_second", **wanted)
    assert speed.ratio == pytest.approx(1 / 5.7) and steps.ratio == pytest.approx(1.4 / 8.0)


def test_training_is_compared_against_unfused_training():
    row = dict.fromkeys(measured.WANTED) | {
        "train_ratio": 0.4, "train_ratio_ci_lo": 0.39, "train_ratio_ci_hi": 0.41,
        "train_ratio_p": 1e-4, "train_n_pairs": 40,
    }  # fmt: skip
    eager = row | {"train_ratio": 2.0, "train_ratio_ci_lo": 1.9, "train_ratio_ci_hi": 2.1}
    found = measured.RATIOS["training"](row, eager)
    assert found.measured.value == pytest.approx(0.2) and not found.objections
    peaks = {"train_peak_bytes": 300}, {"train_peak_bytes": 1000}
    found = measured.RATIOS["training_memory"](row | peaks[0], row | peaks[1])
    assert found.measured.value == pytest.approx(0.3)


def test_time_in_attention_has_no_interval_and_is_not_judged(judged):
    lra = {"task": "lra_text", "model": "random-lra", "length": 4000}
    cell = judged(
        real(**lra, attend_ns=200, method="iceformer"),
        real(**lra, attend_ns=1000, method="vanilla_eager"),
        name="iceformer_table1", method="iceformer", task="text",
    )  # fmt: skip
    assert cell.measured == verdicts.Measured(0.2, None, None)
    assert cell.judged.verdict == "cannot" and "no interval" in cell.judged.reason


def test_what_the_paper_printed_and_nobody_has_is_measured_all_the_same(judged):
    row = real(task="lra_text", model="random-lra", method="iceformer", fid_rel_l2=0.25)
    cell = judged(row, name="iceformer_table7", task="text")
    assert cell.measured.value == 0.25 and "isn't known" in cell.judged.reason


def test_a_size_that_only_the_method_tells_counts(judged):
    row = real(task="cnn_dailymail", model="facebook-bart-large", split="test", method="vanilla")
    row |= {"metric": "rouge_stemmed", "value": 40.9, "ci_lo": 40.5, "ci_hi": 41.3}
    wanted = {"method": "bart", "task": "cnn_dailymail", "metric": "rougeL"}  # printed 40.90
    cell = judged(row, name="bigbird_summarization", **wanted)
    assert cell.judged.verdict == "reproduced", cell


# -- what stands around the cells --------------------------------------------


def test_beneath_a_table_stand_hardware_configuration_and_rows_without_a_cell(tmp_path):
    row = scored(75.0, cpu_model="Test CPU", torch="2.9", host_id="abcdef0123456789")
    other = ratio(0.7, length=1024, method_params="{}")
    Store(tmp_path).append([row, other])
    elements = document(table("vcc_table1", tmp_path))
    headings = [e.text for e in elements if isinstance(e, Heading)]
    assert headings[1:] == ["Commands", "Hardware", "Configuration", "Also measured", "Notes"]
    hardware = [item for e in elements if isinstance(e, Items) for item in e.items]
    assert ("published", "NVIDIA A100 (1 sequence)") in hardware
    assert ("measured, host abcdef01", "Test CPU, torch 2.9") in hardware
    grids = {e.caption: e for e in elements if isinstance(e, Grid)}
    ours = grids["the paper's and ours"].lines[1]
    assert ours[0] == row["row_id"][:8] and "my-roberta-base" in ours and "float16" in ours
    assert grids["not compared"].lines[0][0] == other["row_id"][:8]
    assert any("finetuned" in e.text for e in elements if isinstance(e, Paragraph))


def test_a_table_comes_in_the_papers_shape_too(tmp_path):
    Store(tmp_path).append([scored(75.1), ratio(0.54), unfused()])
    grids = [e for e in document(table("vcc_table1", tmp_path)) if isinstance(e, Grid)]
    shape = grids[0]
    assert shape.caption == "Table 1, in the paper's shape" and len(shape.lines) == 8
    line = dict(zip(shape.head, shape.lines[5], strict=True))
    assert line["method"] == "VCC, base, 4,096"
    assert line["hotpotqa F1"] == "74.6 → 75.1, reproduced"
    assert line["hotpotqa runtime, total"] == "114.6 ms = ×0.271 → ×0.270, reproduced"
    assert line["wikihop accuracy"] == "75.9"
    wide = [e.caption for e in document(table("vcc_table2")) if isinstance(e, Grid)]
    assert not any("shape" in caption for caption in wide)


def test_cells_that_look_wrong_as_printed_have_a_note():
    text = markdown.write(document(table("vcc_table3")))
    assert "looks wrong as printed: same model/length/runtime in Table 2 prints em 5.0" in text
    assert "5.9 \\[1\\]" in text


def test_cells_off_a_plot_are_marked():
    text = markdown.write(document(table("iceformer_table1")))
    assert "≈ 2.92 s = ×1.000" in text and "≈ 0.38 s |" in text
