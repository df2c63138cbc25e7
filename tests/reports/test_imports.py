"""Which modules reports import: no torch, method or task, and tables know no figure and no page."""

import ast
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.reports import made
from tests.reports.leaderboard.pages import stored


def test_reports_load_no_torch_and_no_method(tmp_path):
    rows = made.rows(tasks=("narrativeqa",), lengths=(4096,), devices=("cpu",))
    folder = str(stored(tmp_path / "rows", rows))
    program = (
        "import sys\n"
        "from bench.cli.main import dispatch\n"
        f"where = ['--results', {folder!r}, '--out', {str(tmp_path)!r}]\n"
        "assert dispatch(['report', 'vcc_table2', *where]) == 0\n"
        "assert dispatch(['report', 'ruler', *where]) == 1\n"
        "assert dispatch(['leaderboard', *where[:3], where[3] + '/page.html']) == 0\n"
        "assert dispatch(['plot', 'pareto_latency', *where, '--format', 'png']) == 0\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print({'torch', 'transformers', 'datasets', 'methods', 'tasks'} & loaded)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip().splitlines()[-1:] == ["set()"], done.stdout + done.stderr


PAGES = ("reports.figures", "reports.leaderboard", "reports.results_page")


@pytest.mark.parametrize(
    ("files", "barred"),
    [
        ("papers/*.py", PAGES),
        ("*_tables.py", PAGES),
        ("ruler_scores.py", (*PAGES, "reports.papers", "reports.ruler")),
        ("ruler.py", (*PAGES, "reports.papers")),
        ("grids.py", (*PAGES, "reports.papers", "reports.ruler")),
    ],
)
def test_tables_import_no_figure_and_no_page(files, barred):
    paths = list((ROOT / "reports").glob(files))
    assert paths
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                assert not [name for name in names if name.startswith(barred)], path
