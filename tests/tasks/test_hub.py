"""Fetching, reading back and probing, with a hub of our own on this machine."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.tasks.test_sources import ROW, archive

ROOT = Path(__file__).resolve().parents[2]


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


COMMAND = """
import sys
from bench.cli import answered
what, *words = sys.argv[1:]
print(answered(["fetch", *filter("-".__ne__, words)]))
"""


def test_what_is_not_there_is_a_wrong_request_and_an_unreachable_hub_a_failed_run(steps):
    def code(*words: str, **more: str) -> str:
        return steps("fetch", *words, script=COMMAND, **more).splitlines()[-1]

    assert code("--model", "nobody/none") == "2"
    assert code("--model", "nobody/none", HF_HUB_OFFLINE="1") == "1"
    assert code("qmsum", "-", HF_HUB_OFFLINE="1") == "1"
    del steps.files["qmsum.zip"]
    assert code("qmsum", "-") == "2"
