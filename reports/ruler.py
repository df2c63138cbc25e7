"""The report of RULER's scores (`reports.ruler_scores`) in every format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from bench.host.host import short_host
from bench.rows.row_facts import labelled
from bench.rows.store import Store
from bench.units import counted
from reports import tex
from reports.grids import text_grid, tokens
from reports.intervals import interval
from reports.looks import VANILLA
from reports.rendering import Page, Section, TextGrid, csv_text, report
from reports.rows import Row
from reports.ruler_scores import (
    BENCHMARK,
    COLUMNS,
    LLAMA2_7B_AT_4K,
    SETTING,
    TASKS,
    Results,
    Score,
    results,
)
from reports.wording import AT_CHANCE, ENDED, NONE, signed

TITLE = "RULER, scores by length, their average over 13 tasks and the effective length"
AVERAGE = "average"
FIGURES = (
    *SETTING, "method", "length", "task", "tasks", "score", "lo", "hi", "n", "difference",
    "difference_lo", "difference_hi", "at_chance", "vanilla_at_chance", "status", "row_id",
)  # fmt: skip
NOT_RUN = "not run"


# --- the grids of a report -----------------------------------------------------------------------


def page(found: Results, threshold: float = LLAMA2_7B_AT_4K) -> Page:
    """The report of one setting: its facts, its grids, and the sentences below them."""
    grids = [averages(found, threshold)]
    if differences := against_vanilla(found):
        grids.append(differences)
    grids += [score_grid(found, length) for length in found.lengths]
    section = Section(grids=grids, items=list(notes(found, threshold)))
    return Page(
        "RULER", f"RULER on {labelled(found.row['model'], found.row)}", facts(found), [section]
    )


def facts(found: Results) -> str:
    """The sources of weights and rows, and the machine."""
    row = found.row
    machine = row["gpu_name"] or row["cpu_model"] or "unknown machine"
    words = (
        f"{row['weights_kind']} weights", f"{row['data_source']} data",
        f"{row['n_samples_planned']} samples a task", f"seed {row['seed']}",
        f"{row['device']} {row['dtype']}", counted(row["threads"], "thread"),
        f"{machine} ({short_host(row['host_id'])})", f"torch {row['torch']}",
    )  # fmt: skip
    return ", ".join(words)


def averages(found: Results, threshold: float) -> TextGrid:
    """RULER's table: a line for each method, with its average at each length and over lengths."""
    rising = range(1, len(found.lengths) + 1)
    columns = {
        **{tokens(length): partial(_average_text, found, length) for length in found.lengths},
        "Avg.": partial(_over_lengths, found, [1] * len(rising)),
        "wAvg. (inc)": partial(_over_lengths, found, rising),
        "wAvg. (dec)": partial(_over_lengths, found, rising[::-1]),
        "effective length": partial(_effective, found, threshold),
    }
    caption = (
        f"Mean of the {len(TASKS)} tasks, and the length up to which it is above {threshold:g}"
    )
    return text_grid(caption, "method", found.methods, columns)


def _average_text(found: Results, length: int, method: str) -> str:
    average = found.average(method, length)
    if average:
        return f"{interval(average.measured, False)}{average.missing}"
    ends = {_ended(found.score(method, length, task)) for task in TASKS} - {NOT_RUN}
    return ", ".join(sorted(ends)) or NOT_RUN


def _over_lengths(found: Results, weights: Sequence[float], method: str) -> str:
    average = found.over_lengths(method, weights)
    return f"{average.measured.value:.1f}{average.missing}" if average else NONE


def _effective(found: Results, threshold: float, method: str) -> str:
    """The effective length, and those of the lower and the upper ends of the averages."""
    value, lo, hi = (
        found.effective_length(method, threshold, attrgetter(end)) for end in ("value", "lo", "hi")
    )
    if value is None:
        return NONE
    text = _length(found, value)
    if lo is None or hi is None or lo == hi:
        return text
    return f"{text} ({_length(found, lo)} … {_length(found, hi)})"


def _length(found: Results, length: int) -> str:
    """A length as text; the true effective length may exceed the longest measured one."""
    if not length:
        return f"below {found.lengths[0]:,}"
    return f"{'≥ ' if length == found.lengths[-1] else ''}{length:,}"


def against_vanilla(found: Results) -> TextGrid | None:
    """The mean difference from vanilla on the tasks that distinguish methods: least loss first,
    then methods that lack a task, then oracles, which aren't ranked. None without another
    method."""
    methods = [method for method in found.methods if method != VANILLA]
    counts = {length: len(found.tasks(length)) for length in found.lengths}
    if not methods or not any(counts.values()):
        return None

    def place(method: str) -> tuple[bool, bool, float, str]:
        differences = [found.difference(method, length) for length in found.lengths]
        known = [one for one in differences if one]
        whole = [len(one.tasks) for one in known] == [n for n in counts.values() if n]
        loss = -sum(one.measured.value for one in known)
        return method in found.oracles, not whole, loss, method

    columns = {
        f"{tokens(length)}, {count} tasks": partial(_difference, found, length, count)
        for length, count in counts.items()
    }
    caption = "Difference from vanilla, on the tasks where vanilla is above chance"
    return text_grid(caption, "method", sorted(methods, key=place), columns)


