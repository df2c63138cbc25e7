"""The two tables of LRA: scores over seeds, and steps of training."""

from bench.store.store import Store
from reports import lra_grids
from tests.reports import made


def row_of(**changes):
    [row] = made.rows(tasks=("lra_text",), lengths=(256,), devices=("cpu",), methods=("vanilla",),
                      kinds=(("local", "finetuned"),))  # fmt: skip
    own = {"weights_kind": "from-scratch", "recipe": "lra_small_text", "at_chance": False}
    return {**row, **own, "status": "ok", **changes}


def seeds(method, *values, **changes):
    return [
        row_of(
            method=method, seed=seed, value=value, cell_key=f"{method}{seed}{changes}", **changes
        )
        for seed, value in enumerate(values)
    ]


def test_scores_are_means_over_seeds(tmp_path):
    rows = [
        *seeds("vanilla", 80.0, 82.0),
        *seeds("luna", 50.0, at_chance=True),
        *seeds("linformer", 80.0),
        row_of(method="linformer", seed=1, value=50.0, cell_key="linformer1", at_chance=True),
        *seeds("mra", 70.0, weights_kind="pretrained-swap"),
        *seeds("vcc", 99.0, recipe="lra_text"),
    ]
    Store(tmp_path).append({**row, "row_id": row["cell_key"]} for row in rows)
    own, swapped = lra_grids.scores(Store(tmp_path).rows().to_pylist())
    assert own.head == ["method", "lra_text"]
    assert own.lines == [
        ["vanilla", "81.0 ± 1.4 (2 seeds)"],
        ["linformer", "65.0 ± 21.2 (2 seeds, 1 at chance)"],
        ["luna", "50.0 ‡"],
    ]
    assert swapped.lines == [["mra", "70.0"]]


def test_scores_at_the_published_length_stand_beside_the_printed_ones():
    own = {"task": "lra_listops", "recipe": "lra_listops", "length": 2000, "seed": 0}
    own |= {"data_source": "embedded", "training": '{"steps": 5000, "hours": 2}'}
    own |= {"value": 36.0, "ci_lo": 34.0, "ci_hi": 38.0}
    less = {"value_diff": -1.5, "value_diff_ci_lo": -2.5, "value_diff_ci_hi": -0.5}
    less |= {"quality_verdict": "lower", "cell_key": "linformer"}
    swapped = less | {"weights_kind": "pretrained-swap", "method": "bigbird", "cell_key": "swap"}
    rows = [
        row_of(**own, **swapped),
        row_of(**own, **less, method="linformer"),
        row_of(**own, cell_key="vanilla"),
        row_of(**own | {"recipe": "lra_small_listops"}, method="luna", cell_key="small"),
    ]
    [grid] = lra_grids.published(rows)
    assert grid.caption == "lra_listops at 2,000 tokens"
    score, difference = "36.0 (34.0 … 38.0)", "−1.5 (−2.5 … −0.5) lower"
    assert grid.lines == [
        ("vanilla", "its own", "0", score, "–", "36.37", "5,000 steps, 2.0 h"),
        ("linformer", "its own", "0", score, difference, "35.70", "5,000 steps, 2.0 h"),
        ("bigbird", "vanilla's", "0", score, difference, "–", "–"),
    ]


def test_a_step_is_told_beside_vanillas():
    step = {"train_step_ns": 50_000_000, "train_ratio": 0.5, "train_verdict": "faster",
            "train_mem_ratio": 0.25}  # fmt: skip
    alone = {"train_step_ns": 100_000_000, "train_ratio": None}
    rows = [
        row_of(length=1024, **alone),
        row_of(method="luna", length=1024, **step),
        row_of(method="luna", length=2048, status="oom_host"),
    ]
    grid = lra_grids.steps(rows, "a host")
    assert grid.head == ["method", "1,024 tokens", "2,048 tokens"]
    assert grid.lines == [
        ["vanilla", "10/s", "–"],
        ["luna", "20/s, ×0.50 faster, memory ×0.25", "out of memory"],
    ]
