"""Files of rows: zips that are not what they should be, and a hub of our own on this machine."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tasks import sources
from tasks.base import DataError

ROOT = Path(__file__).resolve().parents[2]
MEMBER = "qmsum/validation.jsonl"
ROW = {"id": "a", "pid": "a_0", "input": "Who?\n\nThe text.", "output": "Nobody"}


def archive(path: Path, content: bytes | str, member: str = MEMBER) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(member, content)
    return path


def read(path: Path, member: str = MEMBER) -> list:
    return list(sources.records(path, member))


# --- zips -------------------------------------------------------------------------------------


def test_lines_come_with_their_place(tmp_path):
    # A line separator inside a text must not end the line: json lines end at \n only.
    odd = ROW | {"input": "Who?\n\nOne\u2028two\x85three"}
    lines = json.dumps(odd, ensure_ascii=False) + "\n\n" + json.dumps(ROW)
    path = archive(tmp_path / "x.zip", lines)
    (where, first), (there, second) = read(path)
    assert (first, second) == (odd, ROW)
    assert where == f"{path}: {MEMBER} line 1" and there.endswith("line 3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 2: broken json"),
        ("[1, 2]", "line 2: found list, expected an object"),
        (b'{"id": "\xff"}', "line 2: not UTF-8: invalid start byte at byte 8"),
        ("[" * 100_000, "line 2: broken json"),
    ],
)
def test_broken_lines_are_named(tmp_path, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = archive(tmp_path / "x.zip", json.dumps(ROW).encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value) and MEMBER in str(raised.value)


@pytest.mark.parametrize("name", ["/etc/rows.jsonl", "../rows.jsonl", "a/../../b", "..\\rows"])
def test_members_that_would_leave_the_folder_are_refused(tmp_path, name):
    path = archive(tmp_path / "x.zip", json.dumps(ROW))
    with zipfile.ZipFile(path, "a") as made:
        made.writestr(name, "x")
    with pytest.raises(DataError, match="unsafe"):
        read(path)


def test_symlinks_are_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as made:
        link = zipfile.ZipInfo(MEMBER)
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        made.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="unsafe"):
        read(path)


def test_a_missing_member_says_what_is_there(tmp_path):
    path = archive(tmp_path / "x.zip", "", "qmsum/train.jsonl")
    with pytest.raises(DataError, match=r"no member .*; it holds qmsum/train\.jsonl"):
        read(path)


@pytest.mark.parametrize("keep", [0, 30, -40])
def test_cut_files_are_refused(tmp_path, keep):
    path = archive(tmp_path / "x.zip", json.dumps(ROW))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="not a whole zip"):
        read(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damage_inside_a_member_is_found(tmp_path, method):
    path = tmp_path / "x.zip"
    rows = [ROW | {"id": hashlib.sha256(bytes([i])).hexdigest()} for i in range(200)]
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr(MEMBER, "\n".join(map(json.dumps, rows)))
    broken = bytearray(path.read_bytes())
    at = len(broken) // 2
    broken[at : at + 8] = bytes(255 - b for b in broken[at : at + 8])
    path.write_bytes(broken)
    with pytest.raises(DataError, match=r"damaged|broken json|not UTF-8"):
        read(path)


def test_a_column_must_hold_text():
    with pytest.raises(DataError, match="here: no column 'output'; found id, input"):
        sources.text({"id": "a", "input": "b"}, "output", "here")
    with pytest.raises(DataError, match="here: column 'id' holds int, expected text"):
        sources.text({"id": 3}, "id", "here")
    with pytest.raises(DataError, match="here: column 'id' is not Unicode: surrogates"):
        sources.text(json.loads('{"id": "\\ud800"}'), "id", "here")


def test_local_file_looks_in_two_places(tmp_path):
    with pytest.raises(DataError, match=r"no file .*scrolls/x\.zip \(nor .*/x\.zip\)"):
        sources.local_file(tmp_path, "scrolls", "x.zip")
    with pytest.raises(DataError, match=r"needs data\.dir"):
        sources.local_file(None, "scrolls", "x.zip")
    flat = archive(tmp_path / "x.zip", "")
    assert sources.local_file(tmp_path, "scrolls", "x.zip") == flat
    (tmp_path / "scrolls").mkdir()
    nested = archive(tmp_path / "scrolls" / "x.zip", "")
    assert sources.local_file(tmp_path, "scrolls", "x.zip") == nested


def test_sha256_follows_a_rewritten_file(tmp_path):
    path = tmp_path / "x"
    for content in (b"one", b"three"):
        path.write_bytes(content)
        assert sources.sha256(path) == hashlib.sha256(content).hexdigest()


# --- the hub ----------------------------------------------------------------------------------


def hub(files: dict[str, bytes], commits: dict[str, str]):
    """A server on loopback with one data set, tau/scrolls: what a download by name asks for."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            parts = self.path.strip("/").split("/")
            if parts[0] == "api":
                return self.about(parts)
            owner, rest = parts[:4], parts[4:]
            known = owner == ["datasets", "tau", "scrolls", "resolve"]
            commit = commits.get(rest[0]) if known else None
            commit = commit or (rest[0] if known and rest[0] in commits.values() else None)
            name = "/".join(rest[1:])
            body = files.get(name, b"")
            headers = {"X-Repo-Commit": commit} if commit else {}
            if not known or not commit:
                headers["X-Error-Code"] = "RevisionNotFound" if known else "RepoNotFound"
            elif name not in files:
                headers["X-Error-Code"] = "EntryNotFound"
            else:
                headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
            self.send_response(404 if "X-Error-Code" in headers else 200)
            for header in headers.items():
                self.send_header(*header)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def about(self, parts):
            """The list of files, and the commit behind a revision."""
            known = parts[1:4] == ["datasets", "tau", "scrolls"] and len(parts) > 5
            commit = commits.get(parts[5].partition("?")[0]) if known else None
            held = [
                {"type": "file", "path": n, "size": len(b), "oid": "0"} for n, b in files.items()
            ]
            siblings = [{"rfilename": one["path"], "size": one["size"]} for one in held]
            found = {"id": "tau/scrolls", "sha": commit, "siblings": siblings}
            body = json.dumps(held if known and parts[4] == "tree" else found).encode()
            self.send_response(200 if commit else 404)
            if not commit:
                self.send_header("X-Error-Code", "RevisionNotFound" if known else "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


# HF_ENDPOINT is read when huggingface_hub is imported, so each step is a process of its own.
STEP = """
import sys
from pathlib import Path
from tasks import sources
from tasks.base import Data, DataError
from tasks.scrolls import Scrolls
what, revision, name = sys.argv[1:]
task = Scrolls(
    name="qmsum", benchmark="scrolls", version=1, metric="f1", max_new_tokens=8, length=64,
    member="qmsum", n={}, hub=dict(repo="tau/scrolls", file=name, revision=revision),
)
try:
    if what == "fetch":
        print(sources.fetch(task))
    else:
        loaded = task.load(Data("hub"), None, 64, 0)
        print(len(loaded.rows), loaded.sha256)
except DataError as error:
    print("DataError:", error)
"""


@pytest.fixture
def steps(tmp_path):
    content = archive(tmp_path / "qmsum.zip", json.dumps(ROW)).read_bytes()
    files, commits = {"qmsum.zip": content}, {"main": "a" * 40}
    server, endpoint = hub(files, commits)
    # Proxies of the machine must not stand between a test and its own loopback server.
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(ROOT),
    }
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        env.pop(name, None)

    def step(
        what: str, revision: str = "main", name: str = "qmsum.zip", script: str = STEP, **more: str
    ) -> str:
        command = [sys.executable, "-c", script, what, revision, name]
        done = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    step.files, step.commits, step.server = files, commits, server
    step.manifest = tmp_path / "home" / "longctx-bench" / "manifest.json"
    yield step
    server.shutdown()
    server.server_close()


