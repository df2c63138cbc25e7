"""Prediction files: reading, scoring, error messages, and official submissions."""

import csv
import gzip
import json
import re

import pytest

from bench.request import plugins
from tasks.base import Data, DataError
from tasks.loading import submission
from tests.made import task as build
from tests.tasks.test_sources import archive


def jsonl(path, predictions):
    lines = [json.dumps({"id": row_id, "prediction": said}) for row_id, said in predictions.items()]
    path.write_text("\n".join(lines))
    return path


GIVEN = {"a": "one", "b": 'two, "three"\nfour', "c": ""}


def test_the_three_forms(tmp_path):
    plain = jsonl(tmp_path / "x.jsonl", GIVEN)
    packed, one, table = (tmp_path / f"x.{kind}" for kind in ("jsonl.gz", "json", "csv"))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one.write_text(json.dumps(GIVEN))
    submission.export(build("qmsum"), {"q": "of another task"}, ["q"], table)
    submission.export(build("qasper"), GIVEN, GIVEN, table)
    for path in (plain, packed, one, table):
        assert submission.read_predictions(path, build("qasper")) == GIVEN
    with pytest.raises(DataError, match="no predictions with Task=quality; it has qasper, qmsum"):
        submission.read_predictions(table, build("quality"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.jsonl", '{"id": "a", "predction": "x"}', "Did you mean prediction? Accepted: filtered"),
        ("x.jsonl", '{"prediction": "x"}', "line 1: no column with an id; found prediction. Acc"),
        ("x.jsonl", '{"id": "a", "prediction": null}', "'prediction' holds null, expected text"),
        ("x.jsonl", '{"id": "a", "prediction": true}', "'prediction' holds bool, expected text"),
        ("x.jsonl", "\n", "has no predictions"),
        ("x.jsonl", '{"id": "a", "prediction": ""}\n' * 2, "line 2: id 'a' came before"),
        ("x.json", '{"a": "x", "a": "y"}', "id 'a' came before"),
        ("x.json", '["x"]', "found list, expected an object {id: prediction} or a list of objects"),
        ("x.json", '{"a": "\\ud800"}', "id 'a': column 'prediction' is not Unicode: surrogates"),
        ("x.csv", "Task,ID,Prediction\nt,a,x\nt,a,y\n", "line 3: id 'a' came before"),
        ("x.txt", "x", "accepted: .jsonl, .jsonl.gz, .json, .json.gz, .csv, .parquet"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(message)) as raised:
        submission.read_predictions(tmp_path / name, build("qasper"))
    assert str(tmp_path / name) in str(raised.value) and "\n" not in str(raised.value)


def scored(task, data, path, n=None):
    found = submission.paired(task, data, path, n)
    return {**task.score(found.predictions, found.references), "n": len(found.predictions)}


def test_a_class_is_given_as_text_number_or_scores(tmp_path):
    task = plugins.build(plugins.conf("task", "lra_listops"))
    rows = task.load(Data(), 4, task.length, 0).rows
    right = [int(row.references[0]) for row in rows]
    said = [str(right[0]), right[1], [float(at == right[2]) for at in range(10)], 10]
    given = {row.id: one for row, one in zip(rows, said, strict=True)}
    assert scored(task, Data(), jsonl(tmp_path / "x.jsonl", given), n=4)["accuracy"] == 0.75
    path = jsonl(tmp_path / "x.jsonl", given | {rows[0].id: None})
    with pytest.raises(DataError, match="'prediction' holds null, expected text"):
        scored(task, Data(), path, n=4)


def test_errors_of_many_ids_are_short():
    (missing,) = submission.verify({}, [f"i{i}" for i in range(900)])
    assert missing == "900 missing ids: i0, i1, i2, i3, i4 and 895 more"
    assert submission.verify({"a": "x"}, ["a", "a"]) == []


def test_a_submission_grows_task_by_task(tmp_path):
    path = tmp_path / "all.csv"
    members = submission.MEMBERS["zero_scrolls"]
    names = {plugins.conf("task", n).get("member"): n for n in plugins.available("task")
             if n.startswith("zeroscrolls_")}  # fmt: skip
    assert set(names) == set(members)
    for at, member in enumerate(members, start=1):
        left = submission.export(build(names[member]), GIVEN, GIVEN, path)
        assert left == list(members[at:])
    submission.export(build(names["qmsum"]), {"q": "new"}, ["q"], path)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["Task", "ID", "Prediction"]
    assert len(rows) == 1 + 9 * 3 + 1 and ["qmsum", "q", "new"] in rows
    assert ["musique", "b", 'two, "three"\nfour'] in rows


def test_what_the_rules_refuse_is_not_written(tmp_path):
    path = tmp_path / "x.csv"
    with pytest.raises(DataError, match="qasper: 1 missing ids: d; 1 redundant ids: c"):
        submission.export(build("qasper"), GIVEN, ["a", "b", "d"], path)
    with pytest.raises(DataError, match="hotpotqa has no official submission; tasks of scrolls"):
        submission.export(build("hotpotqa"), GIVEN, GIVEN, path)
    with pytest.raises(DataError, match=r"accepted: \.csv, \.json"):
        submission.export(build("qasper"), GIVEN, GIVEN, tmp_path / "x.txt")
    assert not path.exists()
    submission.export(build("zeroscrolls_musique"), GIVEN, GIVEN, path)
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1])
    with pytest.raises(DataError, match="an id of a task comes twice; expected each once"):
        submission.export(build("qasper"), GIVEN, GIVEN, path)
    path.write_text(text.replace("Prediction", "Answer"))
    with pytest.raises(DataError, match="no column 'Prediction'; expected Task, ID, Prediction"):
        submission.export(build("qasper"), GIVEN, GIVEN, path)
    path.write_text(text)
    with pytest.raises(DataError, match="holds tasks that scrolls has not: musique"):
        submission.export(build("qasper"), GIVEN, GIVEN, path)


def test_ids_of_a_split_without_answers(tmp_path):
    (tmp_path / "scrolls").mkdir()
    rows = [{"id": one, "input": "Who?\n\nText", "output": None} for one in ("a", "a", "b")]
    text = "\n".join(map(json.dumps, rows))
    archive(tmp_path / "scrolls" / "qasper.zip", text, "qasper/test.jsonl")
    assert build("qasper").ids(Data("local", tmp_path, "test")) == ["a", "b"]


def test_a_pair_without_a_right_answer_is_named(tmp_path):
    task = plugins.build(plugins.conf("task", "qmsum"))
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prediction": "a b", "reference": "a b"}\n{"prediction": "a b"}\n')
    with pytest.raises(DataError, match="line 2: no column with a right answer; found predi"):
        scored(task, Data("local"), path)
