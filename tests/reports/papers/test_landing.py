"""An experiment of a paper answers its printed cells: rows like those of its cells have a verdict
there."""

import json

import pytest

from bench.rows.comparison import Comparison
from bench.rows.store import Store
from bench.sweep.grid import SweepGrid
from reports.papers.verdicts import PaperVerdict
from tests import made
from tests.reports.papers.published_rows import table

ANSWERS = {
    "vcc_table1": {"vcc_table1": 12, "vcc_table6": 12},
    "vcc_table1 model=random-roberta-large method=vanilla_eager,vcc": {"vcc_table1": 0},
    "vcc_table2": {"vcc_table2": 8},
    "vcc_table2 model=random-t5-large task=wikihop,hotpotqa,cnn_dailymail": {"vcc_table2": 6},
    "iceformer_table1": {"iceformer_table1": 5, "iceformer_table2": 5},
    "iceformer_table3": {"iceformer_table3": 2},
    "iceformer_fig5": {"iceformer_fig5": 2},
    "iceformer_fig5 task=longeval_topics length=3072,6144": {"iceformer_fig5": 2},
    "fourier_table2": {"fourier_table2": 24},
    "fourier_table2 length=4096 batch=16": {"fourier_table2": 8},
    "lra_table2": {"lra_speed": 72},
}
"""Experiment, with overrides → table → printed cells that its rows decide on."""
DECIDED = {PaperVerdict.REPRODUCED, PaperVerdict.DIFFERS, PaperVerdict.UNDECIDED}


def measured(request):
    """A row as a cell of this request gives it, twice vanilla's time where attention is unfused."""
    method = request["method"]
    ratio = 2.0 if method["name"] == "vanilla_eager" else 0.5
    found = Comparison(
        ratio=ratio, ratio_ci_lo=0.98 * ratio, ratio_ci_hi=1.02 * ratio, ratio_p=1e-4, n_pairs=12,
        base_median_ns=1000,
    )  # fmt: skip
    times = found.columns("lat") | found.columns("train")
    config = request["model"]["config"] | {"num_labels": 2}  # as the task makes it
    parameters = {k: v for k, v in method.items() if k not in ("name", "target", "label")}
    return made.row(
        method=method["name"], method_params=json.dumps(parameters),
        task=request["task"]["name"], data_source="embedded", split="validation",
        model=request["model"]["name"], weights_kind="random", length=request["length"],
        batch=request["batch"], dtype=request["dtype"], device="cpu", threads=2, value=None,
        cell=json.dumps({"model": {"config": config}}), decode_ns_per_token=1,
        attend_samples_ns=[500, 501, 502], encode_samples_ns=[1000, 1001, 1002],
        rss_base_bytes=1 << 28, rss_peak_delta_bytes=1 << 28, train_peak_bytes=1 << 28, **times,
    )  # fmt: skip


@pytest.mark.parametrize("words", ANSWERS)
def test_the_rows_of_an_experiment_have_verdicts_in_its_tables(words, tmp_path):
    points = SweepGrid.of(f"experiment={words}".split()).points()
    Store(tmp_path).append([measured(point.request) for point in points])
    for name, count in ANSWERS[words].items():
        found = table(name, tmp_path)
        decided = [cell for cell in found.cells if cell.verdict in DECIDED]
        assert len(decided) == count, (name, found.summary())
        assert not any(cell.objections for cell in decided)


def test_a_model_with_fewer_layers_is_not_of_the_papers_size(tmp_path):
    points = SweepGrid.of(["experiment=vcc_table1", "model.config.num_hidden_layers=1"]).points()
    Store(tmp_path).append([measured(point.request) for point in points])
    verdicts = {cell.verdict for cell in table("vcc_table1", tmp_path).cells}
    assert not verdicts & DECIDED
