"""The page of the A/A cells lists the cells that were measured and those that weren't."""

from bench.status import Status, Verdict
from benchmarks.trust_aa import SETTINGS, false_pct, page

HOST = {"cpu_model": "C", "cores_phys": 2, "torch": "2", "host_id": "h2-a", "created_utc": "2026"}


def row(verdict, seed=0):
    interval = {"lat_ratio": 0.5, "lat_ratio_ci_lo": 0.4, "lat_ratio_ci_hi": 0.6}
    return {"status": Status.OK, "lat_verdict": verdict, "seed": seed, **interval, **HOST}


def test_faster_and_slower_are_false_and_named():
    verdicts = [Verdict.SAME] * 18 + [Verdict.FASTER, Verdict.SLOWER]
    measured = [(SETTINGS[i % 4], row(verdict, i)) for i, verdict in enumerate(verdicts)]
    assert false_pct([each for _, each in measured]) == 10
    text = page(measured, 20)
    assert "| all |  | 20 | 1 | 1 | 18 | 0 | 0 | 0 | 10.0 % (1.2 … 31.7) |" in text
    assert "| quiet | 2 | 18 | ×0.500 (0.400 … 0.600) faster |" in text
    assert "Not complete" not in text


def test_a_part_says_so_and_a_cell_that_failed_has_no_verdict():
    failed = {"status": Status.ERROR, "status_detail": "why\nmore", **HOST}
    text = page([(SETTINGS[0], row(Verdict.SAME)), (SETTINGS[1], failed)], 200)
    assert "2 of 200 cells" in text and "**Not complete**" in text
    assert "| loaded | 1 | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0.0 % |" in text


def test_other_machines_keep_their_sections():
    first = page([(SETTINGS[0], row(Verdict.SAME))], 1)
    other = {**row(Verdict.SAME), "cpu_model": "D", "host_id": "h2-b"}
    both = page([(SETTINGS[0], other)], 1, first)
    again = page([(SETTINGS[0], row(Verdict.FASTER))], 1, both)
    assert again.count("\n## ") == 2 and again.count("# False verdicts") == 1
    assert again.count("(host h2-a)") == again.count("(host h2-b)") == 1
    assert "| all |  | 1 | 1 |" in again and "| all |  | 1 | 0 |" in again
