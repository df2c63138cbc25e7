"""Fetching, loading and probing, with a local server in place of the hub."""

import hashlib
import json
import os
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.cli.main import dispatch
from tasks.base import Data, DataError
from tasks.loading.hub import fetch, manifest_path
from tasks.loading.hub_probe import probe, table
from tasks.scrolls import Scrolls
from tasks.summaries import Summaries
from tests.tasks.test_sources import ROW, archive


def hub(files: dict[str, bytes], commits: dict[str, str]):
    """A server on loopback with one data set, tau/scrolls: what huggingface_hub requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            """A file, or with /api the list of files and the commit behind a revision."""
            first, *parts = self.path.strip("/").split("/")
            if first == "api":
                first, *parts = parts
            known = [first, *parts[:2]] == ["datasets", "tau", "scrolls"] and len(parts) > 3
            wanted = parts[3].partition("?")[0] if known else ""
            commit = commits.get(wanted) or (wanted if wanted in commits.values() else None)
            headers = {"X-Repo-Commit": commit} if commit else {}
            name = "/".join(parts[4:])
            if not commit:
                body, wrong = b"", "RevisionNotFound" if known else "RepoNotFound"
            elif parts[2] == "resolve":
                body, wrong = files.get(name, b""), None if name in files else "EntryNotFound"
                headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
            else:
                body, wrong = self.listed(commit, parts[2] == "tree"), None
                headers["Content-Type"] = "application/json"
            self.send_response(404 if wrong else 200)
            if wrong:
                headers["X-Error-Code"] = wrong
            for header in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(*header)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def listed(self, commit, as_tree):
            held = [{"path": name, "size": len(body)} for name, body in files.items()]
            if as_tree:
                return json.dumps([one | {"type": "file", "oid": "0"} for one in held]).encode()
            siblings = [{"rfilename": one["path"], "size": one["size"]} for one in held]
            found = {"id": "tau/scrolls", "sha": commit, "siblings": siblings}
            return json.dumps(found).encode()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


QMSUM = Scrolls(
    name="qmsum", benchmark="scrolls", version=1, metric="f1", max_new_tokens=8, length=64,
    member="qmsum", n={}, hub={"repo": "tau/scrolls", "file": "qmsum.zip", "revision": "main"},
)  # fmt: skip
SHARDS = Summaries(
    name="set", benchmark="set", version=1, metric="rouge_stemmed", max_new_tokens=8, length=64,
    columns={"document": "input", "summary": "output", "id": "id"},
    hub={"repo": "tau/scrolls", "revision": "main", "unverified": True, "files": {
        "train": "data/train*.jsonl", "validation": "data/validation*.jsonl", "test": "data/none*",
    }},
)  # fmt: skip


def at(task, **hub_settings):
    """The task with other settings of its hub source."""
    return replace(task, hub={**task.hub, **hub_settings})


def load(task, split=None):
    return task.load(Data("hub", split=split), None, 64, 0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A local hub with qmsum.zip, which huggingface_hub uses, and an empty cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    content = archive(tmp_path / "qmsum.zip", json.dumps(ROW)).read_bytes()
    files, commits = {"qmsum.zip": content}, {"main": "a" * 40}
    server, endpoint = hub(files, commits)
    # A proxy of the machine must not be used for the loopback server.
    for name in [name for name in os.environ if "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    settings = {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_CACHE": str(tmp_path / "home" / "hub"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    close_session()
    server.files, server.commits = files, commits
    yield server
    close_session()
    server.shutdown()
    server.server_close()


@pytest.fixture
def offline(monkeypatch):
    """A call after which nothing can be reached."""

    def disconnect():
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    return disconnect


def test_fetch_then_load_with_no_network(server, offline):
    with pytest.raises(DataError, match="hasn't been fetched: bench fetch qmsum"):
        load(QMSUM)
    path = fetch(QMSUM)
    digest = hashlib.sha256(server.files["qmsum.zip"]).hexdigest()
    entry = {"commit": "a" * 40, "sha256": digest, "bytes": len(server.files["qmsum.zip"])}
    manifest = json.loads(manifest_path().read_text())
    assert manifest == {"datasets/tau/scrolls@main/qmsum.zip": entry}
    offline()
    loaded = load(QMSUM)
    assert len(loaded.rows) == 1 and loaded.sha256 == digest

    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(DataError, match=f"but {digest} was fetched: bench fetch qmsum"):
        load(QMSUM)
    path.unlink()
    with pytest.raises(DataError, match="no longer in the cache: bench fetch qmsum"):
        load(QMSUM)
    manifest_path().write_text("{")
    with pytest.raises(DataError, match="is not json"):
        load(QMSUM)


def test_fetching_again_repairs_a_damaged_file(server):
    path = fetch(QMSUM)
    content = path.read_bytes()
    path.write_bytes(b"x" * len(content))
    assert fetch(QMSUM).read_bytes() == content
    assert len(load(QMSUM).rows) == 1


def test_a_moved_branch_does_not_change_what_was_fetched(server):
    fetch(QMSUM)
    before = load(QMSUM)
    server.commits["main"] = "b" * 40
    assert load(QMSUM) == before


def test_shards_of_a_split_are_fetched_together(server):
    for name, ids in {"train-0": "a", "validation-0": "bc", "validation-1": "d"}.items():
        lines = "\n".join(json.dumps(ROW | {"id": row_id}) for row_id in ids)
        server.files[f"data/{name}.jsonl"] = lines.encode()
    with pytest.raises(DataError, match=r"hasn't been fetched: bench fetch set$"):
        load(SHARDS)
    fetch(SHARDS, split="validation")
    assert [row.id for row in load(SHARDS, "validation").rows] == ["b", "c", "d"]
    with pytest.raises(DataError, match=r"hasn't been fetched: bench fetch set --split train$"):
        load(SHARDS, "train")
    with pytest.raises(DataError, match=r"tau/scrolls at main has no file data/none\*$"):
        fetch(SHARDS, split="test")
    with pytest.raises(DataError, match="can't list tau/scrolls at v9"):
        fetch(at(SHARDS, revision="v9"), split="train")


def test_probe_shows_what_the_hub_has(server):
    server.files["data/train-0.jsonl"] = server.files["data/train-1.jsonl"] = b"x" * 2**20
    head, train, validation, test = table(probe(SHARDS)).splitlines()
    assert head.split() == "task repo revision file files MiB commit verified problem".split()
    assert train.split() == ["set", "tau/scrolls", "main", "data/train*.jsonl", "2", "2.0",
                             "a" * 12, "no", "–"]  # fmt: skip
    assert "no such file among 3" in validation and "no such file among 3" in test
    checks = probe(at(SHARDS, revision="v9"))
    assert len(checks) == 3 and all("404" in check.problem for check in checks)


def test_what_is_missing_is_a_wrong_request_and_an_unreachable_hub_a_failed_run(server, offline):
    del server.files["qmsum.zip"]
    assert dispatch(["fetch", "qmsum"]) == dispatch(["fetch", "--model", "nobody/none"]) == 2
    offline()
    assert dispatch(["fetch", "qmsum"]) == dispatch(["fetch", "--model", "nobody/none"]) == 1
