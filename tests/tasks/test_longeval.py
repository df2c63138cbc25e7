"""LongEval: official prompts and sizes, templates, generated records, and stored model outputs."""

import json
import re
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from bench.request import plugins
from tasks import longeval, metrics
from tasks.base import Data, DataError
from tasks.generators.line_names import STYLES
from tasks.longeval import Lines, Topics
from tests.conftest import ROOT
from tests.tasks.words import Words

LINE_SIZES = (200, 680, 1350)


def lines(**given) -> Lines:
    return replace(plugins.build(plugins.conf("task", "longeval_lines")), **given)


def topics(**given) -> Topics:
    return replace(plugins.build(plugins.conf("task", "longeval_topics")), **given)


def record(n: int = 3, **given) -> dict:
    held = "".join(longeval.LINE.format(i, 10 * i) for i in range(1, n + 1))
    asked = longeval.LINES_OVER + longeval.LINES_ASK.format(2)
    return {
        "random_idx": [2, 1], "expected_number": 20, "num_lines": n,
        "correct_line": longeval.LINE.format(2, 20), "prompt": longeval.LINES_HEADER + held + asked,
    } | given  # fmt: skip


def folder(path, name="3_lines.jsonl", rows=None) -> Data:
    place = path / "longeval" / "evaluation" / "lines" / "testcases"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text("\n".join(map(json.dumps, rows or [record(), record()])))
    return Data("local", path)


def test_the_largest_set_that_fits_is_taken(tmp_path):
    for n in (3, 40, 400):
        data = folder(tmp_path, f"{n}_lines.jsonl", [record(n)])
    assert lines().load(data, None, 2048, 0).rows[0].id == "40-000"
    assert lines(lines=400).load(data, None, 2048, 0).rows[0].id == "400-000"
    with pytest.raises(DataError, match=r"no set for lines=7; .* has 3, 40, 400"):
        lines(lines=7).load(data, None, 2048, 0)
    with pytest.raises(DataError, match="no set for length=100"):
        lines().load(data, None, 100, 0)


def test_templates_wrap_the_prompt(tmp_path, snapshot):
    data, plain, text = folder(tmp_path), record()["prompt"], ""
    for template in longeval.TEMPLATES:
        row = lines(lines=3, template=template).load(data, 1, 512, 0).rows[0]
        whole = row.document + row.query + row.ending
        assert plain in whole
        text += f"# {template}\n{whole.replace(plain, 'PROMPT ')}\n"
    snapshot("longeval_templates", text)


def test_a_record_that_is_too_long_loses_its_end(tmp_path):
    row = lines(lines=3, template="vicuna").load(folder(tmp_path), 1, 512, 0).rows[0]
    words = Words()
    whole = words.spell(lines().encode(row, words, 512).ids)
    found = lines().encode(row, words, 116)
    assert len(found.ids) == 116 and found.tokens_in == len(whole.split())
    text = words.spell(found.ids)
    assert text.endswith("in line 2? I need the number. ASSISTANT: </s>") and "<30>" not in text
    assert text.startswith("A chat between")
    assert words.vip(found).startswith("Now the record is over")


@pytest.mark.parametrize("style", STYLES)
def test_lines_of_every_style(style):
    row = lines(style=style).load(Data(), 2, 4096, 0).rows[1]
    held = re.findall(r"line (\S+): REGISTER_CONTENT is <(\d+)>\n", row.document)
    asked = re.search(r"in line (\S+)\? I need", row.query)[1]
    assert dict(held)[asked] == row.references[0] and len(dict(held)) == len(held) > 30
    assert all(1 <= int(number) <= 50000 for _, number in held)
    form = {"LRT": r"\d+", "LRT-ABCindex": "[A-F]{6}", "LRT-UUID": "[0-9a-f-]{36}"}
    assert all(re.fullmatch(form.get(style, "[a-z]+-[a-z]+"), name) for name, _ in held)


def test_the_number_of_lines_follows_the_length_or_is_fixed():
    def count(length, **given):
        return lines(**given).load(Data(), 1, length, 0).rows[0].document.count("\nline ")

    assert count(1024) < count(4096) < count(65536) and count(65536) > 1300
    assert count(1024, lines=200) == count(4096, lines=200) == 200
    with pytest.raises(DataError, match="length=150 is too short"):
        count(150)


