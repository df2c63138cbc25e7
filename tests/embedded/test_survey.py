"""The attention of a shipped model, as on its card."""

import yaml

from bench.models import stored
from bench.request import answering
from tools.embedded import survey

LOW = {"tokens": 1024, "f1": 0.0, "interval": [0.0, 20.6], "rows": 16, "chance": 0.6}
HIGH = {**LOW, "f1": 100.0, "interval": [79.3, 100.0]}


def test_scores_are_added_to_a_card_whose_other_lines_stay(tmp_path):
    card = tmp_path / stored.CARD
    card.write_text("seed: 0  # of the rows\n")
    for task, score in (("one", LOW), ("two", LOW), ("one", HIGH)):
        survey.add(card, task, score)
    text = card.read_text()
    assert text.startswith("seed: 0  # of the rows\n") and text.count(survey.ABOUT) == 1
    assert yaml.safe_load(text) == {"seed": 0, "tasks": {"one": HIGH, "two": LOW}}
    found = answering.scores(tmp_path)
    assert answering.above(found["one"]) and not answering.above(found["two"])


def test_no_score_is_above_chance_that_is_not_known():
    assert not answering.above({**HIGH, "chance": None})
    assert not answering.above({**HIGH, "interval": [None, None]})


def test_a_model_is_tried_on_what_it_answers():
    tasks = survey.answered_by("embedded-llama")
    assert {"ruler_cwe", "graphwalks"} <= {*tasks} and not {"lra_text_easy", "mrcr"} & {*tasks}
