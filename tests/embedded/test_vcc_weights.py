"""The T5's two sets of weights for VCC: with a supervised choice of blocks, and the paper's way."""

import pytest

import bench
from bench.request.weights import training_of

SUPERVISED = {"embedded": True, "embedded-vcc-paper": False}


@pytest.mark.parametrize("model", SUPERVISED)
def test_their_training_says_whether_the_choice_of_blocks_was_supervised(model):
    cell = bench.compose(f"model={model}", "method=vcc", "length=512", "n=2")
    training = training_of(cell.model)
    assert training and training["from"] == "t5" and training["hours"]
    assert ("evidence" in str(training["supervision"])) == SUPERVISED[model]


def test_all_else_is_the_same_with_either():
    for words in ("method=vanilla", "method=vcc protocol=swap", "method=fourier"):
        weights = {
            bench.compose(f"model={model}", *words.split(), "length=512", "n=2").model[
                "weights_sha256"
            ]
            for model in SUPERVISED
        }
        assert len(weights) == 1, words
