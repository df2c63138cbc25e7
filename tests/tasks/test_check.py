"""The check of a task finds its faults, and the files of a new task pass it."""

import json
import sys
from dataclasses import dataclass, replace
from functools import cache

import pytest
import yaml

import tasks
from bench.request import plugins
from tasks import template
from tasks.base import Data, Encoded, Row
from tasks.check import check
from tasks.loading.reader import Reader
from tasks.scrolls import Scrolls
from tests.tasks.words import Words


@cache
def qasper_rows(split, n, length, seed):
    return plugins.build(plugins.conf("task", "qasper")).load(Data(split=split), n, length, seed)


@dataclass(frozen=True)
class Faulty(Scrolls):
    """A task with one fault."""

    fault: str = ""

    def load(self, data: Data, n, length, seed):
        if self.fault == "raises":
            raise KeyError("input")
        if self.fault == "network":
            import socket

            with socket.socket() as opened:
                opened.connect(("127.0.0.1", 9))
        loaded = qasper_rows(data.split, n, length, 0 if self.fault == "seed" else seed)
        rows = list(loaded.rows)
        if self.fault == "twice":
            rows[1] = replace(rows[1], id=rows[0].id)
        if self.fault == "reference":
            rows[1] = replace(rows[1], references=("",))
        if self.fault == "n":
            rows = [replace(row, id=f"{row.id}-{n}") for row in rows]
        if self.fault == "split":
            rows[0] = replace(rows[0], document="the same")
        if self.fault == "random":
            rows[0] = replace(rows[0], document=str(id(rows)))
        return replace(loaded, rows=rows)

    def encode(self, row, tokenizer, length):
        if self.fault == "imports":
            from tasks.generators import stories  # noqa: F401
        found = super().encode(row, tokenizer, length)
        if self.fault == "long":
            return Encoded([*found.ids, 1], [*found.vip, False], found.tokens_in + 1)
        if self.fault == "vip":
            return replace(found, vip=[False] * len(found.ids))
        return replace(found, tokens_in=1) if self.fault == "tokens" else found

    def score(self, predictions, references):
        found = dict(super().score(predictions, references))
        return found | {"value": 50.0} if self.fault == "score" else found

    def score_each(self, predictions, references):
        if self.fault == "empty" and not predictions[0]:
            raise ZeroDivisionError("no words")
        return super().score_each(predictions, references)


FAULTS = {
    "": None,
    "raises": "KeyError: 'input'",
    "network": "asked the network for",
    "seed": "another seed gave the same rows",
    "twice": "ids come twice",
    "reference": "has an empty reference",
    "n": "the first rows depend on n",
    "split": "share rows",
    "random": "the same request gave other rows",
    "long": "ids at length=",
    "vip": "no VIP token at length=",
    "tokens": "1 tokens in",
    "imports": "ImportError: encode imports tasks",
    "score": "references against themselves score 50.0, expected 100",
    "empty": "ZeroDivisionError: no words",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    conf = plugins.conf("task", "qasper") | {"target": "tests.tasks.test_check:Faulty"}
    report = check(plugins.build(conf | {"fault": fault}), Words())
    assert not report.not_checked
    if fault:
        assert any(FAULTS[fault] in failure for failure in report.failures), report
    else:
        assert not report.failures and report.load_s >= 0


@dataclass(frozen=True)
class Plain(Reader):
    """A task that reads its own columns and has no embedded rows."""

    fault: str = ""

    def parse(self, record, where, split, at):
        return Row(record["id"], record["q"], record["text"], (record["a"],))

    def encode(self, row, tokenizer, length):
        encoded = super().encode(row, tokenizer, length)
        return replace(encoded, vip=[False] * len(encoded.ids)) if self.fault else encoded


def plain(**settings) -> Plain:
    return Plain(**{
        "name": "my_set", "benchmark": "my_set", "version": 1, "metric": "f1", "max_new_tokens": 8,
        "length": 64, "files": {"validation": "rows.jsonl"}, **settings,
    })  # fmt: skip


def test_without_embedded_rows_the_rest_is_checked():
    report = check(plain(), Words())
    assert not report.failures
    (missing,) = report.not_checked
    assert missing.startswith("loading, splits and references: my_set has no embedded rows")
    assert any("no VIP token" in failure for failure in check(plain(fault="vip"), Words()).failures)
    assert check(plain(metric="f2"), Words()).failures[0].startswith("ValueError: unknown metric")
    # A metric with answers of its own format, and one whose answers are classes.
    assert not check(plain(metric="exp_similarity"), Words()).failures
    assert not check(plain(metric="accuracy", labels=3), Words()).failures


def test_rows_of_a_local_copy_are_checked(tmp_path):
    record = {"id": "1", "q": "Who ?", "text": "A text .", "a": "me"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(record))
    report = check(plain(), Words(), Data("local", tmp_path))
    assert not report.failures and not report.not_checked
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(record)] * 2))
    (failure,) = check(plain(), Words(), Data("local", tmp_path)).failures
    assert "id '1' came before" in failure


@pytest.mark.parametrize("shape", ["summaries", "questions", "answers", "prompts"])
def test_a_new_task_is_one_short_yaml(shape):
    (text,) = template.task_files("my_set", shape).values()
    assert len(text.splitlines()) <= 25 and max(map(len, text.splitlines())) <= 100
    task = plugins.build(yaml.safe_load(text))
    assert task.name == task.benchmark == "my_set" and not check(task, Words()).failures


def test_a_new_task_with_a_module_needs_no_embedded_rows(tmp_path, monkeypatch):
    files = template.task_files("my_set", "module")
    assert list(files) == ["conf/task/my_set.yaml", "tasks/my_set.py"]
    (tmp_path / "my_set.py").write_text(files["tasks/my_set.py"])
    monkeypatch.setattr("tasks.__path__", [*tasks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tasks.my_set", raising=False)
    task = plugins.build(yaml.safe_load(files["conf/task/my_set.yaml"]))
    report = check(task, Words())
    assert not report.failures and len(report.not_checked) == 1
    record = {"id": "1", "question": "Who?", "document": "A text.", "answer": "me"}
    assert task.parse(record, "here", "validation", 0) == Row("1", "Who?", "A text.", ("me",))


def test_an_unknown_shape_is_refused():
    accepted = "summaries, questions, answers, prompts, module"
    with pytest.raises(ValueError, match=f"no shape 'x'; accepted: {accepted}"):
        template.task_files("a", "x")
