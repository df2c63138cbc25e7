"""make selfbench: what its command line takes."""

from __future__ import annotations

import pytest

from benchmarks import harness


@pytest.mark.parametrize(("words", "measured"), [([], list(harness.PARTS)), (["cell"], ["cell"])])
def test_all_parts_are_measured_where_none_is_named(words, measured):
    assert harness.arguments(words).parts == measured
