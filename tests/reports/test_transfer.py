"""Rank correlations between settings of the cache experiments."""

import json

import pytest

from bench.status import Status
from reports import transfer
from tests import made

ORDER = [("tova", 0.5), ("snapkv", 0.5), ("knorm", 0.5), ("h2o", 0.5),
         *((name, 0.25) for name in ("a", "b", "c", "d", "e", "f", "g", "h"))]  # fmt: skip


def board(model, scores, **more):
    shared = {"experiment": "kv_board", "task": "needle", "length": 1024, "status": Status.OK,
              "weights_kind": "pretrained"} | more  # fmt: skip
    return [
        made.full(
            **shared, model=model, method=f"{name}·{budget}", value=float(value),
            method_params=json.dumps({"budget": budget}),
        )
        for (name, budget), value in zip(ORDER, scores, strict=True)
    ]  # fmt: skip


def test_the_same_order_correlates_and_the_reverse_does_not():
    rising, falling = range(12), range(12, 0, -1)
    [same] = transfer.correlations([*board("one", rising), *board("two", rising)])
    assert same["caches"] == 12 and same["quarter"] == 8
    assert same["rho"] == pytest.approx((1.0, 1.0, 1.0))
    [reverse] = transfer.correlations([*board("one", rising), *board("two", falling)])
    assert reverse["rho"][0] == pytest.approx(-1.0)
    lower = {"higher_is_better": False}
    [perplexity] = transfer.correlations([*board("one", rising), *board("two", falling, **lower)])
    assert perplexity["rho"][0] == pytest.approx(1.0)


def test_ties_share_a_rank_and_equal_scores_have_no_order():
    tied = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    [row] = transfer.correlations([*board("one", tied), *board("two", range(12))])
    assert 0.9 < row["rho"][0] < 1.0 and row["rho"][1] <= row["rho"][0] <= row["rho"][2]
    [row] = transfer.correlations([*board("one", [50] * 12), *board("two", range(12))])
    assert row["rho"] is None
    [(grid, _)] = transfer.TRANSFER.tables([row])
    assert grid.lines == [
        ["one: needle, 1,024 tokens", "two: needle, 1,024 tokens", "12", "–", "8", "–"]
    ]


def test_few_common_caches_are_no_ranking():
    few = board("two", range(12))[:6]
    assert transfer.correlations([*board("one", range(12)), *few]) == []
