"""Metrics against the official evaluators, quirk by quirk.

Expected numbers were computed with the code that each benchmark publishes.
"""

import json
import socket

import numpy as np
import pytest

from tasks import metrics
from tasks.generators import babi
from tasks.metrics import retrieval, rouge, text
from tests.conftest import REAL_ROWS

CASES = REAL_ROWS.parent / "reference" / "metric_cases.jsonl"
LONG_CONTEXT = CASES.with_name("ruler_metric_cases.jsonl")
DOCUMENTED = (
    ["exact match example", "hello there", "general kenobi"],
    [["exact match example"], ["hello", "hi there"], ["commander kenobi"]],
)

# (task, metric, prediction, references, value)
QUIRKS = {
    "hyphens are deleted, not replaced": ("narrative_qa", "f1", "state-of-the-art",
        ["state of the art"], 0),
    "accents count in SCROLLS' F1": ("narrative_qa", "f1", "Café", ["Cafe"], 0),
    "articles and punctuation do not count": ("qasper", "f1", "the English, German and French",
        ["English, German, French"], 85.7143),
    "bags of words keep their counts": ("qasper", "f1", "a a b b", ["b b c"], 80),
    "F1 of two empty answers is 0": ("qasper", "f1", "the", ["a"], 0),
    "EM of two empty answers is 1": ("contract_nli", "exact_match", "the", ["a"], 100),
    "(A) becomes the article a": ("quality", "exact_match", "(A) The answer", ["The answer"], 100),
    "(B) becomes a word": ("quality", "exact_match", "(B) The answer", ["The answer"], 0),
    "without a common bigram the mean is 0": ("summ_screen_fd", "rouge_geo_mean", "d c b a",
        ["a b c d"], 0),
    "each ROUGE takes its own best reference": ("qmsum", "rouge_geo_mean", "a b c d",
        ["a b", "d c b a a b c"], 62.3532),
    "3.5 is two words": ("gov_report", "rouge_geo_mean", "Costs rose 3.5% in 2019.",
        ["Costs rose 35% in 2019"], 61.7169),
    "other alphabets vanish": ("gov_report", "rouge_geo_mean", "日本語 テキスト",
        ["日本語 テキスト"], 0),
    "lines do not matter": ("gov_report", "rouge_geo_mean", "First one. Second.\nThird.",
        ["First one.\nSecond. Third."], 100),
}  # fmt: skip


@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirk(quirk):
    task, metric, prediction, references, value = QUIRKS[quirk]
    found = metrics.compute(f"scrolls/{task}", metric, [prediction], [references])
    assert found["value"] == found["scrolls_score"] == pytest.approx(value, abs=1e-4)


def test_the_documented_example():
    f1 = metrics.compute("scrolls/qasper", "f1", *DOCUMENTED)
    assert f1 == {"f1": 72.2222, "num_predicted": 3, "scrolls_score": 72.2222, "value": 72.2222}
    match = metrics.compute("scrolls/quality", "exact_match", *DOCUMENTED)
    assert match["exact_match"] == 33.3333
    found = metrics.compute("scrolls/qmsum", "rouge_geo_mean", *DOCUMENTED)
    parts = {"rouge/rouge1": 72.2222, "rouge/rouge2": 33.3333, "rouge/rougeL": 72.2222}
    means = dict.fromkeys(("rouge/geometric_mean", "scrolls_score", "value"), 55.8136)
    assert found == {**parts, **means, "num_predicted": 3}


def test_quality_hard_is_shown_without_a_score():
    found = metrics.compute("scrolls/quality_hard", "exact_match", ["x", "y"], [["x"], ["z"]])
    assert found["scrolls_score"] is None and found["value"] == 50


def test_each_gives_the_rows_of_a_mean():
    rows = metrics.each("scrolls/qasper", "f1", *DOCUMENTED)
    assert rows == pytest.approx([100, 200 / 3, 50])
    assert sum(rows) / 3 == pytest.approx(72.2222, abs=1e-4)


def test_the_parts_of_a_geometric_mean_have_its_mean():
    rows = metrics.each("scrolls/qmsum", "rouge_geo_mean", *DOCUMENTED)
    found = metrics.compute("scrolls/qmsum", "rouge_geo_mean", *DOCUMENTED)
    assert sum(rows) / 3 == pytest.approx(found["value"], abs=1e-4)
    assert rows[0] > rows[1] > rows[2] > 0
    assert metrics.each("scrolls/qmsum", "rouge_geo_mean", ["a", "b"], [["a"], ["b"]]) == [0, 0]


