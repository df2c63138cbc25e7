"""Tasks of lm-evaluation-harness (the package lm_eval) that ask for a generated answer, with its
prompts, stop strings, filters and metrics: task=lm_eval:NAME.

Its own tasks are read with data=hub, from the local cache that `bench fetch lm_eval:NAME` fills;
data.dir=FOLDER adds a folder of YAMLs, like its option --include_path.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import Data, DataError, Loaded, NoEmbeddedRows, Row
from tasks.loading import lm_eval_package as package
from tasks.loading.lm_eval_package import Origin
from tasks.loading.prompts import Prompt
from tasks.loading.reader import Reader

BY_LENGTH = "by length"
"""The metric of tasks whose metrics are named after the length of the input, as RULER's are."""
PROBE = (0.0, 1.0, 1.0, 0.5)
WHICH = "which of its tasks? task=lm_eval:NAME; `bench lm_eval ls tasks` lists them"


class Answers(tuple[str, ...]):
    """The right answers of a row, with the document that lm_eval's metrics read and the stop
    strings that end a prediction."""

    document: Mapping[str, Any]
    origin: Origin | None
    until: tuple[str, ...]

    def __new__(
        cls,
        answers: Iterable[str],
        document: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
        until: Sequence[str] = (),
    ) -> Answers:
        made = super().__new__(cls, answers)
        made.document, made.origin, made.until = document or {}, origin, tuple(until)
        return made


