"""bench compare and explain: what is paired with what, which verdicts are given, and how sure."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import compare, matching, stats
from bench.compare import judged, latency, limit, memory, quality
from bench.errors import RequestError
from bench.rows import Selection
from bench.store import Store
from tests.bench import made
from tests.bench.test_results import bench, listed
from tests.conftest import ROOT

QUIET = stats.Ratio(0.5, 0.49, 0.51, 0.0001, 40)


def selection(*rows, one=False, **named):
    words = {name: [str(value)] for name, value in named.items()}
    return Selection(str(named), Path("results/runs"), list(rows), [], words, one)


def matched_ids(found):
    return [(pair.a["row_id"][:4], pair.b["row_id"][:4]) for pair in found.pairs]


# --- ratio of ratios ---------------------------------------------------------------------------


def test_ratio_of_ratios_of_known_values():
    both = stats.ratio_of_ratios(QUIET, stats.Ratio(1.0, 0.98, 1.02, 1.0, 30))
    assert math.isclose(both.ratio, 2.0) and both.n == 30
    width = math.hypot(math.log(1.0 / 0.98), math.log(0.51 / 0.5))
    assert math.isclose(both.ci_lo, 2 * math.exp(-width)) and both.p == 1 / (1 + stats.FLIPS)
    same = stats.ratio_of_ratios(QUIET, QUIET)
    assert same.ratio == 1 and same.p == 1 and same.ci_lo < 1 < same.ci_hi


def test_ratio_of_ratios_turns_over_when_its_sides_do():
    other = stats.Ratio(0.6, 0.5, 0.75, 0.01, 20)
    there, back = stats.ratio_of_ratios(QUIET, other), stats.ratio_of_ratios(other, QUIET)
    assert np.allclose([1 / back.ratio, 1 / back.ci_hi, 1 / back.ci_lo, back.p], there[:4])


def test_too_few_pairs_on_either_side_bound_nothing():
    few = stats.Ratio(0.5, 0.0, math.inf, 0.2, 5)
    for sides in itertools.permutations([few, QUIET]):
        assert stats.ratio_of_ratios(*sides)[1:] == (0.0, math.inf, 1.0, 5)


@pytest.mark.parametrize("hi", [0.95, 0.99, 1.0001, 1.05])
def test_its_p_is_below_005_exactly_when_the_interval_excludes_1(hi):
    exact = stats.Ratio(1.0, 1.0, 1.0, 1.0, 40)
    found = stats.ratio_of_ratios(exact, stats.Ratio(0.9, 0.8, hi, 0.5, 40))
    assert (found.p < 0.05) == (found.ci_hi < 1)


def test_equal_ratios_differ_about_one_time_in_twenty_and_real_changes_are_found():
    trials = 50
    times = np.random.default_rng(0).lognormal(0, 0.05, (trials, 2, 2, 40))
    sides = [[stats.paired_ratio(*side) for side in trial] for trial in times]
    equal = [stats.ratio_of_ratios(a, b) for a, b in sides]
    # Ten percent more of every time moves a ratio and its interval by as much.
    moved = [
        (a, b._replace(ratio=b[0] * 1.1, ci_lo=b[1] * 1.1, ci_hi=b[2] * 1.1)) for a, b in sides
    ]
    slower = [stats.ratio_of_ratios(a, b) for a, b in moved]
    assert sum(not r.ci_lo <= 1 <= r.ci_hi for r in equal) <= 8  # three standard errors above 3
    assert sum(r.ci_lo > 1 for r in slower) >= 0.8 * trials


# --- matching ----------------------------------------------------------------------------------


def test_filters_match_on_everything_but_what_they_say_differently():
    a = [made.row(method="vanilla", length=n) for n in (512, 1024, 2048)]
    b = [made.row(method="vcc", length=n, method_params='{"k": 8}', weights_sha256="f" * 64)
         for n in (2048, 512, 4096)]  # fmt: skip
    found = matching.match(selection(*a, method="vanilla"), selection(*b, method="vcc"))
    assert [(p.a["length"], p.b["length"]) for p in found.pairs] == [(512, 512), (2048, 2048)]
    assert [row["length"] for row in (*found.only_a, *found.only_b)] == [1024, 4096]


def test_what_both_say_alike_is_not_compared_on():
    a, b = made.row(length=512), made.row(method="vanilla", length=1024)
    with pytest.raises(RequestError, match=r"they differ in length \(512 / 1024\)"):
        matching.match(selection(a, method="vcc", dtype="x"), selection(b, method="v", dtype="x"))


def test_folders_match_cells_whatever_the_version_of_the_code():
    before, after = made.row(cell_key="a"), made.row(cell_key="b")
    other = made.row(cell_key="c", seed=1)
    found = matching.match(selection(before), selection(after, other))
    assert [pair.b["cell_key"] for pair in found.pairs] == ["b"] and found.only_b == [other]


def test_the_newest_ok_row_of_each_side_counts():
    old, new = made.row(), made.row()
    failed = made.row(cell_key=new["cell_key"], status="error")
    found = matching.match(selection(made.row()), selection(new, failed, old))
    assert found.pairs[0].b is new


def test_rows_of_one_host_stand_together():
    a = [made.row(host_id="x"), made.row(host_id="y")]
    b = [made.row(host_id="y"), made.row(host_id="x")]
    found = matching.match(selection(*a), selection(*b))
    assert all(pair.a["host_id"] == pair.b["host_id"] for pair in found.pairs)
    assert len(found.pairs) == 2
    found = matching.match(selection(a[0]), selection(b[0]))
    assert len(found.pairs) == 1


def test_words_that_leave_a_choice_are_refused():
    vanilla = made.row(method="vanilla")
    vcc = [made.row(method_params=f'{{"k": {k}}}') for k in (8, 16)]
    with pytest.raises(RequestError, match=r"method_params is .*; name one \(method.NAME=…\)"):
        matching.match(selection(vanilla, method="vanilla"), selection(*vcc, method="vcc"))
    found = matching.match(
        selection(vcc[0], **{"method.k": 8}), selection(vcc[1], **{"method.k": 16})
    )
    assert len(found.pairs) == 1


def test_on_compares_cells_that_differ_in_more():
    a, b = made.row(dtype="float32"), made.row(dtype="bfloat16")
    with pytest.raises(RequestError, match=r"dtype .*--on NAME"):
        matching.match(selection(a), selection(b))
    assert len(matching.match(selection(a), selection(b), ["dtype"]).pairs) == 1


def test_two_ids_are_a_pair_whatever_they_are():
    a, b = made.row(task="x", length=1), made.row(task="y", length=2)
    found = matching.match(selection(a, one=True), selection(b, one=True))
    assert len(found.pairs) == 1
    with pytest.raises(RequestError, match="are the same rows"):
        matching.match(selection(a, one=True), selection(a, one=True))


# --- figures -----------------------------------------------------------------------------------


def judge(finding):
    return judged([finding])[0]


@pytest.mark.parametrize(
    ("a", "b", "verdict"), [(0.5, 0.4, "better"), (0.5, 0.6, "worse"), (0.5, 0.5, "same")]
)
def test_latency_is_a_ratio_of_ratios(a, b, verdict):
    rows = [made.full(**made.timing(r, seed=i)) for i, r in enumerate((a, b))]
    found = judge(latency(*rows))
    assert found.verdict == verdict and found.n == 40
    assert found.lo < (b / a - 1) * 100 < found.hi
    assert math.isclose(found.change, 100 * (rows[1]["ratio"] / rows[0]["ratio"] - 1))


def test_vanilla_is_one_by_definition_on_either_side():
    vanilla, vcc = made.full(method="vanilla"), made.full(**made.timing(0.5))
    forth, back = judge(latency(vanilla, vcc)), judge(latency(vcc, vanilla))
    assert forth.verdict == "better" and math.isclose(forth.change, 100 * (vcc["ratio"] - 1))
    assert back.verdict == "worse" and math.isclose(back.change, 100 * (1 / vcc["ratio"] - 1))
    assert back.lo < back.change < back.hi and forth.p == back.p == vcc["ratio_p"]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"host_id": "there"}, "measured on different hosts"),
        ({"ratio": None, "status": "oom_host"}, "B: oom_host"),
        ({"ratio": None, "ratio_reason": "vanilla can't"}, "B: vanilla can't"),
    ],
)
def test_latency_that_cannot_be_compared_says_why(change, note):
    a, b = made.full(**made.timing(0.5)), made.full(**made.timing(0.5)) | change
    found = judge(latency(a, b))
    assert found.note == note and found.change is None and found.verdict is None


def test_a_host_of_unknown_noise_finds_no_equality():
    a, b = (made.full(**made.timing(0.5, seed=i)) for i in range(2))
    assert judge(latency(a, b | {"aa_noise_pct": None})).verdict == "undecided"


@pytest.mark.parametrize(
    ("mib", "verdict"), [(90, "better"), (110, "worse"), (101, "same"), (99, "same")]
)
def test_memory_counts_from_two_percent_and_one_mib(mib, verdict):
    found = judge(memory(made.full(), made.full(rss_peak_delta_bytes=mib << 20)))
    assert found.verdict == verdict and found.lo is None
    small = made.full(rss_peak_delta_bytes=1 << 20), made.full(rss_peak_delta_bytes=3 << 19)
    assert judge(memory(*small)).verdict == "same"


def test_memory_read_in_two_ways_is_not_compared():
    found = memory(made.full(), made.full(mem_method="smaps"))
    assert found.note == "read in two ways: VmHWM, smaps" and found.change is None
    gone = made.full(rss_peak_delta_bytes=None, status="oom_host")
    assert memory(made.full(), gone).note == "B: oom_host"


def test_right_and_wrong_answers_are_judged_by_mcnemar():
    a, b = [100.0] * 20 + [0.0] * 20, [100.0] * 40
    found = judge(quality(a, b, True))
    assert found.p == stats.mcnemar([1] * 20 + [0] * 20, [1] * 40)
    assert found.verdict == "better" and found.change == 50 and found.change_pct == 100
    assert judge(quality(a, b, False)).verdict == "worse"


def test_four_answers_prove_nothing_even_where_the_bootstrap_says_so():
    found = judge(quality([0.0] * 4, [100.0] * 4, True))
    assert found.lo > 0 and found.p > 0.05 and found.verdict == "undecided" and not found.sure


def test_scores_are_judged_by_swapping_them():
    random = np.random.default_rng(0)
    a = random.uniform(20, 40, 200)
    assert judge(quality(a, a + random.normal(3, 5, 200), True)).verdict == "better"
    assert judge(quality(a, a + random.normal(0, 0.5, 200), True)).verdict == "same"
    assert judge(quality(a, a + random.normal(0, 20, 200), True)).verdict == "undecided"
    assert judge(quality(a, a + random.normal(3, 5, 200), True, 10.0)).verdict == "same"


def test_equal_scores_of_few_samples_are_no_proof_of_equality():
    few = judge(quality([30.0] * 32, [30.0] * 32, True))
    assert few.verdict == "undecided" and 8 < few.hi < 10
    assert few.note == "every sample scores the same"
    assert judge(quality([30.0] * 400, [30.0] * 400, True)).verdict == "same"
    one = judge(quality([30.0], [40.0], True))
    assert one.verdict == "undecided" and not one.sure


def test_swapping_finds_a_difference_as_often_as_it_should():
    random = np.random.default_rng(1)
    assert stats.sign_flip_p([1, 2, 3], [1, 2, 3]) == 1
    assert stats.sign_flip_p(np.arange(12) + 1, np.arange(12)) < 0.002
    rejected = [stats.sign_flip_p(*random.normal(0, 1, (2, 15))) < 0.05 for _ in range(60)]
    assert sum(rejected) <= 8


def test_of_many_comparisons_a_chance_find_is_undecided():
    a = made.full(**made.timing(0.5))
    ours = latency(a, a)._replace(change=5.0, lo=1.0, hi=9.0, p=0.03, settled="worse")
    assert judge(ours).verdict == "worse"
    many = judged([ours, *[ours._replace(p=0.5, settled="undecided")] * 9])
    assert many[0].p == pytest.approx(0.3) and many[0].verdict == "undecided"
    assert many[0].note == "p = 0.3 after Holm's correction"


# --- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("latency", "can't read the limit 'latency'"),
        ("latency > 5", "can't read the limit"),
        ("latency >> 5%", "can't read the limit"),
        ("latncy > 5%", "unknown figure 'latncy'. Did you mean latency?"),
        ("quality < 2%", "0 or less after <, such as 'quality < -2%'"),
        ("memory > -1%", "0 or more after >, such as 'memory > 5%'"),
    ],
)
def test_a_malformed_limit_is_one_line_and_exit_code_2(text, told, capsys):
    code, _, err = bench(capsys, "compare", "a", "b", "--fail-if", text)
    assert code == 2 and len(err) == 1 and told in err[0]


def test_a_limit_needs_the_point_beyond_it_and_a_sure_change():
    found = compare.Finding("latency", 1, 1, 8.0, 1.0, 15.0, change_pct=8.0, p=0.01, n=40)
    over = limit("latency>5%")
    assert over.fails(found)
    assert not over.fails(found._replace(lo=-1.0))
    assert not over.fails(found._replace(p=0.2))
    assert not over.fails(found._replace(change_pct=4.9))
    assert not over.fails(found._replace(figure="memory"))
    drop = found._replace(figure="quality", change=-3.0, lo=-5.0, hi=-1.0, change_pct=-9.0)
    assert limit("quality < -2 %").fails(drop) and not limit("quality > 2%").fails(drop)


# --- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Vanilla right on 24 of 40, a method on 4 of 40: 40 % faster, half the memory."""
    folder = tmp_path_factory.mktemp("finished")
    results, model = folder / "runs", made.checkpoint(folder / "model")
    half, some = [True] * 24 + [False] * 16, [True] * 4 + [False] * 36
    memory = {"rss_peak_delta_bytes": 100 << 20, "mem_method": "VmHWM"}
    made.answered(results, model, half, None, "method=vanilla", row_id="a1", **memory)
    memory["rss_peak_delta_bytes"] = 50 << 20
    made.answered(results, model, some, half, row_id="b2", **made.timing(0.6), **memory)
    return results