def test_fetch_then_load_with_no_network(steps):
    assert steps("load").endswith("hasn't been fetched: bench fetch qmsum")
    path = Path(steps("fetch").splitlines()[-1])
    digest = hashlib.sha256(steps.files["qmsum.zip"]).hexdigest()
    assert json.loads(steps.manifest.read_text()) == {
        "datasets/tau/scrolls@main/qmsum.zip": {
            "commit": "a" * 40,
            "sha256": digest,
            "bytes": len(steps.files["qmsum.zip"]),
        }
    }
    steps.server.shutdown()
    steps.server.server_close()
    assert steps("load") == f"1 {digest}"

    path.write_bytes(path.read_bytes() + b"more")
    assert f"but {digest} was fetched: bench fetch qmsum" in steps("load")
    path.unlink()
    assert "no longer in the cache: bench fetch qmsum" in steps("load")
    steps.manifest.write_text("{")
    assert "is not json" in steps("load")


def test_fetching_again_mends_a_damaged_file(steps):
    path = Path(steps("fetch").splitlines()[-1])
    good = path.read_bytes()
    path.write_bytes(b"x" * len(good))
    assert Path(steps("fetch").splitlines()[-1]).read_bytes() == good
    assert steps("load").startswith("1 ")


def test_a_moved_branch_does_not_move_what_was_fetched(steps):
    steps("fetch")
    before = steps("load")
    steps.commits["main"] = "b" * 40
    assert steps("load") == before


