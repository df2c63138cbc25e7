"""The LRA encoders that come with the project: they load, are small, and know their tasks."""

from pathlib import Path

import pytest
import yaml

from bench.models.lra import LRAConfig, LRAModel
from bench.request import compose, plugins
from bench.request.cell import Cell
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
