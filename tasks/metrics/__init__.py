"""Official metrics of the benchmarks, as pure functions of stored predictions.

A metric computes figures for one row; the reported figures are means over rows. One function of
figures gives `value` from the means and a row's score from the row's figures: in 0…100, or for
`nats_per_token` 0 or more.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.metrics import chinese, likelihood, retrieval, rouge, text

Figures = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """row(prediction, references) → figures; value(figures) → 0…100.

    version   incremented with every change that could change a number
    combined  the official name of the value if it isn't one of the figures
    share     for a value that isn't a mean over rows: share(figures of a row, figures) → the row's
              contribution, see `each`
    digits    number of digits to which the official code rounds
    package   an optional package that the metric needs, and this project's extra that installs it
    needs     the fields of retrieval.References that it reads, each with the official name of its
              column
    takes_empty  whether a row without a right answer is valid: the right answer is then the empty
                 set
    """

    version: int
    row: Callable[[Any, Sequence[Any]], Figures]
    value: Callable[[Mapping[str, float]], float]
    combined: str | None = None
    share: Callable[[Figures, Mapping[str, float]], float] | None = None
    digits: int = 4
    package: str = ""
    extra: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    takes_empty: bool = False


def compute(
    task: str, metric: str, predictions: Sequence[Any], references: Sequence[Sequence[Any]]
) -> dict[str, float | None]:
    """The figures of `metric` under their official names, and `value`, which is used for ranking.

    `task` is "benchmark" or "benchmark/member": benchmarks define the same metric differently.
    Raises ValueError for an unknown metric and for predictions that don't match the references.
    """
    kind, rows = _rows(task, metric, predictions, references)
    figures: dict[str, Any] = _means(rows)
    value = kind.value(figures)
    if kind.combined:
        figures[kind.combined] = value
    if _benchmark(task) == "scrolls":
        figures["num_predicted"] = len(rows)
        # The leaderboard lists quality_hard, but only quality counts for the score.
        figures["scrolls_score"] = None if task.endswith("/quality_hard") else value
    figures["value"] = value
    return {
        name: round(figure, kind.digits) if isinstance(figure, float) else figure
        for name, figure in figures.items()
    }


def each(
    task: str, metric: str, predictions: Sequence[Any], references: Sequence[Sequence[Any]]
) -> list[float]:
    """One number per row, not rounded, for intervals and paired tests; their mean is `value`.

    Usually this is the row's score. A geometric mean of means has no such scores; there it is the
    row's first-order contribution to the value (delta method), which can be above 100."""
    kind, rows = _rows(task, metric, predictions, references)
    if kind.share:
        figures = _means(rows)
        return [kind.share(row, figures) for row in rows]
    return [kind.value(row) for row in rows]


def _means(rows: Sequence[Figures]) -> Figures:
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def version(task: str, metric: str) -> int:
    """The version of a metric's definition here. ValueError if there is no such metric."""
    return _metric(task, metric).version


def needs(task: str, metric: str) -> Mapping[str, str]:
    """The further columns that a metric reads, in addition to predictions and answers: see
    `Metric`. ValueError for an unknown metric."""
    return _metric(task, metric).needs


def takes_empty(task: str, metric: str) -> bool:
    """Whether a row may have no right answer. ValueError for an unknown metric."""
    return _metric(task, metric).takes_empty


def missing_package(task: str, metric: str) -> str:
    """One line with a metric's missing package and how to install it; "" if none is missing."""
    kind = _metric(task, metric)
    if not kind.package or importlib.util.find_spec(kind.package):
        return ""
    return (
        f"metric {metric} needs the package {kind.package}: pip install "
        f"'longctx-bench[{kind.extra}]', in a checkout: pip install -e '.[{kind.extra}]'"
    )


def _metric(task: str, name: str) -> Metric:
    names = (f"{task}/{name}", f"{_benchmark(task)}/{name}", name)
    metric = next((METRICS[one] for one in names if one in METRICS), None)
    if metric is None:
        raise ValueError(f"unknown metric '{name}'. Known: {', '.join(sorted(METRICS))}")
    return metric


def _rows(
    task: str, metric: str, predictions: Sequence[Any], references: Sequence[Sequence[Any]]
) -> tuple[Metric, list[Figures]]:
    kind = _metric(task, metric)
    if missing := missing_package(task, metric):
        raise ValueError(missing)
    if len(predictions) != len(references) or not predictions:
        raise ValueError(
            f"{metric} needs one prediction per row, and at least one row: "
            f"{len(predictions)} predictions, {len(references)} rows"
        )
    for at, right in enumerate(references):
        if isinstance(right, str) or not (len(right) or kind.takes_empty):
            raise ValueError(f"row {at}: references {right!r}, expected a list of one or more")
    return kind, [kind.row(*pair) for pair in zip(predictions, references, strict=True)]


def _benchmark(task: str) -> str:
    return task.partition("/")[0]


def _figure(name: str, score: Callable[[Any, Sequence[Any]], float]) -> Metric:
    """A metric with one figure in 0…100."""
    return Metric(
        1,
        lambda text, references: {name: 100 * score(text, references)},
        lambda row: row[name],
        needs=NEEDS.get(name, {}),
    )


