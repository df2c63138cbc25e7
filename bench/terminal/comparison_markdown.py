"""A comparison as a comment on a pull request: GitHub's Markdown, `bench compare --format github`.

Names and reasons come from rows and requests. They stand in code, which GitHub doesn't read for
markup, mentions or references.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from bench.compare.compare import ChangeVerdict, Difference
from bench.compare.compare_report import CellComparison
from bench.compare.matching import Matched
from bench.rows.quality_verdicts import UNKNOWN_WEIGHTS
from bench.status import Status
from bench.terminal.comparison_table import change_text, value_text

MARK = "<!-- longctx-bench -->"
"""First line, by which a workflow finds the comment that it wrote before."""

GITHUB_LIMIT = 65_536
"""Characters of a comment that GitHub accepts."""

LIST_LIMIT, TABLE_LIMIT = 8_000, 20_000
"""Characters of each of the two lists and of the two tables: together below GITHUB_LIMIT."""
NAME_LIMIT = 300
"""Characters of one name or reason."""

HEAD = ("| cell | figure | A | B | change (95 %) | verdict |", "|---|---|--:|--:|--:|---|")
COMPLETE = "bench compare … --format tsv has all"
FIRST = (ChangeVerdict.WORSE, ChangeVerdict.BETTER)
"""The verdicts that are shown first, in this order."""
ORDER = (*FIRST, ChangeVerdict.UNDECIDED, ChangeVerdict.SAME)
SHARED = ("method", "model", "device", "dtype", "cpu_model", "gpu_name")
"""What is said once where all rows have the same."""


def comment(
    sides: tuple[str, str],
    cells: Sequence[CellComparison],
    matched: Matched,
    limits: Sequence[str],
    exceeded: Sequence[str],
) -> str:
    """What changed first, everything else folded. `sides` are A and B as given, `limits` those of
    --fail-if, and `exceeded` a line for each change beyond one."""
    found = [(cell, each) for cell in cells for each in cell.differences]
    changes = [pair for pair in found if _rank(*pair) < len(FIRST)]
    changes.sort(key=lambda pair: _rank(*pair))
    headline = "comparison"
    if limits:
        ended = f"failed, {len(exceeded)} beyond" if exceeded else "passed, no sure change beyond"
        headline = f"{ended} {', '.join(map(_code, limits))}"
    verdicts = Counter(each.verdict for _, each in found)
    counts = [f"{verdicts[each]} {each}" for each in ORDER if verdicts[each]]
    counts += [f"{verdicts[None]} without a verdict"] if verdicts[None] else []
    failed = sum(map(_failed, cells))
    counts += [f"{failed} of B's cells failed"] if failed else []
    rows = [row for cell in cells for row in cell.pair]
    values = [{row.get(name) for row in rows} for name in SHARED]
    shared = [_code(str(each.pop())) for each in values if len(each) == 1 and each != {None}]
    alone = {"A": len(matched.only_a), "B": len(matched.only_b)}
    parts = [
        MARK,
        f"### longctx-bench: {headline}",
        f"{len(cells)} cells, {len(found)} figures: {', '.join(counts)}. B is {_code(sides[1])}, A "
        f"is {_code(sides[0])}; changes are those of B against A, better or worse only if "
        "significant after Holm's correction (memory, which is read once, from 2 % and 1 MiB).",
        f"All cells: {', '.join(shared)}." if shared else "",
        *(f"**{n} cells of {side} have no counterpart.**" for side, n in alone.items() if n),
        "\n".join(f"- {line}" for line in _fitting(map(_code, exceeded), LIST_LIMIT)),
        _table(changes) if changes else "",
        _folded(f"All {len(found)} figures", _table(found)),
        _notes(found),
    ]
    return "\n\n".join(filter(None, parts))


def _failed(cell: CellComparison) -> bool:
    return cell.pair.a["status"] == Status.OK != cell.pair.b["status"]


def _rank(cell: CellComparison, difference: Difference) -> int:
    """Place among the changes: those that failed in B and the worse ones before the better ones."""
    if difference.change is None and _failed(cell):
        return 0
    return FIRST.index(difference.verdict) if difference.verdict in FIRST else len(FIRST)


def _table(found: Iterable[tuple[CellComparison, Difference]]) -> str:
    return "\n".join([*HEAD, *_fitting((_line(*pair) for pair in found), TABLE_LIMIT)])


def _line(cell: CellComparison, difference: Difference) -> str:
    figure, n = difference.figure, f" (n={difference.n})" if difference.n else ""
    if figure == "quality" and difference.change is not None:
        n += f", {difference.comparison or UNKNOWN_WEIGHTS}"
    ended = cell.pair.b["status"] if difference.change is None and _failed(cell) else "–"
    verdict = f"{difference.verdict or ended}"
    verdict = f"**{verdict}**" if verdict == ChangeVerdict.WORSE else verdict
    values = (value_text(difference, value) for value in (difference.a, difference.b))
    texts = (_code(cell.shown), figure + n, *values, change_text(difference), verdict)
    return f"| {' | '.join(texts)} |"


def _notes(found: Iterable[tuple[CellComparison, Difference]]) -> str:
    """Why figures have no verdict, in a block of code."""
    lines = [f"{cell.label}, {each.figure}: {each.note}" for cell, each in found if each.note]
    if not lines:
        return ""
    shown = "\n".join(_fitting((_one_line(line) for line in lines), LIST_LIMIT))
    fence = "`" * max(3, 1 + _longest_run(shown))
    return _folded(f"{len(lines)} remarks", f"{fence}text\n{shown}\n{fence}")


def _folded(summary: str, body: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def _fitting(lines: Iterable[str], limit: int) -> Iterator[str]:
    """The lines that fit into `limit` characters, and how many don't."""
    left, omitted = limit, 0
    for line in lines:
        left -= len(line) + 1
        if left >= 0:
            yield line
        else:
            omitted += 1
    if omitted:
        yield f"… {omitted} more: {COMPLETE}"


def _code(text: str) -> str:
    """A span of code. A column mark would end the cell of a table even there."""
    text = _one_line(text).replace("|", "¦")
    fence = "`" * (1 + _longest_run(text))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= NAME_LIMIT else f"{text[:NAME_LIMIT]}…"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
