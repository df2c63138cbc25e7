"""The search for the longest input: with a child whose memory and time are made up, and real ones
at one length."""

import dataclasses
from pathlib import Path

import pytest

import bench
from bench.execution import cell_run, stages
from bench.execution.supervisor import Outcome
from bench.rows.row_facts import longest_input
from bench.status import Status


@dataclasses.dataclass(frozen=True)
class Limited(cell_run.CellRun):
    """A run whose child fits up to some tokens, and ends as `end` beyond them."""

    most: int = 0
    end: Status = Status.OOM_HOST

    def child(self, module, **request):
        status = Status.OK if request["length"] <= self.most else self.end
        return Outcome(status, "probe")


@pytest.fixture
def search(tiny_t5):
    def run(most, end=Status.OOM_HOST):
        cell = bench.compose(f"model={tiny_t5}", "length=512", "probe=max_length")
        return stages.max_length(Limited(cell, Path(), 1.0, most=most, end=end))

    return run


def test_the_longest_input_is_found_to_a_sixteenth(search):
    outcome, columns = search(14_900)
    assert outcome.status == Status.OK and columns["max_length_end"] == Status.OOM_HOST
    assert 14_900 * 15 / 16 < columns["max_length_fit"] <= 14_900
    assert longest_input(columns) == "14,848 tokens"


def test_a_search_that_time_ends_is_a_lower_bound(search):
    _, columns = search(2048, Status.TIMEOUT)
    assert longest_input(columns) == "at least 2,048 tokens in time"


def test_where_nothing_fits_the_row_says_how_it_ended(search):
    outcome, columns = search(0)
    assert outcome.status == Status.OOM_HOST and columns == {}


def test_a_search_without_an_end_has_none(search):
    _, columns = search(1 << 30)
    assert columns == {"max_length_fit": stages.MAX_PROBED_LENGTH, "max_length_end": None}
    assert longest_input({"max_length_fit": None}) is None


def test_a_row_says_whether_forwards_or_training_steps_were_tried():
    found = {"max_length_fit": 3840, "max_length_end": Status.OOM_HOST}
    assert longest_input(found | {"measure": "speed"}) == "3,840 tokens"
    assert longest_input(found | {"measure": "training"}) == "3,840 tokens, in a training step"


@pytest.mark.parametrize("measure", ["speed", "training"])
@pytest.mark.parametrize("model", ["tiny", "embedded-lra-text"])
def test_a_forward_or_a_training_step_is_tried_on_as_many_tokens(tiny_t5, model, measure):
    words = [f"model={tiny_t5}"] if model == "tiny" else [f"model={model}", "task=lra_text_easy"]
    words += ["length=192", "threads=1", "probe=max_length", f"measure={measure}"]
    cell = bench.compose(*words)
    stage = "measure.training_step" if measure == "training" else "measure.memory"
    outcome = cell_run.CellRun(cell, Path(), 120.0).child(stage, length=250)
    assert outcome.status == Status.OK, outcome.detail
