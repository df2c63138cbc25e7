"""Budgets: shares, entries and bytes."""

from methods.parts.parameters import entries
from tests.methods.decoder import workload


def test_a_share_entries_and_bytes():
    work = workload(batch=3, layers=5)  # 2 tensors · 3 rows · 5 layers · 2 heads · 8 numbers · 4 B
    assert work.bytes_per_entry() == 1920
    assert [entries(x, work, 100) for x in (0.25, 0.29, 1, 1.0)] == [25, 29, 100, 100]
    assert [entries(x, work, 100) for x in (7, 512)] == [7, 512]
    assert [entries(x, work, 100) for x in ("19.2KiB", "1MiB", "0.5GiB")] == [10, 546, 279620]
    assert workload(key_heads=None).bytes_per_entry() == 2 * workload().bytes_per_entry()
