"""Published scores, times and peaks next to measured ones: every verdict, from made rows.

snapshots/verdicts.txt has, for each case, the verdict with its reason and the measurement.
"""

import json

import pytest

from bench.rows.comparison import Comparison
from bench.rows.store import Store
from reports.intervals import Measured
from reports.papers import command, measured, verdicts
from reports.papers.bench_commands import commands
from tests.reports.papers.published_rows import (
    EM,
    F1,
    RANDOM_T5,
    TIME,
    one,
    ratio,
    real,
    scored,
    table,
    unfused,
)

VCC = {"method": "vcc", "model_size": "base", "length": 4096}
PLAIN = {"method": "vanilla", "method_params": "{}"}
EAGER = {"method": "vanilla_eager", "method_params": "{}"}


def with_params(**params):
    return {"method_params": json.dumps(params)}


def case(*rows, name="vcc_table1", **wanted):
    """Rows, and the printed cell next to which they are set; without one, F1 of HotpotQA by VCC."""
    return rows, name, wanted or F1


def timed(*rows):
    """The same for the printed time: 114.6 ms, against vanilla's 422.3."""
    return case(*rows, **TIME)


# --- scores: printed are F1 74.6 and EM 60.9 ---------------------------------------------------

LINFORMER = {
    "method": "linformer_lra", "task": "lra_text", "split": "test", "data_source": "local",
    "weights_kind": "from-scratch", "model": "my-lra-base", "length": 4000, "metric": "accuracy",
    "n_scored": 25000,
}  # fmt: skip
ON_LRA = {"name": "fourier_table1", "method": "linformer", "task": "text", "model_size": "lra-base"}
LARGE = {"name": "vcc_table2", **F1, "model_size": "large"}
T5 = {"name": "vcc_table2", "model_size": "base", "length": 4096}
LONG_T5 = {**T5, "method": "longt5", "task": "hotpotqa"}
BART = {"model": "facebook-bart-large", "split": "test", "task": "cnn_dailymail", **PLAIN}
BART |= {"metric": "rouge_stemmed", "value": 40.9, "ci_lo": 40.5, "ci_hi": 41.3}
SCORES = {
    "within the tolerance": case(scored(75.1)),
    "beyond it": case(scored(70.0)),
    "few rows, however near": case(scored(74.6, half=12.0, n_scored=32)),
    "few rows, far away": case(scored(60.0, half=15.0, n_scored=32)),
    "embedded rows": case(scored(74.6, data_source="embedded")),
    "embedded weights": case(scored(74.6, weights_kind="embedded")),
    "swapped weights": case(scored(74.6, weights_kind="pretrained-swap")),
    "another model": case(scored(74.6, model="embedded")),
    "another split": case(scored(74.6, split="test")),
    "another k": case(scored(74.6, **with_params(k=8, h=70))),
    "another h": case(scored(74.6, **with_params(k=16, h=90))),
    "another selection": case(scored(74.6, **with_params(selection="paper"))),
    "other plain layers": case(scored(74.6, **with_params(plain_layers=3))),
    "a preset with another k": case(
        scored(54.0, **LINFORMER, **with_params(k=256, n=4096, sharing="key-value")), **ON_LRA
    ),
    "a preset by its parameters": case(
        scored(54.0, **LINFORMER, **with_params(k=16, n=4096, sharing="key-value")), **ON_LRA
    ),
    "settings that nobody knows": case(
        scored(77.0, method="mra_4k", method_params="{}"), **{**F1, "method": "mra"}
    ),
    "a large model with 8 plain layers": case(
        scored(80.0, model="my-t5-large", **with_params(plain_layers=8)), **LARGE
    ),
    "a large model with 6": case(
        scored(80.0, model="my-t5-large", **with_params(plain_layers=6)), **LARGE
    ),
    "a large model with the default": case(
        scored(80.0, model="my-t5-large", **with_params(plain_layers=None)), **LARGE
    ),
    "another length": case(scored(74.6, length=2048)),
    "another printed size": case(scored(74.6, model="my-roberta-large")),
    "a comparable row before a newer one": case(scored(74.6), scored(10.0, data_source="embedded")),
    "an ok row before a failed one": case(scored(74.6), real(status="error", status_detail="x")),
    "no stored interval: the widest possible": case(scored(74.9), **EM),
    "a metric that the task lacks": case(
        scored(30.0, task="wikihop", metric="exact_match", metrics='{"exact_match": 30.0}',
               model="t5-base-wikihop", **PLAIN),
        **T5, method="t5", task="wikihop", metric="f1",
    ),
    "longer pretraining": case(scored(75.0), **{**F1, "method": "vcc_star"}),
    "a system of its own, from rows of its models": case(
        scored(5.0, **PLAIN, dtype="bfloat16", model="t5-base"),
        scored(73.3, **PLAIN, dtype="bfloat16", model="my-long-t5-local-base"),
        **LONG_T5, metric="f1",
    ),
    "its time": case(**LONG_T5, metric="runtime_encoder_ms"),
    "a size that only the method tells": case(
        real(**BART), name="bigbird_summarization", method="bart", task="cnn_dailymail",
        metric="rougeL",
    ),
    "ended badly": case(real(status="unsupported", status_detail="no relative bias")),
    "a glance that was passed over": case(
        real(status="skipped", status_detail="over budget", measure="glance")
    ),
    "a score that was passed over": case(
        real(status="skipped", status_detail="over budget", measure="quick")
    ),
}  # fmt: skip


