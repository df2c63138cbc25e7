"""A table as headings, grids and lines of text, for any format to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.rows import Row
from reports.build import Cell, Table
from reports.commands import commands, preparation
from reports.definitions import Definition
from reports.elements import Element, Grid, Heading, Items, Paragraph
from reports.glance import glance
from reports.measured import SCORES
from reports.names import AT_CHANCE, interval, metric_name, printed_text
from reports.verdicts import RATIO_FACTOR, SCORE_POINTS

MOST_OTHERS = 12


def document(table: Table) -> list[Element]:
    """Everything that is told of a table, in order."""
    definition = table.definition
    told = ", ".join(f"{count} {verdict}" for verdict, count in table.counts().items())
    notes = _Notes(table)
    return [
        Heading(f"{definition.source}, {definition.title}", 1),
        Paragraph(f"{definition.name}: {len(table.cells)} cells, {told}."),
        *glance(table),
        *_cells(table, notes),
        *_commands(table),
        Heading("Hardware", 2),
        Items([("published", _published_hardware(table)), *_measured_hardware(table.used)]),
        *_configuration(table),
        *_others(table),
        Heading("Notes", 2),
        Items([*notes.lines, *definition.notes, *LEGEND, *_chance(table)]),
    ]


LEGEND = (
    "published: as printed, with the ratio to vanilla at the same length and size behind it where "
    "ratios are what is compared; ratios are method / vanilla, below 1 is better; ≈ is read off a "
    "plot; a number in brackets is a note.",
    "measured: with its 95 % interval. Ratios are to unfused attention (vanilla_eager), which is "
    "what the papers compare with. Absolute times of different hardware are never compared.",
    f"reproduced: the whole interval lies within ±{SCORE_POINTS:g} points of a score, or within a "
    f"factor of {RATIO_FACTOR:g} of a ratio; differs: the interval excludes the printed value and "
    "the measured one lies beyond that; cannot: why neither can be said.",
)


def _chance(table: Table) -> Iterator[str]:
    others = [row for row in table.others if row["status"] == "ok"][:MOST_OTHERS]
    if any(cell.at_chance for cell in table.cells) or any(row["at_chance"] for row in others):
        yield (
            f"{AT_CHANCE}: this score, or one of those that it is the mean of, isn't clearly above "
            "what one constant answer gets: it says nothing of what the model has read."
        )


class _Notes:
    """Numbered notes on cells that look wrong as printed or need a word."""

    def __init__(self, table: Table) -> None:
        self._numbers: dict[str, int] = {}
        self._cells = {id(cell): self._of(cell) for cell in table.cells}

    def _of(self, cell: Cell) -> list[int]:
        extra, found = cell.printed.extra, []
        if flag := extra.get("flag"):
            found.append(f"looks wrong as printed: {flag}")
        if (origin := str(extra.get("origin", ""))).startswith("copied"):
            found.append(f"{origin}, not measured by this paper")
        if extra.get("secondary_source"):
            found.append("from a secondary source")
        if bound := extra.get("bound"):
            found.append(f"printed as a bound: {bound}")
        return [self._numbers.setdefault(text, len(self._numbers) + 1) for text in found]

    def mark(self, cell: Cell) -> str:
        numbers = self._cells[id(cell)]
        return f" [{','.join(map(str, numbers))}]" if numbers else ""

    @property
    def lines(self) -> list[str]:
        return [f"[{number}] {text}." for text, number in self._numbers.items()]


def _cells(table: Table, notes: _Notes) -> Iterator[Element]:
    """One grid for each task of each part, a line for each metric of each printed line."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in table.cells:
        groups.setdefault((cell.line.part, cell.printed.task), []).append(cell)
    several = len({part for part, _ in groups}) > 1
    settings = table.definition.settings
    for (part, task), cells in groups.items():
        order = list(dict.fromkeys(cell.printed.metric for cell in cells))
        cells = sorted(cells, key=lambda cell: order.index(cell.printed.metric))
        split = next((cell.printed.split for cell in cells if cell.printed.split), "")
        name = " · ".join(filter(None, (part if several else "", task, split)))
        head = ("metric", "method", "size", "tokens", *settings, "published", "measured", "Δ")
        yield Grid(
            name,
            (*head, "verdict"),
            [_line(cell, table.definition, notes) for cell in cells],
            frozenset({3, *range(4, 4 + len(settings)), *range(4 + len(settings), len(head))}),
            tuple(cell.judged.verdict for cell in cells),
            frozenset(at for at, cell in enumerate(cells) if cell.at_chance),
        )


def _line(cell: Cell, definition: Definition, notes: _Notes) -> tuple[str, ...]:
    line, metric = cell.line, cell.printed.metric
    unit = cell.printed.unit
    name = metric_name(metric)
    given = dict(line.settings)
    return (
        f"{name} (%)" if unit == "%" else name,
        definition.method(line.method).label,
        line.size or cell.printed.params or "–",
        f"{line.length:,}" if line.length else "–",
        *(str(given.get(setting, "–")) for setting in definition.settings),
        published(cell) + notes.mark(cell),
        interval(cell.measured, cell.is_ratio, cell.at_chance),
        _delta(cell),
        ": ".join(filter(None, (cell.judged.verdict, cell.judged.reason))),
    )


