"""The lines of a row's table about quality."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.terminal import row_table
from tests import made

SCORES = {
    "metric": "f1", "n_scored": 8, "value": 90.6, "ci_lo": 87.1, "ci_hi": 94.1, "base_value": 67.2,
    "base_ci_lo": 61.0, "base_ci_hi": 73.0, "value_diff": 23.4, "value_diff_ci_lo": 18.0,
    "value_diff_ci_hi": 29.0,
}  # fmt: skip


def shown(capsys, **more) -> str:
    row_table.show(made.full(**SCORES | more), Path("runs"))
    return capsys.readouterr().out


def after_difference(text: str) -> str:
    lines = text.splitlines()
    (number,) = (i for i, line in enumerate(lines) if "+23.4" in line)
    return lines[number + 1]


def test_a_difference_of_own_trainings_says_what_each_had(capsys):
    one = {"from": "t5", "steps": None, "hours": 1.58, "supervision": "answers"}
    other = {"from": "random weights", "steps": 1600, "hours": 0.2, "supervision": None}
    given = {"training": json.dumps(one), "base_training": json.dumps(other)}
    text = shown(capsys, quality_comparison="each trained for itself", **given, **made.timing())
    line = after_difference(text)
    assert "1.6 h" in line and "1,600 steps, 12 min" in line and "each trained for itself" in line
    assert "vcc's training: from t5, 1.6 h, answers" in text
    assert "vanilla's training: from random weights, 1,600 steps, 12 min" in text
    assert "Latency, memory and output error: both on vcc's weights." in text


def test_own_data_on_shipped_weights_have_a_note_of_what_was_measured(capsys):
    words = {"tokens_per_word": 3.26, "unknown_tokens_frac": 0.125}
    text = " ".join(shown(capsys, data_source="local", split="test", **words).split())
    assert "These rows have 3.3 tokens a word and 12.5% unknown tokens: the shipped" in text
    assert "a word" not in shown(capsys, **words), "embedded rows are what the weights know"
    assert "a word" not in shown(capsys, **words, data_source="hub", weights_kind="finetuned")


def test_a_tokenizer_that_is_too_small_for_the_words_is_named(capsys):
    many = shown(capsys, weights_kind="random", unknown_tokens_frac=0.31)
    assert "31.0% of the tokens are unknown to the tokenizer" in " ".join(many.split())
    assert "unknown" not in shown(capsys, weights_kind="random", unknown_tokens_frac=0.01)


def test_a_chance_level_that_is_not_known_says_why(capsys):
    text = shown(capsys, chance_reason="the data have 3 other rows")
    assert "best constant answer" in text and "not known" in text
    assert "Best constant answer not known: the data have 3 other rows." in text


@pytest.mark.parametrize(
    ("stored", "word"), [("same weights", "same weights"), (None, "weights not recorded")]
)
def test_every_difference_has_the_word_below_it(stored, word, capsys):
    text = shown(capsys, quality_comparison=stored)
    assert word in after_difference(text) and "training" not in text


def test_the_table_names_the_variant_of_a_method(capsys):
    text = shown(capsys, method="iceformer", method_params=json.dumps({"search": "dci"}))
    title, heads, *_ = text.strip().splitlines()
    assert title.startswith("iceformer·dci × ")
    assert "iceformer·dci" in heads


def test_what_a_model_was_not_configured_for_is_on_the_screen(capsys):
    text = " ".join(shown(capsys, positions_rotary=2048, generation_ignored="top_k=1").split())
    assert "2,048" in text and "beyond the model's configuration" in text.replace("│ ", "")
    assert "not applied: top_k=1" in text


def test_inputs_of_which_much_is_cut_have_a_line(capsys):
    tokens = {"tokens_in_mean": 6576.0, "tokens_seen_mean": 3968.0}
    text = shown(capsys, **tokens, truncated_frac=0.397)
    assert "truncated: 39.7% of the inputs' tokens were cut to fit in 512" in text
    assert "truncated" not in shown(capsys, **tokens, truncated_frac=row_table.MOST_CUT_FRAC)
    estimated = shown(capsys, **tokens, truncated_frac=0.397, tokens_in_estimated=True)
    assert "3,968 / ≈ 6,576" in estimated and "truncated: ≈ 39.7% of" in estimated


def test_rows_that_are_left_out_are_counted(capsys):
    assert "left out: 3 rows without a right answer" in shown(capsys, n_unanswerable=3)
    assert "left out" not in shown(capsys)
