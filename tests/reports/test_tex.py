"""Grids as floats of LaTeX: their widths, their parts and their notes. `make tex` sets them."""

import re

import pytest

from reports import tex
from reports.rendering import SUPERSCRIPTS, TextGrid
from reports.rendering import tex as escaped

WIDE = TextGrid("wide", [f"column_{n}" for n in range(14)], [["some words"] * 14] * 3)
LONG = TextGrid("long", ["method", "value"], [[f"m{n}", "1.0 (0.9 … 1.1)"] for n in range(100)])


def widths(text):
    """For each tabular of a text, the widths of its columns as shares of the text's."""
    specs = re.findall(r"\\begin\{tabular\}(.*)", text)
    return [[float(share) for share in re.findall(r"p\{([\d.]+)\\textwidth\}", s)] for s in specs]


@pytest.mark.parametrize("grid", [WIDE, LONG], ids=lambda grid: grid.caption)
def test_columns_and_their_gaps_fit_into_the_text(grid):
    for part in tex.grid_floats(grid):
        [shares] = widths(part)
        gaps = tex.GAP_PT * (len(shares) - 1) / tex.TEXT_PT
        assert 0 < sum(shares) + gaps <= 1.01


def test_a_wide_grid_is_divided_and_each_part_has_the_first_column():
    parts = list(tex.grid_floats(WIDE))
    assert len(parts) > 1
    assert all("column\\_\\allowbreak{}0 &" in part for part in parts)
    heads = "".join(parts)
    assert all(heads.count(f"{{}}{n} ") for n in range(14))


def test_a_long_grid_is_divided_and_no_line_is_lost():
    parts = list(tex.grid_floats(LONG))
    assert len(parts) == 3 and "(part 1 of 3)" in parts[0]
    assert [*map(int, re.findall(r"^m(\d+) &", "\n".join(parts), re.M))] == [*range(100)]


def test_notes_are_under_the_last_part_or_alone_where_they_do_not_fit():
    group = tex.Group("a title", [["a", "b"]] * 5)
    [one] = tex.floats("caption", ["x", "y"], [group], ["short"])
    assert one.index("\\bottomrule") < one.index("short\\par")
    first, second = tex.floats("caption. More", ["x", "y"], [group], ["long " * 1000])
    assert "long" not in first and "tabular" not in second and "More" not in second


def test_a_mark_is_a_raised_letter():
    assert escaped(f"differs{next(iter(SUPERSCRIPTS))}") == "differs\\textsuperscript{a}"
