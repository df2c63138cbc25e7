"""Train and score the embedded models again, all or those named: `make embedded`.

Each is made in a separate folder and moved to OUT once it is trained and scored; a model that is
in OUT is not made again. A recipe that starts from another model's weights takes those in OUT, or
else the shipped ones.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from bench.errors import RequestError, unknown
from bench.files import check_own
from tools.embedded import recipe as recipes
from tools.embedded import score, train


def main(*arguments: str) -> None:
    options = _parser().parse_args(arguments)
    available = recipes.available()
    for name in options.names:
        if name not in available:
            raise unknown("recipe", name, available)
    # Recipes come first if others start from them.
    parts = {name: recipes.read(recipes.path(name)) for name in options.names or available}
    for name in sorted(parts, key=lambda name: ("start" in parts[name], name)):
        make(recipes.path(name), parts[name], options)


def make(path: str, recipe: Any, options: argparse.Namespace) -> None:
    """Train, score and move one recipe's model. Raises RequestError if OUT has it with another
    share."""
    out, share = options.out, options.share
    target = out / Path(recipe.out).name
    if (target / "card.yaml").exists() and not options.force:
        card: Any = OmegaConf.load(target / "card.yaml")
        if (other := card.get("share", 1)) != share:
            raise RequestError(
                f"{target} was made with share {other:g}, not {share:g}: name another OUT, "
                "or give FORCE=1 to make it again"
            )
        print(f"{target} exists, trained for {card.minutes} minutes; FORCE=1 makes it again")
        return
    unfinished = out / "unfinished" / f"{target.name}-{share:g}"
    overrides = [f"share={share}", f"out={unfinished}"]
    if "start" in recipe and (own := out / Path(recipe.start).name / "card.yaml").exists():
        overrides.append(f"start={own.parent}")
    print(f"{target}: {path}", flush=True)
    if not any((folder / "card.yaml").exists() for folder in (target, unfinished)):
        check_own(target)
    if not (unfinished / "card.yaml").exists():
        train.main(path, *overrides)
    score.main(path, *overrides)
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(unfinished.iterdir(), key=lambda file: file.name == "card.yaml"):
        os.replace(file, target / file.name)
    unfinished.rmdir()
    if not any(unfinished.parent.iterdir()):
        unfinished.parent.rmdir()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make embedded", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="recipes of tools/embedded/recipes; none: all")
    parser.add_argument("--out", type=Path, default=Path("results/embedded"))
    parser.add_argument("--share", type=float, default=1.0, help="of the minutes and of the rows")
    parser.add_argument("--force", action="store_true", help="make existing models again")
    return parser


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
