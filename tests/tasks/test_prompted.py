"""Tasks defined only by YAML, such as LongBench: templates, answers, official prompts."""

import datetime
import json
from dataclasses import replace

import pytest

from bench.request import plugins
from tasks.base import Data, DataError
from tests.tasks import parquet
from tests.tasks.words import Words

YAML = {
    "name": "capitals",
    "target": "tasks.prompted:Prompted",
    "benchmark": "capitals",
    "version": 1,
    "metric": "exact_match",
    "prompt": "{text}\nQuestion: {question}\nAnswer:",
    "query": "question",
    "max_new_tokens": 8,
    "length": 512,
    "files": {"test": "*.jsonl"},
    "licence": "none",
}


def task(**given):
    return plugins.build({**YAML, **given})


def folder(path, *rows, name="rows.jsonl"):
    path.mkdir(exist_ok=True)
    (path / name).write_text("\n".join(map(json.dumps, rows)))
    return Data("local", path)


def test_a_template_makes_the_prompt(tmp_path):
    data = folder(tmp_path, {"text": "Paris is {a} capital.", "question": "Of what?",
                             "answer": ["France", "of France"]})  # fmt: skip
    (row,) = task().load(data, None, 512, 0).rows
    assert (row.document, row.query) == ("Paris is {a} capital.\nQuestion: ", "Of what?")
    assert (row.ending, row.references) == ("\nAnswer:", ("France", "of France"))
    words = Words()
    encoded = task().encode(row, words, 512)
    assert words.vip(encoded) == "Of what?"
    assert task().score(["france"], [row.references])["value"] == 100


def test_the_split_that_there_are_files_of_is_scored(tmp_path):
    data = folder(tmp_path, {"text": "x", "question": "q", "answer": "1"})
    given = {"train": "*.none", "validation": "*.jsonl"}
    assert task(files={"validation": "*.jsonl"}).load(data, None, 512, 0).split == "validation"
    assert task(files=given, default_split="validation").load(data, None, 512, 0).rows
    assert task(files=given | {"test": "*.jsonl"}).load(data, None, 512, 0).split == "test"


@pytest.mark.parametrize("value", [True, "True", [True]])
@pytest.mark.parametrize("keys", [(True, False), ("true", "false")])  # a cell is stored as JSON
def test_truth_has_a_text_however_it_is_written(tmp_path, value, keys):
    data = folder(tmp_path, {"text": "x", "question": "q", "answer": value})
    spelled = task(texts={"answer": dict(zip(keys, ("yes", "no"), strict=True))})
    assert spelled.load(data, None, 512, 0).rows[0].references == ("yes",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"query": "asked"}, "query=asked is no column of its prompt; accepted: text, question"),
        ({"prompt": "{text"}, "capitals: prompt '{text'"),
        ({"prompt": "{question} {answer}"}, "its prompt has the column of the right answer, answ"),
        ({"truncate": "start"}, "truncate=start; accepted: end, middle"),
    ],
)
def test_a_wrong_template_is_one_line(given, message):
    with pytest.raises(Exception, match=message):
        task(**given)


def test_columns_within_columns(tmp_path):
    record = {"question": "How many?", "text": ["a", "b"], "answer": {"text": ["2+2\n#### 1,004"]}}
    within = task(answers_in="answer.text", answer_after="####", metric="last_number_match")
    (row,) = within.load(folder(tmp_path, record), None, 512, 0).rows
    assert row.document.startswith("a\nb\n") and row.references == ("1,004",)
    assert within.score(["It is 1004."], [row.references])["value"] == 100
    other = task(answers_in="answer.text", answer_after="%")
    with pytest.raises(DataError, match="without answer_after=%"):
        other.load(folder(tmp_path, record), None, 512, 0)


ASKED = {"text": "The box is red.", "question": "What is red?", "answer": "the box", "id": "a"}


@pytest.mark.parametrize("column", ["text", "question", "id"])
@pytest.mark.parametrize("value", [None, float("nan"), {"a": 1}, ["a", None]], ids=str)
def test_what_is_no_text_never_gets_into_a_prompt(tmp_path, value, column):
    data = folder(tmp_path, ASKED, {**ASKED, "id": "b", column: value})
    with pytest.raises(DataError, match=f"rows.jsonl line 2: column '{column}' holds .*, expected"):
        task(id_in="id").load(data, None, 512, 0)


def test_numbers_truth_and_dates_are_text(tmp_path):
    given = task(files={"test": "*.parquet"}, prompt="{n} {x} {yes} {day}: {question}")
    day = datetime.date(2026, 1, 31)
    table = {"n": [7], "x": [0.5], "yes": [True], "day": [day], "question": ["q"], "answer": ["a"]}
    parquet.write(tmp_path / "x.parquet", table)
    (row,) = given.load(Data("local", tmp_path), None, 512, 0).rows
    assert row.document == "7 0.5 True 2026-01-31: "


