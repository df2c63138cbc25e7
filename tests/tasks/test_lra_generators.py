"""The generators of ListOps and Pathfinder: grammar, labels, layouts, likeness to real rows."""

import gzip
import subprocess
import sys
from itertools import islice, pairwise

import numpy as np
import pytest

from tasks.base import Data
from tasks.generators import listops, pathfinder
from tasks.generators.listops import Grammar
from tasks.generators.pathfinder_draw import HARD, SEEDS, dashes
from tests.conftest import REAL_ROWS, ROOT
from tests.made import task as build

real = pytest.mark.skipif(not REAL_ROWS.is_dir(), reason="no real rows (../shared/data)")


def depth(source: str) -> int:
    open_ = deepest = 0
    for token in listops.tokens(source):
        open_ += token.startswith("[") - (token == "X")
        deepest = max(deepest, open_)
    return deepest + 1


def evaluate(source: str) -> int:
    """The value of a printed tree. Raises ValueError if it isn't one."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    for token in listops.tokens(source):
        if token.startswith("["):
            stack.append((token, []))
        elif token != "X":
            stack[-1][1].append(int(token))
        elif len(stack) == 1 or not stack[-1][1]:
            raise ValueError("a bracket closes nothing")
        else:
            operator, values = stack.pop()
            stack[-1][1].append(listops.apply(operator, values))
    if len(stack) != 1 or len(stack[0][1]) != 1:
        raise ValueError("brackets don't pair")
    return stack[0][1][0]


def test_operations():
    values = [3, 9, 4, 8]
    assert [listops.apply(one, values) for one in listops.OPERATORS] == [3, 9, 6, 4]
    assert evaluate("( ( ( [MIN ( ( ( [SM 9 ) 8 ) ] ) ) 8 ) ] )") == 7
    with pytest.raises(ValueError, match="don't pair"):
        evaluate("( [MIN 3 )")


def test_trees_keep_bounds_and_carry_their_value():
    rows = list(islice(listops.rows(Grammar(), 0), 150))
    assert len({source for source, _ in rows}) == 150
    for source, label in rows:
        assert 500 < len(listops.tokens(source)) < 2000 and depth(source) <= 10
        assert evaluate(source) == label
    assert rows[:9] == list(islice(listops.rows(Grammar(), 0, jobs=1), 9))
    assert rows[0] not in islice(listops.rows(Grammar(), 0, "train"), 150)


def test_listops_command(tmp_path):
    out = tmp_path / "listops-1000" / "basic_test.tsv"
    out.parent.mkdir()
    command = [sys.executable, "-m", "tasks.generators.listops", str(out), "--rows", "12"]
    subprocess.run(command, cwd=ROOT, check=True)
    loaded = build("lra_listops").load(Data("local", tmp_path), None, 2000, 0)
    expected = list(islice(listops.rows(Grammar(), 0), 12))
    assert [(r.document, int(r.references[0])) for r in loaded.rows] == expected


@real
@pytest.mark.parametrize(("name", "longest"), [("basic", 2000), ("len4000", 4000)])
def test_listops_rows_are_like_the_official(name, longest):
    lines = gzip.decompress((REAL_ROWS / "listops_lra" / f"{name}.tsv.gz").read_bytes()).decode()
    official = [line.split("\t") for line in lines.splitlines()[1:]]
    assert all(evaluate(source) == int(label) for source, label in official)
    generated = list(islice(listops.rows(Grammar(max_length=longest), 0), 600))

    def figures(rows):
        tokens = [listops.tokens(source) for source, _ in rows]
        yield [len(one) for one in tokens]
        yield [depth(source) for source, _ in rows]
        yield [int(label) for _, label in rows]
        for operator in listops.OPERATORS:
            yield [one.count(operator) / len(one) for one in tokens]

    for theirs, ours in zip(figures(official), figures(generated), strict=True):
        # Seven tests of fixed rows: one in a thousand is far from chance.
        assert same(theirs, ours) > 1e-3


def same(one, other):
    """p-value of Kolmogorov-Smirnov's two-sample test, by its asymptotic distribution."""
    one, other = np.sort(one), np.sort(other)
    every = np.concatenate([one, other])
    shares = [np.searchsorted(x, every, "right") / len(x) for x in (one, other)]
    root = (len(one) * len(other) / len(every)) ** 0.5
    far = (root + 0.12 + 0.11 / root) * abs(shares[0] - shares[1]).max()
    if far < 0.3:
        return 1.0  # where the series below converges too slowly
    k = np.arange(1, 101)
    return min(1.0, 2 * float(((-1.0) ** (k - 1) * np.exp(-2 * k**2 * far**2)).sum()))


def solve(image: pathfinder.Image) -> int:
    """The label according to the dashes. Raises ValueError if a path is broken or a disc isn't on
    a path."""
    hard = HARD[len(image.pixels)]
    table = dashes(hard.size, image.gap)
    for path in image.paths:
        for (y, x, one), (head_y, head_x, following) in pairwise(path):
            pivot = (y, x) + table.pivot[one] + table.step[one]
            turn = table.angle[following] - table.angle[one]
            turn = abs((turn + np.pi) % (2 * np.pi) - np.pi)
            meets = following >= SEEDS and [*(pivot - table.pivot[following])] == [head_y, head_x]
            if not meets or hard.continuity * turn >= np.pi / 2:
                raise ValueError(f"the path is broken between {y, x} and {head_y, head_x}")
    starts = [path[0][:2] for path in image.paths[:2]]
    ends = [path[-1][:2] for path in image.paths[:2]]
    if image.discs[0] not in starts or image.discs[1] not in ends:
        raise ValueError(f"discs at {image.discs}; expected one at {starts}, one at {ends}")
    return int(starts.index(image.discs[0]) == ends.index(image.discs[1]))


@pytest.mark.parametrize("size", [32, 64])
def test_images_can_be_solved_from_their_paths(size):
    generated = pathfinder.batch(size, 0, "test", 0)
    assert len(generated) == pathfinder.BATCH
    for image in generated:
        assert solve(image) == image.label
        assert image.pixels.shape == (size, size) and image.pixels.max() == 255
        assert [len(path) for path in image.paths[:2]] == [HARD[size].contour] * 2
        for path in image.paths:
            for y, x, _ in path:
                assert 0 <= y < size and 0 <= x < size
                assert image.pixels[y, x] > 0  # what is a path can be seen
        for y, x in image.discs:
            assert image.pixels[y, x] > 100
    again = pathfinder.batch(size, 0, "test", 0)
    assert all((a.pixels == b.pixels).all() for a, b in zip(generated, again, strict=True))


def test_a_path_begins_only_where_the_official_code_finds_room():
    # Its dash has to cover its own first pixel, or pixels on both sides of it.
    known = dashes(32, 1)
    begin = np.flatnonzero(known.begins)
    assert (begin.min(), begin.max(), len(begin)) == (210, 240, 31)
    for image in pathfinder.batch(32, 1, "test", 0):
        assert known.begins[image.paths[0][0][2]]
        assert all(known.begins[path[0][2]] for path in image.paths[2:])


def test_a_dash_has_the_greys_of_the_official_library():
    offsets, values = dashes(32, 1).drawn
    straight = zip(map(tuple, offsets[0].tolist()), values[0].tolist(), strict=True)
    assert dict(straight) == {(0, -2): 2, (0, 0): 102, (0, 1): 135, (0, 2): 116}
