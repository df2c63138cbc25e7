"""ListOps of LRA's length (Nangia and Bowman, 2018, arXiv:1804.06028; Tay et al., 2021,
arXiv:2011.04006): nested operations on digits, whose value is the label.

Grammar, with the official defaults:

    tree  = digit                     with probability 0.75, and at depth 10 always
          | [OP tree … tree ]         OP one of MIN, MAX, MED, SM, each as likely; 2 to 10 trees
    MED   = the median cut to an integer      SM = the sum modulo 10

A digit is uniform in 0…9. The length counts digits, operators and closing brackets; a tree is kept
when 500 < length < 2000, and once only. In a file a tree is printed as the official code does,
left-branching with a parenthesis for each argument: `( ( ( [MIN 5 ) 7 ) ] )`.

    python -m tasks.listops OUT.tsv --rows 2000 --seed 0 --jobs 2

Rows of the official code beside 2,000 of this one, with p of two-sample tests (Kolmogorov-Smirnov;
chi-squared for labels). All trees have depth 10.

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

from tasks.generate import bar, chunks

VERSION = 1
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
TREES = 2048  # drawn together: some 170 of them are kept
STREAMS = ("train", "validation", "test")


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
    """A printed tree without parentheses, `]` as X: what a model reads."""
    return ["X" if token == "]" else token for token in source.split() if token not in "()"]


def evaluate(source: str) -> int:
    """The value of a printed tree. ValueError if it isn't one."""
    open_: list[tuple[str, list[int]]] = [("", [])]
    for token in tokens(source):
        if token.startswith("["):
            open_.append((token, []))
        elif token != "X":
            open_[-1][1].append(int(token))
        elif len(open_) == 1 or not open_[-1][1]:
            raise ValueError("a bracket closes nothing")
        else:
            operator, values = open_.pop()
            open_[-1][1].append(apply(operator, values))
    if len(open_) != 1 or len(open_[0][1]) != 1:
        raise ValueError("brackets don't pair")
    return open_[0][1][0]


def chunk(grammar: Grammar, seed: int, split: str, number: int) -> list[tuple[str, int]]:
    """The accepted trees among a chunk of 2,048, as (source, label). Chunks of other seeds,
    splits and numbers are drawn independently."""
    stream = [VERSION, seed, STREAMS.index(split), number]
    levels = _grow(grammar, np.random.default_rng(stream))
    texts: list[str] = []
    values: list[int] = []
    # From the leaves up: the arguments of a level's operations lie in order on the next level.
    for heads, operands in reversed(levels):
        below, at = (texts, values), 0
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
    """Accepted trees, level by level: of each node its digit or operator, and its number of
    arguments, 0 for a digit. All trees of a chunk grow at once; a tree too long is dropped."""
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
        # What is still to come counts one at least.
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
    """(source, label) without end, none twice."""
    seen = set()
    for source, label in chunks(chunk, (grammar, seed, split), jobs):
        if source not in seen:
            seen.add(source)
            yield source, label


def main() -> None:
    """Write a file in the official layout: columns Source and Target."""
    parser = argparse.ArgumentParser(prog="python -m tasks.listops", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--split", choices=STREAMS, default="test")
    default = Grammar()
    for name, value in zip(Grammar.__dataclass_fields__, astuple(default), strict=True):
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    grammar = Grammar(**{name: given[name] for name in Grammar.__dataclass_fields__})
    made = rows(grammar, given["seed"], given["split"], given["jobs"])
    with given["out"].open("w", newline="") as file:
        file.write("Source\tTarget\r\n")
        for source, label in bar(made, given["rows"], "ListOps"):
            file.write(f"{source}\t{label}\r\n")


if __name__ == "__main__":
    main()
