"""`make embedded` on small recipes: the models that it trains, skips, and starts from."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bench.errors import RequestError
from tests.conftest import ROOT
from tools.embedded import make
from tools.embedded import recipe as recipes


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Two recipes, of which `child` starts from `parent`; a list of what was trained and scored."""
    calls: list[tuple[str, str, str]] = []

    def train(path: str, *words: str) -> None:
        recipe = recipes.read(path, words)
        out = Path(recipe.out)
        out.mkdir(parents=True, exist_ok=True)
        start = Path(recipe.get("start", out))
        calls.append(("train", Path(path).stem, str(start)))
        OmegaConf.save(recipes.card(recipe, path, start, 60), out / "card.yaml")
        (out / "model.safetensors").write_text(f"made of {start.name}")

    def score(path: str, *words: str) -> None:
        calls.append(("score", Path(path).stem, ""))

    monkeypatch.setattr(make.train, "main", train)
    monkeypatch.setattr(make.score, "main", score)
    monkeypatch.setattr(recipes, "FOLDER", str(tmp_path / "conf"))
    (tmp_path / "conf").mkdir()
    stage = {"minutes": 5}
    for name, more in {"child": {"start": "shipped/parent"}, "parent": {}}.items():
        recipe = {"out": f"elsewhere/{name}", "seed": 0, "stages": [stage]}
        OmegaConf.save({**recipe, **more}, tmp_path / "conf" / f"{name}.yaml")
    return calls, tmp_path / "out"


def run(out: Path, *words: str) -> None:
    make.main("--out", str(out), *words)


def test_what_others_start_from_comes_first_and_is_taken(made):
    calls, out = made
    run(out)
    assert [call[:2] for call in calls] == [
        ("train", "parent"), ("score", "parent"), ("train", "child"), ("score", "child"),
    ]  # fmt: skip
    assert calls[2][2] == str(out / "parent")
    assert (out / "child" / "model.safetensors").read_text() == "made of parent"
    assert sorted(found.name for found in out.iterdir()) == ["child", "parent"]


def test_a_start_that_is_not_there_is_the_shipped_one(made):
    calls, out = made
    run(out, "child")
    assert calls[0] == ("train", "child", "shipped/parent")


def test_what_is_there_is_not_made_again_unless_asked(made, capsys):
    calls, out = made
    run(out, "parent")
    run(out, "parent")
    assert len(calls) == 2 and "exists, trained" in capsys.readouterr().out
    run(out, "parent", "--force")
    assert len(calls) == 4


def test_a_folder_of_others_is_left_as_it_is(made):
    calls, out = made
    (out / "parent").mkdir(parents=True)
    (out / "parent" / "model.safetensors").write_text("mine")
    with pytest.raises(RequestError, match="holds what bench didn't write"):
        run(out, "parent")
    assert not calls


def test_what_lies_there_stays_whole_until_the_new_one_is_scored(made, monkeypatch):
    calls, out = made
    run(out, "parent")
    (out / "parent" / "model.safetensors").write_text("old")

    def stop(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(make.score, "main", stop)
    with pytest.raises(SystemExit) as ended:
        recipes.run(make.main, ["--out", str(out), "--force", "parent"])
    assert ended.value.code == 130
    assert (out / "parent" / "model.safetensors").read_text() == "old"
    monkeypatch.setattr(make.score, "main", lambda *_: calls.append(("score", "parent", "")))
    calls.clear()
    run(out, "parent", "--force")
    assert [call[0] for call in calls] == ["score"], "it was trained before the stop"
    assert (out / "parent" / "model.safetensors").read_text() == "made of parent-1"


def test_a_share_shrinks_minutes_and_rows():
    path = str(ROOT / "tools/embedded/recipes/llama.yaml")
    whole, part = recipes.read(path), recipes.read(path, ["share=0.02"])
    assert part.stages[0].minutes == pytest.approx(0.02 * whole.stages[0].minutes)
    assert dict(part.check[0].rows) == {30: 1}  # where no size has a row left, the first has one
    half = recipes.read(path, ["share=0.5"])
    assert dict(half.check[0].rows) == {30: 16, 130: 16, 545: 8}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sahre=0.1"], "Did you mean share?"),
        (["share=0"], "more than 0, at most 1"),
        (["share=none"], "share"),
        (["share"], "NAME=VALUE"),
    ],
)
def test_wrong_words_are_told(words, said):
    with pytest.raises(RequestError, match=said):
        recipes.read(str(ROOT / "tools/embedded/recipes/t5.yaml"), words)


@pytest.mark.parametrize("name", recipes.available())
def test_no_recipe_writes_over_what_is_shipped(name):
    assert recipes.read(recipes.path(name)).out.startswith("results/embedded/")
