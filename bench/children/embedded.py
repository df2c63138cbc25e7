"""Train and score the embedded models again, all or those named: `make embedded`.

Each is made in a folder of its own and moved into OUT when it is trained and scored, so that what
lies there stays whole until then; what is there already isn't made again. A recipe that starts
from another's weights takes those in OUT, or else the shipped ones.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from bench import plugins
from bench.children import recipes
from bench.errors import RequestError, unknown

MADE_BY = ("bench.children.train_pairs:main", "bench.children.check_pairs:main")
"""What trains and what scores, where a recipe doesn't say."""


def main(*words: str) -> None:
    asked = _parser().parse_args(words)
    named = recipes.available()
    for name in asked.names:
        if name not in named:
            raise unknown("recipe", name, named)
    for name in in_order(asked.names or named):
        make(recipes.path(name), asked.out, asked.share, asked.force)


def in_order(names: list[str]) -> list[str]:
    """Recipes that others start from come first."""
    return sorted(names, key=lambda name: ("start" in recipes.read(recipes.path(name)), name))


def make(path: str, out: Path, share: float, force: bool) -> None:
    """Train, score and place one recipe's model. Raises RequestError where another share of it
    lies in its place."""
    recipe = recipes.read(path)
    place = out / Path(recipe.out).name
    if (place / "card.yaml").exists() and not force:
        _say_it_is_there(place, share)
        return
    words = [f"share={share}", f"out={out / 'unfinished' / f'{place.name}-{share:g}'}"]
    if "start" in recipe and (own := out / Path(recipe.start).name / "card.yaml").exists():
        words.append(f"start={own.parent}")
    made = Path(recipes.read(path, words).out)
    train, score = (plugins.load(target) for target in recipe.get("made_by", MADE_BY))
    print(f"{place}: {path}", flush=True)
    if not (made / "card.yaml").exists():
        train(path, *words)
    score(path, *words)
    place.mkdir(parents=True, exist_ok=True)
    for file in sorted(made.iterdir(), key=lambda file: file.name == "card.yaml"):
        os.replace(file, place / file.name)
    made.rmdir()
    if not any(made.parent.iterdir()):
        made.parent.rmdir()


def _say_it_is_there(place: Path, share: float) -> None:
    card: Any = OmegaConf.load(place / "card.yaml")
    if (had := card.get("share", 1)) != share:
        raise RequestError(
            f"{place} was made with share {had:g}, not {share:g}: name another OUT, "
            "or give FORCE=1 to make it again"
        )
    print(f"{place}: there already, trained for {card.minutes} minutes; FORCE=1 makes it again")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make embedded", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="recipes of conf/embedded; none: all")
    parser.add_argument("--out", type=Path, default=Path("results/embedded"))
    parser.add_argument("--share", type=float, default=1.0, help="of the minutes and of the rows")
    parser.add_argument("--force", action="store_true", help="make what is there again")
    return parser


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
