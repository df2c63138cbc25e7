"""Rows become cells, each once; methods keep their looks."""

import pytest

from bench.request import plugins
from reports.figures import style
from reports.figures.cells import load, spread, variant_labels
from reports.looks import KNOWN, SPARE, looks
from tests.reports.figures.made_rows import COSTS, NO_BASE, failed, frontier, measured, store


def test_variants_have_their_methods_colour_and_marks_of_their_own():
    found = looks(["vcc", "iceformer·dci", "iceformer·quantized", "fourier"])
    assert [*found] == ["vcc", "iceformer·dci", "iceformer·quantized", "fourier"]
    one, two = found["iceformer·dci"], found["iceformer·quantized"]
    assert (one.color, one.marker) == KNOWN["iceformer"]
    assert two.color == one.color and two.marker != one.marker


@pytest.mark.parametrize("name", ["vcc", "mine"])
def test_a_look_follows_from_the_name_whatever_else_is_there(name):
    one, among = (looks([name, *others])[name] for others in ([], ["zzz", "a", "vanilla", "luna"]))
    assert one[:2] == among[:2] and (one[:2] in KNOWN.values()) == (name in KNOWN)


def test_a_method_has_one_look_at_each_budget_and_with_any_others():
    found = looks(["snapkv·0.25", "snapkv·0.5", "h2o·0.5", "longformer", "iceformer·dci"])
    assert found["snapkv·0.25"][:2] == found["snapkv·0.5"][:2] == looks(["snapkv"])["snapkv"][:2]
    assert found["snapkv·0.25"].line == found["snapkv·0.5"].line
    every = [*plugins.available("method"), *(f"iceformer·{i}" for i in range(1, 5))]
    assert len({look[:2] for look in looks(every).values()}) == len(every)
    assert all(look[:2] == looks([name])[name][:2] for name, look in looks(every[:-4]).items())


def of(folder, method):
    """The cells of a method."""
    cells = load(folder).cells
    return cells[cells["method"] == method]


def test_many_unknown_methods_differ():
    found = looks(f"method_{i}" for i in range(len(SPARE)))
    assert len({look[:2] for look in found.values()}) == len(SPARE)
    assert looks(f"method_{i}" for i in range(200))  # more than there are looks: shared, no error


def test_names_are_made_one_plain_line():
    for name, tidy in (("_hidden", " _hidden"), ("a\nb\x07c", "a bc"), ("\u202e", "?")):
        assert style.tidy(name) == tidy
    assert len(style.tidy("x" * 99)) == 28


def test_vanilla_joins_from_the_rows_of_others(tmp_path):
    vanilla = of(store(tmp_path, [measured("vcc", 512)]), "vanilla").iloc[0]
    assert vanilla["lat_ratio"] == vanilla["mem_ratio"] == 1
    assert vanilla["value"] == pytest.approx(96 - 512 / 4000)
    assert vanilla["peak_bytes"] > 0


def test_vanillas_own_row_counts_before_what_others_say(tmp_path):
    rows = [measured("vcc", 512), measured("vanilla", 512, value=12.0)]
    assert list(of(store(tmp_path, rows), "vanilla")["value"]) == [12.0]


def test_quality_and_speed_of_one_cell_meet_in_one_line(tmp_path):
    whole = measured("vcc", 512)
    quality = measured("vcc", 512, measure="quality", lat_ratio=None, lat_median_ns=None)
    speed = measured("vcc", 512, measure="speed", value=None, metric=None)
    mine = of(store(tmp_path, [quality, speed]), "vcc")
    assert len(mine) == 1
    assert mine.iloc[0]["value"] == whole["value"]
    assert mine.iloc[0]["lat_ratio"] == whole["lat_ratio"]


def test_a_cell_that_was_run_again_counts_as_it_ended_well(tmp_path):
    old = failed("vcc", 512, "timeout", method_params='{"k": 16, "h": 90}')
    mine = of(store(tmp_path, [measured("vcc", 512), old]), "vcc")
    assert len(mine) == 1 and mine.iloc[0]["lat_ratio"] > 0


def test_the_last_attempt_at_a_cell_counts_whatever_its_clock_said(tmp_path):
    attempts = [
        measured("vcc", 512, cell_key="c", attempt=i, created_utc=f"2026-11-2{5 - i}", value=i)
        for i in (1, 2)
    ]
    assert list(of(store(tmp_path, attempts), "vcc")["value"]) == [2]


def test_a_vanilla_that_did_not_fit_is_told(tmp_path):
    folder = store(tmp_path, [measured("vcc", 512, **NO_BASE)])
    assert set(of(folder, "vanilla")["failed"]) == {"oom_host"}


def test_settings_with_most_methods_come_first_and_lengths_take_turns(tmp_path):
    some = frontier(("a", "b"), (512, 1024, 2048), ("vanilla", "vcc"))
    rows = load(store(tmp_path, [*some, measured("iceformer", 1024, task="b")]))
    panels = rows.settings("length")
    assert (set(panels[0]["task"]), set(panels[0]["length"])) == ({"b"}, {1024})
    chosen = [(p["task"].iloc[0], p["length"].iloc[0]) for p in spread(panels, 3)]
    assert chosen == [("a", 2048), ("b", 1024), ("b", 2048)]


def test_variants_are_variant_labels_by_what_differs():
    some = ['{"k": 16, "seed": 0}', '{"k": 8, "seed": 0}']
    assert variant_labels(some) == {some[1]: "k=8", some[0]: "k=16"}
    assert variant_labels(some[:1]) == {some[0]: ""}
    named = variant_labels(['{"search": "dci"}', '{"search": "exact"}'])
    assert list(named.values()) == ["dci", "exact"]


def test_a_filter_leaves_colours_alone(tmp_path):
    folder = store(tmp_path, frontier(methods=("vanilla", "vcc", "iceformer")))
    assert load(folder, ["method=vcc"]).looks == load(folder).looks


def test_rows_without_a_length_are_passed_over(tmp_path):
    lost = failed("vcc", 512, "error") | {"length": None}
    assert len(load(store(tmp_path, [lost, measured("vcc", 512)])).cells) == 2


def test_a_figure_has_rows_of_one_code_of_a_method(tmp_path):
    new = measured("vcc", 512, method_version="new", created_utc="2026-02-01T00:00:00+00:00")
    old = measured("vcc", 1024, method_version="old", created_utc="2026-01-01T00:00:00+00:00")
    found = load(store(tmp_path, [new, old]))
    assert set(found.cells.loc[found.cells["method"] == "vcc", "length"]) == {512}
    assert any("1 row (vcc 1)" in warning for warning in found.warnings)


def test_versions_are_compared_among_rows_of_one_composition(tmp_path, capsys):
    """A method that contains another has the code of both, so its version differs."""
    part = {"prefill": {"name": "vertical_slash", "target": "methods.x:VerticalSlash"}}
    costs = COSTS["iceformer"]
    plain = measured("snapkv", 512, method_version="plain", costs=costs)
    within = measured("snapkv", 512, method_version="with", params=part, costs=costs)
    folder = store(tmp_path, [plain, within | {"created_utc": "2027-01-01T00:00:00+00:00"}])
    rows = load(folder)
    assert len(rows.cells[rows.cells["method"].str.contains("snapkv")]) == 2
    assert not rows.warnings
