"""The tables of the papers and RULER's in an article, set by pdflatex: `make tex`."""

import re
import shutil
import subprocess

import pytest

from bench.cli.main import dispatch
from tests.conftest import ROOT

PACKAGES = r"\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\usepackage{lmodern}" + (
    r"\usepackage{array,booktabs,textcomp}"
)
TROUBLE = re.compile(r"^(?:Overfull|! |LaTeX Warning: Float too large).*", re.MULTILINE)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of all tables from the reference rows."""
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex: apt-get install texlive-latex-base texlive-latex-recommended")
    folder = tmp_path_factory.mktemp("tex")
    for names in ((), ("ruler",)):
        words = ["report", *names, "--format", "tex", "--out", str(folder)]
        assert dispatch([*words, "--results", str(ROOT / "results" / "reference")]) == 0
    return folder


@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_no_table_is_wider_or_higher_than_its_page(written, columns):
    names = sorted(path.name for path in written.glob("*.tex") if "column" not in path.name)
    assert len(names) == 20
    body = "\n".join(f"\\input{{{name}}}\\clearpage" for name in names)
    article = written / f"article_{columns}.tex"
    article.write_text(
        f"\\documentclass[{columns}]{{article}}\n{PACKAGES}\n"
        f"\\begin{{document}}\n{body}\n\\end{{document}}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", article.name]
    done = subprocess.run(command, cwd=written, capture_output=True, timeout=300)
    log = article.with_suffix(".log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert not TROUBLE.findall(log)
    assert article.with_suffix(".pdf").stat().st_size > 10_000
