"""What tests of reports share."""

import pytest

from bench.rows.store import Store
from tests.reports.papers.published_rows import F1, one, table


@pytest.fixture
def judged(tmp_path):
    """The judged cell of a published table beside some rows; that of F1 where none is named."""

    def judge(*rows, name="vcc_table1", **wanted):
        Store(tmp_path).append(rows)
        return one(table(name, tmp_path), **(wanted or F1))

    return judge
