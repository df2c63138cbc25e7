"""The tables as Markdown, TeX, CSV and HTML, and what outside text can't do to them."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from bench.cli.main import dispatch
from bench.rows.store import Store
from reports import rendering
from tests import made

HOSTILE = (
    "<script>alert(1)</script>",
    "</td></table><img src=x onerror=alert(1)>",
    "'\"><svg/onload=alert(1)>",
    "a|b | c\n| d",
    "`code` **bold** [link](javascript:alert(1)) ![x](http://e.x/y.png)",
    "\\input{/etc/passwd} $x$ %comment & # _ ^ ~ {",
    '=HYPERLINK("http://e.x")',
    "@SUM(1)",
    "- item\n# heading",
    "日本語 \u202e right to left \x07",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The files of a table from rows in which every text that a row may bring is hostile."""
    folder, rows = tmp_path_factory.mktemp("hostile"), []
    for number, text in enumerate(HOSTILE):
        rows.append(
            made.row(
                method="vcc", task="hotpotqa", length=4096, model=text, split=text, dtype=text,
                cpu_model=text, torch=text, host_id=f"{text}{number}", value=50.0, ci_lo=49.0,
                ci_hi=51.0, metric="squad_em_f1", metrics=json.dumps({"f1": 50.0}), n_scored=99,
                method_params=json.dumps({"k": text, "h": text}), row_id=f"{text}{number}",
            )
        )  # fmt: skip
        bad = {"status": "error", "status_detail": text, "task": "quality", "method": "bigbird"}
        rows.append(made.row(length=4096, model="roberta-base", row_id=f"bad{number}", **bad))
    Store(folder / "rows").append(rows)
    report("vcc_table1", "--results", folder / "rows", out=folder / "out")
    return folder / "out"


def report(*words, out):
    assert dispatch(["report", *map(str, words), "--out", str(out)]) == 0


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def test_hostile_text_is_only_text_in_html(hostile):
    for name in ("vcc_table1.html", "index.html"):
        text = (hostile / name).read_text()
        found = Tags()
        found.feed(text)
        assert not {"script", "img", "svg", "iframe", "link", "object"} & set(found.tags)
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert "default-src 'none'; style-src" in text
    assert "&lt;script&gt;" in (hostile / "vcc_table1.html").read_text()


def test_hostile_text_is_only_text_in_markdown(hostile):
    text = (hostile / "vcc_table1.md").read_text()
    unescaped = re.sub(r"\\.", "", text)
    assert "<" not in unescaped and "](" not in unescaped and "**" not in unescaped
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    grids = re.findall(r"(?:^\|.*\n)+", text, re.M)
    for grid in grids:
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in grid.splitlines()}
        assert len(bars) == 1, grid


def test_hostile_text_is_only_text_in_tex(hostile):
    text = (hostile / "vcc_table1.tex").read_text()
    assert "\\input" not in text and "right to left" in text
    assert "\\textbackslash{}input" in rendering.tex(HOSTILE[5])
    assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= {
        "usepackage", "begin", "end", "allowbreak", "centering", "setlength", "tabcolsep", "emph",
        "raggedright", "raggedleft", "arraybackslash", "multicolumn", "textsuperscript", "par",
        "smallskip", "scriptsize", "toprule", "midrule", "bottomrule", "caption", "textwidth",
        "times", "Delta",
        "approx", "pm", "infty", "ldots", "cdot", "textbackslash", "textasciicircum",
        "textasciitilde", "textless", "textgreater", "textbar", "textquotedbl", "leq", "geq",
        "textasciigrave", "textquotesingle", "to", "footnotesize",
    }  # fmt: skip
    for begun in ("table*", "tabular", "minipage"):
        assert text.count(f"\\begin{{{begun}}}") == text.count(f"\\end{{{begun}}}")
    plain = re.sub(r"\\[\\{}$&#%_]", "", "\n".join(text.splitlines()[2:]))
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    assert "#" not in plain and "%" not in plain


def test_hostile_text_is_no_formula_in_csv(hostile):
    with (hostile / "cells.csv").open(newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == 56
    for record in records:
        for name, text in record.items():
            assert "\n" not in text and text[:1] not in ("=", "@"), f"{name}: {text}"
            if text[:1] in ("+", "-"):
                float(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_text_alone(text):
    field = str(rendering.csv_field(text))
    assert "\n" not in rendering.markdown(text) + rendering.tex(text) + field
    assert not re.search(r"(?<!\\)[|`*\[\]]", rendering.markdown(text))
    assert "<" not in rendering.markdown(text)


def test_code_with_backticks_stays_code():
    assert rendering.markdown_code("a `b` c") == "`` a `b` c ``"
    assert rendering.markdown_code("plain") == "`plain`"


def test_a_page_allows_no_script_and_knows_its_own_style():
    text = rendering.html_page("index.html.j2", entries=[])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "script" not in policy and "unsafe" not in policy and "sha256-" in policy


def test_all_tables_are_written_in_all_formats(tmp_path):
    report(out=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 19 * 4 + 3
    text = (tmp_path / "vcc_table2.csv").read_text()
    assert len(list(csv.reader(io.StringIO(text)))) == 469
    before = (tmp_path / "vcc_table2.md").read_text()
    report("vcc_table2", "--format", "md", out=tmp_path)
    assert (tmp_path / "vcc_table2.md").read_text() == before


def test_no_rows_says_how_to_make_some_and_prints_what_is_published(command, tmp_path):
    code, out, err = command("report", "vcc_table1", "--results", tmp_path)
    assert code == 0 and "114.6 ms = ×0.271" in out
    assert err.startswith(f"bench: no rows of these tables in {tmp_path}") and "make bench" in err
    assert err.count("\n") == 1


def test_without_a_name_it_lists_the_tables(command, tmp_path):
    code, out, _ = command("report", "--results", tmp_path)
    assert code == 0 and out.count("cells:") == 19


def test_a_score_at_chance_is_marked_in_every_format(tmp_path):
    row = {
        "method": "vcc", "task": "hotpotqa", "length": 4096, "model": "roberta-base",
        "metric": "squad_em_f1", "metrics": json.dumps({"f1": 8.0}), "n_scored": 99, "value": 8.0,
        "ci_lo": 5.0, "ci_hi": 11.0,
    }  # fmt: skip
    cells = [
        made.row(**row, chance=6.0, at_chance=True),
        made.row(**row | {"task": "quality", "metric": "accuracy", "value": 70.0, "ci_lo": 60.0},
                 chance=25.0, at_chance=False),
    ]  # fmt: skip
    Store(tmp_path / "rows").append(cells)
    report("vcc_table1", "--results", tmp_path / "rows", out=tmp_path / "out")
    md, text, html, _ = (
        (tmp_path / "out" / f"vcc_table1.{form}").read_text()
        for form in ("md", "tex", "html", "csv")
    )
    assert "8.0‡ (5.0 … 11.0)" in md and "‡: this score" in md and "→ 8.0‡" in md
    assert r"8.0$\ddagger$" in text and "70.0‡" not in md
    grey = re.findall(r'<tr class="[a-z -]*faint">(.*)</tr>', html)
    assert grey and all("8.0‡" in line for line in grey)
    with (tmp_path / "out" / "cells.csv").open(newline="") as file:
        found = {r["measured"]: r["at_chance"] for r in csv.DictReader(file) if r["measured"]}
    assert found["8.0"] == "True" and found["70.0"] == "False"