@pytest.mark.parametrize("answer", [[], None, ["", " "]])
def test_a_row_without_an_answer_is_refused_or_left_out(tmp_path, answer):
    data = folder(tmp_path, ASKED, {**ASKED, "answer": answer}, {**ASKED, "question": "Why?"})
    told = r"line 2: .*no right answer; skip_unanswerable=true leaves such rows out"
    with pytest.raises(DataError, match=told):
        task().load(data, None, 512, 0)
    loaded = task().load(replace(data, skip_unanswerable=True), None, 512, 0)
    assert [row.id for row in loaded.rows] == ["00000", "00002"]
    assert (loaded.n_available, loaded.n_unanswerable) == (3, 1)
    of_sets = task(metric="set_f1").load(data, None, 512, 0)
    assert len(of_sets.rows) == 3 and of_sets.n_unanswerable == 0


def longbench(tmp_path, member="trec", prompt="Type of:\n{context}\n{input}", **record):
    base = {"input": "Question: q\nType:", "context": "a b c", "answers": ["City"], "_id": "x1",
            "all_classes": ["City", "Other"]}  # fmt: skip
    data = folder(tmp_path, {**base, **record}, name=f"{member}.jsonl")
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "dataset2prompt.json").write_text(json.dumps({member: prompt}))
    return plugins.build(plugins.conf("task", f"longbench_{member}")), data


def test_official_prompts_are_read(tmp_path):
    task, data = longbench(tmp_path)
    loaded = task.load(data, None, 512, 0)
    (row,) = loaded.rows
    assert row.document + row.query == "Type of:\na b c\nQuestion: q\nType:"
    assert task.score(["City\nType: Other"], [row.references])["value"] == 100
    other, _ = longbench(tmp_path, prompt="Kind of: {context} {input}")
    assert other.load(data, None, 512, 0).sha256 != loaded.sha256


def test_only_the_official_files_of_a_checkout_are_data(tmp_path):
    task, data = longbench(tmp_path)
    (tmp_path / "trec.jsonl").rename(tmp_path / "moved")
    for name in ("data", "pred/model", "backup/data"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "trec.jsonl").write_text('{"pred": "City", "answers": ["City"]}')
    (tmp_path / "moved").rename(tmp_path / "data" / "trec.jsonl")
    (row,) = task.load(data, None, 512, 0).rows
    assert row.id == "x1"
    v2 = plugins.build(plugins.conf("task", "longbench_v2"))
    with pytest.raises(DataError, match="no file "):
        v2.parts(data, "test", 512)


def test_the_second_version_fills_its_placeholders(tmp_path):
    rows = [{"_id": "1", "context": "c {x}", "question": "q?", "choice_A": "a", "choice_B": "b",
             "choice_C": "c", "choice_D": "d", "answer": "B"}]  # fmt: skip
    (tmp_path / "prompts").mkdir()
    (tmp_path / "data.json").write_text(json.dumps(rows))
    (tmp_path / "prompts" / "0shot.txt").write_text("$DOC$\n{}What: $Q$\n(A) $C_A$\n(B) $C_B$")
    task = plugins.build(plugins.conf("task", "longbench_v2"))
    (row,) = task.load(Data("local", tmp_path), None, 512, 0).rows
    assert row.document + row.query + row.ending == "c {x}\n{}What: q?\n(A) a\n(B) b"
    assert task.score(["**The correct answer is (B)**"], [row.references])["value"] == 100
    (tmp_path / "data.json").write_text(json.dumps([{**rows[0], "answer": "E"}]))
    with pytest.raises(DataError, match="entry 1: column 'answer' holds 'E', expected A, B, C or"):
        task.load(Data("local", tmp_path), None, 512, 0)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ('{"trec": "{context}{question}"}', "dataset2prompt.json: longbench_trec: query=input is"),
        ('{"qasper": "{context}"}', "dataset2prompt.json: no prompt for trec; found qasper"),
        ('{"trec": "é"}', "dataset2prompt.json: not UTF-8 at byte 10"),
    ],
)
def test_prompts_of_another_version_are_one_line(tmp_path, prompts, message):
    task, data = longbench(tmp_path)
    (tmp_path / "config" / "dataset2prompt.json").write_bytes(prompts.encode("latin1"))
    with pytest.raises(DataError, match=message) as caught:
        task.load(data, None, 512, 0)
    assert "\n" not in str(caught.value)
