"""What `bench compare` and `bench explain` do with the rows they were given, and show."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import compare, matching, rows, tables
from bench.compare import Finding, Limit
from bench.errors import RequestError, unknown
from bench.matching import KEY, Matched, Pair

STYLE = {"better": "green", "worse": "red", "same": "cyan", "undecided": "yellow"}
HEADER = ("cell", "row_a", "row_b", "figure", "a", "b", "change", "lo", "hi", "unit",
          "change_pct", "p_holm", "n", "verdict", "note")  # fmt: skip
BESIDE = (
    "status", "method_version", "metric_version", "predictions_sha256", "code_sha", "host_id",
    "cpu_model", "gpu_name", "gpu_driver", "os_kernel", "python", "torch", "packages_sha", "noisy",
)  # fmt: skip
"""Not in the key, but worth a look when two rows of one cell disagree."""


def run(options: argparse.Namespace) -> int:
    """Compare options.a with options.b. Returns 1 when a limit of --fail-if is passed."""
    limits = [compare.limit(text) for text in options.fail_if]
    if not options.margin >= 0:
        raise RequestError(f"--margin {options.margin} is not accepted: it must be 0 or more")
    for name in options.on:
        if name not in KEY:
            raise unknown("column of the key", name, KEY)
    a, b = (rows.side(text, options.results) for text in (options.a, options.b))
    for warning in dict.fromkeys([*a.warnings, *b.warnings]):
        print(f"bench: set aside {warning}", file=sys.stderr)
    matched = matching.match(a, b, options.on)
    homes = [_home(a.folder), _home(b.folder)]
    found = [f for pair in matched.pairs for f in figures(pair, homes, options.margin)]
    judged = compare.judged(found)
    step = len(compare.FIGURES)
    by_pair = [judged[i : i + step] for i in range(0, len(judged), step)]
    labels = _labels(matched.pairs)
    if tables.tabular(options.format):
        _tsv(matched.pairs, labels, by_pair)
    else:
        _table(f"B: {options.b}, against A: {options.a}", labels, by_pair)
    for side, rest in (("A", matched.only_a), ("B", matched.only_b)):
        if rest:
            print(f"bench: {len(rest)} cells of {side} have no counterpart", file=sys.stderr)
    failed = [line for limit in limits for line in _failures(limit, matched, labels, by_pair)]
    for line in failed:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if failed else 0


def _home(folder: Path) -> Path:
    """The folder beside whose rows predictions are kept."""
    return folder.parent if folder.is_file() else folder


def figures(pair: Pair, homes: Sequence[Path], margin: float) -> list[Finding]:
    """Quality, latency and memory of one pair, before Holm's correction."""
    a, b = pair
    return [_quality(a, b, homes, margin), compare.latency(a, b), compare.memory(a, b)]


def _quality(a: rows.Row, b: rows.Row, homes: Sequence[Path], margin: float) -> Finding:
    none = Finding("quality", a["value"], b["value"])
    for side, row in (("A", a), ("B", b)):
        if row["value"] is None:
            why = "no score" if row["status"] == "ok" else row["status"]
            why = "random weights have none" if row["weights_kind"] == "random" else why
            return none._replace(note=f"{side}: {why}")
    if (a["task"], a["metric"]) != (b["task"], b["metric"]):
        return none._replace(note="different tasks")
    from bench.rescore import ScoreError, scores

    try:
        ours, theirs = (scores(row, home) for row, home in zip((a, b), homes, strict=True))
    except ScoreError as error:
        return none._replace(note=f"samples can't be paired: {error}")
    shared = [sample for sample in ours if sample in theirs]
    if not shared:
        return none._replace(note="no shared samples")
    first, second = ([scored[sample] for sample in shared] for scored in (ours, theirs))
    found = compare.quality(first, second, a["higher_is_better"] is not False, margin)
    older = a["metric_version"] != b["metric_version"]
    return found._replace(note="both by today's metric") if older else found


def _labels(pairs: Sequence[Pair]) -> list[str]:
    """What tells the pairs apart: task and length, and every other part that isn't the same."""
    names = [
        name
        for name in KEY
        if not name.endswith(("sha256", "version"))
        and (name in ("task", "length") or len({pair.a[name] for pair in pairs}) > 1)
        and all(pair.a[name] == pair.b[name] for pair in pairs)
    ]
    plain = ("method", "task", "model", "device", "dtype")
    return [
        " ".join(str(p.a[n]) if n in plain else f"{n}={p.a[n]}" for n in names) or p.a["task"]
        for p in pairs
    ]


