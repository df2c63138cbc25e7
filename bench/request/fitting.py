"""Which named models can answer a task, by kinds of answers (tasks.base.ANSWERS), and the scores of
the embedded models on tasks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.models import auto
from bench.request import plugins


def models_for(answers: str, task: str = "") -> list[str]:
    """The names of conf/model that give such answers, or whose stand-in on this task does; without
    those that aren't known before their weights are fetched."""
    confs = _models(tuple(plugins.available("model").values()))
    kinds = {name: _answers_of(conf) for name, conf in confs.items()}
    stand_ins = {name: (conf.get("by_task") or {}).get(task, name) for name, conf in confs.items()}
    return [name for name in confs if answers in kinds.get(stand_ins[name], ())]


@functools.cache
def _models(paths: tuple[Path, ...]) -> Mapping[str, Mapping[str, Any]]:
    """The usable ones of these files; a listing asks for every task."""
    return plugins.usable("model")


def _answers_of(model: Mapping[str, Any]) -> Collection[str]:
    config = model.get("config")
    return _kinds(model["family"], str(model["path"]), (config or {}).get("model_type"))


@functools.cache
def _kinds(family: str, path: str, model_type: str | None) -> Collection[str]:
    """A checkpoint's trained heads count where it is a folder here."""
    folder = plugins.ROOT / Path(path).expanduser()
    try:
        target = auto.resolve(family, folder, {"model_type": model_type} if model_type else None)
        if target in (auto.BERT, auto.ROBERTA) and model_type is None and not folder.is_dir():
            return ()
        is_trained = model_type is None and folder.is_dir()
        return tuple(auto.answers_with(target, folder if is_trained else None))
    except ValueError:
        return ()


# Scores of vanilla with embedded weights, from the field `tasks` of their cards. No torch.
#
# tools.embedded.survey writes them: for each task that was tried, the `tokens` of its rows, the
# metric's value with its `interval`, the number of `rows`, and `chance`, the score of the best
# constant answer.

CARD = "card.yaml"
FIELD = "tasks"


class Reads(StrEnum):
    """Whether vanilla's score with embedded weights lies above that of one constant answer."""

    ABOVE = "above"
    AT_CHANCE = "at chance"
    NOT_TRIED = "not tried"


def reads(task: str) -> tuple[Reads, str | None]:
    """How well embedded weights read a task, and the model that it was found with: one that is
    above chance, else one that was tried."""
    tried = {
        name: above(score)
        for name, folder in _embedded_models(tuple(plugins.available("model").values()))
        if (score := scores(folder).get(task)) is not None
    }
    if not tried:
        return Reads.NOT_TRIED, None
    best = max(tried, key=lambda name: tried[name])
    return (Reads.ABOVE if tried[best] else Reads.AT_CHANCE), best


def above(score: Mapping[str, Any]) -> bool:
    """Whether the lower end of a score's interval lies above chance. Not where either isn't
    known."""
    low, chance = (score.get("interval") or [None])[0], score.get("chance")
    return low is not None and chance is not None and low > chance


@functools.cache
def scores(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """By task; empty for a model whose card has none."""
    import yaml

    try:
        card = yaml.safe_load((folder / CARD).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    found = card.get(FIELD) if isinstance(card, dict) else None
    return found if isinstance(found, dict) else {}


@functools.cache
def _embedded_models(paths: tuple[Path, ...]) -> tuple[tuple[str, Path], ...]:
    """Names and folders of the models of these files that are embedded."""
    return tuple(
        (name, plugins.ROOT / str(conf["path"]))
        for name, conf in plugins.usable("model").items()
        if conf.get("weights") == "embedded"
    )
