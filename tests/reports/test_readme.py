"""What README quotes is what the reference rows say."""

from __future__ import annotations

import pytest

from reports import readme
from tests.conftest import ROOT


def test_the_quickstarts_table_is_that_of_the_reference_rows():
    if not readme.REFERENCE.is_dir():
        pytest.skip("no reference rows in this checkout")
    assert readme.table() in (ROOT / "README.md").read_text()
    assert readme.host().split(",")[0] in (ROOT / "README.md").read_text()