# --- times and peaks -----------------------------------------------------------------------------


def attended(share, ratio_to_fused, **more):
    """A row of LRA whose attention takes a share of each of several passes through the layers."""
    walks = [1000, 1010, 990, 1005]
    found = ratio(ratio_to_fused, task="lra_text", model="random-lra", length=4000, **more)
    return found | {
        "encode_samples_ns": walks, "attend_samples_ns": [round(share * walk) for walk in walks],
    }  # fmt: skip


def trained(value, **more):
    """A row of a training step."""
    row = ratio(value, task="lra_text", model="random-lra", length=4096, batch=5, **more)
    return row | Comparison.of(row, "lat").columns("train") | {"measure": "training"}


def landmarks(least, greatest):
    """LARA with 64 and 1,024 landmarks; printed 0.342 of unfused, with a number between these."""
    rows = [
        attended(0.5, value, method="lara", **with_params(c=c), row_id=str(c), cell_key=str(c))
        for c, value in ((64, least), (1024, greatest)) if value
    ]  # fmt: skip
    base = attended(0.5, 1.0, **EAGER)
    return case(*rows, base, name="iceformer_table1", method="lara", task="text")


def peaks(search):
    """The whole process: 1 GiB, and 0.25 GiB more, or unfused attention's 1 GiB more."""
    lra = {"task": "lra_text", "model": "random-lra", "length": 4000, "device": "cpu"}
    lra |= {"rss_base_bytes": 1 << 30}
    mine = real(**lra, method="iceformer", **with_params(search=search),
                rss_peak_delta_bytes=1 << 28)  # fmt: skip
    base = real(**lra, **EAGER, rss_peak_delta_bytes=1 << 30)
    return case(mine, base, name="iceformer_table2", method="iceformer", task="text")


