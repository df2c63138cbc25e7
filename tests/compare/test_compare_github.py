"""bench compare --format github: what a pull request shows, and the workflow that writes it."""

import shlex

import pytest
import yaml
from markdown_it import MarkdownIt

from bench.cli.main import main
from bench.request.compose import compose
from bench.rows.store import Store
from bench.terminal.comparison_table import GITHUB_LIMIT, MARK
from tests import made
from tests.conftest import ROOT
from tests.rows.test_results import bench

WORKFLOW = ROOT / "docs" / "workflows" / "bench.yml"
HOSTILE = "a|b``c`<img src=x>@everyone #1\n\n</details>**d** \\|"


@pytest.fixture
def folders(tmp_path):
    """Among four cells, one becomes slower, one smaller, and one fails."""
    before, after = Store(tmp_path / "rows" / "before"), Store(tmp_path / "rows" / "after")
    before.append([made.row(seed=i, **made.timing(0.5, seed=i)) for i in range(4)])
    slower, smaller = made.timing(0.6, seed=8), {"rss_peak_delta_bytes": 50 << 20}
    after.append([
        made.row(seed=0, **made.timing(0.5, seed=7)), made.row(seed=1, **slower),
        made.row(seed=2, **made.timing(0.5, seed=9), **smaller),
        made.row(seed=3, status="oom_host", rss_peak_delta_bytes=None),
    ])  # fmt: skip
    return before.folder, after.folder


def comment(capsys, *words):
    code, out, err = bench(capsys, "compare", *words, "--format", "github")
    text = "\n".join(out)
    return code, text, MarkdownIt("commonmark").enable("table").parse(text), err


def table_rows(tokens):
    """The texts of each row of each table."""
    rows, within = [], False
    for token in tokens:
        if token.type in ("tr_open", "tr_close"):
            within = token.type == "tr_open"
            rows += [[]] if within else []
        elif token.type == "inline" and within:
            rows[-1].append(token.content)
    return rows


def test_a_regression_comes_first_and_is_exit_code_1(folders, capsys):
    code, text, tokens, err = comment(capsys, *folders, "--fail-if", "latency > 5%")
    assert code == 1 and len(err) == 2
    assert text.startswith(f"{MARK}\n\n### longctx-bench: failed, 2 beyond `latency > 5%`\n")
    assert "1 worse, 1 better" in text and "1 of B's cells failed" in text
    rows = table_rows(tokens)
    assert all(len(row) == 6 for row in rows)
    assert [(row[1].split()[0], row[5]) for row in rows[1:6]] == [
        ("latency", "**worse**"), ("quality", "oom_host"), ("latency", "oom_host"),
        ("memory", "oom_host"), ("memory", "better"),
    ]  # fmt: skip
    assert len(rows) == 1 + 5 + 1 + 9
    details = [token.content.count("<details>") for token in tokens if token.type == "html_block"]
    assert details[1:] == [1, 0, 1, 0]


def test_without_a_change_the_limits_are_passed(folders, tmp_path, capsys):
    again = Store(tmp_path / "again")
    again.append([made.row(seed=i, **made.timing(0.5, seed=5 + i)) for i in range(4)])
    code, text, _, err = comment(capsys, folders[0], again.folder, "--fail-if", "latency > 5%")
    assert code == 0 and not err and "passed, no sure change beyond `latency > 5%`" in text


def test_names_from_rows_are_shown_as_they_are_and_mark_up_nothing(tmp_path, capsys):
    before, after = Store(tmp_path / "a"), Store(tmp_path / "b")
    before.append([made.row(task=HOSTILE, length=i, **made.timing(0.5)) for i in (512, 1024)])
    after.append([made.row(task=HOSTILE, host_id="`@x|", **made.timing(0.9))])
    code, text, tokens, _ = comment(capsys, before.folder, after.folder)
    assert code == 0 and "1 cell of A without a counterpart." in text
    assert all(len(row) == 6 for row in table_rows(tokens))
    blocks = [token.content.split("\n")[0] for token in tokens if token.type == "html_block"]
    assert blocks[::2] == [MARK, "</details>", "</details>"]
    inline = [child for token in tokens for child in token.children or ()]
    assert not any(child.type == "html_inline" for child in inline)
    shown = [child.content for child in inline if child.type == "code_inline"]
    assert any("a¦b``c`<img src=x>@everyone #1 </details>**d** \\¦" in each for each in shown)
    outside = "".join(child.content for child in inline if child.type != "code_inline")
    assert "@" not in outside and "#1" not in outside


def test_a_comment_of_many_cells_is_one_that_github_accepts(tmp_path, capsys):
    before, after = Store(tmp_path / "a"), Store(tmp_path / "b")
    long, few, slow = "t" * 290, made.timing(0.5), made.timing(0.6, seed=1)
    before.append([made.row(seed=i, task=long, noisy=True, **few) for i in range(150)])
    after.append([made.row(seed=i, task=long, **slow) for i in range(150)])
    code, text, _, _ = comment(capsys, before.folder, after.folder, "--fail-if", "latency>5%")
    assert code == 1 and len(text) < GITHUB_LIMIT and text.count(" more: bench compare") == 4
    assert "150 worse" in text and text.count("<details>") == text.count("</details>") == 2


def test_the_workflow_compares_what_it_measured_and_fails_on_a_regression(
    folders, tmp_path, monkeypatch, capsys
):
    workflow = yaml.safe_load(WORKFLOW.read_text())
    (job,) = workflow["jobs"].values()
    steps = {step.get("name"): step.get("run", "") for step in job["steps"]}
    compose(workflow["env"]["CELLS"].split())
    for name in ("base", "head"):
        assert "bench run -m $CELLS results=rows/" in steps[f"Measure the {name}"]
    command, _, target = steps["Compare"].strip().rpartition(">")
    assert target.strip() == "comment.md"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command)[1:])
    assert stop.value.code == 1 and capsys.readouterr().out.startswith(MARK)
