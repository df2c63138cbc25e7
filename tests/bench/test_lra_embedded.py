"""The LRA encoders that come with the project: they load, are small, and know their tasks."""

from pathlib import Path

import pytest
import torch
import yaml

from bench import config, plugins
from bench.cell import Cell
from bench.children import ship
from bench.models.lra import LRAConfig, LRAModel

MODELS = sorted(name for name in plugins.available("model") if name.startswith("embedded-lra-"))
FOLDERS = sorted((plugins.ROOT / "bench/models/embedded").glob("lra-*"))


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_encoder_is_above_chance(name):
    conf = plugins.conf("model", name)
    card = yaml.safe_load((plugins.ROOT / conf["path"] / "card.yaml").read_text())
    task = yaml.safe_load((plugins.ROOT / "conf/recipe" / f"{_recipe(card)}.yaml").read_text())
    (about,) = [each["override /task"] for each in task["defaults"] if "override /task" in each]
    words = [f"task={about}", f"model={name}", f"length={card['length']}", "method=vanilla"]
    cell = Cell.of(config.compose([*words, "n=64", "batch=16"]))
    told = ship.score(cell)
    assert told["accuracy"] > told["chance"] + 10
    assert abs(told["accuracy"] - card["test"]["accuracy"]) < 20
    assert all(0 < share <= 1 for share in ship.entropies(cell))


def _recipe(card):
    words = dict(word.split("=", 1) for word in card["recipe"].split())
    return words["recipe"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_weights_are_small_and_have_a_card(folder: Path):
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1 << 20
    card = yaml.safe_load((folder / "card.yaml").read_text())
    assert {"recipe", "data", "seed", "length", "steps", "wall_minutes", "test"} <= set(card)
    assert card["test"]["rows"] >= 256


def test_tables_of_a_picture_begin_alike_where_they_are_near():
    model = LRAModel(LRAConfig(vocab_size=256, max_position_embeddings=64, picture=True))
    for table, near, far in ((model.positions, 8, 60), (model.tokens, 1, 200)):
        weight = table.weight.detach()
        assert (weight[0] - weight[near]).norm() < (weight[0] - weight[far]).norm()
    with pytest.raises(ValueError, match="60 positions are no square"):
        LRAConfig(max_position_embeddings=60, picture=True)


def test_a_token_may_begin_by_reading_those_like_it():
    model = LRAModel(LRAConfig(vocab_size=256, max_position_embeddings=64, picture=True, near=3.0))
    block, places = model.layers[0], model.positions.weight.detach()
    with torch.no_grad():
        hidden = block.norm1(model.tokens.weight[:1] + places)  # a black image
        scores = block.query(hidden) @ block.key(hidden).T
    assert (scores[27, 28] > scores[27, 0]) and (scores[27, 35] > scores[27, 63])
    assert (block.key.weight == block.query.weight).all()
