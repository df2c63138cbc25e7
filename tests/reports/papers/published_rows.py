"""Shared parts of the tests of published tables: rows like those of full runs of the papers'
cells."""

import json

from reports.papers.build import build_table
from reports.papers.definitions import load_definitions
from reports.papers.measured import StoredRows
from reports.papers.printed import load_printed
from tests import made


def table(name, folder=None):
    [definition] = load_definitions([name])
    rows = StoredRows([folder] if folder else [], *definition.measured_names())
    return build_table(definition, load_printed(definition.paper), rows)


def one(found, **wanted):
    """The only cell with these fields of its printed part."""
    fits = [
        cell
        for cell in found.cells
        if all(getattr(cell.printed, name) == value for name, value in wanted.items())
    ]
    assert len(fits) == 1, [cell.printed for cell in fits]
    return fits[0]


def real(**more):
    """A row like that of a full run of a finetuned base checkpoint on the benchmark's own rows."""
    columns = {
        "method": "vcc", "task": "hotpotqa", "split": "validation", "data_source": "hub",
        "model": "my-roberta-base", "weights_kind": "finetuned", "length": 4096,
        "method_params": json.dumps({"k": 16, "h": 70}), "metric": "squad_em_f1",
        "device": "cuda", "dtype": "float16", "n_scored": 7405, "n_samples_planned": None,
    }  # fmt: skip
    return made.row(**{**columns, **more})


def scored(value, half=0.5, **more):
    columns = {
        "value": value, "ci_lo": value - half, "ci_hi": value + half,
        "metrics": json.dumps({"f1": value, "exact_match": value - 14}),
    }  # fmt: skip
    return real(**{**columns, **more})


def ratio(value, spread=1.02, **more):
    columns = {
        "lat_ratio": value, "lat_ratio_ci_lo": value / spread, "lat_ratio_ci_hi": value * spread,
        "lat_ratio_p": 0.0001, "lat_n_pairs": 100, "lat_verdict": "faster",
    }  # fmt: skip
    return real(**{**columns, **more})


F1 = {"method": "vcc", "model_size": "base", "task": "hotpotqa", "metric": "f1"}  # printed 74.6
EM = {**F1, "metric": "em"}  # printed 60.9
TIME = {**F1, "metric": "runtime_total_ms"}  # printed 114.6 ms of 422.3
RANDOM_T5 = {"model": "random-t5-base", "lat_base_median_ns": 10**8, "decode_ns_per_token": 10**6}


def unfused(value=2.0, **more):
    return ratio(value, method="vanilla_eager", method_params="{}", **more)
