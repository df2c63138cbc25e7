"""Which named models can answer a task, by kinds of answers (tasks.base.ANSWERS), and whether those
with embedded weights score above chance on it, by the field `tasks` of their cards. No torch.

tools.embedded.survey writes that field: for each tested task, the `tokens` of its rows,
the metric's value with its `interval`, the number of `rows`, and `chance`, the score of the best
constant answer.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.models import auto
from bench.models.stored import read_card
from bench.request import plugins
from tasks.base import ANSWERS

FIELD = "tasks"


def no_answers(model: Mapping[str, Any], task: str) -> RequestError:
    """The error for a model with an `untrained` head for the answers of its task."""
    kind = model["untrained"]
    models = models_for(kind, task)
    named = ", ".join(models[:6]) + (", …" if len(models) > 6 else "")
    return RequestError(
        f"task {task} asks for {ANSWERS[kind]}, and model {model['name']} has no trained "
        "head for that: without task= it gets one that it answers (bench ls tasks lists all), "
        f"measure=speed needs no answer, and these models have one: {named}"
    )


def models_for(answers: str, task: str = "") -> list[str]:
    """The models of conf/model that give such answers, or whose stand-in on this task does; without
    models whose answers aren't known before their weights are fetched."""
    confs = _models(tuple(plugins.available("model").values()))
    names = []
    for name, conf in confs.items():
        used = confs.get((conf.get("by_task") or {}).get(task, name))
        size = (used and used.get("config")) or {}
        if used and answers in _kinds(used["family"], str(used["path"]), size.get("model_type")):
            names.append(name)
    return names


@functools.cache
def _models(paths: tuple[Path, ...]) -> Mapping[str, Mapping[str, Any]]:
    """The usable models of these files; cached, since a listing checks every task."""
    return plugins.usable("model")


@functools.cache
def _kinds(family: str, path: str, model_type: str | None) -> Collection[str]:
    """The kinds of answers; a checkpoint's trained heads count if its folder exists here."""
    folder = plugins.ROOT / Path(path).expanduser()
    try:
        target = auto.resolve(family, folder, {"model_type": model_type} if model_type else None)
        if target in (auto.BERT, auto.ROBERTA) and model_type is None and not folder.is_dir():
            return ()
        is_trained = model_type is None and folder.is_dir()
        return tuple(auto.answers_with(target, folder if is_trained else None))
    except ValueError:
        return ()


class Reads(StrEnum):
    """Whether vanilla's score with embedded weights lies above that of one constant answer."""

    ABOVE = "above"
    AT_CHANCE = "at chance"
    NOT_TRIED = "not tried"


def reads(task: str) -> tuple[Reads, str | None]:
    """Whether embedded weights read a task, and the model that shows it: one that is above chance,
    else one that was tested."""
    tried = {
        name: above(score)
        for name, conf in _models(tuple(plugins.available("model").values())).items()
        if conf.get("weights") == "embedded"
        and (score := scores(plugins.ROOT / str(conf["path"])).get(task)) is not None
    }
    if not tried:
        return Reads.NOT_TRIED, None
    best = max(tried, key=lambda name: tried[name])
    return (Reads.ABOVE if tried[best] else Reads.AT_CHANCE), best


def above(score: Mapping[str, Any]) -> bool:
    """Whether the lower end of a score's interval lies above chance; False if either is unknown."""
    low, chance = (score.get("interval") or [None])[0], score.get("chance")
    return low is not None and chance is not None and low > chance


@functools.cache
def scores(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Scores by task; empty for a model whose card has none."""
    return read_card(folder).get(FIELD, {})
