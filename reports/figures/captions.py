"""Titles, facts and legends of panels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pandas as pd

from bench.host.host import short_host
from bench.rows import row_facts
from bench.rows.row_facts import UNKNOWN_WEIGHTS
from bench.units import counted
from reports.figures import sheet, style
from reports.figures.cells import FigureRows
from reports.looks import VANILLA, base_name
from reports.wording import vectors

WEIGHTS = {
    "pretrained-swap": "pretrained weights, swapped",
    "finetuned": "finetuned weights",
    "from-scratch": "trained from scratch",
    "embedded": "toy weights",
    "random": "random weights",
}


def title(panel: pd.DataFrame, *more: str) -> list[str]:
    """Task and model; with "length", also the length."""
    cell = panel.iloc[0]
    words = [str(cell["task"]), str(cell["model"])]
    return [*words, f"{int(cell['length']):,} tokens"] if "length" in more else words


def panel(
    cells: pd.DataFrame, paint: sheet.Paint, *more: str, table: sheet.Table = ()
) -> sheet.Panel:
    """A panel with its title and facts; with "scores", the weights of the scores are a fact too."""
    words = [*facts(cells), *(scores(cells) if "scores" in more else ())]
    return sheet.Panel(title(cells, *more), words, paint, table)


def facts(panel: pd.DataFrame) -> list[str]:
    """Number format, sources of weights and rows, and the machine."""
    cell = panel.iloc[0]
    on_cpu = cell["device"] == "cpu"
    words = [f"{cell['device']} {cell['dtype']}"]
    if on_cpu and pd.notna(cell["threads"]):
        words.append(counted(round(cell["threads"]), "thread"))
    if pd.notna(cell["batch"]) and cell["batch"] != 1:
        words.append(f"batch {cell['batch']:.0f}")
    words += row_facts.input_words(
        {n: cell[n] for n in ("filled", "question", "turns") if pd.notna(cell[n])}
    )
    weights = WEIGHTS.get(cell["weights_kind"])
    words += [*([weights] if weights else []), f"{cell['data_source']} data"]
    return [*words, sheet.Own(_machine(panel))]


def _machine(panel: pd.DataFrame) -> str:
    """The processor with its vectors, or the GPU, and the beginning of the host's id."""
    cell = panel.iloc[0]
    column = "cpu_model" if cell["device"] == "cpu" else "gpu_name"
    known = panel[panel[column].notna()]
    host = short_host(cell["host_id"] if pd.notna(cell["host_id"]) else None)
    if known.empty:
        return host
    sets = known["instruction_sets"].dropna()
    on_cpu = column == "cpu_model" and len(sets)
    wide = vectors({"instruction_sets": sets.iloc[0]}) if on_cpu else ""
    return " ".join(filter(None, (_short(str(known[column].iloc[0])), wide, host)))


def scores(panel: pd.DataFrame) -> list[str]:
    """The weights with which the scores of methods and of vanilla were measured."""
    scored = panel[panel["value"].notna()]
    methods = scored[scored["method"] != VANILLA]
    if methods.empty or len(methods) == len(scored):
        return []
    compared = methods["quality_comparison"].fillna(UNKNOWN_WEIGHTS)
    groups = {word: sorted(set(some["method"])) for word, some in methods.groupby(compared)}
    if len(groups) == 1:
        return [f"scores: {word}" for word in groups]
    parts = (f"{word} ({', '.join(map(style.tidy, names))})" for word, names in groups.items())
    return [f"scores: {'; '.join(parts)}"]


def _short(processor: str) -> str:
    """A processor's name without trademarks and filler words."""
    for noise in ("(R)", "(TM)", "Processor", "CPU", "NVIDIA "):
        processor = processor.replace(noise, "")
    return " ".join(processor.split("@")[0].split()[:4])


def quality(panel: pd.DataFrame) -> str:
    """The axis of the main metric."""
    metric = panel["metric"].dropna()
    name = str(metric.iloc[0]) if len(metric) else "score"
    low = panel["higher_is_better"].eq(False).any()
    unit = ", %" if percent(panel) else ""
    return f"{style.tidy(name)}{unit}{' (lower is better)' if low else ''}"


def percent(panel: pd.DataFrame) -> bool:
    """Whether the main metric is in 0…100."""
    low = panel["higher_is_better"].eq(False).any()
    return not low and bool(1.5 < panel["value"].abs().max() <= 100.5)


def legend(
    rows: FigureRows,
    panels: Iterable[pd.DataFrame],
    foremost: Sequence[Collection[str]] | None = None,
) -> list[sheet.LegendEntry]:
    """The methods of the panels, in the order of legends. Methods outside the foremost ones of the
    rows, or of their panel (one set for each), share one entry."""
    drawn = [set(panel["method"]) for panel in panels]
    every = {base_name(name) for names in drawn for name in names}
    of_panel = foremost or [every if rows.foremost is None else rows.foremost] * len(drawn)
    shown = [
        (name, base_name(name) in own)
        for names, own in zip(drawn, of_panel, strict=True)
        for name in names
    ]
    ranked = sorted(
        {name for name, is_own in shown if is_own}, key=lambda name: (rows.looks[name].rank, name)
    )
    looks = {base_name(name): rows.looks[name] for name in ranked}
    found: list[sheet.LegendEntry] = [
        (sheet.mark(look), style.tidy(name)) for name, look in looks.items()
    ]
    others = [] if all(is_own for _, is_own in shown) else ["other methods"]
    return [*found, *((sheet.mark(style.OTHERS), text) for text in others)]


def failures(ends: Iterable[str]) -> list[sheet.LegendEntry]:
    """The marks of cells that ended without a figure."""
    met = set(ends)
    found: list[sheet.LegendEntry] = []
    if met & {"oom_host", "oom_device"}:
        found.append((sheet.mark(None, style.OOM), "out of memory"))
    if "timeout" in met:
        found.append((sheet.mark(None, style.TIMEOUT), "timed out"))
    return found
