"""The recipes of embedded models, tools/embedded/recipes/*.yaml, and the values that a command may
change: `out=DIR`, `start=DIR`, `seed=1`, `processes=1`; `share=0.02` trains and scores only this
share, as a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.errors import RequestError, unknown

FOLDER = "tools/embedded/recipes"
CHANGES = ("out", "start", "seed", "share", "processes")


def read(path: str, overrides: Sequence[str] = ()) -> Any:
    """A recipe with overrides NAME=VALUE. Raises RequestError."""
    if not Path(path).is_file():
        raise RequestError(f"no recipe {path}; there are {', '.join(available())}")
    for override in overrides:
        name, equals, _ = override.partition("=")
        if not equals:
            raise RequestError(f"'{override}' is not NAME=VALUE")
        if name not in CHANGES:
            raise unknown("name", name, CHANGES)
    try:
        recipe: Any = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist([*overrides]))
    except OmegaConfBaseException as error:
        raise RequestError(str(error).splitlines()[0]) from error
    share = recipe.get("share", 1)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise RequestError(f"share is {share}; accepted: more than 0, at most 1")
    if share < 1:
        _shrink(recipe, share)
    return recipe


def available() -> list[str]:
    """The names of all recipes."""
    return sorted(file.stem for file in Path(FOLDER).glob("*.yaml"))


def path(name: str) -> str:
    """A recipe's file, relative to the project's folder."""
    return f"{FOLDER}/{name}.yaml"


def run(main: Callable[..., None], arguments: Sequence[str]) -> None:
    """Run a command; exit code 2 for a wrong request, 130 when interrupted."""
    try:
        main(*arguments)
    except RequestError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command resumes from the last save", file=sys.stderr)
        sys.exit(130)


def card(recipe: Any, path: str, start: Path, seconds: float) -> DictConfig:
    """The card of a training, before it is scored. `training` has the form of a row's
    (bench.request.weights); its steps aren't counted."""
    share = {"share": recipe.share} if recipe.get("share", 1) != 1 else {}
    source = {"recipe": path, "start": str(start), "seed": recipe.seed}
    training = {
        "from": "first weights built by the recipe" if "new" in recipe else start.name,
        "steps": None,
        "hours": round(seconds / 3600, 2),
        "supervision": recipe.get("supervision"),
    }
    minutes = {"minutes": round(seconds / 60)}
    return OmegaConf.create({**source, **share, **minutes, "training": training})


def _shrink(recipe: Any, share: float) -> None:
    """Keep this share of every stage's minutes and of every check's rows; if no size has a row
    left, one row of the first size."""
    for stage in recipe.stages:
        stage.minutes *= share
    for check in recipe.get("check", []):
        rows = {size: int(count * share) for size, count in check.rows.items()}
        check.rows = {size: n for size, n in rows.items() if n} or {next(iter(check.rows)): 1}
