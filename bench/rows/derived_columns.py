"""The columns of quality and latency that are computed from raw measurements, and all columns of a
measured cell's row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, cast

from bench.errors import RequestError, errors_of
from bench.request.cell import Cell, data_of
from bench.request.schema import VERDICT_TOKENS
from bench.request.weights import training_of
from bench.rows import row_facts
from bench.rows.columns import FUSED_KERNEL, WIDENED_TO_ALONE, Row, value_of
from bench.rows.comparison import ENGINE_OF, TIMED, TO_VANILLA, Comparison, Name
from bench.rows.row_facts import kv_ratio_16bit, quality_verdict
from bench.rows.store import PREDICTIONS, Predictions, documents
from bench.statistics import paired as stats
from bench.statistics import scores
from bench.status import Status, Verdict
from tasks.base import Data, DataError, Task
from tasks.loading import truncation
from tasks.metrics import buckets, chance

ARM = ("value", "ci_lo", "ci_hi", "score_by_length", "predictions_sha256")
"""Columns that also exist for vanilla."""
OTHERS, FEWEST_OTHERS = 64, 16
"""Rows that aren't scored, on which the best constant answer is chosen; with fewer rows the
estimate is poor."""


def quality_arms_of(cell: Cell, base: Cell) -> Row:
    """The columns about the weights of vanilla's quality; `base` is vanilla's cell."""
    own, other = (one.model["weights_sha256"] for one in (cell, base))
    training = training_of(base.model)
    return {
        "quality_comparison": row_facts.compared(own, other),
        "base_weights_sha256": other,
        "base_training": json.dumps(training, sort_keys=True) if training else None,
    }


def derive(row: Mapping[str, Any], cell: Cell, results: Path) -> Row:
    """The row of a measured cell with all columns that follow from its raw measurements. `row` may
    also contain comparisons under their names, as mappings of measured fields."""
    measured = dict(row)
    raw = {name: Comparison(**(measured.pop(name, None) or {})) for name in TIMED}
    columns = cast(Row, measured)
    if columns.get("tokens_in_mean") is not None:
        paired = not cell.is_baseline
        began = perf_counter_ns()
        try:
            with errors_of(f"task {cell.task['name']}", cell.task["target"]):
                arms = (cell, cell.baseline()) if paired else (cell,)
                columns |= quality(cell, results, [arm.prediction_key for arm in arms])
                columns["scoring_ns"] = perf_counter_ns() - began
                columns |= quality_arms_of(*arms) if paired else {}
        except RequestError as error:
            # Measurements are kept; the same command scores the stored predictions again.
            failed = {"status": Status.ERROR, "status_stage": "score", "status_detail": str(error)}
            columns |= cast(Row, failed if columns.get("status") == Status.OK else {})
    for name, value in times(raw, columns, cell.seed).items():
        if value is not None or name not in columns:  # a stage may have given a reason
            columns[name] = value  # type: ignore[literal-required]
    columns["mem_agree"] = row_facts.mem_agree(columns)
    columns |= row_facts.memory_ratios(columns)
    columns["kv_ratio_16bit"] = kv_ratio_16bit(columns)
    columns |= row_facts.whole_peaks(columns)
    return columns


def times(raw: Mapping[Name, Comparison], row: Mapping[str, Any], seed: int) -> Row:
    """The columns of all comparisons, from their measured fields, and the columns that follow from
    them and the row's other columns."""
    found: dict[Name, Comparison] = {**raw, "answer": Comparison()}
    for name in TO_VANILLA:
        found[name] = to_vanilla(raw[name], seed)
    for name, engine in ENGINE_OF.items():
        found[engine] = to_engine(raw[engine], found[name], seed)
    columns: dict[str, Any] = {"tokens_per_s": None, "base_tokens_per_s": None}
    if found["tpot"].median_ns:
        n = row["new_tokens"]
        tokens = (found["tpot"], found["tpot_engine"])
        found["tpot"], found["tpot_engine"] = of_few_tokens(*tokens, n)
        found["answer"] = of_answer(found["lat"], found["tpot"], n)
        for arm in ("", "base_"):
            if each := getattr(found["tpot"], f"{arm}median_ns"):
                columns[f"{arm}tokens_per_s"] = row["batch"] * 1e9 / each
    for name, one in found.items():
        columns |= one.columns(name)
    return cast(Row, columns)