@pytest.mark.parametrize("length", [1024, 4096])
def test_lines_fill_the_length_as_llamas_tokenizer_counts(length):
    row = lines().load(Data(), 1, length, 0).rows[0]
    first, each = longeval.Lines.official_tokens
    asked = first + each * row.document.count("\nline ")
    assert length - 2 * each - 60 < asked <= length
    # The shipped Llama's tokenizer has the words of the names, which saves a third.
    folder = ROOT / "bench/models/embedded/llama"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(row.document + row.query + row.ending).ids
    assert 0.5 * length < len(ids) <= length


def test_splits_have_other_lines_and_topics():
    def names(split):
        row = lines(lines=300).load(Data(split=split), 1, 4096, 0).rows[0]
        return set(re.findall(r"line (\S+): ", row.document))

    assert not names("train") & names("test") and not names("validation") & names("test")
    asked = {s: {r.references for r in topics().load(Data(split=s), 32, 4096, 0).rows}
             for s in ("train", "validation", "test")}  # fmt: skip
    assert not asked["train"] & asked["test"] and not asked["validation"] & asked["test"]


def test_the_first_topic_comes_first():
    task = topics(topics=4)
    for row in task.load(Data(), 5, 4096, 0).rows:
        found = re.findall(r"USER: I would like to discuss the topic of (.+?)\. \n", row.document)
        assert len(found) == len(set(found)) == 4
        assert found[0].lower() == row.references[0].lower()
        assert row.document.startswith("Below is a record of our previous conversation on 4 ")
    with pytest.raises(DataError, match="topics=99; accepted: 1 to 60 in split test"):
        topics(topics=99).load(Data(), 1, 4096, 0)


def test_containment_of_the_topic():
    def score(said):
        return topics().score([said], [["The role of art in society"]])

    assert score("The first topic was: the role of art, in society.")["topic_containment"] == 100
    assert score("the role of artists in society")["value"] == score("")["value"] == 0
    assert topics().score(["sport"], [["port"]])["value"] == 0


def test_the_judges_parser_cuts_an_answer_at_its_first_comma():
    def score(said, label="The role of art in society"):
        return topics(metric="topic_containment_auto_eval").score([said], [[label]])["value"]

    pair = metrics.text.auto_eval_pair("A topic", "It was art, in society.")
    assert pair == ("A topic", "'It was a")
    assert score("It was the role of art in society.") == 100
    assert score("['It was the role of art in society.']") == 100  # as an output file has it
    assert score("First, the role of art in society.") == 0
    assert score("the role of art in society, and sport") == 0
    assert score("art, music and sport", "art, music and sport") == 0


@pytest.mark.parametrize("n", LINE_SIZES)
def test_real_lines_run_end_to_end(n, real_rows):
    loaded = lines(lines=n).load(Data("local", real_rows), None, 16384, 0)
    print(f"longeval_lines {n}: {loaded.n_available} rows")
    assert len(loaded.rows) == loaded.n_available == 25
    words = Words()
    for row in loaded.rows[:2]:
        found = lines().encode(row, words, 4096)
        asked = re.search(r"in line (\S+)\?", words.vip(found))[1]
        number = re.search(rf"line {asked}: REGISTER_CONTENT is <(\d+)>", row.document)[1]
        assert row.references == (number,) and len(found.ids) <= 4096


def test_stored_outputs_score_the_official_accuracies(real_rows):
    paths = sorted((real_rows / "longeval" / "lines" / "predictions").glob("*/*.txt"))
    assert len(paths) == 12
    for path in paths:
        labels, given, accuracy = longeval.official_output(path)
        found = lines().score(given, [[label] for label in labels])
        print(f"{path.parent.name} {path.stem}: {len(given)} rows, {found['accuracy']}")
        assert len(given) == 50 and found["accuracy"] == pytest.approx(100 * accuracy)


def test_a_line_that_is_no_output_is_named(tmp_path):
    path = tmp_path / "200_response.txt"
    path.write_text("Label: 1, Predict: one 1, Parsed: 1, prompt length: 9\nsomething\n")
    with pytest.raises(DataError, match=r"200_response\.txt line 2: expected 'Label"):
        longeval.official_output(path)