FAILED = {"status": "oom_host", "status_detail": "can't allocate memory\nat 23 GiB"}
FEW = {"lat_ratio_ci_lo": 0.0, "lat_ratio_ci_hi": float("inf"), "lat_n_pairs": 4}
LOOSE = {"weights_kind": "random", "data_source": "embedded", "model": "random-roberta-base"}
DCI = {"method": "iceformer", **with_params(search="dci")}
IN_ATTENTION = {"name": "iceformer_table1", "method": "iceformer", "task": "text"}
QUALITY = {**TIME, "task": "quality"}
FILLED = {"task": "hotpotqa", "method_params": "{}"}
RATIOS = {
    "formed against the paper's vanilla": timed(ratio(0.54), unfused()),
    "too slow": timed(ratio(0.8), unfused()),
    "a ratio to fused attention": timed(ratio(0.27)),
    "unfused attention of another host": timed(ratio(0.54), unfused(host_id="there")),
    "of other threads": timed(ratio(0.54), unfused(threads=8)),
    "of another model": timed(ratio(0.54), unfused(model="roberta-base")),
    "of inputs that are not filled": timed(ratio(0.54, filled=True), unfused()),
    "inputs of nearly the length": timed(ratio(0.54, timed_tokens=4086),
                                         unfused(timed_tokens=4086)),
    "inputs of another length": timed(ratio(0.54, timed_tokens=3144), unfused(timed_tokens=3144)),
    "filled inputs of another task": case(
        ratio(1.52, method="bigbird", **FILLED, filled=True), unfused(task="wikihop", filled=True),
        **QUALITY | {"method": "bigbird"},
    ),
    "inputs of another task": case(
        ratio(1.52, method="bigbird", **FILLED), unfused(task="wikihop"),
        **QUALITY | {"method": "bigbird"},
    ),
    "filled inputs where the query has a cost": case(
        ratio(1.52, **FILLED, filled=True), unfused(task="wikihop", filled=True), **QUALITY
    ),
    "unfused attention that failed": timed(ratio(0.54), unfused(**FAILED)),
    "that failed once": timed(ratio(0.54), unfused(**FAILED), unfused(row_id="another")),
    "that failed in another setting": case(
        trained(0.5, method="bigbird"), trained(0.5, **EAGER, **FAILED),
        name="lra_speed", method="bigbird", metric="speed_ratio", length=4096,
    ),
    "too few pairs": timed(ratio(0.54, **FEW), unfused()),
    "a noisy host": timed(ratio(0.54, noisy=True), unfused()),
    "a noisy host of unfused attention": timed(ratio(0.54), unfused(noisy=True)),
    "page faults": timed(ratio(0.54), unfused(large_memory_kept=False)),
    "random weights and embedded rows": timed(ratio(0.54, **LOOSE), unfused(**LOOSE)),
    "no printed vanilla": case(
        name="vcc_table2", method="vcc", model_size="base", length=16384, task="qasper",
        metric="runtime_encoder_ms",
    ),
    "a time that ended badly": timed(real(status="oom_host", status_detail="killed\nat 9 GiB")),
    "a time that was passed over": timed(
        real(status="skipped", status_detail="over budget", measure="glance")
    ),
    "the peak of a process, by the paper's search": peaks("dci"),
    "by another search": peaks("quantized"),
    "a fifth of half of the time, against four fifths of twice": case(
        attended(0.2, 0.5, **DCI), attended(0.8, 2.0, **EAGER), **IN_ATTENTION
    ),
    "one reading of the attention": case(
        attended(0.2, 0.5, **DCI) | {"encode_samples_ns": [1000], "attend_samples_ns": [200]},
        attended(0.8, 2.0, **EAGER), **IN_ATTENTION,
    ),
    "an answer of 40 tokens: 50 and 39 ms, against 200 and 39": case(
        ratio(0.5, **RANDOM_T5), unfused(**RANDOM_T5), **T5, method="vcc", task="hotpotqa",
        metric="runtime_total_ms",
    ),
    "printed figures that nobody has": case(
        real(task="lra_text", model="random-lra", method="iceformer", fid_rel_l2=0.25),
        name="iceformer_table7", task="text",
    ),
    "both ends near": landmarks(0.33, 0.35),
    "both ends slower": landmarks(0.6, 2.0),
    "both ends faster": landmarks(0.02, 0.04),
    "the printed one near an end": landmarks(0.34, 2.0),
    "the printed one between the ends": landmarks(0.02, 2.0),
    "one end alone": landmarks(0.34, None),
}  # fmt: skip