# Quality: the official metric of a task, applied to stored predictions. Its results are checked,
# since a plugin may define it.


def scored(
    task: Task, answers: Sequence[Any], references: Sequence[Sequence[str]]
) -> tuple[Mapping[str, Any], list[float]]:
    """The figures of `Task.score` and the numbers of `Task.score_each`. Raises RequestError if the
    metric raises, or returns something else."""
    name, target = f"metric {task.metric} of task {task.name}", type(task).__module__
    with errors_of(name, target):
        figures = task.score(answers, references)
        if not isinstance(figures, Mapping) or not _is_number(figures.get("value")):
            raise ValueError(f"score gave {figures!r:.200}; expected figures with a number 'value'")
        each = list(task.score_each(answers, references))
        if len(each) != len(answers) or not all(map(_is_number, each)):
            raise ValueError(
                f"score_each gave {each!r:.200}; expected a number for each of {len(answers)} rows"
            )
    return figures, each


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _scored(
    cell: Cell, task: Task, rows: Sequence[Any], predictions: Predictions
) -> tuple[list[float], Row]:
    """The score of each row by the task's official metric, and the columns of one arm."""
    records = predictions.done()
    references = [row.references for row in rows]
    answers = [records[row.id]["prediction"] for row in rows]
    lengths = [n for row in rows if (n := records[row.id].get("tokens_in")) is not None]
    figures, each = scored(task, answers, references)
    by_length = None
    if len(lengths) == len(rows):
        by_length = json.dumps(
            buckets.scores(lambda *a: task.score(*a)["value"], lengths, answers, references)
        )
    estimate = scores.mean(each, documents(rows), cell.seed, task.higher_is_better)
    return each, {
        "value": figures["value"],
        "stderr": estimate.stderr,
        "ci_lo": estimate.lo,
        "ci_hi": estimate.hi,
        "ci_method": estimate.how or None,
        "metrics": json.dumps(dict(figures)),
        "score_by_length": by_length,
        "answer_cut_frac": _answer_cut_frac(rows, records, cell.length),
        "batched_answers": sum("batched" in records[row.id] for row in rows) or None,
        "predictions_sha256": predictions.sha256([row.id for row in rows]),
    }


def _answer_cut_frac(
    rows: Sequence[Any], records: Mapping[Any, Mapping[str, Any]], length: int
) -> float | None:
    """The share of rows whose answer was in the text that truncation removed. None if texts were
    truncated and this is unknown for all of them, for example because no answer is in a text."""
    found = [
        truncation.answer_removed(row, record["removed"]) if "removed" in record else None
        for row in rows
        if "removed" in (record := records[row.id]) or (record.get("tokens_in") or 0) > length
    ]
    if found and all(each is None for each in found):
        return None
    return sum(each is True for each in found) / len(rows)


