"""bench results: what is listed, chosen, merged, checked and migrated, and how it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.cli.main import main
from bench.errors import RequestError
from bench.rows import query
from bench.rows.predictions import Predictions
from bench.rows.store import Store
from tests import made

V1 = Path(__file__).parent / "data" / "rows-v1.parquet"


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "runs")
    store.append([
        made.row(row_id="aa11", method="vcc", length=1024, method_params='{"k": 8, "mode": "x"}'),
        made.row(row_id="aa22", method="vcc", length=4096, value=41.5, lat_ratio=0.5,
        lat_verdict="faster"),
        made.row(row_id="bb33", method="vanilla", length=4096, noisy=True),
        made.row(row_id="cc44", method="vanilla", length=2048, status="timeout"),
    ])  # fmt: skip
    return store.folder


def bench(capsys, *words):
    """(exit code, lines of standard output, of standard error)"""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return stop.value.code, said.out.splitlines(), said.err.splitlines()


def listed(lines):
    head, *rest = (line.split("\t") for line in lines)
    return [dict(zip(head, line, strict=True)) for line in rest]


def test_rows_are_listed_newest_last_for_programs(folder, capsys):
    Store(folder).append([made.row(row_id="old", created_utc="2020-01-01T00:00:00+00:00")])
    code, out, err = bench(capsys, "results", "--results", folder)
    found = listed(out)
    assert code == 0 and not err
    assert [row["row_id"] for row in found] == ["old", "aa11", "aa22", "bb33", "cc44"]
    assert (found[2]["value"], found[2]["lat_ratio"], found[1]["lat_ratio"]) == ("41.5", "0.5", "")


def test_rows_are_listed_as_a_table_for_people(folder, capsys):
    _, out, _ = bench(capsys, "results", "--results", folder, "--format", "table")
    table = "\n".join(out)
    assert len(out) == 6 and "×0.500" in table and "faster" in table and "timeout" in table


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["method=vcc"], ["aa11", "aa22"]),
        (["method=vcc,length=1024"], ["aa11"]),
        (["length=1024,2048"], ["aa11", "cc44"]),
        (["noisy=true"], ["bb33"]),
        (["n=4", "status=timeout"], ["cc44"]),
        (["value=null", "method=vcc"], ["aa11"]),
        (["method.k=8"], ["aa11"]),
        (["aa"], ["aa11", "aa22"]),
        (["dataset_sha256=ddd", "cell_key=cell", "bb33"], ["bb33"]),
    ],
)
def test_words_choose_rows(folder, words, ids):
    assert [row["row_id"] for row in query.select(words, folder)[0]] == ids


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["metod=vcc"], "unknown column 'metod'. Did you mean 'method'?"),
        (["method=vc"], "'vc'. Did you mean vcc? Known: vanilla, vcc"),
        (["status=okay"], "unknown status 'okay'. Did you mean ok?"),
        (["lat_samples_ns=3"], "rows can't be chosen by 'lat_samples_ns'"),
        (["method_params={}"], "a method's parameter is method.NAME=VALUE"),
        (["check", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(folder, words, told, capsys):
    where = [] if "nowhere" in words else ["--results", folder]
    code, _, err = bench(capsys, "results", *words, *where)
    assert code == 2 and len(err) == 1 and told in err[0]


def test_nothing_that_fits_is_no_error(folder, capsys):
    code, out, err = bench(capsys, "results", "method=vcc", "status=timeout", "--results", folder)
    assert code == 0 and not out and "no rows" in err[0]
    code, _, error = bench(capsys, "results", "zz", "--results", folder)
    assert code == 2 and "has an id that begins with 'zz'" in error[0]


def test_files_set_aside_are_named_while_the_rest_is_listed(folder, capsys):
    (folder / "rows-torn.parquet").write_bytes(b"PAR1 torn")
    (folder / "notes.parquet").write_text("not ours")
    code, out, err = bench(capsys, "results", "--results", folder)
    assert code == 0 and len(listed(out)) == 4
    assert "notes.parquet: foreign" in err[0] and "rows-torn.parquet: torn" in err[1]


def test_merge_copies_rows_and_predictions_once(folder, tmp_path, capsys):
    Predictions(folder / "predictions", "key").append([{"id": "1", "prediction": "x"}])
    into = tmp_path / "all"
    code, out, _ = bench(capsys, "results", "merge", folder, V1, "--into", into)
    old = pq.read_metadata(V1).num_rows
    assert code == 0
    assert out == [f"{4 + old} rows added to {into}, 0 already there; 1 prediction files copied"]
    assert Predictions(into / "predictions", "key").done() == {"1": {"id": "1", "prediction": "x"}}
    _, out, _ = bench(capsys, "results", "merge", folder, V1, "--into", into)
    assert out == [f"0 rows added to {into}, {4 + old} already there; 0 prediction files copied"]


def test_a_folder_that_refuses_rows_is_a_failure_not_a_wrong_request(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code, _, err = bench(capsys, "results", "merge", folder, "--into", tmp_path / "file" / "in")
    assert code == 1 and len(err) == 1 and "cannot write" in err[0]


def test_check_names_and_repair_sets_aside(folder, capsys):
    shutil.copy(next(folder.glob("rows-*.parquet")), folder / "rows-copy.parquet")
    (folder / "rows-torn.parquet").write_bytes(b"PAR1 torn")
    code, out, _ = bench(capsys, "results", "check", folder)
    assert code == 1 and "rows-torn.parquet: torn" in out[0]
    assert any("duplicate: 4 rows are stored twice" in line for line in out)
    assert out[-1] == f"{folder}: 4 rows can be read, 1 files need a look"
    code, out, _ = bench(capsys, "results", "check", folder, "--repair")
    assert code == 0 and out[0].endswith("(set aside as *.torn)")
    assert (folder / "rows-torn.parquet.torn").exists()
    assert bench(capsys, "results", "check", folder)[0] == 0


def test_migrate_says_what_loads_and_rewrites_nothing(folder, tmp_path, capsys):
    shutil.copy(V1, folder / "rows-v1.parquet")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, out, _ = bench(capsys, "results", "migrate", folder)
    older = pq.read_metadata(V1).num_rows
    assert code == 0 and out == [
        f"schema 1 (loads as schema 2): 1 files, {older} rows",
        "schema 2 (today's): 1 files, 4 rows",
    ]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    into = tmp_path / "new"
    code, out, _ = bench(capsys, "results", "migrate", folder, "--into", into)
    assert code == 0 and f"{older + 4} rows added to {into}" in out[-1]
    assert query.versions(into) == {2: (1, older + 4)}


def test_an_argument_is_a_folder_a_filter_or_an_id(folder):
    assert len(query.sides([str(folder)], Path("nowhere"))[0].rows) == 4
    assert len(query.sides(["method=vcc"], folder)[0].rows) == 2
    assert query.sides(["aa1"], folder)[0].rows[0]["row_id"] == "aa11"
    assert query.sides([f"{folder}/bb"], Path("nowhere"))[0].rows[0]["row_id"] == "bb33"
    with pytest.raises(RequestError, match="'aa' begins the ids of 2 rows: aa11, aa22"):
        query.sides(["aa"], folder)[0]
    with pytest.raises(RequestError, match="'zz' is no folder, no filter"):
        query.sides(["zz"], folder)[0]
    with pytest.raises(RequestError, match=r"no row in .* fits 'method.k=9'"):
        query.sides(["method.k=9"], folder)[0]


def test_details_show_each_row_as_its_run_did(folder, capsys):
    code, out, _ = bench(
        capsys, "results", "aa11", "--details", "--results", folder, "--format", "table"
    )
    assert code == 0 and any(line.startswith("row aa11 ") for line in out)
    assert sum(line.startswith("row ") for line in out) == 1