@pytest.fixture
def stored(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "runs"))


def test_compare_gives_three_figures_for_a_program(stored, capsys):
    code, out, err = bench(capsys, "compare", "method=vanilla", "method=vcc", "--results", stored)
    assert code == 0 and not err
    found = {line["figure"]: line for line in listed(out)}
    assert [found[name]["verdict"] for name in compare.FIGURES] == ["worse", "better", "better"]
    assert float(found["quality"]["change"]) == -50 and found["quality"]["n"] == "40"
    assert float(found["latency"]["lo"]) < -40 + 2 and found["memory"]["change"] == "-50"
    assert {line["row_a"] for line in found.values()} == {"a1"}
    assert found["quality"]["cell"] == "narrativeqa length=512"


def test_compare_gives_a_table_for_people(stored, capsys):
    _, out, _ = bench(capsys, "compare", "a1", "b2", "--results", stored, "--format", "table")
    table = "\n".join(out)
    assert "×0.6" in table and "50.0 MiB" in table and "-50.0 (" in table and "worse" in table
    assert max(map(len, out)) <= 80


def test_the_same_story_under_two_lengths_is_not_the_same_sample(stored, tmp_path, capsys):
    model = made.checkpoint(tmp_path / "model")
    made.answered(stored, model, [True] * 4, None, "method=vanilla", "length=1024")
    words = ["method=vanilla,n=40,length=512", "method=vanilla,n=4,length=1024"]
    code, out, _ = bench(capsys, "compare", *words, "--results", stored)
    assert code == 0 and listed(out)[0]["note"] == "no shared samples"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["latency > 5%"], 0),
        (["quality < -2%"], 1),
        (["memory > 10%", "latency > 5%"], 0),
        (["memory > 10%", "quality < -2%"], 1),
    ],
)
def test_fail_if_is_the_exit_code(stored, limits, code, capsys):
    words = [word for text in limits for word in ("--fail-if", text)]
    found, _, err = bench(capsys, "compare", "a1", "b2", "--results", stored, *words)
    assert found == code and len(err) == code
    assert not err or err[0] == "bench: quality < -2%: narrativeqa length=512: -83.3 %"


