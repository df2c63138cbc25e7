r"""A document as a LaTeX fragment for \input: needs booktabs, longtable and amssymb."""

from __future__ import annotations

from collections.abc import Iterable

from reports.elements import Code, Element, Grid, Heading, Items, plain

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "[": "{[}", "]": "{]}", "-": "{-}", "*": "{*}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "×": r"$\times$", "Δ": r"$\Delta$", "−": r"$-$", "±": r"$\pm$", "≈": r"$\approx$",
    "→": r"$\to$", "≤": r"$\leq$", "≥": r"$\geq$", "∞": r"$\infty$", "…": r"\ldots{}",
    "–": "--", "·": r"$\cdot$", "‡": r"$\ddagger$",
    "“": "``", "”": "''", "’": "'",
}  # fmt: skip
HEAD = (
    r"% \usepackage[T1]{fontenc} \usepackage[utf8]{inputenc}"
    "\n"
    r"% \usepackage{booktabs,longtable,textcomp}"
)
LETTERS = 0x250
"""Where the letters of European languages end."""
SECTIONS = {1: "section*", 2: "subsection*"}


def write(elements: Iterable[Element]) -> str:
    return "\n".join([HEAD, *(part for element in elements for part in _element(element))])


def _element(element: Element) -> list[str]:
    if isinstance(element, Heading):
        return [f"\\{SECTIONS[element.level]}{{{escape(element.text)}}}", ""]
    if isinstance(element, Grid):
        return [*_grid(element), ""]
    if isinstance(element, Items):
        lines = [f"\\item {_item(item)}" for item in element.items]
        return [r"\begin{itemize}", *lines, r"\end{itemize}", ""]
    return [escape(element.text), ""]


def _item(item: str | tuple[str, str]) -> str:
    if isinstance(item, str):
        return escape(item)
    text = escape(item[1])
    if isinstance(item[1], Code):
        breakable = text.replace(" ", r" \allowbreak{}")
        text = rf"\texttt{{{breakable}}}"
    return f"{escape(item[0])}: {text}"


def _grid(grid: Grid) -> list[str]:
    last = len(grid.head) - 1
    kinds = ["r" if at in grid.numbers else "l" for at in range(last)]
    lines = [_row(line) for line in grid.lines]
    return [
        r"{\footnotesize",
        rf"\begin{{longtable}}{{{''.join(kinds)}p{{0.3\textwidth}}}}",
        rf"\caption{{{escape(grid.caption)}}}\\",
        r"\toprule",
        _row(grid.head),
        r"\midrule",
        r"\endhead",
        *lines,
        r"\bottomrule",
        r"\end{longtable}}",
    ]


def _row(line: Iterable[str]) -> str:
    return " & ".join(escape(text) for text in line) + r" \\"


def escape(text: str) -> str:
    """Text that is set as it is: no command, no new line, nothing that pdflatex has no letter
    for."""
    return "".join(SPECIAL.get(c, c if ord(c) < LETTERS else "?") for c in plain(text))
