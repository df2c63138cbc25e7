"""Predictions in shards: they continue where they stopped, and torn or wrong data are reported."""

import pytest

from bench.rows.store import Predictions


def test_predictions_go_on_where_they_stopped(tmp_path):
    first = Predictions(tmp_path, "key")
    assert first.done() == {} and first.append([]) is None
    first.append([{"id": "a", "prediction": "é\n"}, {"id": 2, "prediction": None}])
    first.append([{"id": "b", "prediction": [1]}])
    again = Predictions(tmp_path, "key")
    assert list(again.done()) == ["a", 2, "b"]
    assert again.done()["a"]["prediction"] == "é\n"
    assert Predictions(tmp_path, "other").done() == {}


def test_torn_line_of_predictions_is_left_out(tmp_path):
    predictions = Predictions(tmp_path, "key")
    path = predictions.append([{"id": i, "prediction": "x" * 20} for i in range(3)])
    path.write_bytes(path.read_bytes()[:-10])
    assert list(predictions.done()) == [0, 1]
    predictions.append([{"id": 2, "prediction": "y"}])
    assert predictions.done()[2]["prediction"] == "y"


LONE = '{"id": 2, "prediction": "a\\ud800"}'


@pytest.mark.parametrize("line", ["[" * 100_000, '{"id": %s}' % ("1" * 5_000), "[]", "{}", LONE])
def test_a_line_that_is_no_prediction_is_left_out_and_named(tmp_path, line):
    predictions = Predictions(tmp_path, "key")
    path = predictions.append([{"id": 1, "prediction": "x"}])
    path.write_text(path.read_text() + line)
    assert list(predictions.done()) == [1]
    (warning,) = predictions.warnings
    assert warning.startswith(f"{path} line 2 is no prediction: ") and "\n" not in warning
    assert predictions.sha256() == Predictions(tmp_path, "key").sha256([1])


def test_a_pair_of_surrogates_is_text(tmp_path):
    path = Predictions(tmp_path, "key").append([{"id": 1, "prediction": "x"}])
    path.write_text('{"id": 1, "prediction": "\\ud83d\\ude00"}')
    assert Predictions(tmp_path, "key").done()[1]["prediction"] == "😀"


def test_hash_of_predictions_is_that_of_the_answers(tmp_path):
    one, other = Predictions(tmp_path, "one"), Predictions(tmp_path, "other")
    one.append([{"id": "a", "prediction": 1, "wall_ns": 5}, {"id": "b", "prediction": 2}])
    other.append([{"id": "b", "prediction": 2}])
    other.append([{"prediction": 1, "id": "a"}])
    assert one.sha256() == other.sha256()
    assert one.sha256(["a"]) == other.sha256({"a"}) != one.sha256()
    other.append([{"id": "a", "prediction": 3}])
    assert one.sha256() != other.sha256()


@pytest.mark.parametrize(
    "record",
    [
        {"prediction": 1},
        {"id": 1.5},
        {"id": 1, "prediction": {1}},
        {"id": 1, "prediction": "\ud800"},
    ],
)
def test_wrong_prediction_is_refused(tmp_path, record):
    with pytest.raises(ValueError):
        Predictions(tmp_path, "key").append([record])
    with pytest.raises(ValueError):
        Predictions(tmp_path, "a/b")
