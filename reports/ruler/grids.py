"""RULER's scores as grids of text, for all formats and for docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

from bench.host.host import short_host
from bench.units import counted
from reports.grids import NONE, text_grid, tokens
from reports.intervals import interval
from reports.looks import VANILLA
from reports.rendering import TextGrid
from reports.ruler.scores import LLAMA2_7B_AT_4K, TASKS, Average, Results, Score
from reports.wording import AT_CHANCE, ENDED, signed

NOT_RUN = "not run"


@dataclass(frozen=True)
class RulerPage:
    """What a report says of one setting: its facts, its grids, and the sentences below them."""

    title: str
    facts: str
    grids: Sequence[TextGrid]
    notes: Sequence[str]


def page(found: Results, threshold: float = LLAMA2_7B_AT_4K) -> RulerPage:
    grids = [averages(found, threshold)]
    if differences := against_vanilla(found):
        grids.append(differences)
    grids += [scores(found, length) for length in found.lengths]
    return RulerPage(
        f"RULER on {found.row['model']}", facts(found), grids, list(notes(found, threshold))
    )


def facts(found: Results) -> str:
    """Where weights and rows come from, and the machine."""
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
    """RULER's table: a line for each method, its average at each length and over them."""
    rising = found.rising()
    columns = {
        **{tokens(length): partial(_average, found, length) for length in found.lengths},
        "Avg.": partial(_over_lengths, found, [1.0] * len(rising)),
        "wAvg. (inc)": partial(_over_lengths, found, rising),
        "wAvg. (dec)": partial(_over_lengths, found, rising[::-1]),
        "effective length": partial(_effective, found, threshold),
    }
    caption = (
        f"Mean of the {len(TASKS)} tasks, and the length up to which it is above {threshold:g}"
    )
    return text_grid(caption, "method", found.methods, columns)


def _average(found: Results, length: int, method: str) -> str:
    average = found.average(method, length)
    if average:
        return f"{interval(average.measured, False)}{_of(average)}"
    ends = {_ended(found.score(method, length, task)) for task in TASKS} - {NOT_RUN}
    return ", ".join(sorted(ends)) or NOT_RUN


def _of(average: Average) -> str:
    return "" if average.whole else f", {len(average.tasks)} of {len(TASKS)} tasks"


def _over_lengths(found: Results, weights: Sequence[float], method: str) -> str:
    value, averages = found.over_lengths(method, weights), found.averages(method)
    return NONE if value is None or not averages else f"{value:.1f}{_of(averages[0])}"


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
    """The longest length measured may be exceeded."""
    if not length:
        return f"below {found.lengths[0]:,}"
    return f"{'≥ ' if length == found.lengths[-1] else ''}{length:,}"


def against_vanilla(found: Results) -> TextGrid | None:
    """The mean difference from vanilla on the tasks that tell methods apart: least loss first,
    methods that lack a task last. None without another method."""
    methods = [method for method in found.methods if method != VANILLA]
    counts = {length: len(found.comparable(length)) for length in found.lengths}
    if not methods or not any(counts.values()):
        return None

    def place(method: str) -> tuple[bool, float, str]:
        differences = [found.difference(method, length) for length in found.lengths]
        known = [one for one in differences if one]
        whole = [len(one.tasks) for one in known] == [n for n in counts.values() if n]
        return not whole, -sum(one.measured.value for one in known), method

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


def scores(found: Results, length: int) -> TextGrid:
    """A line for each task, a column for each method. Faint: vanilla is at chance."""
    columns = {method: partial(_score, found, length, method) for method in found.methods}
    floor = found.at_chance(length)
    faint = frozenset(i for i, task in enumerate(TASKS) if task in floor)
    return replace(text_grid(tokens(length), "task", TASKS, columns), faint=faint)


def _score(found: Results, length: int, method: str, task: str) -> str:
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
        yield (
            "Prose, questions and words are this project's and prompts have no chat template: "
            "averages aren't comparable with RULER's leaderboard (data=local takes its rows)."
        )
    for length in found.lengths:
        if floor := found.at_chance(length):
            yield (
                f"At {length:,} tokens vanilla isn't clearly above the best constant answer "
                f"({AT_CHANCE}) on {', '.join(floor)}: no method is ranked by these."
            )
    cut = [score.row for score in found.scores.values() if score.row]
    lost = sorted({str(row["task"]) for row in cut if row["answer_cut_frac"]})
    if lost:
        yield f"Truncation removed the answer from some samples of {', '.join(lost)}."