def quality(cell: Cell, results: Path, keys: Sequence[str]) -> Row:
    """The quality columns from stored predictions, by the task's official metric, over all rows
    and by buckets of their length. `keys` are those of the method's predictions and, for a
    comparison, of vanilla's on the same rows."""
    task, loaded = cell.build_task(), cell.rows()
    rows = loaded.rows
    arms = [Predictions(results / PREDICTIONS, key) for key in keys]
    (each, own), *base = (_scored(cell, task, rows, predictions) for predictions in arms)
    columns: Row = {
        "metric": task.metric,
        "metric_version": str(task.metric_version),
        "higher_is_better": task.higher_is_better,
        "n_samples_available": loaded.n_available,
        "n_samples_official": cell.task.get("n", {}).get(cell.data["split"]),
        "n_scored": len(rows),
        "n_failed": 0,
        "predictions_path": str(Path(PREDICTIONS) / keys[0]),
    }
    columns |= own | chance_columns(cell, task, rows, own["ci_lo"])
    for base_each, theirs in base:
        difference = scores.difference(
            each, base_each, documents(rows), cell.seed, task.higher_is_better
        )
        columns |= cast(Row, {f"base_{name}": value_of(theirs, name) for name in ARM})
        columns |= {"value_diff_ci_lo": difference.lo, "value_diff_ci_hi": difference.hi}
        columns |= compared_scores(columns)
    return columns


def compared_scores(columns: Row) -> Row:
    """The columns that follow from both scores and the interval of their difference."""
    value, base = columns["value"], columns.get("base_value")
    lo, hi = columns.get("value_diff_ci_lo"), columns.get("value_diff_ci_hi")
    return {
        "value_diff": None if value is None or base is None else value - base,
        "value_diff_detectable": None if lo is None or hi is None else scores.detectable(lo, hi),
        "quality_verdict": quality_verdict(columns),
    }


# The best constant answer, chosen on rows on which the cell isn't scored.


def chance_columns(cell: Cell, task: Task, rows: Sequence[Any], low: float | None) -> Row:
    """The columns of chance level; `low` is the lower end of the score's interval. All are null for
    a task without answers."""
    found: Row = {"chance": None, "chance_reason": None, "at_chance": None}
    if not task.constants(rows):
        return found
    others = other_rows(cell, task, rows)
    if len(others) < FEWEST_OTHERS:
        reason = f"it is chosen on {FEWEST_OTHERS} rows that aren't scored, and the data have "
        return {**found, "chance_reason": f"{reason}{len(others)} other rows"}
    level = chance.chance(task, rows, others)
    return {**found, "chance": level, "at_chance": None if low is None else low <= level}


def other_rows(cell: Cell, task: Task, rows: Sequence[Any]) -> Sequence[Any]:
    """Up to OTHERS rows that the cell doesn't have: those after its own in their split, else the
    first of the training split. Fewer than FEWEST_OTHERS if the data have no more."""
    data = data_of(vars(cell))
    later = _rows(cell, task, data, len(rows) + OTHERS)[len(rows) :]
    if len(later) >= FEWEST_OTHERS or data.split == "train":
        return later
    return _rows(cell, task, replace(data, split="train"), OTHERS) or later


def _rows(cell: Cell, task: Task, data: Data, n: int) -> Sequence[Any]:
    """The rows; empty if the data have no such split."""
    try:
        return task.load(data, n, cell.length, cell.seed).rows
    except DataError:
        return ()


# The fields of paired comparisons that follow from their samples: medians, ratios, verdicts.

SLOWED = 1.05
"""Times outside replace those inside only beyond this factor: calls timed outside begin with colder
caches and sleeping threads."""


