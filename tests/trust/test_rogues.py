"""A sweep over methods that end badly ends well: a row for each, a summary, and never a hang."""

from bench.rows.store import Store
from tests.conftest import ROOT
from tests.trust.common import bench_run

CONF = ROOT / "tests" / "rogues" / "conf"
ENDS = {
    "fine": ("ok", None),
    "raises": ("error", "ArithmeticError: seven is not eight"),
    "segfaults": ("error", "killed by SIGSEGV"),
    "exits": ("error", "exit code 9 without a result"),
    "hangs": ("timeout", "still in stage quality after"),
    "hoards": ("oom_host", "allocate memory"),
    "prints": ("ok", None),
}
LIMIT_BYTES = 3 << 30
DEADLINE_S = 60  # only the one that hangs waits for it


def test_a_sweep_over_rogues_has_a_row_for_each_and_says_what_failed(tiny_t5, tmp_path):
    said = bench_run(
        CONF, tiny_t5, tmp_path, "-m", f"method={','.join(ENDS)}", "measure=quality", "n=1",
        f"deadline_s={DEADLINE_S}", BENCH_MEMORY_LIMIT_BYTES=str(LIMIT_BYTES),
    )  # fmt: skip
    rows = {row["method"]: row for row in Store(tmp_path).rows().to_pylist()}
    assert Store(tmp_path).rows().num_rows == len(ENDS), said.stderr
    assert {name: row["status"] for name, row in rows.items()} == {
        name: status for name, (status, _) in ENDS.items()
    }, {name: row["status_detail"] for name, row in rows.items()}
    assert said.returncode == 1
    counted, *failures, after = said.stdout[said.stdout.index("7 cells: ") :].splitlines()
    assert counted == "7 cells: 2 done, 5 failed" and len(failures) == 5
    assert after.startswith("next: ")
    for line, (name, (status, reason)) in zip(
        failures, ((n, e) for n, e in ENDS.items() if e[1]), strict=True
    ):
        assert f"method={name}: {status}: " in line and reason in line
        assert reason in rows[name]["status_detail"]
    assert rows["segfaults"]["exit_signal"] == 11
    assert 'File "tests/rogues/' in rows["raises"]["status_detail"]
    assert str(ROOT) not in rows["raises"]["status_detail"]
