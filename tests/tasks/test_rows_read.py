"""Rows of benchmarks' own files, as tasks read them: rows.yaml. Unreadable rows are reported in one
line, with file and location: bad_rows.yaml."""

import json
from pathlib import Path

import pytest
import yaml

from tasks.base import Data, DataError
from tests.made import task
from tests.tasks.test_sources import archive


def loaded(case, folder):
    """The rows of the case's file in the folder."""
    path = folder / case["file"]
    path.parent.mkdir(parents=True)
    lines = "\n".join(map(json.dumps, case.get("records", [])))
    text = json.dumps(case["json"]) if "json" in case else case.get("text", lines)
    if "member" in case:
        archive(path, text, case["member"])
    else:
        path.write_bytes(text.encode())
    made = task(case["task"], **case.get("settings", {}))
    return made.load(Data("local", folder, case.get("split")), None, 4096, 0)


def cases(name, folder):
    """The cases of a file, each with a separate folder."""
    for number, case in enumerate(yaml.safe_load(Path(__file__).with_name(name).read_text())):
        yield case, folder / str(number)


def test_rows_are_read(tmp_path, snapshot):
    text = ""
    for case, folder in cases("rows.yaml", tmp_path):
        found = loaded(case, folder)
        text += f"{case['task']}: {len(found.rows)} of {found.n_available}, {found.split}\n"
        for row in found.rows:
            ending = getattr(row, "ending", "")
            parts = [row.id, row.query, row.document, ending, row.second, [*row.references]]
            text += f"  {json.dumps(parts, ensure_ascii=False)}\n"
    snapshot("rows", text)


def test_rows_that_cannot_be_read_are_named(tmp_path, snapshot):
    text = ""
    for case, folder in cases("bad_rows.yaml", tmp_path):
        with pytest.raises(DataError) as refused:
            loaded(case, folder)
        [line] = str(refused.value).splitlines()
        assert str(folder / case["file"]) in line
        text += f"{case['task']}: {line.replace(str(folder), 'FOLDER')}\n"
    snapshot("bad_rows", text)
