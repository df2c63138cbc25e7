"""For any end of a child, its outcome contains the reason, and nothing hangs."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from bench.errors import RequestError
from bench.execution import cell_run, spawn
from bench.execution.supervisor import Limits, started
from bench.execution.worker import Channels
from bench.host import host, linux
from tests.conftest import ROOT


def stub(end: str, deadline_s: float = 60.0, memory_bytes=None, environment=None, **settings):
    """The outcome of a child that ends in this way."""
    limits = Limits(time.monotonic() + deadline_s, memory_bytes, environment or {})
    with started("tests.execution.stub_child", {"end": end}, limits, **settings) as running:
        return running.outcome()


@pytest.fixture(params=[False, True], ids=["subprocess", "forked"])
def ended(request):
    """A function from how a child should end, and its limits, to its outcome."""

    def run(end: str, **limits):
        server = spawn.fork_server({}, ("json",)) if request.param else None
        return stub(end, server=server, **limits)

    return run


def test_a_result_comes_back_and_progress_is_reported(ended):
    reported = []
    outcome = ended("well", progress=lambda *message: reported.append(message))
    assert (outcome.status, outcome.result) == ("ok", {"answer": 42})
    assert ("work", 0, 3) in reported


def test_an_empty_folder_that_torch_made_is_removed(tmp_path):
    (tmp_path / "torchinductor_full").mkdir()
    (tmp_path / "torchinductor_full" / "kernel").touch()
    (tmp_path / "torchinductor_me").mkdir()
    code = "from bench.execution import spawn"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["torchinductor_full"]


def test_a_full_folder_of_temporary_files_stops_nothing(ended, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/dev/full")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    assert ended("well").result == {"answer": 42}


@pytest.mark.parametrize(
    ("end", "status", "detail"),
    [
        ("raise", "error", "ArithmeticError: seven is not eight"),
        ("unsupported", "unsupported", "not with these layers"),
        ("segfault", "error", "SIGSEGV"),
        ("exit", "error", "last words"),
    ],
)
def test_a_failure_has_its_status_and_its_reason(ended, end, status, detail):
    outcome = ended(end)
    assert outcome.status == status and outcome.stage == "work"
    assert detail in outcome.detail


@pytest.mark.parametrize(("end", "reason"), [("refuse", "no such file"), ("data", "300 tokens")])
def test_a_wrong_request_that_a_child_finds_is_raised(ended, end, reason):
    with pytest.raises(RequestError, match=reason):
        ended(end)


def test_a_deadline_that_is_over_at_once_stops_a_child_that_has_just_been_forked(ended):
    for _ in range(5):
        assert ended("hang", deadline_s=0.0).status == "timeout"


def test_a_hanging_child_is_stopped_at_the_deadline(ended):
    outcome = ended("hang", deadline_s=5.0)
    assert outcome.status == "timeout" and outcome.stage == "work"


def test_memory_runs_out_in_the_child_and_not_on_the_machine(ended):
    assert ended("allocate", memory_bytes=1 << 30).status == "oom_host"


def test_a_hundred_megabytes_of_output_do_no_harm(ended):
    assert ended("print").status == "ok"


def test_a_grandchild_that_holds_the_pipes_is_not_waited_for(ended):
    assert ended("orphan").status == "ok"


def test_a_child_leaves_nothing_on_disk_whenever_its_supervisor_is_killed(
    ended, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    meanwhile = []
    assert ended("well", progress=lambda *_: meanwhile.extend(tmp_path.iterdir())).status == "ok"
    assert not meanwhile


def test_what_a_child_has_used_is_no_work_of_others(ended, monkeypatch):
    monkeypatch.setattr(host, "_core_seconds", lambda own_s: own_s)
    before = spawn.counters()
    assert ended("compute").status == "ok"
    assert spawn.counters().cores >= before.cores + 0.5


@pytest.mark.parametrize("module", ["fork_server", "worker"])
def test_a_process_whose_parent_was_killed_before_it_began_exits_at_once(module):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = str(theirs.fileno())
    worker = ["json", "1", *[number] * len(Channels._fields)]
    of = {"fork_server": ["1", number, "json"], "worker": worker}[module]
    command = [sys.executable, "-m", f"bench.execution.{module}", *of]
    with ours, theirs:
        run = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, timeout=60)
    assert run.returncode == 1 and not run.stderr


def test_a_killed_fork_server_is_an_error_and_the_next_child_has_another():
    def run(end: str, progress=None):
        return stub(end, progress=progress, server=spawn.fork_server({}, ("json",)))

    run("well")
    [server] = spawn.fork_servers.values()
    outcome = run("hang", lambda *_: os.kill(server.child.pid, signal.SIGKILL))
    assert outcome.status == "error" and "SIGKILL" in outcome.detail
    assert run("well").status == "ok"
    assert [*spawn.fork_servers.values()] != [server]


def test_children_of_one_server_run_at_once_and_a_handler_gets_their_messages():
    server, told = spawn.fork_server({}, ("json",)), []
    limits = Limits(time.monotonic() + 60)

    def start_another(running, message):
        told.append(message)
        with started("tests.execution.stub_child", {"end": "well"}, limits, server) as other:
            assert other.outcome().result == {"answer": 42}

    outcome = stub("tell", server=server, handlers={"note": start_another})
    assert outcome.result == {"answer": 42} and told == [{"kind": "note", "of": "é" * 100_000}]


def test_a_child_that_sends_nonsense_is_killed_and_told(ended):
    def read(running, message):
        assert message["of"]["no such key"]

    outcome = ended("tell", handlers={"note": read})
    assert outcome.status == "error" and "sent a message that can't be read" in outcome.detail


def test_a_fork_server_that_can_not_start_is_replaced_by_a_subprocess():
    assert stub("well", server=spawn.fork_server({}, ("no.such.module",))).status == "ok"


@pytest.mark.parametrize(
    ("preload", "forked"), [("torch", True), ("tests.execution.cuda_started", False)]
)
def test_a_fork_that_cuda_did_not_survive_becomes_a_fresh_interpreter(preload, forked):
    outcome = stub("look", deadline_s=120, server=spawn.fork_server({}, (preload,)))
    assert outcome.result == {"forked": forked}, outcome.detail


def test_nothing_that_is_imported_before_a_fork_starts_cuda():
    code = """
import importlib, sys, torch
asked = []
for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
    setattr(torch.cuda, name, lambda *_, name=name: asked.append(name) or 0)
for module in sys.argv[1:]:
    importlib.import_module(module)
print(*sorted({*asked} - {"is_available", "device_count"}))  # those two ask NVML: GPU_ENVIRONMENT
"""
    words = [sys.executable, "-c", code, *cell_run.PRELOAD]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize("forked", [False, True], ids=["subprocess", "forked"])
def test_a_child_of_a_cell_uses_no_network_and_any_core(forked):
    """libgomp, which torch loads, binds a process to its first core where OMP_PROC_BIND is set."""
    environment = {**cell_run.CHILD_ENVIRONMENT, "OMP_PROC_BIND": "close"}
    server = spawn.fork_server(environment, cell_run.PRELOAD) if forked else None
    outcome = stub("offline", deadline_s=600, environment=environment, server=server)
    cpus = linux.usable_cpus()
    assert outcome.result == {"hub": True, "datasets": True, "cpus": cpus}, outcome.detail