@dataclass(frozen=True)
class LmEval(Reader):
    """One task of lm_eval, its `member`.

    metric          a metric of the task that is a mean over its documents; "": the first one
    filter          the filter of the task that reads the answer; "": the first one
    scale           factor that brings a document's score to 0…100
    max_new_tokens  0: the task's own limit
    num_fewshot     examples before each question; None: the task's own number
    include_path    a folder of YAMLs, the request's data.dir
    tokenizer       the tokenizer for which the task generates its rows, if it does: the request's
                    model
    """

    filter: str = ""
    scale: float = 100.0
    num_fewshot: int | None = None
    include_path: str | None = None
    tokenizer: str | None = None
    default_split: str = "test"

    has_embedded: ClassVar = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            config = package.config_of(self.member, self.include_path) if self.member else {}
        except DataError:  # reported when the rows are loaded
            return
        if not self.max_new_tokens:
            limit = package.new_tokens(config.get("generation_kwargs") or {})
            object.__setattr__(self, "max_new_tokens", limit)
        if config and not self.stop and "class" not in config:
            object.__setattr__(self, "stop", tuple(package.until(config)))
        listed = {_name(one["metric"]): one for one in config.get("metric_list") or ()}
        if not self.metric:
            by_length = bool(listed) and all(name.isdigit() for name in listed)
            first = next(iter(listed), "exact_match")
            object.__setattr__(self, "metric", BY_LENGTH if by_length else first)
        upwards = listed.get(self.metric, {}).get("higher_is_better", self.higher_is_better)
        object.__setattr__(self, "higher_is_better", bool(upwards))

    # --- rows -----------------------------------------------------------------------------------

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        self._check_data(data, n)
        origin = self._origin(length)
        task = package.load(origin)
        split = task.config.test_split or task.config.validation_split
        if data.split not in (None, split):
            raise DataError(f"{self.name} has no split '{data.split}'; lm_eval scores {split}")
        self._aggregation(task, self._key(length))
        requests = package.requests(task, n)
        rows = [self._row(at, one, task, origin) for at, one in enumerate(requests)]
        digest = package.as_json(package.digest_of(task, rows[0].document))
        sha256 = hashlib.sha256(digest.encode()).hexdigest()
        return Loaded(rows, split, sha256, len(task.eval_docs))

    def _check_data(self, data: Data, n: int | None) -> None:
        if not self.member:
            error = NoEmbeddedRows if data.source == "embedded" else DataError
            raise error(f"task={self.name}: {WHICH}")
        if data.source == "embedded":
            raise NoEmbeddedRows(
                f"{self.name} has no embedded rows: use data=hub, or data.dir=FOLDER for YAMLs of "
                "your own"
            )
        if n is not None and n < 1:
            raise DataError(f"n={n}; expected 1 or more")
        given, own = data.dir, self.include_path
        if given and Path(given).resolve() != Path(own or "").expanduser().resolve():
            raise DataError(f"{self.name}: data.dir={given}, task.include_path={own}: one folder")

    def _origin(self, length: int) -> Origin:
        folder = str(Path(self.include_path).expanduser().resolve()) if self.include_path else None
        if "custom_dataset" not in package.config_of(self.member, folder):
            return Origin(self.member, folder, self.num_fewshot)
        return Origin(self.member, folder, self.num_fewshot, self.tokenizer, length)

    def _row(self, at: int, instance: Any, task: Any, origin: Origin) -> Row:
        prompt, options = instance.args
        until = package.until({"generation_kwargs": options})
        answers = Answers(_answers(task, instance.doc), instance.doc, origin, until)
        prefix = task.doc_to_prefix(instance.doc) or ""
        document = prompt.removesuffix(prefix)
        ending = prompt[len(document) :]
        return Prompt(f"{at:05d}", "", document, answers, ending=ending, begins_answer=True)

    def fetch(self, progress: Callable[[str], None] = print, split: str | None = None) -> Path:
        """Downloads the task's data into the cache of `datasets`, and returns its folder."""
        from datasets import config

        progress(f"{self.name}: fetching what lm_eval asks for")
        package.load(self._origin(self.length), online=True)
        return Path(config.HF_DATASETS_CACHE)

    @property
    def cut(self) -> str:
        return "start"

    # --- scores ---------------------------------------------------------------------------------

    @property
    def metric_version(self) -> int:
        """The metrics are the package's: 4013 for its version 0.4.13."""
        major, minor, micro = package.version() or (0, 0, 1)
        return (major * 1000 + minor) * 1000 + micro

    @property
    def missing_package(self) -> str:
        return package.missing() or ("" if self.member else f"scores: {WHICH}")

    def perfect(self, row: Row) -> str:
        """All right answers: some metrics require one of them, others all."""
        together = " ".join(row.references)
        candidates = [*row.references, together]
        scores = [self.score_each([one], [row.references])[0] for one in candidates]
        return candidates[scores.index(max(scores))]

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, Any]:
        """lm_eval's figures under its names, `METRIC,FILTER`, and `value`."""
        task, values = self._scored(predictions, references)
        figures: dict[str, Any] = {}
        for (metric, reader), each in values.items():
            if _mean(task, metric):
                figures[f"{metric},{reader}"] = task.aggregation().get(metric, _average)(each)
        chosen = self._chosen(values, references)
        return {**figures, "value": self.scale * _average(chosen)}

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        _, values = self._scored(predictions, references)
        return [self.scale * value for value in self._chosen(values, references)]

    def _scored(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> tuple[Any, dict[tuple[str, str], list[Any]]]:
        """The task, and the scores by document for each metric of each filter."""
        from lm_eval.api.instance import Instance

        first = references[0] if references else None
        if not isinstance(first, Answers) or first.origin is None:
            raise ValueError(f"{self.name}: its metrics need the rows that lm_eval loads")
        task = package.load(first.origin)
        rows = [one for one in references if isinstance(one, Answers)]
        instances = [
            Instance("generate_until", row.document, ("", {}), 0, resps=[_ended(text, row.until)])
            for text, row in zip(predictions, rows, strict=True)
        ]
        task._instances = instances
        values: dict[tuple[str, str], list[Any]] = {}
        with package.quiet():
            task.apply_filters()
            for reader in instances[0].filtered_resps:
                for one in instances:
                    result = task.process_results(one.doc, [one.filtered_resps[reader]])
                    for metric, value in result.items():
                        values.setdefault((metric, reader), []).append(value)
        return task, values

    def _chosen(
        self, values: Mapping[tuple[str, str], Sequence[Any]], references: Sequence[Any]
    ) -> list[float]:
        """The values of the metric and filter that count, one for each document."""
        readers = list(dict.fromkeys(reader for _, reader in values))
        reader, metric = self.filter or readers[0], self._key(references[0].origin.length)
        if (metric, reader) not in values:
            known = ", ".join(f"task.metric={m} task.filter={r}" for m, r in values)
            raise ValueError(f"it has no metric {metric} of filter {reader}; accepted: {known}")
        chosen = [float(value) for value in values[metric, reader]]
        if len(chosen) != len(references):
            raise ValueError(f"{metric} has {len(chosen)} values for {len(references)} documents")
        most = 100 / self.scale
        if wrong := next((value for value in chosen if not 0 <= value <= most), None):
            raise ValueError(
                f"{metric} gives {wrong:g}, and task.scale={self.scale:g} is for 0 to {most:g}"
            )
        return chosen

    def _key(self, length: int) -> str:
        return str(length) if self.metric == BY_LENGTH else self.metric

    def _aggregation(self, task: Any, metric: str) -> None:
        """Raises DataError for a metric that the task doesn't have, or that isn't a mean."""
        known = list(task.aggregation())
        if metric not in known and self.metric != BY_LENGTH:
            raise DataError(
                f"{self.name} has no metric '{metric}'; accepted: task.metric={', '.join(known)}"
            )
        if not _mean(task, metric):
            means = [name for name in known if _mean(task, name)]
            raise DataError(
                f"{self.name}: {metric} is no mean over documents, which intervals and paired "
                f"tests need; accepted: task.metric={', '.join(means) or 'none'}"
            )


def _name(metric: Any) -> str:
    """The name of a YAML's metric; for a function /FILE.NAME, its name."""
    name = str(metric)
    return name.rpartition(".")[2] if "/" in name else name


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mean(task: Any, metric: str) -> bool:
    """Whether a metric's aggregation is the mean, which is also lm_eval's default. Others take
    pairs or texts, or give another number."""
    aggregate = task.aggregation().get(metric, _average)
    try:
        return abs(float(aggregate(list(PROBE))) - _average(PROBE)) < 1e-9
    except Exception:  # it may raise any exception on plain numbers
        return False


def _ended(text: str, until: Sequence[str]) -> str:
    """A prediction up to the first stop string."""
    for stop in filter(None, until):
        text = text.split(stop)[0]
    return text


def _answers(task: Any, document: Mapping[str, Any]) -> list[str]:
    """The right answers of a document as text; "(none)" for a document without any."""
    target = task.doc_to_target(document)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(document)[target]
    found = target if isinstance(target, list) else [target]
    return [str(one) for one in found if str(one).strip()] or ["(none)"]