def to_vanilla(raw: Comparison, seed: int) -> Comparison:
    """A comparison with vanilla from its samples. With a `reason` there is no verdict. Samples
    without equal pairs may have their `aa_noise_pct`."""
    if not raw.samples_ns:
        return raw
    found = replace(raw, **stats.summary(raw.samples_ns)._asdict())
    if not raw.base_samples_ns:
        return found
    aa = (raw.aa_first_samples_ns or [], raw.aa_second_samples_ns or [])
    alone = _alone(raw)
    shared = _ratio(raw, alone, seed)
    ratio, outside = witnessed(raw, shared.ratio)
    noise = stats.aa_noise_pct(*aa, ratio.n, seed) if aa[0] else raw.aa_noise_pct
    verdict = stats.verdict(ratio, noise)
    is_one_round = len(set(raw.outside_process or ())) == 1
    overruled = outside.get("note") and (
        is_one_round or stats.verdict(shared.ratio, noise) != verdict
    )
    ci_method = f"t over {shared.processes} processes"
    if shared.processes == 1:
        ci_method = f"one process, and {stats.ASSUMED_SD_PCT:g} % between processes"
    if alone is not None and ratio.ratio * alone in (ratio.ci_lo, ratio.ci_hi):
        ci_method = f"{ci_method}; {WIDENED_TO_ALONE}"
    return replace(
        found,
        base_median_ns=stats.summary(raw.base_samples_ns).median_ns,
        **_ratio_fields(ratio),
        ratio_ci_method=ci_method,
        n_pairs=ratio.n,
        n_processes=shared.processes,
        process_sd_pct=shared.sd_pct,
        aa_noise_pct=noise,
        aa_verdict=stats.verdict(stats.paired_ratio(*aa, seed), noise) if aa[0] else None,
        verdict=Verdict.UNDECIDED if overruled or raw.reason else verdict,
        **outside,
    )


def to_engine(raw: Comparison, vanilla: Comparison, seed: int) -> Comparison:
    """The comparison with exact attention on the method's own engine: from separate pairs, judged
    by the noise of vanilla's equal pairs; or, if vanilla runs on that engine, the comparison with
    `vanilla`."""
    if not raw.samples_ns:
        if raw.kernel != FUSED_KERNEL or vanilla.ratio is None:
            return raw
        names = ("median_ns", "base_median_ns", "ratio", "ratio_ci_lo", "ratio_ci_hi", "ratio_p")
        same = {name: getattr(vanilla, name) for name in (*names, "verdict")}
        return replace(raw, **same)
    ratio = _ratio(raw, _alone(vanilla), seed).ratio
    verdict = stats.verdict(ratio, vanilla.aa_noise_pct)
    return replace(
        raw,
        median_ns=stats.summary(raw.samples_ns).median_ns,
        base_median_ns=stats.summary(raw.base_samples_ns or []).median_ns,
        **_ratio_fields(ratio),
        verdict=Verdict.UNDECIDED if vanilla.reason else verdict,
    )


def of_answer(first: Comparison, token: Comparison, n: int) -> Comparison:
    """The comparison of a whole answer of `n` tokens: the first one and n − 1 further ones. Its
    ratio is the mean of the ratios of both parts, weighted by vanilla's time, and so are the ends
    of its interval, which covers the errors of both."""
    times = {
        name: before + (n - 1) * each
        for name in ("median_ns", "base_median_ns")
        if (before := getattr(first, name)) and (each := getattr(token, name))
    }
    if first.paired is None or token.paired is None:
        return Comparison(**times)
    assert first.base_median_ns is not None
    share = first.base_median_ns / times["base_median_ns"]
    ratio, lo, hi = (
        share * one + (1 - share) * other
        for one, other in zip(first.paired[:3], token.paired[:3], strict=True)
    )
    noises = (first.aa_noise_pct, token.aa_noise_pct)
    p = max(first.paired.p, token.paired.p)
    whole = stats.Ratio(ratio, lo, hi, p, token.paired.n)
    word = stats.verdict(whole, None if None in noises else max(noises))  # type: ignore[type-var]
    return Comparison(
        **times, ratio=ratio, ratio_ci_lo=lo, ratio_ci_hi=hi,
        verdict=word if n >= VERDICT_TOKENS else Verdict.UNDECIDED,
    )  # fmt: skip


def of_few_tokens(token: Comparison, engine: Comparison, n: int) -> tuple[Comparison, Comparison]:
    """Both comparisons of a new token, without a verdict if `n` tokens are too few for one."""
    if token.ratio is None or n >= VERDICT_TOKENS:
        return token, engine
    reason = f"{n} new tokens are too few for a verdict, which takes {VERDICT_TOKENS}"
    token = replace(token, verdict=Verdict.UNDECIDED, reason=reason)
    if engine.ratio is not None:
        engine = replace(engine, verdict=Verdict.UNDECIDED)
    return token, engine