def test_what_cannot_be_judged_or_has_failed_does_not_pass(tmp_path, capsys):
    before, after = Store(tmp_path / "before"), Store(tmp_path / "after")
    before.append([made.row(**made.timing(0.5)), made.row(seed=1, **made.timing(0.5))])
    after.append([made.row(host_id="there", **made.timing(0.5))])
    words = ["compare", before.folder, after.folder, "--fail-if", "latency > 5%"]
    code, _, err = bench(capsys, *words)
    assert code == 1 and err[0] == "bench: 1 cells of A have no counterpart"
    assert err[1] == "bench: latency > 5%: can't be judged: measured on different hosts"
    after.append([made.row(seed=1, status="oom_host")])
    code, _, err = bench(capsys, *words)
    assert code == 1 and len(err) == 1 and "B ended with oom_host" in err[0]


def test_folders_before_and_after_a_change_gate_a_slow_down(tmp_path, capsys):
    before, after = Store(tmp_path / "before"), Store(tmp_path / "after")
    before.append([made.row(seed=i, **made.timing(0.5, seed=i)) for i in range(3)])
    after.append(
        [made.row(seed=i, **made.timing(0.5 + 0.1 * (i == 1), seed=9 + i)) for i in range(3)]
    )
    words = ["compare", before.folder, after.folder, "--fail-if", "latency > 5%"]
    code, out, err = bench(capsys, *words)
    verdicts = [line["verdict"] for line in listed(out) if line["figure"] == "latency"]
    assert code == 1 and len(err) == 1 and "seed=1" in err[0]
    assert verdicts == ["same", "worse", "same"]


