"""SCROLLS' configuration and layouts, and rows of a local copy: reading and error messages."""

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from bench.request import plugins
from tasks import scrolls
from tasks.base import Data, DataError, Row
from tasks.generators.seeds import SPLITS
from tasks.loading import reader
from tasks.scrolls import Scrolls

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "narrativeqa", "qmsum", "quality", "qasper", "gov_report", "summ_screen_fd", "contract_nli",
)  # fmt: skip
EMBEDDED = Data()


def build(name: str) -> Scrolls:
    return plugins.build(plugins.conf("task", name))


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


# --- configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_yaml_builds_the_task(name):
    task = build(name)
    assert isinstance(task, Scrolls) and task.name == name and task.benchmark == "scrolls"
    assert task.hub["file"] == f"{task.member}.zip" and set(task.n) == set(SPLITS)
    assert hash(task) == hash(build(name))
    assert plugins.about(plugins.available("task")[name]).startswith("SCROLLS")


def test_hydra_composes_a_task(tmp_path):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(ROOT / "conf" / "task"), version_base="1.3"):
        composed = compose("qmsum", overrides=["max_new_tokens=8"])
    task = plugins.build(OmegaConf.to_container(composed))
    assert task == replace(build("qmsum"), max_new_tokens=8)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("query", "paragraph, options, entities, none"),
        ("embedded", "summary"),
        ("truncation_side", "left"),
    ],
)
def test_a_wrong_choice_names_the_accepted(field, message):
    with pytest.raises(ValueError, match=f"qmsum: {field}=x; accepted: .*{message}"):
        replace(build("qmsum"), **{field: "x"})


def test_import_loads_no_library():
    code = (
        "import sys, tasks.scrolls; "
        "print([m for m in ('torch', 'numpy', 'rouge_score', 'huggingface_hub', 'datasets') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


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


def test_default_split_is_validation(tmp_path):
    data = folder(tmp_path, [row("a")])
    assert load(Data("local", tmp_path)).split == load(data).split == "validation"
    with pytest.raises(DataError, match=r"no member 'qmsum/train\.jsonl'"):
        load(Data("local", tmp_path, "train"))


BAD = {
    "line 2: broken json": [row("a"), '{"id": "b", "input"'],
    "line 2: found list, expected an object": [row("a"), "[]"],
    "line 1: no column 'input'; found id, output": [{"id": "a", "output": "x"}],
    "line 1: no column 'id'": [{"input": "Who?\n\nx", "output": "x"}],
    "line 2: no column 'output'": [row("a"), {"id": "b", "input": "Who?\n\nx"}],
    "line 1: column 'id' holds int, expected text": [row("a") | {"id": 7}],
    "line 1: column 'input' holds list, expected text": [row("a") | {"input": ["x"]}],
    "line 2: no output; skip_unanswerable=true leaves": [row("a"), row("b", output=None)],
    "line 1: column 'input' has no query before a blank line": [row("a", "no blank line")],
    "line 1: column 'input' has no document": [row("a", "Who?\n\n \n")],
    "line 3: id 'a' came before with another input": [row("a"), row("b"), row("a", "Why?\n\nx")],
    "line 2: id 'a' came before with another input": [row("a"), row("a", "Why?\n\nx")],
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


def test_missing_options_are_named(tmp_path):
    data = folder(tmp_path, [row("a", "Which?\n\n (A) x\n (B) y\n\nText")], "quality")
    with pytest.raises(DataError, match=r"has no option line \(C\)"):
        load(data, name="quality")


@pytest.mark.parametrize("given", [{"output": None}, {"output": ""}, {}])
def test_withheld_answers_are_said_to_be(tmp_path, given):
    without = {k: v for k, v in row("a").items() if k != "output"}
    data = folder(tmp_path, [without | given], split="test")
    with pytest.raises(DataError, match=r"withholds the answers .*: use data\.split=validation"):
        load(data)


@pytest.mark.parametrize(
    ("data", "n", "message"),
    [
        (Data("local", Path("nowhere")), 1, "no file nowhere/scrolls/qmsum.zip"),
        (Data("local"), 1, "needs data.dir"),
        (Data("disk"), 1, "no source 'disk'; accepted: embedded, local, hub"),
        (Data(split="dev"), 1, "no split 'dev'; it has train, validation, test"),
        (EMBEDDED, 0, "n=0; expected 1 or more"),
    ],
)
def test_wrong_requests(data, n, message):
    with pytest.raises(DataError) as raised:
        load(data, n)
    assert message in str(raised.value)


def test_a_cut_zip_is_refused(tmp_path):
    data = folder(tmp_path, [row("a")])
    path = tmp_path / "scrolls" / "qmsum.zip"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="not a whole zip"):
        load(data)
