"""RULER's scores by length from stored rows: averages over tasks, the effective length, and a
report in every format.

Hsieh et al., 2024, arXiv:2404.06654: a model's score at a length is the plain mean of 13 tasks; its
leaderboard adds the mean over lengths, plain and with weights that rise or fall linearly with the
length, and the longest length whose score is above a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from bench.host.host import short_host
from bench.request import plugins
from bench.rows.quality_verdicts import labelled, vanilla_at_chance
from bench.rows.query import counting, oldest_first
from bench.rows.store import Store
from bench.status import Status
from bench.units import counted
from reports import tex
from reports.grids import text_grid, tokens
from reports.intervals import Measured, interval, mean
from reports.looks import VANILLA, looks
from reports.oracles import is_oracle, marked
from reports.rendering import Page, Section, TextGrid, csv_text, report
from reports.rows import Row, grouped
from reports.wording import AT_CHANCE, ENDED, NONE, signed

BENCHMARK = "ruler"
TASKS = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
    "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip
"""In the order of RULER's tables, without the benchmark's name."""
LLAMA2_7B_AT_4K = 85.6
"""RULER's threshold: what Llama-2-7B scores at 4,096 tokens."""
SETTING = (
    "model", "weights_kind", "weights_format", "data_source", "split", "n_samples_planned",
    "prompt", "seed", "batch", "dtype", "device", "threads", "host_id",
)  # fmt: skip
"""What the scores of one table share."""
COLUMNS = (
    *SETTING, "benchmark", "task", "method", "method_params", "length", "status", "status_detail",
    "n_scored", "value", "ci_lo", "ci_hi", "at_chance", "chance", "base_value", "base_ci_lo",
    "base_ci_hi", "value_diff", "value_diff_ci_lo", "value_diff_ci_hi", "higher_is_better",
    "answer_cut_frac", "cpu_model", "gpu_name", "torch", "row_id", "cell_key", "attempt",
    "created_utc",
)  # fmt: skip
TITLE = "RULER, scores by length, their average over 13 tasks and the effective length"
AVERAGE = "average"
FIGURES = (
    *SETTING, "method", "length", "task", "tasks", "score", "lo", "hi", "n", "difference",
    "difference_lo", "difference_hi", "at_chance", "vanilla_at_chance", "status", "row_id",
)  # fmt: skip
NOT_RUN = "not run"


class Score(NamedTuple):
    """A method on a task at a length. `measured` is None if the cell has no score, and `status`
    gives the reason; `difference` is from vanilla on the same samples."""

    status: str
    measured: Measured | None
    difference: Measured | None = None
    at_chance: bool = False
    row: Row | None = None


class Average(NamedTuple):
    """The mean of a method's figures at a length, over the tasks that have one."""

    measured: Measured
    tasks: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return len(self.tasks) == len(TASKS)

    @property
    def missing(self) -> str:
        """A remark on an average over fewer tasks, to follow its figure."""
        return "" if self.whole else f", {len(self.tasks)} of {len(TASKS)} tasks"


def _average(parts: Mapping[str, Measured | None]) -> Average | None:
    known = {task: part for task, part in parts.items() if part}
    return Average(mean(list(known.values())), tuple(known)) if known else None


