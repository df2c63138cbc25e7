"""ListOps of LRA's length (Nangia and Bowman, 2018, arXiv:1804.06028; Tay et al., 2021,
arXiv:2011.04006): nested operations on digits; the label is their value.

Grammar, with the official defaults:

    tree  = digit                     with probability 0.75, and always at depth 10
          | [OP tree … tree ]         OP uniform over MIN, MAX, MED, SM; 2 to 10 trees
    MED   = the median, truncated to int      SM = the sum modulo 10

Digits are uniform in 0…9. The length counts digits, operators and closing brackets; a tree is kept
if 500 < length < 2000 and it isn't a duplicate. In files trees are printed as by the official code,
left-branching with a parenthesis for each argument: `( ( ( [MIN 5 ) 7 ) ] )`.

    python -m tasks.generators.listops OUT.tsv --rows 2000 --seed 0 --jobs 2

Rows of the official code compared with 2,000 of this one, with p-values of two-sample tests
(Kolmogorov-Smirnov; chi-squared for labels). All trees have depth 10.

                        500 to 2000          500 to 4000
                        200 rows   p         100 rows   p
    mean length         1006 1033  0.44      1228 1174  0.42
    labels 0 and 9, %   33   34    0.33      34   35    0.17
    [MIN per 100        3.57 3.54  0.92      3.56 3.55  0.88
    [MAX per 100        3.53 3.56  0.55      3.48 3.56  0.16
    [MED per 100        3.55 3.58  0.56      3.63 3.56  0.02
    [SM per 100         3.56 3.57  0.98      3.56 3.56  0.80
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from tasks.generators.parallel import bar, chunks
from tasks.generators.seeds import SPLITS

VERSION = 1
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
TREES = 2048  # sampled together; about 170 of them are kept


@dataclass(frozen=True)
class Grammar:
    """The official parameters; both bounds of the length are exclusive."""

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    value_probability: float = 0.75


def apply(operator: str, values: list[int]) -> int:
    """The value of one operation."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    if operator == "[MED":
        return int(statistics.median(values))
    raise ValueError(f"no operator '{operator}'; known: {', '.join(OPERATORS)}")


def tokens(source: str) -> list[str]:
    """The input of a model: a printed tree without parentheses, and with `]` as X."""
    return ["X" if token == "]" else token for token in source.split() if token not in "()"]


def chunk(grammar: Grammar, seed: int, split: str, number: int) -> list[tuple[str, int]]:
    """The accepted trees of a chunk of 2,048, as (source, label). Chunks of different seeds, splits
    and numbers are independent."""
    stream = [VERSION, seed, SPLITS.index(split), number]
    levels = _grow(grammar, np.random.default_rng(stream))
    texts: list[str] = []
    values: list[int] = []
    # Bottom-up: the arguments of a level's operations are on the next level, in order.
    for heads, operands in reversed(levels):
        below, at = (texts, values), 0  # the next level, and how much of it is used so far
        texts, values = [], []
        for head, size in zip(heads, operands, strict=True):
            if not size:
                texts.append(str(head))
                values.append(head)
                continue
            inner = slice(at, at + size)
            at += size
            arguments = " ) ".join(below[0][inner])
            texts.append(f"{'( ' * (size + 1)}{OPERATORS[head]} {arguments} ) ] )")
            values.append(apply(OPERATORS[head], below[1][inner]))
    return list(zip(texts, values, strict=True))


def _grow(grammar: Grammar, rng: np.random.Generator) -> list[tuple[list[int], list[int]]]:
    """Accepted trees by level: for each node its digit or operator, and its number of arguments, 0
    for a digit. All trees of a chunk grow together; those that become too long are dropped."""
    trees = np.arange(TREES)
    length = np.zeros(TREES, int)
    levels = []
    for depth in range(1, grammar.max_depth + 1):
        operation = rng.random(len(trees)) > grammar.value_probability
        if depth == grammar.max_depth:
            operation[:] = False
        arguments = np.where(operation, rng.integers(2, grammar.max_args + 1, len(trees)), 0)
        head = np.where(
            operation, rng.integers(0, len(OPERATORS), len(trees)), rng.integers(0, 10, len(trees))
        )
        length += np.bincount(trees, 1 + operation, TREES).astype(int)
        levels.append((trees, head, arguments))
        # Each argument has at least length 1.
        least = length + np.bincount(trees, arguments, TREES).astype(int)
        arguments = np.where(least[trees] < grammar.max_length, arguments, 0)
        length[least >= grammar.max_length] = grammar.max_length
        trees = np.repeat(trees, arguments)
        if not len(trees):
            break
    kept = (length > grammar.min_length) & (length < grammar.max_length)
    return [(h[kept[t]].tolist(), a[kept[t]].tolist()) for t, h, a in levels]


def rows(
    grammar: Grammar, seed: int, split: str = "test", jobs: int = 1
) -> Iterator[tuple[str, int]]:
    """Endless (source, label) without duplicates."""
    seen = set()
    for source, label in chunks(chunk, (grammar, seed, split), jobs):
        if source not in seen:
            seen.add(source)
            yield source, label


def main() -> None:
    """Write a file in the official layout, with columns Source and Target."""
    parser = argparse.ArgumentParser(prog="python -m tasks.generators.listops", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--split", choices=SPLITS, default="test")
    default = Grammar()
    for name, value in zip(Grammar.__dataclass_fields__, astuple(default), strict=True):
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args())
    grammar = Grammar(**{name: options[name] for name in Grammar.__dataclass_fields__})
    trees = rows(grammar, options["seed"], options["split"], options["jobs"])
    with options["out"].open("w", newline="") as file:
        file.write("Source\tTarget\r\n")
        for source, label in bar(trees, options["rows"], "ListOps"):
            file.write(f"{source}\t{label}\r\n")


if __name__ == "__main__":
    main()