def test_samples_that_are_gone_leave_the_rest_compared(stored, capsys):
    for path in (stored / "predictions").rglob("*.jsonl"):
        path.unlink()
    _, out, _ = bench(capsys, "compare", "a1", "b2", "--results", stored)
    quality, latency, _ = listed(out)
    assert "samples can't be paired: its predictions are" in quality["note"]
    assert quality["a"] and quality["b"] and not quality["verdict"] and latency["verdict"]


def test_reading_rows_needs_no_torch(stored):
    program = (
        "import sys\nfrom bench.cli import main\n"
        f"for words in ['results'], ['compare', 'a1', 'b2'], ['explain', 'a1', 'b2']:\n"
        f"    try: main([*words, '--results', {str(stored)!r}])\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "print({'torch', 'transformers', 'hydra'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.strip().splitlines()[-1] == "set()", done.stderr


def test_explain_lists_what_of_the_key_differs_and_what_else(stored, capsys):
    code, out, _ = bench(capsys, "explain", "a1", "b2", "--results", stored)
    found = {line["name"]: line for line in listed(out)}
    assert code == 0 and found["method.name"]["row1"] == "vanilla"
    assert found["method.name"]["row2"] == "vcc" and found["method.k"]["row1"] == ""
    assert found["code_sha256"]["part"] == "key" and found["method_version"]["part"] == "beside"
    assert not {"length", "task.name", "model.path"} & set(found)
    _, out, _ = bench(capsys, "explain", "a1", "a1", "--results", stored, "--format", "table")
    assert out[0].strip() == "the same cell"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "nothing", "b2"], "'nothing' is no folder, no filter such as"),
        (["compare", "method=vcc", "method=vcc"], "are the same rows"),
        (["compare", "a1", "b2", "--on", "lenght"], "Did you mean length?"),
        (["compare", "a1", "b2", "--margin", "-1"], "it must be 0 or more"),
        (["explain", "batch=1", "b2"], "'batch=1' names 2 rows; explain takes one"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(stored, words, told, capsys):
    code, _, err = bench(capsys, *words, "--results", stored)
    assert code == 2 and len(err) == 1 and told in err[0]
