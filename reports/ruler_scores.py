"""RULER's scores by length from stored rows: averages over tasks and the effective length.

Hsieh et al., 2024, arXiv:2404.06654: a model's score at a length is the plain mean of 13 tasks; its
leaderboard adds the mean over lengths, plain and with weights that rise or fall linearly with the
length, and the longest length whose score is above a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from bench.request import plugins
from bench.rows.query import counting, oldest_first
from bench.rows.row_facts import vanilla_at_chance
from bench.status import Status
from reports.intervals import Measured, mean
from reports.looks import VANILLA, looks
from reports.oracles import is_oracle, marked
from reports.rows import Row, grouped

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
