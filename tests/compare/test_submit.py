"""Contributed rows: rejected rows, rows for a reviewer, and a row measured again."""

import json
import shutil
import subprocess

import pytest

from bench.cli.main import main
from bench.compare import verify
from bench.errors import RequestError
from bench.execution import runner
from bench.rows import store
from bench.rows.store import Store
from tests import made
from tests.compare.conftest import rewrite


def submit(capsys, folder, *words):
    with pytest.raises(SystemExit) as ended:
        main(["submit-check", str(folder), "--sample", "0", *map(str, words)])
    told = capsys.readouterr()
    return ended.value.code, told.out.splitlines(), told.err


def wrong(lines):
    return [line.split(maxsplit=1)[1] for line in lines if line.startswith("wrong")]


def refused(capsys, folder, told, *words):
    """Whether a line reports this fault of the folder."""
    code, out, _ = submit(capsys, folder, *words)
    return code == 1 and any(told in line for line in wrong(out))


def wrong_of_each(capsys, folder, changes):
    """The faults of a row with each of the changes, of one folder."""
    [row] = Store(folder).rows().to_pylist()
    ids = [f"{number:012x}" + "0" * 20 for number in range(len(changes))]
    Store(folder).append([row | one | {"row_id": i} for i, one in zip(ids, changes, strict=True)])
    code, out, _ = submit(capsys, folder)
    assert code == 1
    return [[line for line in wrong(out) if line.startswith(i[:12])] for i in ids]


# -- submit-check ------------------------------------------------------------


def test_a_sound_folder_is_taken(capsys, folder):
    code, out, _ = submit(capsys, folder)
    assert code == 0 and wrong(out) == [] and out[-1].endswith("1 row, 0 wrong, 1 to look at")
    assert any("not in a git checkout" in line for line in out)


