"""The LRA encoders that come with the project: they load, are small, and know their tasks."""

from pathlib import Path

import pytest
import torch
import yaml

from bench.execution import arms
from bench.models.lra import LRAConfig, LRAModel
from bench.request import compose, plugins
from bench.request.cell import Cell
from tasks.generators import pathfinder
from tools.embedded import score, ship

MODELS = sorted(name for name in plugins.available("model") if name.startswith("embedded-lra-"))
FOLDERS = sorted((plugins.ROOT / "bench/models/embedded").glob("lra-*"))


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_encoder_is_above_chance(name, tmp_path):
    conf = plugins.conf("model", name)
    card = yaml.safe_load((plugins.ROOT / conf["path"] / "card.yaml").read_text())
    task = yaml.safe_load((plugins.ROOT / "conf/recipe" / f"{_recipe(card)}.yaml").read_text())
    (about,) = [each["override /task"] for each in task["defaults"] if "override /task" in each]
    words = [f"task={about}", f"model={name}", f"length={card['length']}", "method=vanilla"]
    cell = Cell.of(compose.compose([*words, "n=64", "batch=16", "threads=1"]))
    figures = score.figures(cell, tmp_path)
    assert figures["accuracy"] > figures["chance"] + 10
    assert abs(figures["accuracy"] - card["test"]["accuracy"]) < 20
    assert all(0 < share <= 1 for share in ship.even_shares(cell))


def _recipe(card):
    words = dict(word.split("=", 1) for word in card["recipe"].split())
    return words["recipe"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_weights_are_small_and_have_a_card(folder: Path):
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1 << 20
    card = yaml.safe_load((folder / "card.yaml").read_text())
    assert {"recipe", "data", "seed", "length", "steps", "wall_minutes", "test"} <= set(card)
    assert card["training"]["steps"] == card["steps"]
    assert card["training"]["hours"] == pytest.approx(card["wall_minutes"] / 60, abs=1e-3)
    assert card["test"]["rows"] >= 256


def test_tables_of_a_picture_begin_alike_where_they_are_near():
    model = LRAModel(LRAConfig(vocab_size=256, max_position_embeddings=64, picture=True))
    for table, near, far in ((model.positions, 8, 60), (model.tokens, 1, 200)):
        weight = table.weight.detach()
        assert (weight[0] - weight[near]).norm() < (weight[0] - weight[far]).norm()
    with pytest.raises(ValueError, match="60 positions are no square"):
        LRAConfig(max_position_embeddings=60, picture=True)


def test_the_pathfinder_encoder_sees_more_than_how_far_the_discs_are_apart():
    """At each distance as many rows of either label: it alone tells half of them."""
    name = "embedded-lra-pathfinder"
    words = f"task=lra_pathfinder_easy model={name} length=256 method=vanilla n=800".split()
    cell = Cell.of(compose.compose(words))
    family, task, rows = arms.load(cell, arms.method_of(cell)), cell.build_task(), cell.rows().rows
    made = pathfinder.images(32, cell.seed, "test", contour=task.contour, short=task.distractors)
    bins: dict[int, tuple[list[bool], list[bool]]] = {}
    for group in arms.batches(list(zip(rows, made, strict=False)), 32):
        coded = [task.encode(row, None, 256) for row, _ in group]
        answers = family.generate(*arms.collate(coded, "cpu"), 0)
        for (row, image), answer in zip(group, answers, strict=True):
            assert row.references == (str(image.label),)
            (y, x), (v, u) = image.discs
            of_label = bins.setdefault((y - v) ** 2 + (x - u) ** 2, ([], []))[image.label]
            of_label.append(answer == str(image.label))
    kept = [right for pair in bins.values() for both in zip(*pair, strict=False) for right in both]
    assert len(kept) > 150 and sum(kept) / len(kept) > 0.7


def test_a_token_may_begin_by_reading_those_like_it():
    model = LRAModel(LRAConfig(vocab_size=256, max_position_embeddings=64, picture=True, near=3.0))
    block, places = model.layers[0], model.positions.weight.detach()
    with torch.no_grad():
        hidden = block.norm1(model.tokens.weight[:1] + places)  # a black image
        scores = block.query(hidden) @ block.key(hidden).T
    assert (scores[27, 28] > scores[27, 0]) and (scores[27, 35] > scores[27, 63])
    assert (block.key.weight == block.query.weight).all()
