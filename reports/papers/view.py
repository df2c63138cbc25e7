"""A table as a page of plain text and text grids, which the templates of all formats render."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bench.host.host import short_host
from bench.request import plugins
from bench.rows.row_facts import labelled
from bench.status import Status
from bench.units import counted
from reports import ratios
from reports.intervals import interval, rounded
from reports.papers.bench_commands import Labelled, cell_commands, commands, preparation
from reports.papers.measured import SCORES
from reports.papers.printed import metric_name, printed_text
from reports.papers.table import LineKey, PaperCell, PaperTable
from reports.papers.verdicts import RATIO_FACTOR, SCORE_POINTS, PaperVerdict
from reports.rendering import Page, Section, TextGrid, csv_text
from reports.rows import Row, grouped
from reports.wording import AT_CHANCE, signed

RATIOS = ("÷ vanilla's latency", "÷ exact, same engine")
MOST_OTHERS = 12
MOST_COLUMNS = 10
"""Tasks × metrics that fit side by side on a page."""
LEGEND = (
    "published: as printed, followed by the ratio to vanilla at the same length and size where "
    "ratios are compared; ratios are method / vanilla, below 1 is better; ≈ is read off a "
    "plot; a number in brackets refers to a note.",
    "bold: faster than vanilla with at least 99 % of its score.",
    "measured: with its 95 % interval. Ratios are to unfused attention (vanilla_eager), the "
    "baseline of the papers. Absolute times of different hardware are never compared.",
    f"reproduced: the whole interval lies within ±{SCORE_POINTS:g} points of a score, or within a "
    f"factor of {RATIO_FACTOR:g} of a ratio; differs: the interval excludes the printed value and "
    "the measured one is outside that tolerance; undecided: measured, and neither; baseline: 1 by "
    "definition; no row yet: its command makes one; skipped: a sweep passed it over; cannot: what "
    "it takes isn't here; such cells are under their table. The reason follows.",
)
CHANCE_NOTE = (
    f"{AT_CHANCE}: this score, or one of those that it averages, isn't clearly above that of one "
    "constant answer: it is no evidence that the model reads its input."
)


def page(table: PaperTable) -> Page:
    """All parts of a report about a table, in order."""
    definition = table.definition
    notes = Notes(table)
    labelled = [*preparation(table), *commands(table)]
    others = [row for row in table.others if row["status"] == Status.OK]
    more = len(others) - MOST_OTHERS
    rest = f"; {more:,} more are stored." if more > 0 else "."
    others = others[:MOST_OTHERS]
    at_chance = any(c.at_chance for c in table.cells) or any(row["at_chance"] for row in others)
    printed = {cell.printed.hardware for cell in table.cells if cell.printed.hardware}
    hardware = "; ".join(sorted(printed)) or definition.setup["device"]
    sections = [
        Section(grids=[*_paper_shapes(table), *_cell_grids(table, notes)]),
        Section("Commands", _commands_note(table, labelled), commands=labelled),
        Section(text=_checkpoint_note(table) if labelled else ""),
        Section("Hardware", items=[f"published: {hardware}", *measured_hardware(table.used)]),
        Section("Configuration", grids=[_configuration_grid(table)]),
    ]
    if others:
        why = f"Rows of these methods and tasks that no cell uses, newest first{rest}"
        sections.append(Section("Also measured", why, [_others_grid(others)]))
    chance = [CHANCE_NOTE] if at_chance else []
    items = [*notes.lines, *definition.notes, *LEGEND, *chance]
    summary = f"{definition.name}: {table.summary()}."
    return Page(
        definition.name, definition.heading, summary, [*sections, Section("Notes", items=items)]
    )


class Notes:
    """Numbered notes on cells that look wrong as printed or need an explanation."""

    def __init__(self, table: PaperTable) -> None:
        self._numbers: dict[str, int] = {}
        self._marks = {id(cell): self._mark(cell) for cell in table.cells}

    def _mark(self, cell: PaperCell) -> str:
        extra, notes = cell.printed.extra, []
        if flag := extra.get("flag"):
            notes.append(f"looks wrong as printed: {flag}")
        if (origin := str(extra.get("origin", ""))).startswith("copied"):
            notes.append(f"{origin}, not measured by this paper")
        if extra.get("secondary_source"):
            notes.append("from a secondary source")
        if bound := extra.get("bound"):
            notes.append(f"printed as a bound: {bound}")
        numbers = [self._numbers.setdefault(note, len(self._numbers) + 1) for note in notes]
        return f" [{','.join(map(str, numbers))}]" if numbers else ""

    def mark(self, cell: PaperCell) -> str:
        return self._marks[id(cell)]

    @property
    def lines(self) -> list[str]:
        return [f"[{number}] {note}." for note, number in self._numbers.items()]


# --- the cells ---------------------------------------------------------------------------------


def _paper_shapes(table: PaperTable) -> Iterator[TextGrid]:
    """Each part of the table in the paper's shape: methods as lines, tasks and metrics as columns.
    Parts with more columns than fit a page are left out."""
    for part in dict.fromkeys(cell.line.part for cell in table.cells):
        cells = [cell for cell in table.cells if cell.line.part == part]
        columns = list(dict.fromkeys((c.printed.task, c.printed.metric) for c in cells))
        if len(columns) > MOST_COLUMNS:
            continue
        by_place = {(c.line, c.printed.task, c.printed.metric): c for c in cells}
        label = line_labels(table, cells)
        tasks, metrics = (len(set(names)) > 1 for names in zip(*columns, strict=True))
        head = [
            " ".join([task] * tasks + [metric_name(name)] * (metrics or not tasks))
            for task, name in columns
        ]
        lines = [
            (label(line), *(_short_text(by_place.get((line, *column))) for column in columns))
            for line in dict.fromkeys(cell.line for cell in cells)
        ]
        numbers = frozenset(range(1, len(head) + 1))
        caption = f"{part or 'the table'}, in the paper's shape"
        yield TextGrid(caption, ("method", *head), lines, numbers)


def line_labels(table: PaperTable, cells: Iterable[PaperCell]) -> Callable[[LineKey], str]:
    """A function that gives the label of a line, which contains sizes and lengths if those of the
    cells differ."""
    sizes, lengths = zip(*((cell.line.size, cell.line.length) for cell in cells), strict=True)
    several = len(set(sizes)) > 1, len(set(lengths)) > 1
    return lambda line: line.label(table.definition, *several)


def _short_text(cell: PaperCell | None) -> str:
    """The printed value; after an arrow, the measured value and its verdict."""
    if cell is None:
        return ""
    text = printed_text(cell.printed)
    if cell.measured is None:
        return text
    if cell.is_ratio and cell.ratio is not None:
        text = f"{text} = {rounded(cell.ratio, True)}"
    chance = AT_CHANCE if cell.at_chance else ""
    value = rounded(cell.measured.value, cell.is_ratio)
    return ", ".join(filter(None, (f"{text} → {value}{chance}", cell.comparison, cell.verdict)))


def _cell_grids(table: PaperTable, notes: Notes) -> Iterator[TextGrid]:
    """One grid for each task of each part, with a line for each metric of each printed line. The
    note below it lists cells that cannot be measured."""
    groups = grouped(table.cells, lambda cell: (cell.line.part, cell.printed.task))
    several = len({part for part, _ in groups}) > 1
    settings = table.definition.settings
    head = ("metric", "method", "size", "tokens", *settings, "published", "measured", "Δ")
    for (part, task), cells in groups.items():
        order = list(dict.fromkeys(cell.printed.metric for cell in cells))
        cells = sorted(cells, key=lambda cell: order.index(cell.printed.metric))
        split = next((cell.printed.split for cell in cells if cell.printed.split), "")
        cannot = [cell for cell in cells if _cannot(cell)]
        cells = [cell for cell in cells if not _cannot(cell)]
        yield TextGrid(
            " · ".join(filter(None, (part if several else "", task, split))),
            (*head, "verdict"),
            [_cell_line(cell, table, notes) for cell in cells],
            frozenset(range(3, len(head))),
            [cell.verdict for cell in cells],
            frozenset(i for i, cell in enumerate(cells) if cell.at_chance),
            _cannot_note(cannot, table, notes),
        )


def _cannot(cell: PaperCell) -> bool:
    return cell.verdict is PaperVerdict.CANNOT and cell.measured is None


def _cannot_note(cells: Sequence[PaperCell], table: PaperTable, notes: Notes) -> str:
    """The cells with their printed values, grouped by reason; empty without cells."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        label = cell.line.label(table.definition, True, True)
        figure = f"{metric_label(cell)} {published_text(cell, notes)}"
        reasons.setdefault(cell.reason, {}).setdefault(label, []).append(figure)
    parts = []
    for why, lines in reasons.items():
        figures = "; ".join(f"{label}, {', '.join(some)}" for label, some in lines.items())
        parts.append(f"cannot ({why}): {figures}.")
    return " ".join(parts)


