"""The command of a cell composes to the same cell, for every row that is shipped and for words that
people give."""

import functools
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from bench.request import compose, overrides, plugins, weights
from bench.request.cell import Cell
from bench.request.overrides import check_overrides
from bench.request.plugins import ROOT
from bench.rows.store import Store
from bench.sweep import grid

PLAIN = ("seed", "length", "threads", "n", "batch", "measure", "protocol", "question", "turns",
         "fill", "probe", "deadline_s")  # fmt: skip
"""Values of a request in which many commands differ, and which no other part follows from."""


@functools.cache
def shipped() -> list[dict[str, Any]]:
    columns = ["row_id", "command", "cell", "cell_key"]
    return Store(ROOT / "results/reference").rows(columns).to_pylist()


def key_of(request: dict[str, Any], stored: Cell) -> str:
    """The key of a request's cell, by the code of the stored row: weights and rows of a recipe's
    training count by the code that trained them; a parameter that this code didn't have doesn't
    count, and must have its default."""
    cell = Cell.with_rows(request, stored.data["split"], stored.data["sha256"])
    fields = plugins.load(cell.method["target"]).__dataclass_fields__
    method = {
        name: value
        for name, value in cell.method.items()
        if name in stored.method or value != fields[name].default
    }
    model = {**cell.model}
    if "training" in model:
        model["training"] = stored.model["training"]
    return replace(cell, code_sha256=stored.code_sha256, model=model, method=method).key


@functools.cache
def composed(*words: str) -> dict[str, Any]:
    return compose.compose_with_hydra(check_overrides(words))[0]


@functools.cache
def value_of(key: str, text: str) -> Any:
    return grid._parsed_value(key, text)


def request_of(words: list[str]) -> dict[str, Any]:
    """The request of a command. Hydra composes the other choices of the words once; methods are
    what their YAMLs hold, and, as in a sweep, values are then inserted."""
    values, rest = {}, []
    for word in overrides.as_parameters(words):
        key, _, text = word.partition("=")
        if key in PLAIN or key.startswith("method."):
            values[key] = value_of(key, text)
        elif key == "method":
            method = plugins.conf(key, text)
        else:
            rest.append(word)
    request = {**composed(*rest), "method": method}
    for key, value in values.items():
        assert not key.startswith("method.") or key.split(".")[1] in request["method"], key
        grid._put(request, key, value)
    return compose.resolve(request, words)


@pytest.fixture
def rows_hashed_once(monkeypatch):
    """Many commands train on the same rows, which take a tenth of a second to be written."""
    found, real = {}, weights.data_sha256

    def hashed(task, data, recipe, length, seed):
        asked = (repr(task), data, recipe["rows"], recipe["dev_rows"], length, seed)
        if asked not in found:
            found[asked] = real(task, data, recipe, length, seed)
        return found[asked]

    monkeypatch.setattr(weights, "data_sha256", hashed)


@pytest.mark.usefixtures("rows_hashed_once")
def test_every_shipped_row_can_be_repeated_by_its_command():
    for row in shipped():
        program, run, *words = shlex.split(row["command"])
        assert (program, run) == ("bench", "run"), row["command"]
        key = key_of(request_of(words), Cell.from_json(row["cell"]))
        assert key == row["cell_key"], row["command"]


def test_a_shipped_command_is_what_hydra_composes_of_all_its_words():
    """The longest command of each kind: with or without a model, a recipe and a budget."""
    by_kind = {}
    for row in shipped():
        words = shlex.split(row["command"])[2:]
        kind = frozenset(word.partition("=")[0].partition(".")[0] for word in words) - {*PLAIN}
        by_kind[kind] = max(by_kind.get(kind, []), words, key=len)
    for words in by_kind.values():
        assert request_of(words) == compose.resolve(composed(*words), words)


def test_no_shipped_command_names_a_folder_of_a_machine():
    for row in shipped():
        assert not re.search(r"(^|[ ='\"])[/~]", row["command"]), row["command"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "method=vcc task=narrativeqa"),
        ("results=elsewhere events=log.jsonl force=true n_jobs=2", "method=vcc task=narrativeqa"),
        ("method=snapkv budget=64MiB task=longeval_lines model=embedded-llama", None),
        (
            "method=snapkv method.prefill={name:vertical_slash,vertical:200} task=longeval_lines",
            None,
        ),
        ("method=adakv method.scorer=h2o method.prefill=xattention task=longeval_lines", None),
        ("method=vcc protocol=swap n=null data.split=test measure=speed fill=true", None),
        ("recipe=lra_small_text method=performer method.m=64 recipe.steps=5 batch=8", None),
        ("model=random-t5-base model.config.num_layers=2 measure=speed dtype=bfloat16", None),
        ("experiment=kv method=tova length=512 question=after turns=2", None),
    ],
)
def test_a_cell_is_composed_again_from_its_command(words, expected):
    words = words.split()
    if "experiment=kv" in words:
        request, _ = compose.compose_with_hydra(compose.check_overrides(words))
        request = compose.resolve(request, words)
    else:
        request = compose.compose(words)
    cell = Cell.with_rows(request, request["data"]["split"] or "validation", "")
    text = compose.command_of(cell)
    again = shlex.split(text)[2:]
    if expected:
        assert text == f"bench run {expected} threads={cell.threads}"
    assert Cell.with_rows(compose.compose(again), cell.data["split"], "").key == cell.key
    for left_out in ("results", "events", "experiment", "n_jobs", "force"):
        assert f"{left_out}=" not in text


def test_folders_of_a_machine_have_a_name_in_a_command(tmp_path):
    """Rows travel: a command with a folder of the machine it ran on can't be run elsewhere."""
    cell = Cell.with_rows(compose.compose(["task=qmsum"]), "validation", "")
    own = {"name": "mine", "adapted": {}, "path": str(tmp_path), "original_path": str(tmp_path)}
    model = {**cell.model, **own}
    data = {**cell.data, "source": "local", "dir": str(tmp_path)}
    text = compose.command_of(replace(cell, model=model, data=data, protocol="swap"))
    assert "model=MODEL data=local data.dir=DATA" in text
    assert str(tmp_path) not in text


def test_a_deadline_other_than_the_default_is_kept():
    cell = Cell.with_rows(compose.compose([]), "validation", "")
    assert compose.command_of(cell, 14400).endswith("deadline_s=14400")
    assert compose.command_of(cell, 3600) == compose.command_of(cell)
