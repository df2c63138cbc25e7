"""The recipes of embedded models, conf/embedded/*.yaml, and words that change one: `out=DIR`,
`start=DIR`, `seed=1`; `share=0.02` trains and scores so much of it, for a try."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.errors import RequestError, unknown

FOLDER = "conf/embedded"
CHANGES = ("out", "start", "seed", "share", "processes")
COUNTS = ("stories", "lines")
"""What a check names how many rows under, for each of its sizes."""


def read(path: str, words: Sequence[str] = ()) -> Any:
    """A recipe with words changed. Raises RequestError."""
    if not Path(path).is_file():
        raise RequestError(f"no recipe {path}; there are {', '.join(available())}")
    for word in words:
        name, equals, _ = word.partition("=")
        if not equals:
            raise RequestError(f"'{word}' is no NAME=VALUE")
        if name not in CHANGES:
            raise unknown("word", name, CHANGES)
    try:
        recipe: Any = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist([*words]))
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
    return sorted(found.stem for found in Path(FOLDER).glob("*.yaml"))


def path(name: str) -> str:
    """Where a recipe lies, from the project's folder."""
    return f"{FOLDER}/{name}.yaml"


def run(main: Callable[..., None], words: Sequence[str]) -> None:
    """A command on recipes: 2 is the exit code of a wrong request, 130 that of a stop."""
    try:
        main(*words)
    except RequestError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from what was saved last", file=sys.stderr)
        sys.exit(130)


def card(recipe: Any, path: str, start: Path, seconds: float) -> DictConfig:
    """What a training says of itself, before it is scored."""
    told = {"recipe": path, "start": str(start), "seed": recipe.seed}
    share = {"share": recipe.share} if recipe.get("share", 1) != 1 else {}
    return OmegaConf.create({**told, **share, "minutes": round(seconds / 60)})


def _shrink(recipe: Any, share: float) -> None:
    """So much of every stage's minutes and of every check's rows; of sizes that have none left,
    the first is scored on one."""
    for stage in recipe.stages:
        stage.minutes *= share
    check = recipe.get("check", {})
    for one in (check, *check.get("methods", {}).values()):
        for name in COUNTS:
            if name in one:
                one[name] = _counts(one[name], share)
    if isinstance(check.get("rows"), int):
        check.rows = max(1, int(check.rows * share))


def _counts(counts: Any, share: float) -> dict[int, int]:
    left = {size: int(count * share) for size, count in counts.items()}
    return {size: count for size, count in left.items() if count} or {next(iter(counts)): 1}
