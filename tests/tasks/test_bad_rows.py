"""Rows that can't be read are named in one line, with their file and place: bad_rows.yaml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tasks.base import Data, DataError
from tests.made import task
from tests.tasks.test_sources import archive

CASES = yaml.safe_load(Path(__file__).with_name("bad_rows.yaml").read_text())


def written(folder, case):
    """The case's file in the folder."""
    path = folder / case["file"]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(map(json.dumps, case.get("records", [])))
    text = json.dumps(case["json"]) if "json" in case else case.get("text", lines)
    if "member" in case:
        return archive(path, text, case["member"])
    path.write_text(text)
    return path


def test_rows_that_cannot_be_read_are_named(tmp_path, snapshot):
    told = ""
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        path = written(folder, case)
        with pytest.raises(DataError) as refused:
            task(case["task"]).load(Data("local", folder, case.get("split")), None, 4096, 0)
        [line] = str(refused.value).splitlines()
        assert str(path) in line
        told += f"{case['task']}: {line.replace(str(folder), 'FOLDER')}\n"
    snapshot("bad_rows", told)
