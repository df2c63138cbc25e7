"""Predictions in the layouts that benchmarks and evaluation tools write."""

import json
from pathlib import Path

import pytest

from tasks import metrics
from tasks.base import Data, DataError
from tasks.loading import submission
from tests.made import task as build


def write(folder, name, content):
    """JSON lines from a list, JSON from anything in a tuple, else text."""
    path = folder / name
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    elif isinstance(content, tuple):
        content = json.dumps(content[0], indent=1)
    path.write_text(content, encoding="utf-8")
    return path


def value(task, path, **given):
    found = submission.paired(task, Data(), path, **given)
    return task.score(found.predictions, found.references)["value"]


CLASSES = ["Colour", "Colour of paint", "Sound"]
LM_EVAL = {"arguments": {}, "filter": "none", "doc_hash": "h", "metrics": ["f1"], "f1": 0.0}
# Two records each, the first of them right. layout: (task, name of the file, content)
LAYOUTS = {
    "LongBench with classes": ("longbench_trec", "x.jsonl", [
        {"pred": "Colour\nx", "answers": ["Colour"], "all_classes": CLASSES, "length": 9},
        {"pred": "Sound", "answers": ["Colour"], "all_classes": CLASSES, "length": 9}]),
    "LongBench v2": ("longbench_v2", "x.jsonl", [
        {"_id": "a", "question": "?", "answer": "B", "context": "c", "response": "The correct "
         "answer is (B)", "pred": "B", "judge": True},
        {"_id": "b", "question": "?", "answer": "C", "context": "c", "response": "Hm", "pred": None,
         "judge": False}]),
    "InfiniteBench": ("infinitebench_passkey", "preds_passkey.jsonl", [
        {"id": 0, "prediction": "12345", "ground_truth": "12345"},
        {"id": 1, "prediction": "1", "ground_truth": ["54321"]}]),
    "lm-evaluation-harness": ("ruler_niah_multivalue", "samples_x.jsonl", [
        {"doc_id": 0, "doc": {"input": "i", "outputs": ["71", "72"]}, "target": "71",
         "resps": [["72 71"]], "filtered_resps": ["72 71"], **LM_EVAL},
        {"doc_id": 1, "doc": {"input": "i", "outputs": ["5"]}, "target": "5",
         "resps": [["6"]], "filtered_resps": ["6"], **LM_EVAL}]),
    "lm-evaluation-harness, targets": ("hotpotqa", "samples_x.jsonl", [
        {"doc_id": 0, "doc": {"question": "?"}, "target": "['a red kite', \"kite's\"]",
         "resps": [["kites"]], "filtered_resps": ["kites"], **LM_EVAL},
        {"doc_id": 1, "doc": {"question": "?"}, "target": "x", "resps": [["y"]],
         "filtered_resps": ["y"], **LM_EVAL}]),
    "lm-evaluation-harness, filters": ("longbench_hotpotqa", "samples_x.jsonl", [
        LM_EVAL | {"doc_id": at, "doc": {"answers": ["kite"]}, "target": "['kite']", "resps": [[t]],
                   "filtered_resps": [t], "filter": name}
        for at, t in enumerate(["kite", "owl"]) for name in ("strict", "flexible")]),
    "kvpress": ("ruler_niah_multivalue", "predictions.csv",
        "task,predicted_answer,answer,question,answer_prefix,compression_ratio\n"
        "niah_multivalue,\"71, 72\",['71' '72'],a,b,0.5\n"
        "niah_multivalue,none,\"['5'\n '6']\",a,b,0.5\n"
        "vt,AB,['AB'],a,b,0.5\n"),
    "HELMET": ("ruler_niah_multivalue", "x.json", ({
        "args": {"datasets": "ruler"}, "metrics": {"ruler_recall": [1.0, 0.0]},
        "data": [{"question": "q", "answer": ["71", "72"], "output": " 71, 72", "input_len": 9},
                 {"question": "q", "answer": ["5"], "output": "-", "parsed_output": "5"}]},)),
    "BABILong": ("babilong_qa1", "qa1_4k.csv",
        ",target,output,question\n"
        "0,kitchen,The kitchen.,Where is Ann? \n"
        "1,garden,\"hallway, garden\",Where is Tom? \n"),
    "MRCR": ("mrcr", "x.jsonl", [
        {"prediction": "k3x Rain", "answer": "k3x Rain", "random_string_to_prepend": "k3x"},
        {"prediction": "Rain", "answer": "k3x Rain", "random_string_to_prepend": "k3x"}]),
    "GraphWalks": ("graphwalks", "x.jsonl", [
        {"prompt": "p", "answer_nodes": ["a", "b"], "response": "Final Answer: [b, a]"},
        {"prompt": "p", "answer_nodes": ["a"], "response": "a"}]),
    "KILT": ("eli5", "x.jsonl", [
        {"id": "a", "reference": "one two", "output": [{"answer": "one two", "provenance": []}]},
        {"id": "b", "reference": "one two", "output": [{"answer": "three"}]}]),
    "ELI5-Category": ("eli5_category", "x.jsonl", [
        {"prediction": "one two", "answers": {"text": ["six", "one two"]}},
        {"prediction": "one two", "answers": {"text": ["six"]}}]),
    "rows of the benchmark with predictions": ("qasper", "x.jsonl", [
        {"id": "a", "pid": "a", "input": "q", "output": "Yes", "prediction": "yes"},
        {"id": "b", "pid": "b", "input": "q", "output": "Yes", "prediction": "no"}]),
    "an array of pairs": ("qasper", "x.json", ([
        {"prediction": "cat", "answer": "a cat"}, {"prediction": "cat", "answer": "dog"}],)),
    "an object of pairs": ("qasper", "x.json", ({
        "0": {"prediction": "cat", "gold": "a cat"}, "1": {"prediction": "cat", "gold": "dog"}},)),
    "JSON lines under .json": ("qasper", "x.json", [
        {"prediction": "cat", "reference": ["dog", "cat"]}, {"prediction": "a", "reference": "b"}]),
    "numbers": ("longeval_lines", "x.jsonl", [
        {"prediction": 42, "reference": 42}, {"prediction": 4, "reference": [42]}]),
    "classes": ("lra_listops", "x.jsonl", [
        {"prediction": [0.1, 0.9], "label": 1}, {"prediction": 3, "label": "1"}]),
    "CSV": ("qasper", "x.csv", "prediction,reference\ncat,cat\ncat,dog\n"),
    "outputs as LongEval publishes them": ("longeval_lines", "200_response.txt",
        "Label: 1, Predict: it is <1>., Parsed: 1, prompt length: 9\n"
        "Label: 2, Predict: 1, Parsed: 1, prompt length: 9\n"
        "Accuracy: 0.5\n"),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_with_right_answers_are_scored(tmp_path, layout):
    task, name, content = LAYOUTS[layout]
    found = value(build(task), write(tmp_path, name, content))
    assert found == pytest.approx(50, abs=0.02)


def test_columns_of_a_task_of_ones_own_come_first(tmp_path):
    task = build(
        "longbench_hotpotqa", name="own", benchmark="own", member="", metric="f1",
        answers_in="output", id_in="Key", answer_after="####", labels_in="",
    )  # fmt: skip
    path = write(tmp_path, "x.jsonl", [{"Key": 1, "output": "6 * 7 = 42 #### 42", "response": 42}])
    assert value(task, path) == 100
    assert submission.read_predictions(path, task) == {"1": "42"}


# --- rows of the data -------------------------------------------------------------------------


def infinitebench(folder):
    (folder / "infinitebench").mkdir()
    rows = [{"id": at, "context": "..", "input": "?", "answer": a} for at, a in enumerate("78")]
    write(folder / "infinitebench", "passkey.jsonl", rows)
    return build("infinitebench_passkey"), Data("local", folder)


@pytest.mark.parametrize("ids", [(0, 1), ("0", "1"), ("000", "001")])
def test_numbers_as_ids_are_those_of_the_rows(tmp_path, ids):
    task, data = infinitebench(tmp_path)
    path = write(tmp_path, "x.jsonl", [{"id": i, "prediction": 7} for i in ids])
    found = submission.paired(task, data, path)
    assert found.predictions == ["7", "7"] and [row.id for row in found.rows] == ["0", "1"]
    with pytest.raises(DataError, match=r"1 missing ids: 0; 1 redundant ids: 2$"):
        submission.paired(task, data, write(tmp_path, "y.jsonl", [
            {"id": i, "prediction": "7"} for i in (1, 2)]))  # fmt: skip


def test_data_that_are_asked_for_come_before_the_answers_of_a_file(tmp_path):
    task, data = infinitebench(tmp_path)
    rows = [{"id": i, "prediction": i, "output": "9"} for i in (0, 1)]
    path = write(tmp_path, "x.jsonl", rows)
    assert submission.paired(task, data, path).references == [("7",), ("8",)]
    assert submission.paired(task, Data(), path).references == [("9",), ("9",)]
    for row in rows:
        del row["id"]
    assert submission.paired(task, data, write(tmp_path, "x.jsonl", rows)).rows is None


# --- what a metric needs beside predictions and answers ----------------------------------------

NEEDY = {
    "longbench_trec": {"all_classes": CLASSES},
    "longbench_lsht": {"all_classes": ["体育", "财经"]},
    "babilong_qa1": {"question": "Where is Ann?"},
    "mrcr": {"random_string_to_prepend": "k3x"},
}


def test_every_metric_that_needs_more_is_known():
    """A metric that reads questions or labels declares it, and these tests try its tasks."""
    source = Path(metrics.__file__).with_name("retrieval.py").read_text()
    reading = {
        part.split("(")[0] for part in source.split("\ndef ") if "context(references)" in part
    }
    assert reading == set(metrics.NEEDS) == {build(name).metric for name in NEEDY}


@pytest.mark.parametrize("name", NEEDY)
def test_a_column_that_the_metric_needs_is_named(tmp_path, name, refused):
    (column,) = NEEDY[name]
    rows = [{"prediction": "k3x", "reference": "k3x"}] * 2
    for lacking in ({}, {column: None}):
        path = write(tmp_path, "x.jsonl", [rows[0] | NEEDY[name], rows[1] | lacking])
        line = refused("score", name, path)
        assert f"{path} line 2: metric {build(name).metric} also needs {column}; found" in line
        assert "--data-dir DIR" in line


def test_babilong_takes_its_labels_from_the_task(tmp_path):
    rows = [{"output": "none", "target": "none", "question": "Who?"},
            {"output": "Two.", "target": "two", "question": "How many?"}]  # fmt: skip
    assert value(build("babilong_qa7"), write(tmp_path, "x.jsonl", rows)) == 50


# --- rows without a right answer ---------------------------------------------------------------


def test_an_empty_set_is_an_answer_of_graphwalks(tmp_path):
    said = ["Final Answer: []", "Final Answer: [a]", "none"]
    rows = [{"prediction": text, "references": []} for text in said]
    task, path = build("graphwalks"), write(tmp_path, "x.jsonl", rows)
    for skip in (False, True):
        found = submission.paired(task, Data(), path, skip_unanswerable=skip)
        assert task.score_each(found.predictions, found.references) == [100, 0, 0]
    cells = "prediction,references\nFinal Answer: [],[]\n\"Final Answer: [a, b]\",\"['a', 'b']\"\n"
    assert value(task, write(tmp_path, "x.csv", cells)) == 100


@pytest.mark.parametrize("empty", [[], {"text": []}])
def test_a_row_without_a_right_answer_is_named_or_left_out(tmp_path, empty, command, refused):
    rows = [{"prediction": "cat", "reference": "cat"}, {"prediction": "", "reference": empty}]
    path = write(tmp_path, "x.jsonl", rows)
    told = f"{path} line 2: no right answer, and metric f1 needs one; --skip-unanswerable"
    assert told in refused("score", "qasper", path)
    code, out, _ = command("score", "qasper", path, "--skip-unanswerable", "--json")
    figures = json.loads(out)
    figures = figures[0] if isinstance(figures, list) else figures
    assert code == 0
    assert (figures["f1"], figures["n_scored"], figures["n_unanswerable"]) == (100, 1, 1)
    path = write(tmp_path, "x.jsonl", [*rows[1:], {"prediction": "", "reference": ""}])
    assert command("score", "qasper", path, "--skip-unanswerable")[0] == 2