SHARDS = """
import sys
from tasks import probe, sources
from tasks.base import Data, DataError
from tasks.summaries import Summaries
what, split, revision = sys.argv[1:]
task = Summaries(
    name="set", benchmark="set", version=1, metric="rouge_stemmed", max_new_tokens=8, length=64,
    columns=dict(document="input", summary="output", id="id"),
    hub=dict(repo="tau/scrolls", revision=revision, unverified=True, files=dict(
        train="data/train*.jsonl", validation="data/validation*.jsonl", test="data/none*")),
)
try:
    if what == "fetch":
        sources.fetch(task, split=split)
        print("fetched")
    elif what == "probe":
        print(probe.table(probe.probe(task)))
    else:
        print([row.id for row in task.load(Data("hub", split=split), None, 64, 0).rows])
except DataError as error:
    print("DataError:", error)
"""


def test_shards_of_a_split_are_fetched_together(steps):
    for name, held in {"train-0": "a", "validation-0": "bc", "validation-1": "d"}.items():
        lines = "\n".join(json.dumps(ROW | {"id": one}) for one in held)
        steps.files[f"data/{name}.jsonl"] = lines.encode()
    load = steps("load", "validation", "main", script=SHARDS)
    assert load.endswith("hasn't been fetched: bench fetch set")
    assert steps("fetch", "validation", "main", script=SHARDS).endswith("fetched")
    assert steps("load", "validation", "main", script=SHARDS) == "['b', 'c', 'd']"
    load = steps("load", "train", "main", script=SHARDS)
    assert load.endswith("hasn't been fetched: bench fetch set --split train")
    fetch = steps("fetch", "test", "main", script=SHARDS)
    assert fetch.endswith("tau/scrolls at main has no file data/none*")
    fetch = steps("fetch", "train", "v9", script=SHARDS)
    assert "DataError: can't list tau/scrolls at v9" in fetch


def test_probe_says_what_the_hub_has(steps):
    steps.files["data/train-0.jsonl"] = steps.files["data/train-1.jsonl"] = b"x" * 2**20
    head, train, validation, test = steps("probe", "-", "main", script=SHARDS).splitlines()
    assert head.split() == ("task repo revision file files MiB commit verified problem".split())
    assert train.split() == ["set", "tau/scrolls", "main", "data/train*.jsonl", "2", "2.0",
                             "a" * 12, "no", "–"]  # fmt: skip
    assert "no such file among 3" in validation and "no such file among 3" in test
    lines = steps("probe", "-", "v9", script=SHARDS).splitlines()
    assert len(lines) == 4 and all("404" in line for line in lines[1:])


def test_probe_without_a_network_is_a_finding(steps):
    steps.server.shutdown()
    steps.server.server_close()
    lines = steps("probe", "-", "main", script=SHARDS, HF_HUB_OFFLINE="1").splitlines()
    assert len(lines) == 4 and all("offline" in line.lower() for line in lines[1:])


def test_fetch_says_what_is_not_there(steps):
    assert "can't fetch none.zip of tau/scrolls at main" in steps("fetch", "main", "none.zip")
    assert "can't fetch qmsum.zip of tau/scrolls at v9" in steps("fetch", "v9")
    # Without a server the library tries for 23 s; offline it says the same at once.
    assert "can't fetch qmsum.zip of tau/scrolls at main" in steps("fetch", HF_HUB_OFFLINE="1")
