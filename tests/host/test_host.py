"""The fingerprint is complete, stays the same, and is null where the machine reports nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.host import host, linux
from bench.rows import columns
from bench.status import Verdict


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that reports nothing: no /sys, no NVML, no git, and of /proc its memory alone."""
    monkeypatch.setattr(linux, "text", lambda path: None)
    monkeypatch.setattr(linux, "CPUS", tmp_path)
    monkeypatch.setattr(host, "NODES", tmp_path)
    monkeypatch.setattr(host, "ROOT", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    host._machine.cache_clear()
    yield
    host._machine.cache_clear()


def files(monkeypatch: pytest.MonkeyPatch, contents: dict[str, str]) -> None:
    monkeypatch.setattr(linux, "text", lambda path: contents.get(str(path)))
    monkeypatch.setattr(
        Path, "is_dir", lambda path: any(k.startswith(f"{path}/") for k in contents)
    )


def test_every_fact_is_a_column_of_the_right_type():
    facts = host.fingerprint(threads=1, device="cpu")
    kinds = {"int64": int, "float64": float, "string": str, "bool": bool}
    for name, value in facts.items():
        assert value is None or type(value) is kinds[columns.COLUMNS[name].type], name
    names = list(columns.COLUMNS)
    of_host = names[names.index("host_id") : names.index("packages_sha") + 1]
    assert len(of_host) == 29 and not set(of_host) - set(facts)


def test_host_id_does_not_depend_on_the_cores_granted(monkeypatch):
    expected = host.fingerprint(threads=1, device="cpu")["host_id"]
    host._machine.cache_clear()
    monkeypatch.setattr(linux, "usable_cpus", lambda: [0])
    assert host.fingerprint(threads=1, device="cpu")["host_id"] == expected


CPU = """model name\t: Some CPU
cpu family\t: 6
model\t\t: 85
flags\t\t: fpu sse2 avx avx2 fma
"""


@pytest.mark.parametrize(
    ("part", "other", "same"),
    [
        ("fma", "fma md_clear ibrs", True),
        ("fma", "fma avx512f avx512_vnni", False),
        (": 85", ": 106", False),
    ],
)
def test_host_id_tells_instruction_sets_and_microarchitectures_apart(
    part, other, same, monkeypatch, tmp_path
):
    found = []
    for number, text in enumerate((CPU, CPU.replace(part, other))):
        path = tmp_path / str(number)
        path.write_text(text)
        monkeypatch.setattr(linux, "CPUINFO", path)
        host._machine.cache_clear()
        found.append(host.fingerprint(threads=1, device="cpu"))
    host._machine.cache_clear()
    assert (found[0]["host_id"] == found[1]["host_id"]) == same
    assert found[0]["instruction_sets"] == "avx avx2 fma sse2"
    assert not host.has_older_id(found[0]["host_id"])


def test_an_older_id_is_marked():
    assert host.short_host("47129493f1c37c18") == "47129493 (older id)"
    assert host.short_host("h2-47129493f1c37") == "h2-47129493" and host.short_host(None)


def test_a_machine_that_reports_nothing_gives_nulls(bare):
    facts = host.fingerprint(threads=1, device="cuda")
    for name in ("governor", "cgroup_cpu", "steal_pct", "gpu_name", "code_sha", "throttled"):
        assert facts[name] is None
    assert host.available_memory() > 0


def test_too_many_threads_are_noise():
    facts = host.fingerprint(threads=10_000, device="cpu")
    assert facts["noisy"] and "10000 threads" in facts["noise_reason"]


CALM = host.Counters(0, 100, 0, 0, 0.0)


@pytest.mark.parametrize(
    "since, now, word",
    [
        (CALM, CALM._replace(steal_ticks=9, total_ticks=200), "guests"),
        (CALM._replace(load1=1e4), CALM, "load"),
        (CALM, CALM._replace(throttled_periods=1), "control group"),
        (CALM, CALM, None),
    ],
)
def test_a_busy_machine_is_noise(since, now, word):
    facts = host.fingerprint(threads=1, device="cpu", since=since, now=now)
    assert facts["noisy"] == (word is not None)
    assert word is None or word in facts["noise_reason"]


def test_the_load_of_cores_that_a_process_may_not_use_is_no_noise(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(linux, "usable_cpus", lambda: [0, 1])
    full = CALM._replace(load1=60.0)
    assert not host.fingerprint(threads=2, device="cpu", since=full, now=full)["noisy"]


def test_other_processes_are_those_beside_this_one_and_its_children(monkeypatch):
    stat = "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 400 50 6 7 80 0 0"
    files(monkeypatch, {"/proc/stat": stat})
    monkeypatch.setattr(linux, "usable_cpus", lambda: [0])
    per_second = os.sysconf("SC_CLK_TCK")
    found = host._core_seconds(own_s=0.5)
    assert found == (693 / per_second, 163 / per_second - 0.5)
    files(monkeypatch, {"/proc/stat": "cpu0 100 20 30 400"})
    assert host._core_seconds(own_s=0.5) is None


def test_busyness_counts_from_the_given_moment():
    now = CALM._replace(load1=1.0, ctx_switch_invol=7)
    facts = host.fingerprint(threads=1, device="cpu", since=CALM._replace(load1=0.25), now=now)
    assert facts["load1"] == 0.25 and facts["ctx_switch_invol"] == 7


@pytest.mark.parametrize(
    "contents",
    [
        {
            "/proc/self/cgroup": "0::/job/step",
            "/sys/fs/cgroup/job/step/cpu.max": "max 100000",
            "/sys/fs/cgroup/job/cpu.max": "150000 100000",
            "/sys/fs/cgroup/job/memory.max": "2000",
            "/sys/fs/cgroup/job/memory.current": "1500",
            "/sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 400",
        },
        {
            "/proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2000",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1500",
            "/sys/fs/cgroup/memory/job/memory.stat": "inactive_file 400",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_control_groups_limit_cores_and_memory(monkeypatch, contents):
    files(monkeypatch, contents)
    assert linux.cpu_quota() == 1.5
    assert linux.memory_limits() == [(2000, 1100)]
    assert host.available_memory() == 900


def code_state() -> dict[str, object]:
    facts = host.fingerprint(threads=1, device="cpu")
    return {name: facts[name] for name in ("code_sha", "code_dirty")}


def test_code_state_is_the_projects_whatever_the_folder(monkeypatch, tmp_path):
    here = code_state()["code_sha"]
    monkeypatch.chdir(tmp_path)
    assert code_state()["code_sha"] == here
    monkeypatch.setattr(host, "ROOT", tmp_path)
    assert code_state() == {"code_sha": None, "code_dirty": None}


@pytest.mark.parametrize(("line", "dirty"), [("# branch.head main", False), ("? new.py", True)])
def test_code_state_reads_git(monkeypatch, tmp_path, line, dirty):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(host, "ROOT", tmp_path)
    said = f"# branch.oid abc\n{line}\n".encode()
    answer = subprocess.CompletedProcess([], 0, stdout=said)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: answer)
    assert code_state() == {"code_sha": "abc", "code_dirty": dirty}


def test_certificate_of_this_machine():
    certificate = host.certificate(pairs=10, seconds=0.1)
    assert certificate["aa_pairs"] >= 10
    assert certificate["aa_noise_pct"] >= 0
    assert certificate["aa_verdict"] in list(Verdict)


def test_facts_of_a_host_and_the_store_of_rows_import_nothing_heavy():
    code = (
        "import sys, bench.rows.store\n"
        "from bench.host import host\nhost.fingerprint(1, 'cpu'), host.available_memory()"
    )
    heavy = "{'torch', 'numpy', 'pyarrow', 'pandas', 'hydra'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{code}\nassert not {heavy}"], check=True)
