"""The hub sources of LongBench, MRCR, InfiniteBench and BABILong, from their YAML to a row, with a
local server in place of the hub."""

import io
import json
import zipfile

import pyarrow
import pytest
from pyarrow import parquet

from bench.cli.main import dispatch
from bench.request import plugins
from tasks.base import Data, DataError
from tasks.loading.hub import fetch
from tests.tasks.test_generated import OFFICIAL
from tests.tasks.test_hub import at, offline, server

assert offline and server  # fixtures

LONGBENCH = {"input": "q?", "context": "c", "answers": ["a"], "_id": "x", "all_classes": None}


def zipped(member, record):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, json.dumps(record))
    return file.getvalue()


def parquet_of(record):
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([record]), file)
    return file.getvalue()


def lines_of(*records):
    return "\n".join(map(json.dumps, records)).encode()


FILES = {
    "longbench_hotpotqa": ("data.zip", zipped("data/hotpotqa.jsonl", LONGBENCH)),
    "longbench_v2": ("data.json", json.dumps([{"_id": "x", "context": "c", "question": "q?",
        "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "B",
    }]).encode()),
    "mrcr": ("2needle/2needle_0.parquet", parquet_of(OFFICIAL["mrcr"][1])),
    "infinitebench_passkey": ("passkey.jsonl", lines_of(OFFICIAL["infinitebench_passkey"][1])),
    "babilong_qa1": ("data/qa1/4k.json", lines_of(*2 * [OFFICIAL["babilong_qa1"][1]])),
}  # fmt: skip


def built(name, tmp_path, **given):
    """The task with the local server's data set, and the benchmark's prompts."""
    conf = plugins.conf("task", name)
    if "prompt_file" in conf:
        prompts = tmp_path / conf["prompt_file"].rpartition("/")[2]
        text = json.dumps({"hotpotqa": "{context} {input}"}) if name != "longbench_v2" else "$Q$"
        prompts.write_text(text)
        given.setdefault("prompt_file", str(prompts))
    return at(plugins.build({**conf, **given}), repo="tau/scrolls")


@pytest.mark.parametrize("name", FILES)
def test_rows_of_the_hub(name, server, offline, tmp_path):
    file, content = FILES[name]
    server.files |= {file: content, "data/qa1/10M.json": b"", "README.md": b""}
    task = built(name, tmp_path)
    fetch(task)
    offline()
    rows = task.load(Data("hub"), None, 4096, 0).rows
    assert rows and rows[0].references and rows[0].document + rows[0].query


def test_files_are_named_after_their_length(server, tmp_path):
    task = built("babilong_qa1", tmp_path)
    server.files["data/qa1/4k.json"] = FILES["babilong_qa1"][1]
    fetch(task)
    with pytest.raises(DataError, match=r"qa1/16k\.json .* babilong_qa1 --length 16384"):
        task.load(Data("hub"), None, 16384, 0)
    folder = tmp_path / "babilong" / "qa1"
    folder.mkdir(parents=True)
    for length in ("4k", "1M"):
        (folder / f"{length}.json").write_bytes(FILES["babilong_qa1"][1])
    for length in (4096, 1 << 20):
        assert task.load(Data("local", tmp_path), None, length, 0).n_available == 2
    with pytest.raises(DataError, match=r"no file .*qa1/8k\.json"):
        task.load(Data("local", tmp_path), None, 8192, 0)


def test_a_commit_is_pinned_by_its_name(server, offline, capsys):
    server.commits["c" * 40] = "c" * 40
    assert dispatch(["fetch", "qmsum", "--revision", "c" * 40]) == 0
    assert "no commit is pinned" not in capsys.readouterr().err
    offline()
    task = plugins.build(plugins.conf("task", "qmsum"))
    assert at(task, revision="c" * 40).load(Data("hub"), None, 64, 0).rows
    with pytest.raises(DataError, match="hasn't been fetched: bench fetch qmsum --revision v9"):
        at(task, revision="v9").load(Data("hub"), None, 64, 0)


def test_the_hub_has_no_prompts(server, tmp_path):
    task = built("longbench_hotpotqa", tmp_path, prompt_file="config/dataset2prompt.json")
    with pytest.raises(DataError, match=r"give task\.prompt_file=/PATH/dataset2prompt\.json"):
        task.load(Data("hub"), None, 512, 0)