@dataclass(frozen=True)
class Results:
    """The scores of one setting, by method, length and task. `row` is one of its rows."""

    row: Row
    scores: Mapping[tuple[str, int, str], Score]

    @cached_property
    def methods(self) -> list[str]:
        """The methods in the order of legends, vanilla first."""
        return list(looks(method for method, _, _ in self.scores))

    @cached_property
    def oracles(self) -> frozenset[str]:
        """The methods that show a ceiling."""
        known = ((method, score.row) for (method, _, _), score in self.scores.items())
        return frozenset(method for method, row in known if row and row["oracle"])

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({length for _, length, _ in self.scores})

    def score(self, method: str, length: int, task: str) -> Score | None:
        return self.scores.get((method, length, task))

    def average(self, method: str, length: int) -> Average | None:
        """The mean over the tasks that have a score; its interval takes them as independent."""
        found = ((task, self.score(method, length, task)) for task in TASKS)
        return _average({task: one.measured for task, one in found if one})

    def over_lengths(self, method: str, weights: Sequence[float]) -> Average | None:
        """The weighted mean of the averages; None if a length has none, or if they are over
        different tasks. It has no interval: a sample is the same at every length except for its
        filler, so errors aren't independent."""
        known = [one for length in self.lengths if (one := self.average(method, length))]
        if len(known) < len(self.lengths) or len({one.tasks for one in known}) > 1:
            return None
        total = sum(weight * one.measured.value for weight, one in zip(weights, known, strict=True))
        return Average(Measured(total / sum(weights), None, None), known[0].tasks)

    def effective_length(
        self, method: str, threshold: float, of: Callable[[Measured], float | None]
    ) -> int | None:
        """The longest length at which `of` the average is above the threshold, regardless of
        shorter lengths, as in RULER; 0 if there is none, None if an average isn't over all
        tasks."""
        longest = 0
        for length in self.lengths:
            average = self.average(method, length)
            end = of(average.measured) if average and average.whole else None
            if end is None:
                return None
            longest = length if end > threshold else longest
        return longest

    def tasks(self, length: int, at_chance: bool = False) -> list[str]:
        """The tasks on which vanilla's score is clearly above that of one constant answer, or, with
        `at_chance`, on which it isn't: these can't distinguish methods."""
        scores = ((task, self.score(VANILLA, length, task)) for task in TASKS)
        return [t for t, one in scores if one and one.measured and one.at_chance == at_chance]

    def difference(self, method: str, length: int) -> Average | None:
        """The mean difference from vanilla over the comparable tasks."""
        found = ((task, self.score(method, length, task)) for task in self.tasks(length))
        return _average({task: one.difference for task, one in found if one})


def results(rows: Iterable[Row]) -> list[Results]:
    """The rows of RULER's tasks by setting, settings with the most scores first. Of several rows of
    a cell, the newest ok row counts. If vanilla has no row, other methods' rows give its scores.
    Rows that were measured without a score are left out."""
    scored = (row for row in rows if row["status"] != Status.OK or row["value"] is not None)
    own = oldest_first(counting(row for row in scored if row["benchmark"] == BENCHMARK))
    groups = grouped(own, itemgetter(*SETTING)).values()
    found = [Results(group[-1], _scores(group)) for group in groups]
    return sorted(found, key=lambda one: -len(one.scores))


def _scores(rows: Sequence[Row]) -> dict[tuple[str, int, str], Score]:
    ended: dict[tuple[str, int, str], Score] = {}
    bases, done = ended.copy(), ended.copy()
    for row in rows:
        row = {"oracle": is_oracle(row["method"], row["method_params"]), **row}
        method = marked(plugins.method_label(row["method"], row["method_params"]) or "", row)
        task = short(row["task"])
        score = _score(row)
        (done if score.measured else ended)[method, row["length"], task] = score
        if row["base_value"] is not None and method != VANILLA:
            measured = _measured(row, "base_value", "base_ci_lo", "base_ci_hi")
            base = Score(Status.OK, measured, at_chance=vanilla_at_chance(row))
            bases[VANILLA, row["length"], task] = base
    return ended | bases | done


def _score(row: Row) -> Score:
    if row["status"] != Status.OK:
        return Score(row["status"], None, row=row)
    difference = None
    if row["method"] != VANILLA:
        difference = _measured(row, "value_diff", "value_diff_ci_lo", "value_diff_ci_hi")
    measured = _measured(row, "value", "ci_lo", "ci_hi")
    return Score(row["status"], measured, difference, bool(row["at_chance"]), row)


def _measured(row: Row, *names: str) -> Measured | None:
    value, lo, hi = (row[name] for name in names)
    return None if value is None else Measured(value, lo, hi, row["n_scored"])


def short(task: str) -> str:
    """A task's name without the benchmark's name."""
    return task.removeprefix(f"{BENCHMARK}_")


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
