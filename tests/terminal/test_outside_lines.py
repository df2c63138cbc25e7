"""What the table of a row shows of times from outside, timed answers and caches."""

from __future__ import annotations

from bench.terminal import row_table
from tests import made


def lines(row, part) -> dict[str, tuple[str, ...]]:
    return {label.strip(): rest for label, *rest in part(row)}


def test_times_outside_and_why_they_count_are_lines_of_the_table():
    row = made.full(
        **made.timing(0.8), lat_outside_ratio=0.81, lat_outside_ratio_ci_lo=0.8,
        lat_outside_ratio_ci_hi=0.82,
        lat_base_outside_ns=10_000_000, lat_waits_left_out=True,
    )  # fmt: skip
    found = lines(row, row_table._latency)
    assert found["timed from outside"][1] == "10.0" and "×0.810" in found["timed from outside"][2]
    assert "times outside count" not in found
    assert found["waits for a processor"][2] == "left out"
    note = "vanilla was slowed next to the method, ×1.50"
    found = lines(row | {"lat_note": note, "lat_outside_reason": None}, row_table._latency)
    assert note in found["times outside count"][2]
    found = lines(
        row | {"lat_outside_ratio": None, "lat_outside_reason": "no [memory]"}, row_table._latency
    )
    assert found["not timed outside"][2] == "[yellow]no \\[memory][/]"


def test_the_error_of_the_timed_calls_is_next_to_that_of_the_checks():
    row = made.full(
        fid_rel_l2=1e-6, fid_top1_agree=1.0, lat_timed_rel_l2=0.5, lat_timed_top1_agree=0.25
    )
    found = lines(row, row_table._fidelity)
    assert found["output error (rel. L2)"][0] == "1e-06"
    assert found["in timed calls"] == ["0.5", "0", "first choice equal 25%"]


def test_a_cache_that_holds_more_than_it_tells_disagrees():
    row = made.full(
        kv_bytes_held=100 << 20, kv_bytes_resident=120 << 20, kv_bytes_read_per_token=1 << 20
    )
    found = lines(row, row_table._decoding)
    assert found["measured"] == ["120.0 resident", "–", "[yellow]disagrees[/]"]
    assert found["KV read for each token, MiB"][2].endswith("as told by the method")
    counted = {"kv_bytes_resident": 104 << 20, "kv_read_reported_pct": 97.0}
    agrees = lines(row | counted, row_table._decoding)
    assert "measured" not in agrees and "reported" not in agrees
    assert "told" not in agrees["KV read for each token, MiB"][2]
    half = lines(row | counted | {"kv_read_reported_pct": 50.0}, row_table._decoding)
    assert half["reported"] == ["50% of the bytes counted", "", "[yellow]disagrees[/]"]