def told(cell):
    """The text of a report about a judged cell."""
    lines = [f"{cell.verdict}: {cell.reason}" if cell.reason else str(cell.verdict)]
    if cell.measured is not None:
        found = cell.measured
        ends = "no interval" if found.lo is None else f"{found.lo:.4g} … {found.hi:.4g}"
        lines.append(f"measured {found.value:.4g} ({ends})")
    if cell.judgement.delta is not None:
        lines.append(f"differs by {cell.judgement.delta:+.1f}")
    if cell.doubts:
        lines.append(f"doubts: {'; '.join(cell.doubts)}")
    if cell.objections:
        lines.append(f"objections: {'; '.join(cell.objections)}")
    return "".join(f"    {line}\n" for line in lines)


def test_rows_have_their_verdict(tmp_path, snapshot):
    text = ""
    for title, (rows, name, wanted) in (SCORES | RATIOS).items():
        folder = tmp_path / f"rows{len(text)}"
        Store(folder).append(rows)
        text += f"{title}\n{told(one(table(name, folder), **wanted))}"
    snapshot("verdicts", text)


def test_a_ratio_is_formed_of_printed_times_and_of_both_ends_of_a_setting(tmp_path):
    rows, name, wanted = timed(ratio(0.54), unfused())
    Store(tmp_path / "times").append(rows)
    cell = one(table(name, tmp_path / "times"), **wanted)
    assert cell.ratio == pytest.approx(114.6 / 422.3, abs=1e-4)
    rows, name, wanted = landmarks(0.33, 0.35)
    Store(tmp_path / "ends").append(rows)
    cell = one(table(name, tmp_path / "ends"), **wanted)
    assert {row["row_id"] for row in (cell.row, *cell.other_rows)} == {"64", "1024"}


def test_each_end_of_a_setting_has_its_command():
    every = " ".join(command for _, command in commands(table("iceformer_table1")))
    assert {word for word in every.split() if word.startswith("method.c=")} == {
        "method.c=64", "method.c=1024"
    }  # fmt: skip


def test_what_is_read_once_has_no_pairs():
    wide = verdicts.judge_ratio(0.5, 0.0, Measured(0.5, 0.3, 0.8))
    assert wide.verdict == "undecided" and "too wide to tell: ×1.25" in wide.reason


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
    found = measured.PAIRED["training"](row, eager)
    assert found.measured.value == pytest.approx(0.2) and not found.objections
    peaks = {"train_peak_bytes": 300}, {"train_peak_bytes": 1000}
    found = measured.PAIRED["training_memory"](row | peaks[0], row | peaks[1])
    assert found.measured.value == pytest.approx(0.3)


def test_a_mean_over_tasks_is_formed_of_all_or_not_at_all(tmp_path):
    for number, task in enumerate(("listops", "text", "retrieval", "image")):
        row = scored(60.0, task=f"lra_{task}", metric="accuracy", model="lra-full", split="test")
        row |= {"method": "vanilla", "method_params": "{}", "length": 8192}
        Store(tmp_path).append([row | {"weights_kind": "from-scratch", "seed": number}])
    wanted = {"method": "vanilla", "task": "lra_avg"}
    some = one(table("fourier_table1", tmp_path), **wanted).judgement
    assert some == verdicts.Judgement("no row yet", "4 of 5 tasks are measured")
    row |= {"task": "lra_pathfinder", "weights_kind": "from-scratch", "row_id": None}
    Store(tmp_path).append([row | {"cell_key": "pathfinder"}])
    cell = one(table("fourier_table1", tmp_path), **wanted)  # printed 54.39
    assert cell.measured.value == pytest.approx(60.0) and cell.verdict == "differs"
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
    assert "reproduced" not in {c.verdict for c in found.cells if "length" in more}
    for write in command.FORMATS.values():
        assert write(found)
