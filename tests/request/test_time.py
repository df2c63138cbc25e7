"""The time of a cell's timed stages, and the task of a request that names none."""

import shlex
from dataclasses import replace

import pytest

from bench.models import auto
from bench.request.cell import Cell
from bench.request.compose import command_of, compose


def test_time_is_of_the_timed_stages_and_of_the_cell():
    words = ["method=vcc", "task=narrativeqa", "n=1", "length=512"]
    plain, given = (Cell.of(compose([*words, *more])) for more in ([], ["time=10m"]))
    assert (plain.plan.budget_s, given.plan.budget_s) == (30.0, 300.0)
    assert plain.key != given.key and "time=600s" in command_of(given)
    assert Cell.of(compose(shlex.split(command_of(given))[2:])).key == given.key


def test_large_models_have_five_minutes(monkeypatch):
    cell = Cell.of(compose(["method=vcc", "task=narrativeqa", "n=1", "length=512"]))
    monkeypatch.setattr(auto, "n_parameters", lambda folder: 60_000_000)
    assert (cell.plan.budget_s, cell.plan.pairs, cell.plan.long_pairs) == (150.0, 40, 12)
    assert replace(cell, measure="published").plan.budget_s == 1200.0


def test_a_decoder_without_a_task_finds_a_needle():
    request = compose(["model=embedded-llama"])
    assert (request["task"]["name"], request["length"]) == ("ruler_niah_single_2", 1024)
    assert compose(["model=embedded-llama", "length=512"])["length"] == 512


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["method=snapkv"], "embedded-llama"),
        (["method=snapkv", "task=narrativeqa"], "embedded"),
        (["method=vcc"], "embedded"),
    ],
    ids=" ".join,
)
def test_a_method_for_decoders_has_a_decoder_unless_more_is_given(words, model):
    assert compose(words)["model"]["name"] == model