def metric_label(cell: PaperCell) -> str:
    name = metric_name(cell.printed.metric)
    return f"{name} (%)" if cell.printed.unit == "%" else name


def published_text(cell: PaperCell, notes: Notes) -> str:
    """The printed value, its ratio to vanilla if they differ, and the numbers of its notes."""
    ratio = "" if cell.ratio in (None, cell.printed.value) else f" = ×{cell.ratio:.3f}"
    return printed_text(cell.printed) + ratio + notes.mark(cell)


def _cell_line(cell: PaperCell, table: PaperTable, notes: Notes) -> tuple[str, ...]:
    line, definition, delta = cell.line, table.definition, cell.judgement.delta
    settings = dict(line.settings)
    return (
        metric_label(cell),
        definition.method(line.method).label,
        line.size or cell.printed.params or "–",
        f"{line.length:,}" if line.length else "–",
        *(str(settings.get(setting, "–")) for setting in definition.settings),
        published_text(cell, notes),
        interval(cell.measured, cell.is_ratio, cell.at_chance, cell.comparison),
        "" if delta is None else signed(delta) + (" %" if cell.is_ratio else ""),
        ": ".join(filter(None, (cell.verdict, cell.reason))),
    )


# --- the text below them ---------------------------------------------------------------------


def _commands_note(table: PaperTable, labelled: Sequence[Labelled]) -> str:
    if not labelled:
        return "Nothing of this table can be measured here."
    if PaperVerdict.NO_ROW in {cell.verdict for cell in table.cells} and not table.used:
        return "Nothing of this table has been measured yet. To measure it:"
    return ""


