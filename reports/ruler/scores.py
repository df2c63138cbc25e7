"""RULER's averages over tasks and lengths, and the effective length: pure functions of rows.

Hsieh et al., 2024, arXiv:2404.06654: a model's score at a length is the plain mean of 13 tasks; its
leaderboard adds the mean over lengths, plain and with weights that rise or fall linearly with the
length, and the longest length whose score is above a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from bench.request import plugins
from bench.rows.quality_verdicts import vanilla_at_chance
from bench.rows.query import counting, oldest_first
from bench.status import Status
from reports.intervals import Measured, mean
from reports.looks import VANILLA, looks
from reports.rows import Row

BENCHMARK = "ruler"
TASKS = (
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
    "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
)  # fmt: skip
"""In the order of RULER's tables, without the benchmark's name."""
LLAMA2_7B_AT_4K = 85.6
"""RULER's threshold: what Llama-2-7B scores at 4,096 tokens."""
SETTING = (
    "model", "weights_kind", "data_source", "split", "n_samples_planned", "seed", "batch", "dtype",
    "device", "threads", "host_id",
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
    """A method on a task at a length. `measured` is None where the cell has no score, and `status`
    says why; `difference` is that from vanilla on the same samples."""

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
        """In the order of legends, vanilla first."""
        return list(looks(method for method, _, _ in self.scores))

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({length for _, length, _ in self.scores})

    def score(self, method: str, length: int, task: str) -> Score | None:
        return self.scores.get((method, length, task))

    def average(self, method: str, length: int) -> Average | None:
        """The mean over the tasks that have a score; its interval takes them as independent."""
        found = ((task, self.score(method, length, task)) for task in TASKS)
        return _average({task: one.measured for task, one in found if one})

    def averages(self, method: str) -> list[Average] | None:
        """Those of every length; None where one has none, or where they are of different tasks."""
        found = [self.average(method, length) for length in self.lengths]
        known = [one for one in found if one]
        alike = len({one.tasks for one in known}) == 1
        return known if len(known) == len(found) and alike else None

    def over_lengths(self, method: str, weights: Sequence[float]) -> float | None:
        """The weighted mean of the averages. It has no interval: a sample is the same at every
        length but for its filler, so that their errors aren't independent."""
        found = self.averages(method)
        if found is None:
            return None
        pairs = zip(weights, found, strict=True)
        return sum(weight * one.measured.value for weight, one in pairs) / sum(weights)

    def rising(self) -> list[float]:
        """The weights of RULER's wAvg. (inc): 1, 2, 3, … by length."""
        return [float(i + 1) for i in range(len(self.lengths))]

    def effective_length(
        self, method: str, threshold: float, of: Callable[[Measured], float | None]
    ) -> int | None:
        """The longest length at which `of` the average is above the threshold, whatever shorter
        ones have, as in RULER; 0 where there is none, None where an average isn't of all tasks."""
        longest = 0
        for length in self.lengths:
            average = self.average(method, length)
            end = of(average.measured) if average and average.whole else None
            if end is None:
                return None
            longest = length if end > threshold else longest
        return longest

    def comparable(self, length: int) -> list[str]:
        """The tasks on which vanilla's score is clearly above that of one constant answer."""
        return [task for task, base in self._vanilla(length) if not base.at_chance]

    def at_chance(self, length: int) -> list[str]:
        """The tasks on which it isn't: they can't tell methods apart."""
        return [task for task, base in self._vanilla(length) if base.at_chance]

    def _vanilla(self, length: int) -> Iterator[tuple[str, Score]]:
        for task in TASKS:
            score = self.score(VANILLA, length, task)
            if score and score.measured:
                yield task, score

    def difference(self, method: str, length: int) -> Average | None:
        """The mean difference from vanilla over the comparable tasks."""
        found = ((task, self.score(method, length, task)) for task in self.comparable(length))
        return _average({task: one.difference for task, one in found if one})


def results(rows: Iterable[Row]) -> list[Results]:
    """The rows of RULER's tasks by setting, those of most scores first; of several rows of a cell
    the newest that is ok. Vanilla's scores come from other methods' rows where it has none."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in oldest_first(counting(row for row in rows if row["benchmark"] == BENCHMARK)):
        groups.setdefault(tuple(row[name] for name in SETTING), []).append(row)
    found = [Results(group[-1], _scores(group)) for group in groups.values()]
    return sorted(found, key=lambda one: -len(one.scores))


def _scores(rows: Sequence[Row]) -> dict[tuple[str, int, str], Score]:
    scores: dict[tuple[str, int, str], Score] = {}
    bases: dict[tuple[str, int, str], Score] = {}
    for row in rows:
        method = plugins.method_label(row["method"], row["method_params"]) or ""
        task = short(row["task"])
        score = _score(row)
        before = scores.get((method, row["length"], task))
        if before is None or score.measured or not before.measured:
            scores[method, row["length"], task] = score
        if row["base_value"] is not None and method != VANILLA:
            measured = _measured(row, "base_value", "base_ci_lo", "base_ci_hi")
            base = Score(Status.OK, measured, at_chance=vanilla_at_chance(row))
            bases[VANILLA, row["length"], task] = base
    done = {key: score for key, score in scores.items() if score.measured}
    return scores | bases | done


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
    """A task's name without the benchmark's."""
    return task.removeprefix(f"{BENCHMARK}_")
