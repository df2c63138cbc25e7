"""SCROLLS' configuration and layouts, and rows of a local copy: reading and error messages."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from tasks import scrolls
from tasks.base import Data, DataError, Row
from tasks.loading import reader
from tests.made import task as build

EMBEDDED = Data()


def folder(path: Path, rows: list, member="qmsum", split="validation", extra=b"") -> Data:
    """A local copy of the benchmark with one split; a row that is text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (path / "scrolls").mkdir(exist_ok=True)
    with zipfile.ZipFile(path / "scrolls" / f"{member}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{member}/{split}.jsonl", "\n".join(lines).encode() + extra)
    return Data("local", path, split)


def row(name: str, text: str = "Who?\n\nA text.", output: object = "Nobody", pid: int = 0) -> dict:
    return {"id": name, "pid": f"{name}_{pid}", "input": text, "output": output}


def load(data: Data, n: int | None = None, name: str = "qmsum"):
    return build(name).load(data, n, 1024, 0)


# --- layouts ----------------------------------------------------------------------------------

FOUR = "Which?\n\n (A) one\n (B) two\n (C) three\n (D) four"


def test_the_query_is_what_stands_before_the_first_blank_line():
    assert scrolls.paragraph("Who? \n\n\nOne.\n\nTwo.") == ("Who?", "One.\n\nTwo.")


@pytest.mark.parametrize("between", ["\n\n\n", "\n\n", "\n"])
def test_options_belong_to_the_query(between):
    assert scrolls.options(f"{FOUR}{between}An article.\n (A) not an option") == (
        FOUR, "An article.\n (A) not an option",
    )  # fmt: skip


def test_an_option_in_a_question_is_not_an_option_line():
    asked = FOUR.replace("Which?", "Is (A) or (D) meant?")
    assert scrolls.options(f"{asked}\n\n\nText") == (asked, "Text")


def test_without_a_query_all_is_document():
    assert scrolls.none("One.\n\nTwo.") == ("summarize", "One.\n\nTwo.")


# --- local rows -------------------------------------------------------------------------------


def test_rows_of_one_id_are_one_row_with_several_references(tmp_path):
    data = folder(tmp_path, [row("a"), row("a", output="No one", pid=1), row("b", output="He")])
    loaded = load(data)
    assert [r.id for r in loaded.rows] == ["a", "b"] and loaded.n_available == 2
    assert loaded.rows[0] == Row("a", "Who?", "A text.", ("Nobody", "No one"))
    archive = tmp_path / "scrolls" / "qmsum.zip"
    assert loaded.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert loaded.split == "validation"


def test_the_first_n_ids_have_all_their_references(tmp_path):
    data = folder(tmp_path, [row("a"), row("b"), row("b", output="No one", pid=1), row("c")])
    loaded = load(data, 2)
    assert [len(r.references) for r in loaded.rows] == [1, 2] and loaded.n_available == 3


def test_a_large_split_is_read_only_as_far_as_n_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "READ_WHOLE_BYTES", 0)
    data = folder(tmp_path, [row("a"), row("a", output="No one", pid=1), row("b"), "broken"])
    loaded = load(data, 1)
    assert loaded.rows[0].references == ("Nobody", "No one")
    assert loaded.n_available == 272  # as the YAML says, since the rest wasn't read
    with pytest.raises(DataError, match="line 4: broken json"):
        load(data)


BAD = {
    "line 1: no column 'input'; found id, output": [{"id": "a", "output": "x"}],
    "line 1: column 'input' holds list, expected text": [row("a") | {"input": ["x"]}],
    "line 2: no output; skip_unanswerable=true leaves": [row("a"), row("b", output=None)],
    "line 1: column 'input' has no query before a blank line": [row("a", "no blank line")],
    "line 1: column 'input' has no document": [row("a", "Who?\n\n \n")],
    "line 3: id 'a' came before with another input": [row("a"), row("b"), row("a", "Why?\n\nx")],
    "has no rows": [],
    "line 2: no right answer; skip_unanswerable=true leaves": [row("a"), row("b", output=" ")],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_rows_are_named(tmp_path, message):
    with pytest.raises(DataError) as raised:
        load(folder(tmp_path, BAD[message]))
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert str(tmp_path / "scrolls" / "qmsum.zip") in str(raised.value)
    assert "qmsum/validation.jsonl" in str(raised.value)


@pytest.mark.parametrize("given", [{"output": None}, {"output": ""}, {}])
def test_withheld_answers_are_said_to_be(tmp_path, given):
    without = {k: v for k, v in row("a").items() if k != "output"}
    data = folder(tmp_path, [without | given], split="test")
    with pytest.raises(DataError, match=r"withholds the answers .*: use data\.split=validation"):
        load(data)