def _checkpoint_note(table: PaperTable) -> str:
    """The conditions under which a checkpoint's scores are compared."""
    definition = table.definition
    scores = any(definition.metric(c.printed.metric).measure in SCORES for c in table.cells)
    if not scores or not {"finetuned", "from-scratch"} & set(definition.weights):
        return ""
    kinds = " or ".join(definition.weights)
    names = ", ".join(like for model in definition.models.values() for like in model.like)
    return (
        f"Scores are compared only with {kinds} weights, as the paper's: "
        f"{definition.setup['weights']}. model=FOLDER model.weights={definition.weights[0]} "
        f"loads such a checkpoint; its size follows from the folder's name: {names}. The models "
        "named here give speed and memory."
    )


def measured_hardware(rows: Iterable[Row]) -> list[str]:
    hosts: dict[str, str] = {}
    for row in rows:
        memory = (row["mem_total_bytes"] or 0) / (1 << 30)
        facts = (
            row["gpu_name"] if row["gpu_alloc_delta_bytes"] is not None else None,
            row["cpu_model"],
            f"{row['cores_phys']} cores" if row["cores_phys"] else None,
            f"{memory:.0f} GiB" if memory else None,
            f"torch {row['torch']}" if row["torch"] else None,
        )
        hosts[short_host(row["host_id"])] = ", ".join(filter(None, facts)) or "not recorded"
    lines = [f"measured, host {host}: {facts}" for host, facts in hosts.items()]
    return lines or ["measured: nothing yet"]


