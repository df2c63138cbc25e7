"""Which rows of two sides are compared, and which words are ambiguous."""

from pathlib import Path

import pytest

from bench.compare import matching
from bench.errors import RequestError
from bench.rows.query import Selection
from tests import made


def selection(*rows, one=False, **named):
    words = {name: [str(value)] for name, value in named.items()}
    return Selection(str(named), Path("results/runs"), list(rows), [], words, one)


def test_filters_match_on_everything_but_what_they_say_differently():
    a = [made.full(method="vanilla", length=n) for n in (512, 1024, 2048)]
    b = [made.full(method="vcc", length=n, method_params='{"k": 8}', weights_sha256="f" * 64)
         for n in (2048, 512, 4096)]  # fmt: skip
    found = matching.match(selection(*a, method="vanilla"), selection(*b, method="vcc"))
    assert [(p.a["length"], p.b["length"]) for p in found.pairs] == [(512, 512), (2048, 2048)]
    assert [row["length"] for row in (*found.only_a, *found.only_b)] == [1024, 4096]


def test_what_both_say_alike_is_not_compared_on():
    a, b = made.full(length=512), made.full(method="vanilla", length=1024)
    with pytest.raises(RequestError, match=r"they differ in length \(512 / 1024\)"):
        matching.match(selection(a, method="vcc", dtype="x"), selection(b, method="v", dtype="x"))


def test_folders_match_cells_whatever_the_version_of_the_code():
    before, after = made.full(cell_key="a"), made.full(cell_key="b")
    other = made.full(cell_key="c", seed=1)
    found = matching.match(selection(before), selection(after, other))
    assert [pair.b["cell_key"] for pair in found.pairs] == ["b"] and found.only_b == [other]


def test_the_newest_ok_row_of_each_side_counts():
    old, new = made.full(), made.full()
    failed = made.full(cell_key=new["cell_key"], status="error")
    found = matching.match(selection(made.full()), selection(new, failed, old))
    assert found.pairs[0].b is new


def test_rows_of_one_host_stand_together():
    a = [made.full(host_id="x"), made.full(host_id="y")]
    b = [made.full(host_id="y"), made.full(host_id="x")]
    found = matching.match(selection(*a), selection(*b))
    assert all(pair.a["host_id"] == pair.b["host_id"] for pair in found.pairs)
    assert len(found.pairs) == 2
    found = matching.match(selection(a[0]), selection(b[0]))
    assert len(found.pairs) == 1


def test_settings_of_methods_are_paired_where_they_agree():
    vanilla = made.full(method="vanilla")
    vcc = [made.full(method_params=f'{{"h": 1, "k": {k}}}') for k in (8, 16)]
    found = matching.match(selection(vanilla, method="vanilla"), selection(*vcc, method="vcc"))
    assert [pair.b for pair in found.pairs] == vcc
    other = made.full(method_params='{"h": 2, "k": 16}')
    named = [{"method.k": 8}, {"method.k": 16}]
    found = matching.match(selection(vcc[0], **named[0]), selection(vcc[1], other, **named[1]))
    assert [*found.pairs] == [(vcc[0], vcc[1])] and found.only_b == [other]


def test_methods_are_compared_at_the_same_budget():
    a, b = (
        [made.full(method=name, method_params=f'{{"budget": {n}}}') for n in budgets]
        for name, budgets in (("snapkv", (0.125, 0.25)), ("tova", (0.25, 0.5)))
    )
    found = matching.match(selection(*a, method="snapkv"), selection(*b, method="tova"))
    assert [*found.pairs] == [(a[1], b[0])]
    assert (found.only_a, found.only_b) == ([a[0]], [b[1]])
    found = matching.match(
        selection(a[0], method="snapkv", **{"method.budget": 0.125}),
        selection(b[1], method="tova", **{"method.budget": 0.5}),
    )
    assert [*found.pairs] == [(a[0], b[1])]


def test_words_that_leave_a_choice_are_refused():
    rows = [made.full(method=m, dtype=d) for m in ("vanilla", "vcc") for d in ("float32", "x")]
    sides = selection(*rows[:2], method="v"), selection(*rows[2:], method="w")
    with pytest.raises(RequestError, match=r"dtype is float32, x; name one \(dtype=…\)"):
        matching.match(*sides, ["dtype"])


def test_on_compares_cells_that_differ_in_more():
    a, b = made.full(dtype="float32"), made.full(dtype="bfloat16")
    with pytest.raises(RequestError, match=r"dtype .*--on NAME"):
        matching.match(selection(a), selection(b))
    assert len(matching.match(selection(a), selection(b), ["dtype"]).pairs) == 1


def test_two_ids_are_a_pair_whatever_they_are():
    a, b = made.full(task="x", length=1), made.full(task="y", length=2)
    found = matching.match(selection(a, one=True), selection(b, one=True))
    assert len(found.pairs) == 1