CHANGES = [
    ({"length": 1024}, "length is 1024, by its cell 512"),
    ({"cell_key": "f" * 64}, "cell_key is ffff"),
    ({"weights_sha256": "0" * 64}, "weights_sha256 is 000"),
    ({"metric_version": "99"}, "metric_version is 99, by its metric 1"),
    ({"predictions_sha256": "f" * 64}, "its predictions are no longer those of the row"),
    ({"value": 200.0, "ci_hi": 300.0}, "value is 200.0, by its limits "),
    ({"quality_verdict": "kept"}, "quality_verdict is kept, by its scores None"),
    ({"lat_ratio": 0.4, "lat_ratio_ci_lo": 0.39}, "ratio is 0.4, by its samples 0.50"),
    ({"lat_samples_ns": [1] * 40}, "lat_samples_ns is [1, 1, 1"),
    ({"lat_pair_process": [0]}, "can't be derived from its samples: ValueError: 40 pairs"),
    ({"lat_note": "vanilla was slowed"}, "lat_note is vanilla was slowed, by its samples"),
    ({"engine_ratio": 0.2}, "engine_ratio is 0.2, by its samples None"),
    ({"mem_ratio": -1.0}, "mem_ratio is -1.0, by its bytes None"),
    ({"rss_peak_delta_bytes": -4}, "rss_peak_delta_bytes is -4, by its limits 1024 to inf"),
    ({"fid_top1_agree": 500.0}, "fid_top1_agree is 500.0, by its limits 0 to 1"),
    ({"n_scored": 9}, "n_scored is 9, by its predictions 4"),
    ({"code_sha": None}, "code_sha is None, by its limits a commit"),
    ({"created_utc": "2999-01-01T00:00:00+00:00"}, "created_utc is 2999"),
    ({"created_utc": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
    ({"command": None, "host_id": None}, "host_id is None, by its limits a host"),
    ({"predictions_path": "../../model"}, "leads out of the folder"),
    ({"cell": "[]"}, "can't be derived from its cell"),
]


def test_what_does_not_follow_from_the_row_is_refused(capsys, folder):
    told = wrong_of_each(capsys, folder, [changes for changes, _ in CHANGES])
    for lines, (_, expected) in zip(told, CHANGES, strict=True):
        assert any(expected in line for line in lines), expected


@pytest.mark.parametrize(("group", "name"), [("method", "vanilla"), ("task", "narrativeqa")])
def test_a_row_can_not_choose_what_is_imported(capsys, folder, group, name):
    [row] = Store(folder).rows().to_pylist()
    cell = json.loads(row["cell"])
    cell[group]["target"] = "antigravity:Evil"
    rewrite(folder, cell=json.dumps(cell))
    assert refused(capsys, folder, f"{group} {name} is said to be 'antigravity:Evil'")
    [row] = Store(folder).rows().to_pylist()
    with pytest.raises(RequestError, match="antigravity"):
        verify.cell_here(row, None)


def test_times_in_agreement_with_each_other_that_no_call_takes_are_refused(capsys, folder):
    samples = {f"lat_{arm}samples_ns": [one] * 40 for arm, one in (("", 1), ("base_", 2))}
    samples |= {"lat_aa_first_samples_ns": [2] * 8, "lat_aa_second_samples_ns": [2] * 8}
    gone = dict.fromkeys(("lat_pair_process", "lat_process_sd_pct"))
    rewrite(folder, **samples | made.times(samples) | gone)
    code, out, _ = submit(capsys, folder)
    [line] = wrong(out)
    assert code == 1 and "lat_samples_ns is [1, 1" in line and "by its limits 1000 to inf" in line


def test_times_far_below_those_by_the_supervisors_clock_are_refused(capsys, folder):
    [row] = Store(folder).rows().to_pylist()
    samples = {"lat_outside_process": [0, 1, 2, 3], "lat_outside_samples_ns": [500_000_000] * 4,
               "lat_base_outside_samples_ns": [100_000_000] * 4}  # fmt: skip
    rewrite(folder, **row | samples | made.times(row | samples))
    code, out, _ = submit(capsys, folder)
    [line] = wrong(out)
    assert code == 1 and "lat_median_ns is 5" in line and "by its limits 1.66667e+08" in line


def test_a_difference_of_scores_is_derived_without_predictions(capsys, compared):
    shutil.rmtree(compared / "predictions")
    rewrite(compared, value_diff=20.0)
    assert refused(capsys, compared, "value_diff is 20.0, by its scores -25.0")
    rewrite(compared, value_diff=-25.0)
    code, out, _ = submit(capsys, compared)
    assert code == 0 and any("its predictions are missing" in line for line in out)


def test_all_of_a_score_is_derived_from_predictions(capsys, compared):
    assert submit(capsys, compared)[0] == 0
    [row] = Store(compared).rows().to_pylist()
    names = ("value_diff_ci_lo", "base_ci_hi", "stderr")
    told = wrong_of_each(capsys, compared, [{name: row[name] - 1} for name in names])
    for name, lines in zip(names, told, strict=True):
        assert any(f"{name} is " in line for line in lines), name


def test_a_damaged_file_of_predictions_is_named_and_stops_nothing_else(capsys, folder):
    [row] = Store(folder).rows().to_pylist()
    Store(folder).append([row | {"row_id": "b" * 32, "lat_verdict": "slower"}])
    [shard] = folder.glob("predictions/*/*.jsonl")
    shard.write_bytes(b'{"id": 1}\n' + shard.read_bytes()[:-9])
    code, out, _ = submit(capsys, folder)
    lines = wrong(out)
    assert code == 1 and any(f"{shard} line 1 is no prediction" in line for line in lines)
    assert any("verdict is slower, by its samples faster" in line for line in lines)


def test_columns_that_an_older_row_lacks_are_no_fault(capsys, folder):
    rewrite(folder, lat_aa_verdict=None, value_diff_detectable=None, quality_verdict=None)
    assert submit(capsys, folder)[0] == 0


def test_what_can_not_be_derived_is_marked(capsys, folder):
    _, out, _ = submit(capsys, folder)
    [line] = [line for line in out if "claimed, not derivable" in line]
    assert line.startswith("note") and "*_samples_ns" in line and "*bytes*" in line
    assert "value" not in line and "lat_median_ns" not in line


def test_files_that_are_no_rows_are_refused(capsys, folder):
    (folder / ".hydra").mkdir()
    for name in ("run.sh", "README.md", ".hydra/multirun.yaml"):
        (folder / name).write_text("true")
    (folder / "link.parquet").symlink_to("/etc/passwd")
    code, out, _ = submit(capsys, folder)
    assert code == 1
    for told in ("run.sh: doesn't belong here", "link.parquet: a link"):
        assert any(line.startswith(told) for line in wrong(out))
    assert not any("README" in line for line in out)
    assert any(line.startswith("look") and ".hydra/multirun.yaml: hidden" in line for line in out)


def test_size_torn_files_and_rows_twice_are_refused(capsys, folder):
    [shard] = Store(folder).shards()
    (folder / "rows-copy.parquet").write_bytes(shard.read_bytes())
    (folder / "rows-torn.parquet").write_bytes(shard.read_bytes()[:-100])
    code, out, _ = submit(capsys, folder, "--max-mib", "0.001")
    said = "\n".join(wrong(out))
    assert code == 1 and "MiB in all; at most 0.001" in said
    assert "rows-torn.parquet: torn" in said and "duplicate" in said


def test_an_empty_folder_is_refused(capsys, tmp_path):
    assert refused(capsys, tmp_path, "no rows; bench run results=DIR makes some")


# -- git ---------------------------------------------------------------------


def git(folder, *words):
    told = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout.strip()


@pytest.fixture
def branched(folder):
    """The folder's row is on main, and a branch begins there."""
    checkout = folder.parent
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "code")
    rewrite(folder, code_sha=git(checkout, "rev-parse", "HEAD"))
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "rows")
    git(checkout, "checkout", "-q", "-b", "mine")
    return folder


