"""New models of recipes, before any training."""

import pytest
import torch
from omegaconf import OmegaConf

from bench.request import plugins
from tests.conftest import ROOT


@pytest.fixture(scope="session")
def new_model(tmp_path_factory):
    """A recipe, its values replaced by `changes`, → the recipe and the objective with its new
    model."""

    def make(name, changes=None):
        folder = tmp_path_factory.mktemp(name)
        recipe = OmegaConf.load(ROOT / f"tools/embedded/recipes/{name}.yaml")
        recipe.method = {"target": "methods.vanilla:Vanilla"}
        recipe = OmegaConf.merge(recipe, changes or {})
        torch.manual_seed(0)
        for part in plugins.load(recipe.new.target)(recipe.new):
            part.save_pretrained(folder)
        return recipe, plugins.load(recipe.objective)(recipe, folder)

    return make