def _tsv(pairs: Sequence[Pair], labels: Sequence[str], found: Iterable[list[Finding]]) -> None:
    records = [
        {"cell": label, "row_a": pair.a["row_id"], "row_b": pair.b["row_id"], "p_holm": one.p}
        | one._asdict()
        for pair, label, findings in zip(pairs, labels, found, strict=True)
        for one in findings
    ]
    tables.tsv(HEADER, records)


def _table(title: str, labels: Sequence[str], found: Sequence[list[Finding]]) -> None:
    """Three lines for each cell under its name; below, why something isn't judged."""
    from rich.markup import escape

    lines: list[list[str]] = []
    notes: list[str] = []
    for label, findings in zip(labels, found, strict=True):
        lines.append([f"[bold]{escape(label)}[/]"])
        for one in findings:
            name = f"  {one.figure}" + (f" (n={one.n})" if one.n else "")
            values = (_shown(one.figure, value) for value in (one.a, one.b))
            verdict = f"[{STYLE[one.verdict]}]{one.verdict}[/]" if one.verdict else "–"
            lines.append([name, *values, _change(one), verdict])
            notes += [f"{label}, {one.figure}: {one.note}"] if one.note else []
    names = ("", "A", "B", "change (95 %)", "verdict")
    tables.draw(escape(title), names, lines, ("", "verdict"))
    for text in notes:
        tables.note(text)


def _shown(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    styles = {"quality": f"{value:.1f}", "latency": f"×{value:.3f}"}
    return styles.get(figure) or f"{value / (1 << 20):,.1f} MiB"


def _change(one: Finding) -> str:
    if one.change is None:
        return "–"
    unit = " %" if one.unit == "%" else ""
    if one.lo is None or one.hi is None:
        return f"{one.change:+.1f}{unit}"
    top = "∞" if math.isinf(one.hi) else f"{one.hi:+.1f}"
    return f"{one.change:+.1f}{unit} ({one.lo:+.1f} … {top})"


def _failures(
    limit: Limit, matched: Matched, labels: Sequence[str], found: Sequence[list[Finding]]
) -> Iterable[str]:
    """A line for each cell that passes the limit. A figure that B lost because it failed passes
    every limit, and so does a comparison that has the figure nowhere: silence is no proof."""
    seen = False
    for pair, label, findings in zip(matched.pairs, labels, found, strict=True):
        [one] = [finding for finding in findings if finding.figure == limit.figure]
        seen |= one.change_pct is not None
        if limit.fails(one):
            yield f"{limit.text}: {label}: {one.change_pct:+.1f} %"
        elif pair.a["status"] == "ok" != pair.b["status"] and one.change_pct is None:
            yield f"{limit.text}: {label}: B ended with {pair.b['status']}"
            seen = True
    if not seen:
        notes = dict.fromkeys(f.note for group in found for f in group if f.figure == limit.figure)
        yield f"{limit.text}: can't be judged: {'; '.join(filter(None, notes)) or 'no figure'}"


def explain(options: argparse.Namespace) -> int:
    """What of two rows' cells differs; then what else may explain other numbers."""
    sides = [rows.side(text, options.results) for text in (options.row1, options.row2)]
    for side in sides:
        if not side.one and len(side.rows) > 1:
            raise RequestError(f"'{side.text}' names {len(side.rows)} rows; explain takes one")
    first, second = (side.rows[-1] for side in sides)
    cells = [_cell(row) for row in (first, second)]
    key = [("key", *line) for line in matching.explain(*cells)]
    rest = [("beside", n, first[n], second[n]) for n in BESIDE if first[n] != second[n]]
    if tables.tabular(options.format):
        names = ("part", "name", "row1", "row2")
        tables.tsv(names, [dict(zip(names, line, strict=True)) for line in (*key, *rest)])
        return 0
    same = first["cell_key"] == second["cell_key"]
    title = "the same cell" if same else f"different cells: {len(key)} parts of the key differ"
    lines = [(part, name, _short(one), _short(two)) for part, name, one, two in (*key, *rest)]
    heads = ("", "name", first["row_id"][:12], second["row_id"][:12])
    tables.draw(title, heads, lines, heads)
    return 0


def _cell(row: rows.Row) -> dict[str, Any]:
    """A row's cell, or, of an older row, the columns that tell of it."""
    stored: dict[str, Any] = json.loads(row["cell"] or "{}")
    return stored or {name: row[name] for name in KEY}


def _short(value: Any) -> str:
    from rich.markup import escape

    text = "–" if value is None else str(value)
    is_hash = len(text) >= 40 and set(text) <= set("0123456789abcdef")
    return escape(text[:12] if is_hash else text)