def _configuration_grid(table: PaperTable) -> TextGrid:
    """The configurations of the paper and of each measured row, side by side."""
    head = ("row", "method", "task", "tokens", "model", "weights", "data", "precision", "batch")
    paper = ("paper", "", "", "", *table.definition.setup.values())
    engine = (*head, "device", "kernel", *RATIOS)
    rows = [
        (row["row_id"][:8], *_configuration(row), ratios.kernel(row), *_ratios(row))
        for row in table.used
    ]
    return TextGrid("the paper's and ours", engine, [(*paper, "", "", ""), *rows])


def _configuration(row: Row) -> tuple[str, ...]:
    """The configuration of a row, in the order of the grid."""
    rows = row["n_scored"] if row["n_scored"] is not None else row["n_samples_planned"]
    steps = f", {row['train_steps']:,} steps" if row["train_steps"] else ""
    official = None if row["data_source"] == "embedded" else row["n_samples_official"]
    of = f" of {official:,}" if official else ""
    count = f", {rows:,}{of} rows" if rows else ""
    return (
        plugins.method_label(row["method"], row["method_params"]) or "–",
        row["task"] or "–",
        f"{row['length']:,}" if row["length"] else "–",
        labelled(row["model"] or "–", row),
        f"{row['weights_kind']}{steps}",
        f"{row['data_source']}, {row['split']}{count}",
        row["dtype"] or "–",
        str(row["batch"]),
        f"{row['device']}, {counted(row['threads'], 'thread')}",
    )


def _others_grid(rows: Sequence[Row]) -> TextGrid:
    """Rows of the table's methods and tasks at sizes or lengths that it doesn't print."""
    head = ("row", "method", "task", "tokens", "model", "weights", "data", "score", "kernel")
    lines = []
    for row in rows:
        score = "" if row["value"] is None else f"{row['metric']} {row['value']:.1f}"
        score += AT_CHANCE if row["at_chance"] else ""
        measured = (score, ratios.kernel(row), *_ratios(row))
        lines.append((row["row_id"][:8], *_configuration(row)[:6], *measured))
    faint = frozenset(i for i, row in enumerate(rows) if row["at_chance"])
    return TextGrid("not compared", (*head, *RATIOS), lines, frozenset({3}), faint=faint)


def _ratios(row: Row) -> tuple[str, str]:
    return ratios.to_vanilla(row), ratios.to_same_engine(row)


# --- the cells for programs ---------------------------------------------------------------------


def cells_csv(tables: Sequence[PaperTable]) -> str:
    """The cells of all tables under one header."""
    commands = {key: text for table in tables for key, text in cell_commands(table).items()}
    records = [
        _record(table, cell, commands.get(id(cell), "")) for table in tables for cell in table.cells
    ]
    return csv_text(list(records[0]), records)


def _record(table: PaperTable, cell: PaperCell, command: str) -> dict[str, Any]:
    printed, measured, row = cell.printed, cell.measured, cell.row or {}
    return {
        "table": table.definition.name, "part": cell.line.part, "method": printed.method,
        "model_size": cell.line.size, "length": printed.length,
        "settings": json.dumps(dict(cell.line.settings)) if cell.line.settings else "",
        "task": printed.task, "split": printed.split, "metric": printed.metric,
        "unit": printed.unit, "published": printed.value, "published_text": printed.text,
        "approximate": printed.approximate, "published_ratio": cell.ratio,
        "measured": measured and measured.value, "measured_lo": measured and measured.lo,
        "measured_hi": measured and measured.hi,
        "measured_is_ratio": cell.is_ratio if measured else None,
        "comparison": cell.comparison,
        "at_chance": cell.at_chance if measured else None, "n": measured and measured.n,
        "delta": cell.judgement.delta, "verdict": cell.verdict,
        "reason": cell.reason,
        "objections": "; ".join(cell.objections), "row_id": row.get("row_id"),
        "host_id": row.get("host_id"), "published_hardware": printed.hardware,
        "source": printed.source, "flag": printed.extra.get("flag"), "command": command,
    }  # fmt: skip
