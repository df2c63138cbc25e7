"""How many new tokens a request decodes, and the budget of a method's KV cache."""

import pytest

import bench
from bench.request import schema
from bench.request.overrides import check_overrides
from bench.sweep.grid import SweepGrid


def composed(tiny_t5, *words: str):
    return bench.compose(f"model={tiny_t5}", "length=512", "n=2", *words)


def test_new_tokens_are_part_of_the_cells_that_decode_and_of_no_other(tiny_t5):
    plain, quick = composed(tiny_t5), composed(tiny_t5, "measure=quick", "new_tokens=null")
    assert plain.key == quick.key and plain.new_tokens is None
    assert "new_tokens" not in plain._content()
    decoding = composed(tiny_t5, "measure=decoding")
    assert decoding.new_tokens == schema.MEASURES["decoding"].new_tokens == 64
    few, more = (composed(tiny_t5, f"new_tokens={n}") for n in (32, 48))
    assert len({one.key for one in (plain, decoding, few, more)}) == 4
    assert few.columns["new_tokens"] == 32
    assert composed(tiny_t5, "probe=max_length", "measure=decoding").new_tokens is None


@pytest.mark.parametrize("budget", ["0.25", "512", "64MiB", "1.5GiB"])
def test_a_budget_is_the_methods_parameter(budget, tiny_t5):
    words = ["method=snapkv", f"budget={budget}"]
    assert check_overrides(words)[1] == f"method.budget={budget}"
    cell = composed(tiny_t5, *words)
    assert str(cell.method["budget"]) == budget
    assert cell.key == composed(tiny_t5, "method=snapkv", f"method.budget={budget}").key


def test_a_sweep_over_budgets_reaches_the_methods_that_have_one():
    grid = SweepGrid.of(["method=vanilla,snapkv,h2o", "budget=0.5,0.25", "time=30m"])
    points = list(grid.points())
    assert [point.overrides for point in points] == [
        ("method=vanilla",),
        ("method=snapkv", "method.budget=0.5"), ("method=snapkv", "method.budget=0.25"),
        ("method=h2o", "method.budget=0.5"), ("method=h2o", "method.budget=0.25"),
    ]  # fmt: skip
    assert {point.request["time"] for point in points} == {"30m"}
    assert points[2].request["method"]["budget"] == 0.25