def _rounded(name: str, score: Callable[[Any, Sequence[Any]], float]) -> Metric:
    """`_figure` rounded to two decimals, as printed by RULER."""
    return replace(_figure(name, score), digits=2)


def _chinese(name: str, score: Callable[[Any, Sequence[Any]], float]) -> Metric:
    return replace(_figure(name, score), package=chinese.PACKAGE, extra="chinese")


def _geo_rouge(prediction: str, references: Sequence[str]) -> Figures:
    scores = rouge.scrolls(prediction, references)
    return {f"rouge/{kind}": score for kind, score in scores.items()}


def _geometric_mean(figures: Mapping[str, float]) -> float:
    return math.prod(figures[f"rouge/{kind}"] for kind in rouge.TYPES) ** (1 / 3)


def _geometric_share(row: Figures, means: Mapping[str, float]) -> float:
    value = _geometric_mean(means)
    return value and value * math.fsum(row[name] / means[name] for name in row) / len(row)


def _squad(prediction: str, references: Sequence[str]) -> Figures:
    match, f1 = text.exact_match(prediction, references), text.f1(prediction, references)
    return {"exact_match": 100 * match, "f1": 100 * f1}


def _eli5(prediction: str, references: Sequence[str]) -> Figures:
    """The official code uses one reference, and fails on a prediction without words; here it scores
    0."""
    scores = rouge.package_stemmed(prediction, references[0])
    return {f"{kind}/{part}": scores[kind][part] for kind in scores for part in "rpf"}


def _kilt(prediction: str, references: Sequence[str]) -> Figures:
    answers = [answer for answer in references if answer.strip()]
    if not answers:
        raise ValueError(f"no answer but blanks among {list(references)}")
    return {
        "accuracy": text.strict_match(prediction, answers),
        "em": text.exact_match(prediction, answers),
        "f1": text.f1(prediction, answers),
        "rougel": max(rouge.package(prediction, answer)["rouge-l"]["f"] for answer in answers),
    }


NEEDS = {
    "classification": {"labels": "all_classes"},
    "label_match": {"question": "question", "labels": "labels"},
    "similarity": {"labels": "random_string_to_prepend"},
}
"""Metric → `Metric.needs`; the others read predictions and answers only."""

# "benchmark/metric" has precedence over "metric": the benchmark's own definition, and "benchmark/
# member/metric" over both.
METRICS: dict[str, Metric] = {
    "f1": _figure("f1", text.f1),
    "zero_scrolls/f1": _figure("f1", text.f1_ascii),
    "exact_match": _figure("exact_match", text.exact_match),
    "rouge_geo_mean": Metric(
        1, _geo_rouge, _geometric_mean, "rouge/geometric_mean", _geometric_share
    ),
    "zero_scrolls/accuracy": _figure("accuracy", text.letter),
    "exp_similarity": _figure("exp_similarity", text.exp_similarity),
    "concordance_index": _figure("concordance_index", text.concordance_index),
    "last_number_match": _figure("accuracy", text.last_number_match),
    "topic_containment": _figure("topic_containment", text.contains),
    "topic_containment_auto_eval": _figure("topic_containment_auto_eval", text.contains_auto_eval),
    "rouge_stemmed": Metric(1, rouge.stemmed, lambda figures: figures["rougeLsum"]),
    "squad_em_f1": Metric(1, _squad, lambda figures: figures["f1"]),
    # The official evaluators of these three print figures in 0…1.
    "rouge_pkg_stemmed": Metric(1, _eli5, lambda figures: 100 * figures["rouge-l/f"], digits=6),
    "rougel_f1": Metric(1, _kilt, lambda figures: 100 * figures["rougel"], digits=6),
    "accuracy": Metric(
        1,
        lambda value, references: {"accuracy": text.class_match(value, references)},
        lambda figures: 100 * figures["accuracy"],
        digits=6,
    ),
    **{
        name: _rounded(name, getattr(retrieval, name))
        for name in ("string_match_all", "string_match_part", "words_match_all")
    },
    **{
        name: _figure(name, getattr(retrieval, name))
        for name in (
            "label_match",
            "count",
            "retrieval",
            "classification",
            "edit_similarity",
            "choice",
            "first_int",
            "word_in",
            "similarity",
        )
    },
    "nats_per_token": Metric(
        1, likelihood.figures, lambda row: row["nats_per_token"], digits=6, takes_empty=True
    ),
    "set_f1": replace(_figure("set_f1", retrieval.set_f1), takes_empty=True),
    "longbench/qa_f1": _figure("qa_f1", text.f1),
    "longbench/rouge": _figure("rouge", rouge.longbench),
    "longbench/qa_f1_zh": _chinese("qa_f1_zh", chinese.qa_f1),
    "longbench/rouge_zh": _chinese("rouge_zh", chinese.rouge_l),
    **{
        f"longbench/{member}/{name}": _figure(name, retrieval.of_first_line(score))
        for member, name, score in (
            ("trec", "classification", retrieval.classification),
            ("lsht", "classification", retrieval.classification),
            ("triviaqa", "qa_f1", text.f1),
            ("samsum", "rouge", rouge.longbench),
        )
    },
}
