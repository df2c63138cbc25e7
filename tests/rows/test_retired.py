"""Rows that no longer count: marked in every view, never ranked, stored unchanged."""

import pytest

from bench.cli.main import dispatch
from bench.compare import verify
from bench.errors import RequestError
from bench.request import plugins
from bench.rows import query, store
from bench.rows.store import Store, merge
from bench.status import Status
from reports.figures.cells import load
from reports.leaderboard import boards
from reports.leaderboard.pick import pick
from tests import made

REASON = "the blocks of a padded batch were shifted by one token"


@pytest.fixture
def retire(tmp_path, monkeypatch):
    """Write a list of rules, which a store then reads."""

    def write(text):
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf" / "retired.yaml").write_text(text)
        monkeypatch.setattr(plugins, "conf_dirs", lambda: (plugins.CONF, tmp_path / "conf"))
        store.retired_rules.cache_clear()

    yield write
    store.retired_rules.cache_clear()


def rule(where):
    return f"retired:\n  - where: {where}\n    reason: {REASON}\n"


@pytest.fixture
def rows(tmp_path):
    """Two versions of a method, and vanilla."""
    Store(tmp_path / "rows").append([
        made.row(method="vcc", method_version="old", row_id="a" * 32, value=90.0),
        made.row(method="vcc", method_version="new", row_id="b" * 32, length=1024),
        made.row(method="vanilla", row_id="c" * 32),
    ])  # fmt: skip
    return tmp_path / "rows"


def statuses(folder):
    return {row["row_id"][0]: row["status"] for row in Store(folder).rows().to_pylist()}


@pytest.mark.parametrize(
    "where",
    [
        "{method: vcc, method_version: old}",
        "{method: vcc, method_version: [older, old]}",
        f"{{row_id: {'a' * 32}}}",
    ],
)
def test_a_row_is_retired_by_its_version_or_id_and_no_other(rows, retire, where):
    retire(rule(where))
    assert statuses(rows) == {"a": Status.RETIRED, "b": "ok", "c": "ok"}
    [found], _ = query.select(["status=retired"], rows)
    assert (found["status_detail"], found["value"]) == (REASON, 90.0)


def test_its_cell_is_no_longer_finished_and_its_file_is_unchanged(rows, retire, tmp_path):
    retire(rule("{method_version: old}"))
    store = Store(rows)
    [key] = {row["cell_key"] for row in store.rows().to_pylist() if row["row_id"][0] == "a"}
    assert store.find(key)["status"] == Status.RETIRED
    merge([rows], tmp_path / "merged")
    retire("retired: []")
    assert statuses(rows) == statuses(tmp_path / "merged") == dict.fromkeys("abc", "ok")


def test_listings_and_comparisons_mark_it(rows, retire, capsys, monkeypatch):
    retire(rule("{method_version: old}"))
    monkeypatch.setenv("COLUMNS", "220")
    assert dispatch(["results", f"results={rows}", "--format=table"]) == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if "retired" in line]
    assert len(marked) == 1 and "aaaaaaaa" in marked[0]
    assert dispatch(["results", "status=retired", f"results={rows}", "--json"]) == 0
    assert REASON in capsys.readouterr().out
    dispatch(["compare", str(rows / ("a" * 8)), str(rows / ("c" * 8)), "--on=method"])
    assert "retired" in capsys.readouterr().out


def test_it_is_ranked_on_no_board_and_drawn_in_no_figure(rows, retire):
    retire(rule("{method_version: old}"))
    picked = pick([rows], [], 100)
    shown = boards.boards(picked.rows, lambda *_: None)
    found = {entry.row["row_id"][0]: entry for board in shown for entry in board.entries}
    assert found["a"].label == "vcc (retired)" and found["a"].rank is None
    assert not any("retired" in board.title for board in shown)
    drawn = load(rows)
    assert "left out: 1 retired rows" in drawn.warnings
    assert set(drawn.cells.loc[drawn.cells["method"] == "vcc", "length"]) == {1024}


def test_a_second_measurement_neither_confirms_nor_refutes_it(rows, retire):
    retire(rule("{method_version: old}"))
    [old], _ = query.select(["status=retired"], rows)
    [check] = verify.compare_rows(old, {**old, "status": "ok"})
    assert (check.verdict, check.reason) == (verify.Agreement.CANT_TELL, REASON)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (rule("{methud: vcc}"), "unknown column 'methud'. Did you mean 'method'?"),
        (rule("{length: long}"), "column 'length' takes int64, got str 'long'"),
        ("retired:\n  - where: {method: vcc}\n", "'reason'"),
        ("retired: [vcc]\n", "entry 1"),
    ],
)
def test_a_rule_that_can_not_be_read_is_named(rows, retire, tmp_path, text, told):
    retire(text)
    with pytest.raises(RequestError, match=r"retired\.yaml: entry 1") as error:
        Store(rows)
    assert told in str(error.value)


def test_the_projects_own_list_can_be_read():
    store.retired_rules.cache_clear()
    for one in store.retired_rules():
        assert one.where and one.reason
        assert all(len(row_id) == 32 for row_id in one.where.get("row_id", ()))