def test_the_parts_of_a_geometric_mean_spread_as_it_does():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([*"abcdef"], 12)) for _ in range(80)]
    given, right = texts[:40], [[text] for text in texts[40:]]
    parts = np.array(metrics.each("scrolls/qmsum", "rouge_geo_mean", given, right))
    values = []
    for _ in range(200):
        at = rng.integers(0, 40, 40)
        some = [given[i] for i in at], [right[i] for i in at]
        values.append(metrics.compute("scrolls/qmsum", "rouge_geo_mean", *some)["value"])
    assert parts.std(ddof=1) / 40**0.5 == pytest.approx(np.std(values), rel=0.2)


def test_figures_do_not_leak_between_calls():
    rouge.scrolls("a b", ["a b"])["rouge1"] = -1.0
    assert rouge.scrolls("a b", ["a b"])["rouge1"] == 100


def test_zero_scrolls_has_its_own_f1():
    assert metrics.compute("scrolls/qasper", "f1", ["naïve"], [["naive"]])["value"] == 0
    assert metrics.compute("zero_scrolls/qasper", "f1", ["naïve"], [["naive"]])["value"] == 100


def test_nothing_to_score_for_rouge_1_0_1_is_0():
    assert metrics.compute("eli5", "rouge_pkg_stemmed", [""], [["a b"]])["value"] == 0
    assert metrics.compute("kilt/eli5", "rougel_f1", ["."], [["a b"]])["rougel"] == 0


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (["a"], [["a"], ["b"]], "1 predictions, 2 rows"),
        ([], [], "0 predictions, 0 rows"),
        (["a"], [[]], "row 0: references"),
        (["a"], ["a"], "row 0: references 'a', expected a list"),
    ],
)
def test_what_does_not_pair_is_refused(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        metrics.compute("scrolls/qasper", "f1", predictions, references)


def test_a_gold_percentage_is_needed():
    with pytest.raises(ValueError, match="without a percentage"):
        text.exp_similarity("60%", ["sixty"])


def test_evaluate_computes_the_same_with_no_network(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", refused)
    from tasks.metrics import evaluating

    given, right = ["a b c", "yes"], [["a b d", "a b"], ["no"]]
    found = evaluating.Official("scrolls/qmsum", "rouge_geo_mean")
    expected = metrics.compute("scrolls/qmsum", "rouge_geo_mean", given, right)
    assert found.compute(predictions=given, references=right) == expected
    other = evaluating.Official("scrolls/qasper", "f1")
    for one, references in zip(given, right, strict=True):
        other.add(prediction=one, reference=references)
    assert other.compute()["f1"] == metrics.compute("scrolls/qasper", "f1", given, right)["f1"]
    with pytest.raises(ValueError, match="unknown metric 'f2'"):
        evaluating.Official("scrolls", "f2")


def refused(self, address):
    raise AssertionError(f"asked the network for {address}")


# --- all reference cases ----------------------------------------------------------------------


def cases(path) -> list:
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    # How LongEval's judge parses its own log isn't a metric.
    return [case for case in found if case["metric"] != "autoeval_line_parse"]


def test_the_reference_cases_are_there():
    if not CASES.is_file():
        pytest.skip(f"no {CASES}; the cases are not run")
    assert len(cases(CASES)) == 63 and len(cases(LONG_CONTEXT)) == 40


@pytest.mark.parametrize("case", cases(LONG_CONTEXT), ids=lambda case: case["case"])
def test_official_long_context_case(case):
    task = case["task"].replace("ruler/longbench_v2", "longbench_v2")
    labels = case.get("all_classes") or babi.LABELS.get(task.partition("/")[2], ())
    questions = case.get("questions") or [""] * len(case["references"])
    references = [
        retrieval.References(right, question, labels)
        for right, question in zip(case["references"], questions, strict=True)
    ]
    found = metrics.compute(task, case["metric"], case["predictions"], references)
    assert found["value"] == pytest.approx(case["expected"], abs=0.005)


@pytest.mark.parametrize("case", cases(CASES), ids=lambda case: case["case"])
def test_official_case(case):
    predictions, expected = case["predictions"], case["expected"]
    references = [right if isinstance(right, list) else [right] for right in case["references"]]
    found = metrics.compute(case["task"], case["metric"], predictions, references)
    if case["metric"] == "last_number_match":
        assert text.last_number(predictions[0]) == expected["parsed"]
        expected = {"accuracy": 100.0 * expected["correct"]}
    if case["metric"] == "rouge_pkg_stemmed":
        expected = {f"{k}/{part}": v for k, rpf in expected.items() for part, v in rpf.items()}
    for name, figure in expected.items():
        wanted = figure if figure is None else pytest.approx(figure, abs=1e-4)
        assert found[name] == wanted, (name, case["note"])
    assert 0 <= found["value"] <= 100