def _difference(found: Results, length: int, tasks: int, method: str) -> str:
    average = found.difference(method, length)
    if average is None:
        return NONE
    value, lo, hi, _ = average.measured
    fewer = "" if len(average.tasks) == tasks else f", {len(average.tasks)} of {tasks} tasks"
    if lo is None or hi is None:
        return signed(value) + fewer
    verdict = " higher" if lo > 0 else " lower" if hi < 0 else ""
    return signed(value, lo, hi) + verdict + fewer


def score_grid(found: Results, length: int) -> TextGrid:
    """A line for each task, a column for each method. Lines are faint if vanilla is at chance."""
    columns = {method: partial(_score_text, found, length, method) for method in found.methods}
    floor = found.tasks(length, at_chance=True)
    faint = frozenset(i for i, task in enumerate(TASKS) if task in floor)
    return replace(text_grid(tokens(length), "task", TASKS, columns), faint=faint)


def _score_text(found: Results, length: int, method: str, task: str) -> str:
    score = found.score(method, length, task)
    if score is None or score.measured is None:
        return _ended(score)
    return interval(score.measured, False, score.at_chance)


def _ended(score: Score | None) -> str:
    return NOT_RUN if score is None else ENDED.get(score.status, NONE)


def notes(found: Results, threshold: float) -> Iterator[str]:
    yield (
        "Scores are 0 to 100 with 95 % intervals; those of an average take its tasks as "
        "independent. Avg. is the mean over the lengths; wAvg. (inc) and (dec) weight them 1, 2, "
        "3, … from the shortest and from the longest, as RULER's leaderboard does. The effective "
        f"length is the longest whose average is above {threshold:g}, in brackets those of the "
        "ends of its interval; it needs all 13 tasks."
    )
    if threshold == LLAMA2_7B_AT_4K:
        yield "85.6 is RULER's threshold, the score of Llama-2-7B at 4,096 tokens."
    if found.row["data_source"] == "embedded":
        in_chat = found.row["prompt"] == "chat"
        form = "" if in_chat else " and prompts have no chat template"
        yield (
            f"Prose, questions and words are this project's{form}: "
            "averages aren't comparable with RULER's leaderboard (data=local takes its rows)."
        )
    for length in found.lengths:
        if floor := found.tasks(length, at_chance=True):
            yield (
                f"At {length:,} tokens vanilla isn't clearly above the best constant answer "
                f"({AT_CHANCE}) on {', '.join(floor)}: no method is ranked by these."
            )
    cut = [score.row for score in found.scores.values() if score.row]
    lost = sorted({str(row["task"]) for row in cut if row["answer_cut_frac"]})
    if lost:
        yield f"Truncation removed the answer from some samples of {', '.join(lost)}."


# --- the report ----------------------------------------------------------------------------------


def stored(folders: Iterable[Path]) -> tuple[list[Results], list[str]]:
    """The settings of all RULER rows of the folders, and a line for each file set aside."""
    rows: list[Row] = []
    warnings: list[str] = []
    for folder in folders:
        store = Store(folder)
        rows += store.rows(list(COLUMNS), {"benchmark": BENCHMARK}).to_pylist()
        warnings += store.warnings
    return results(rows), warnings


def summary(found: Sequence[Results]) -> str:
    """The number of measurements, as a line of the list of reports."""
    if not found:
        return "no rows; bench run -m experiment=ruler scale=small makes some"
    most = found[0]
    tasks = {task for (_, _, task), score in most.scores.items() if score.measured}
    lengths = ", ".join(f"{length:,}" for length in most.lengths)
    more = f"; {len(found) - 1} more settings" if len(found) > 1 else ""
    return (
        f"{most.row['model']}: {len(most.methods)} methods, {len(tasks)} of {len(TASKS)} tasks at "
        f"{lengths} tokens{more}"
    )


def text(found: Sequence[Results], form: str, threshold: float) -> str:
    """The report in one format: md, tex, html or csv."""
    if form == "csv":
        return csv_text(FIGURES, (record for one in found for record in _records(one)))
    pages = [page(one, threshold) for one in found]
    return tex.report(pages) if form == "tex" else report(pages, form)


def _records(found: Results) -> Iterator[dict[str, Any]]:
    """A line for each score, and one for each average."""
    setting = {name: found.row[name] for name in SETTING}
    for (method, length, task), score in sorted(found.scores.items()):
        floor = task in found.tasks(length, at_chance=True)
        record = {"method": method, "length": length, "task": task, "tasks": 1}
        status = {"status": score.status, "row_id": score.row and score.row["row_id"]}
        figures: dict[str, Any] = {}
        if score.measured:
            figures = _ends("score", score.measured, "") | {"n": score.measured.n}
            figures |= {"at_chance": score.at_chance, "vanilla_at_chance": floor}
        if score.difference:
            figures |= _ends("difference", score.difference, "difference_")
        yield setting | record | status | figures
    for method in found.methods:
        for length in found.lengths:
            if average := found.average(method, length):
                record = {"method": method, "length": length, "task": AVERAGE}
                figures = _ends("score", average.measured, "") | {"n": average.measured.n}
                yield setting | record | {"tasks": len(average.tasks)} | figures


def _ends(name: str, measured: Any, prefix: str) -> dict[str, Any]:
    return {name: measured.value, f"{prefix}lo": measured.lo, f"{prefix}hi": measured.hi}