def test_an_example_submission_is_accepted(capsys, branched, tmp_path):
    """The steps of docs/submitting.md: rows of another folder, checked, merged, checked again."""
    contributed = shutil.copytree(branched, tmp_path / "contributed")
    rewrite(contributed, row_id="d" * 32, attempt=2)
    code, out, _ = submit(capsys, contributed, "--against", branched)
    assert code == 0 and wrong(out) == [] and any("claimed, not derivable" in line for line in out)
    with pytest.raises(SystemExit) as ended:
        main(["results", "merge", str(contributed), "--into", str(branched)])
    assert ended.value.code == 0 and "1 row added" in capsys.readouterr().out
    git(branched.parent, "add", ".")
    git(branched.parent, "commit", "-q", "-m", "contribute a row")
    code, out, _ = submit(capsys, branched, "--base", "main")
    noted = "not measured again, as in the merge base: 1 row"
    assert code == 0 and any(noted in line for line in out)
    assert out[-1].endswith("2 rows, 0 wrong, 0 to look at")


def test_an_accepted_row_refuses_nothing_and_is_not_measured_again(capsys, branched, monkeypatch):
    monkeypatch.setattr(runner, "run", lambda *_, **__: pytest.fail("measured again"))
    rewrite(branched, code_dirty=True)
    git(branched.parent, "checkout", "-q", "main")
    git(branched.parent, "add", ".")
    git(branched.parent, "commit", "-q", "-m", "accepted as it is")
    code, out, _ = submit(capsys, branched, "--sample", "2")
    [told] = [line for line in out if "code_dirty" in line]
    assert code == 0 and told.startswith("look") and told.endswith("(accepted)")


def test_remarks_are_one_list_of_json(capsys, folder, measured_here):
    [measured_here["row"]] = Store(folder).rows().to_pylist()
    code, out, err = submit(capsys, folder, "--json", "--sample", "1")
    remarks = json.loads("\n".join(out))
    assert code == 0 and {"level", "where", "text"} == remarks[0].keys()
    assert remarks[-1]["text"].startswith("measured again: agrees")
    assert "1 row, 0 wrong" in err


def test_a_row_of_the_merge_base_that_changed_is_refused(capsys, branched):
    rewrite(branched, wall_total_ns=7)
    assert refused(capsys, branched, "was changed in wall_total_ns")


def test_a_row_of_the_merge_base_that_vanished_is_refused(capsys, branched):
    rewrite(branched, row_id="b" * 32)
    assert refused(capsys, branched, "is gone", "--base", "main")


def test_a_commit_is_a_hash_and_nothing_else(capsys, branched):
    shas = ("--help", "HEAD", "main", "$(id)", "0" * 40)
    for lines in wrong_of_each(capsys, branched, [{"code_sha": sha} for sha in shas]):
        assert any("isn't in this repository" in line for line in lines)


def test_a_branch_that_is_not_there_is_told(capsys, branched):
    code, out, _ = submit(capsys, branched, "--base", "no-such-branch")
    assert code == 0 and any("or no merge base" in line for line in out)


# -- other hosts -------------------------------------------------------------


@pytest.fixture
def elsewhere(folder, tmp_path):
    def store(**changes):
        [row] = Store(folder).rows().to_pylist()
        Store(tmp_path / "others").append([row | {"row_id": "c" * 32, "host_id": "far"} | changes])
        return tmp_path / "others"

    return store


def test_another_hosts_other_score_is_refused(capsys, folder, elsewhere):
    rewrite(folder, predictions_sha256=None)
    against = elsewhere(value=20.0, ci_lo=10.0, ci_hi=30.0)
    _, out, _ = submit(capsys, folder, "--against", against)
    assert any("quality 75.00, but 20.00 on host far" in line for line in wrong(out))


def test_another_hosts_far_ratio_is_looked_at(capsys, folder, elsewhere):
    far = {"lat_ratio": 3.0, "lat_ratio_ci_lo": 2.9, "lat_ratio_ci_hi": 3.1}
    _, out, _ = submit(capsys, folder, "--against", elsewhere(**far))
    assert any(line.startswith("look") and "latency" in line for line in out)


def test_a_sample_is_measured_again(capsys, folder, measured_here):
    [stored] = Store(folder).rows().to_pylist()
    measured_here["row"] = stored
    code, out, _ = submit(capsys, folder, "--sample", "5")
    assert code == 0 and any("measured again: agrees" in line for line in out)
    measured_here["row"] = stored | {"value": 10.0, "predictions_sha256": "other"}
    assert refused(capsys, folder, "measured again: disagrees", "--sample", "5")


def test_a_retired_row_is_refused(capsys, folder, monkeypatch):
    rule = store.RetiredRule({"row_id": ["a" * 32]}, "its blocks were shifted")
    monkeypatch.setattr(store, "retired_rules", lambda: (rule,))
    assert refused(capsys, folder, "is retired: its blocks were shifted")
