"""The check of a task finds what is wrong with it, and a new task's YAML passes it."""

from dataclasses import dataclass, replace

import pytest
import yaml

from bench import plugins
from tasks import template
from tasks.base import Data, Encoded
from tasks.check import check
from tasks.scrolls import Scrolls
from tests.tasks.words import Words


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
        loaded = super().load(data, n, length, 0 if self.fault == "seed" else seed)
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
            from tasks import stories  # noqa: F401
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
    made = plugins.build(conf | {"fault": fault})
    found = check(made, Words())
    if fault:
        assert any(FAULTS[fault] in failure for failure in found), found
    else:
        assert found == []


def test_a_slow_task_is_found(monkeypatch):
    monkeypatch.setattr("tasks.check.LOAD_S", 0.0)
    assert (
        "8 embedded rows took" in check(plugins.build(plugins.conf("task", "qasper")), Words())[0]
    )


@pytest.mark.parametrize("shape", template.SHAPES)
def test_a_new_task_is_one_short_yaml(shape):
    text = template.task_yaml("my_set", shape)
    assert len(text.splitlines()) <= 25 and max(map(len, text.splitlines())) <= 100
    made = plugins.build(yaml.safe_load(text))
    assert made.name == made.benchmark == "my_set" and check(made, Words()) == []


def test_wrong_names_are_refused():
    with pytest.raises(ValueError, match="no shape 'x'; accepted: summaries, questions, answers"):
        template.task_yaml("a", "x")
    for name in ("My_set", "my-set", "", "2x"):
        with pytest.raises(ValueError, match="accepted: small letters"):
            template.task_yaml(name)