def published(cell: Cell) -> str:
    """The printed value as printed, and its ratio to vanilla."""
    ratio = "" if cell.ratio in (None, cell.printed.value) else f" = ×{cell.ratio:.3f}"
    return f"{printed_text(cell.printed)}{ratio}"


def _delta(cell: Cell) -> str:
    delta = cell.judged.delta
    if delta is None:
        return ""
    sign = "−" if delta < 0 else "+"
    return f"{sign}{abs(delta):.1f}" + (" %" if cell.is_ratio else "")


def _commands(table: Table) -> Iterator[Element]:
    definition = table.definition
    yield Heading("Commands", 2)
    found: list[str | tuple[str, str]] = [*preparation(table), *commands(table)]
    if not found:
        yield Paragraph("Nothing of this table can be measured here.")
        return
    if {c.judged.verdict for c in table.cells} == {"not run", "cannot"} and not table.used:
        yield Paragraph("Nothing of this table is measured yet. These commands would:")
    yield Items(found)
    scores = any(definition.metric(c.printed.metric).measure in SCORES for c in table.cells)
    if scores and {"finetuned", "from-scratch"} & set(definition.weights):
        kinds = " or ".join(definition.weights)
        names = ", ".join(like for model in definition.models.values() for like in model.like)
        yield Paragraph(
            f"A score counts only with {kinds} weights, as the paper's: "
            f"{definition.says['weights']}. model=FOLDER model.weights={definition.weights[0]} "
            f"takes such a checkpoint, and the folder's name tells its size: {names}. The models "
            "named here give speed and memory."
        )


def _published_hardware(table: Table) -> str:
    printed = {cell.printed.hardware for cell in table.cells if cell.printed.hardware}
    return "; ".join(sorted(printed)) or table.definition.says["device"]


def _measured_hardware(rows: Iterable[Row]) -> list[str | tuple[str, str]]:
    hosts: dict[str, str] = {}
    for row in rows:
        memory = (row["mem_total_bytes"] or 0) / (1 << 30)
        known = (
            row["gpu_name"] if row["gpu_alloc_delta_bytes"] is not None else None,
            row["cpu_model"],
            f"{row['cores_phys']} cores" if row["cores_phys"] else None,
            f"{memory:.0f} GiB" if memory else None,
            f"torch {row['torch']}" if row["torch"] else None,
        )
        hosts[row["host_id"] or "?"] = ", ".join(filter(None, known)) or "not recorded"
    return [(f"measured, host {host[:8]}", told) for host, told in hosts.items()] or [
        ("measured", "nothing yet")
    ]


def _configuration(table: Table) -> Iterator[Element]:
    """The paper's side and each measured row's, side by side."""
    says = table.definition.says
    head = ("row", "method", "task", "tokens", "model", "weights", "data", "precision", "batch")
    paper = ("paper", "", "", "", says["model"], says["weights"], says["data"])
    lines = [(*paper, says["precision"], says["batch"], says["device"])]
    for row in table.used:
        lines.append((row["row_id"][:8], *configuration(row)))
    yield Heading("Configuration", 2)
    yield Grid("the paper's and ours", (*head, "device"), lines)


def configuration(row: Row) -> tuple[str, ...]:
    """What a row was measured with, in the order of the grid."""
    rows = row["n_scored"] if row["n_scored"] is not None else row["n_samples_planned"]
    steps = f", {row['train_steps']:,} steps" if row["train_steps"] else ""
    official = None if row["data_source"] == "embedded" else row["n_samples_official"]
    of = f" of {official:,}" if official else ""
    count = f", {rows:,}{of} rows" if rows else ""
    return (
        row["method"] or "–",
        row["task"] or "–",
        f"{row['length']:,}" if row["length"] else "–",
        row["model"] or "–",
        f"{row['weights_kind']}{steps}",
        f"{row['data_source']}, {row['split']}{count}",
        row["dtype"] or "–",
        str(row["batch"]),
        f"{row['device']}, {row['threads']} threads",
    )


def _others(table: Table) -> Iterator[Element]:
    """Rows of the table's methods and tasks at sizes or lengths that it doesn't print."""
    rows = [row for row in table.others if row["status"] == "ok"]
    if not rows:
        return
    more = len(rows) - MOST_OTHERS
    yield Heading("Also measured", 2)
    yield Paragraph(
        "Rows of these methods and tasks that no cell has taken, newest first"
        + (f"; {more:,} more are stored." if more > 0 else ".")
    )
    head = ("row", "method", "task", "tokens", "model", "weights", "data", "score", "ratio")
    lines = []
    shown = rows[:MOST_OTHERS]
    for row in shown:
        score = "" if row["value"] is None else f"{row['metric']} {row['value']:.1f}"
        score += AT_CHANCE if row["at_chance"] else ""
        ratio = "" if row["ratio"] is None else f"×{row['ratio']:.3f}"
        lines.append((row["row_id"][:8], *configuration(row)[:6], score, ratio))
    faint = frozenset(at for at, row in enumerate(shown) if row["at_chance"])
    yield Grid("not compared", head, lines, frozenset({3, 8}), faint=faint)