def _ratio_fields(ratio: stats.Ratio) -> dict[str, Any]:
    return {
        "ratio": ratio.ratio,
        "ratio_ci_lo": ratio.ci_lo,
        "ratio_ci_hi": ratio.ci_hi,
        "ratio_p": ratio.p,
    }


def _alone(raw: Comparison) -> float | None:
    """The method's time without vanilla between its calls, as a share of its time in pairs in the
    same process, the first one."""
    if not raw.solo_median_ns or not raw.samples_ns:
        return None
    process = raw.pair_process or [0] * len(raw.samples_ns)
    first = [ns for ns, one in zip(raw.samples_ns, process, strict=True) if one == process[0]]
    return float(raw.solo_median_ns / stats.summary(first).median_ns)


def _ratio(raw: Comparison, alone: float | None, seed: int) -> stats.ProcessRatio:
    """The ratio of pairs; its interval includes the ratio with the method's `alone` time."""
    found = stats.ratio_over_processes(
        raw.samples_ns or [], raw.base_samples_ns or [], raw.pair_process, seed
    )
    if alone is None:
        return found
    ratio = found.ratio
    return found._replace(ratio=stats.widened(ratio, ratio.ratio * alone))


# The comparison with calls timed by the supervisor's clock: vanilla may be slower next to the
# method, and the method's process may have reported times that are too short.


def witnessed(raw: Comparison, ratio: stats.Ratio) -> tuple[stats.Ratio, dict[str, Any]]:
    """The ratio of the samples and the fields of the times outside; no fields without such times.
    If the times outside give a ratio larger by more than its interval and SLOWED, it replaces the
    ratio and `note` contains the reason; if by more than SLOWED only, the interval is widened to
    the end of theirs. A slow-down of both arms changes nothing. On a machine that was too busy for
    a verdict the ratio stays, without a verdict.

    A single round doesn't show how much the next one would differ. If it replaces the ratio, there
    is no verdict. Otherwise, if one process timed all pairs and several turns, the interval
    includes the upper end of the ratio of these turns."""
    if not raw.outside_process:
        return ratio, {}
    inside = raw.pair_process or [0] * len(raw.base_samples_ns or ())
    base_inside, mine_inside = (raw.base_samples_ns or (), inside), (raw.samples_ns or (), inside)
    base = (raw.base_outside_samples_ns or (), raw.outside_process)
    mine = (raw.outside_samples_ns or (), raw.outside_process)
    slowed = stats.ratio_of_rounds([base_inside], [base])
    without = stats.ratio_of_rounds([mine], [base])
    larger = stats.ratio_of_rounds([mine, base_inside], [base, mine_inside])
    found: dict[str, Any] = {"base_outside_ns": stats.summary(base[0]).median_ns}
    for name, one in (("base_inside_outside_ratio", slowed), ("outside_ratio", without)):
        found |= {name: one.ratio, f"{name}_ci_lo": one.ci_lo, f"{name}_ci_hi": one.ci_hi}
    note = None
    if larger.ratio > SLOWED and larger.ci_lo > 1 and not raw.reason:
        note = f"by the supervisor's clock the method takes ×{larger.ratio:.2f} of its time"
        if slowed.ratio > SLOWED and slowed.ci_lo > 1:
            note = f"vanilla was slowed next to the method, ×{slowed.ratio:.2f}"
        ratio = stats.ratio_of_ratios(larger.inverse, ratio)
    else:
        end = without.ci_hi if larger.ratio > SLOWED else ratio.ratio
        if len({*inside, *raw.outside_process}) == 1 and len(mine[0]) > 1:
            turns = stats.ratio_over_processes(mine[0], base[0]).ratio
            end = max(end, turns.ci_hi)
        ratio = stats.widened(ratio, end)
    return ratio, found | {"note": note}
