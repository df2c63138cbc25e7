"""Rows from which every kind of figure is drawn."""

import json

import pytest

from tests.reports.figures.made_rows import LINES, LRA, STUDIES, frontier, measured, store
from tests.reports.made_ruler import scores


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Rows with data for every kind of figure."""
    folder = tmp_path_factory.mktemp("rows")
    rows = frontier(lengths=(512, 1024, 2048, 4096))
    for task in ("lra_listops", "lra_image"):
        rows += [measured(m, 1024, task=task, **LRA) for m in ("vanilla", "bigbird")]
        rows += [measured("iceformer", 1024, params={"k": k}, task=task, **LRA) for k in (3, 10)]
    for length in (1024, 2048):
        kv = {"kv_bytes_held": 1 << 20, "kv_bytes_read_per_token": 1 << 19}
        base = {f"base_{name}": 2 * cost for name, cost in kv.items()}
        kv |= {"tpot_median_ns": 10**6, "tpot_base_median_ns": 2 * 10**6}
        ends = {"tpot_ratio_ci_lo": 0.45, "tpot_ratio_ci_hi": 0.55}
        ratios = dict.fromkeys(("kv_held_ratio", "kv_read_ratio", "tpot_ratio"), 0.5)
        ratios["kv_ratio_16bit"] = 1.25
        rows.append(measured("vanilla", length, **LINES))
        for model in ("embedded", "larger"):
            costs = {**kv, **base, **ends, **ratios, "model": model}
            rows.append(measured("iceformer", length, **LINES, **costs))
    for method in ("snapkv", "tova", "knorm"):
        rows.append(measured("vcc", 1024, params={"budget": 0.25}, **LINES) | {"method": method})
    for r in (0.2, 0.5, 1.0):
        told = {"task": "eli5", "metric": "rougeL", "metrics": json.dumps({"rouge1": 40 * r})}
        rows.append(measured("fourier", 512, params={"r": r}, **told))
    store(folder, rows + scores({"vanilla": [80], "snapkv": [70]}, [1024]))
    (folder / "studies").mkdir()
    for name, text in STUDIES.items():
        (folder / "studies" / f"{name}-1.csv").write_text(text)
    return folder
