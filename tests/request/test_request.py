"""From words to a cell: accepted words, refused words and their errors, and words that make another
cell."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import bench
from bench.errors import RequestError
from bench.request import compose, plugins
from bench.request.cell import Cell
from bench.request.weights import beyond_positions, training_of
from bench.sweep.grid import SweepGrid
from tests import made
from tests.conftest import ROOT


def composed(tiny_t5: Path, *overrides: str) -> Cell:
    return bench.compose(f"model={tiny_t5}", "length=512", "n=2", *overrides)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("length=99999999999", "would need about 11920.9 GiB for the tokens alone and 37 days"),
        ("n=100000000", "this machine has"),
        ("threads=100000", "threads=100000 is not accepted: this process may use"),
    ],
)
def test_what_this_machine_cannot_do_is_one_line(word, told, tiny_t5, refused):
    assert told in refused("run", f"model={tiny_t5}", word)


def test_a_random_models_config_takes_all_fields_of_its_architecture():
    words = ["model=random-lra", "task=lra_text", "model.config.mean_of_all=true"]
    assert compose.compose(words)["model"]["config"]["mean_of_all"] is True
    words.append("model.config={dropout: 0.5}")
    assert compose.compose(words)["model"]["config"].items() >= {
        ("mean_of_all", True), ("dropout", 0.5), ("vocab_size", 32000)
    }  # fmt: skip
    points = SweepGrid.of([*words, "model.config.hidden_size=32,64"]).points()
    assert [p.request["model"]["config"]["hidden_size"] for p in points] == [32, 64]


@pytest.mark.parametrize("name", ["a b", "mü", "~x", "it's", "a,b", "(1)", "a=b"])
def test_a_path_is_taken_as_it_is_written(name, tmp_path, tiny_t5):
    folder = tmp_path / name
    shutil.copytree(tiny_t5, folder)
    new = tmp_path / "new" / name
    to = [f"results={new}", f"events={new}", f"checkpoints={new}"]
    request = compose.compose([f"model={folder}", f"data.dir={folder}", *to])
    assert (request["model"]["path"], request["model"]["name"]) == (str(folder), name)
    assert request["data"] == {"source": "local", "dir": str(folder), "split": None}
    [point] = SweepGrid.of([f"model={folder}", f"data.dir={folder}", *to]).points()
    assert point.request["model"] == request["model"] and point.request["data"] == request["data"]
    for each in (request, point.request):
        assert {each[key] for key in ("results", "events", "checkpoints")} == {str(new)}
    quoted = compose.compose([f"results={str(new)!r}", "events=null"])
    assert (quoted["results"], quoted["events"]) == (str(new), None)


def test_cuda_is_refused_where_there_is_none(tiny_t5, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match="no CUDA GPU on this machine"):
        composed(tiny_t5, "device=cuda")


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(RequestError, match=r"is no checkpoint: it has no config\.json"):
        bench.compose(f"model={tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(RequestError, match=r"holds no \*.safetensors"):
        bench.compose(f"model={tmp_path}")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("config.json", text) for text in ("[]", "null", "3", '"t5"', "", "{", DEEP)),
        *(
            ("config.json", json.dumps({"model_type": "roberta", name: value}))
            for name, value in [
                ("model_type", ["t5"]), ("architectures", "T5"),
                ("max_position_embeddings", [512]), ("pad_token_id", "0"),
            ]
        ),
        *(("model.safetensors", text) for text in ("", "short", "x" * 100, "\2" + "\0" * 7 + "[]")),
        ("model.safetensors", "\xa0\x86\1\0\0\0\0\0" + DEEP),
    ],
)  # fmt: skip
def test_a_broken_file_of_a_checkpoint_is_one_line(tmp_path, file, text):
    shutil.copytree(ROOT / "bench/models/embedded/roberta", tmp_path / "model")
    (tmp_path / "model" / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(RequestError) as refused:
        bench.compose(f"model={tmp_path / 'model'}")
    assert str(tmp_path / "model") in str(refused.value) and file in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize("there", [lambda path: path.mkdir(), lambda path: path.symlink_to("/no")])
def test_weights_that_can_not_be_read_are_named(tiny_t5, tmp_path, there):
    shutil.copytree(tiny_t5, tmp_path / "model")
    (weights := tmp_path / "model" / "model.safetensors").unlink()
    there(weights)
    with pytest.raises(RequestError, match="safetensors can't be read: "):
        composed(tmp_path / "model")


@pytest.mark.parametrize("text", ["3", '"x"', "[]", '{"own": 1}', DEEP])
def test_another_card_than_a_training_s_is_no_card(tiny_t5, tmp_path, text):
    shutil.copytree(tiny_t5, tmp_path / "model")
    for name in ("card.json", "card.yaml"):
        (tmp_path / "model" / name).write_text(text)
    cell = composed(tmp_path / "model")
    assert cell.model["weights"] == "pretrained-swap" and training_of(cell.model) is None


def test_a_row_keeps_no_place_of_this_machine():
    cell = bench.compose("recipe=lra_small_listops", "method=vanilla", "n=2")
    kept = cell.stored_json()
    assert str(ROOT) not in kept and "checkpoints" not in json.loads(kept)["model"]
    assert Cell.from_json(kept).key == cell.key
    shipped = bench.compose("method=vanilla", "n=2")
    assert json.loads(shipped.stored_json())["model"]["path"] == "bench/models/embedded/t5"


@pytest.mark.parametrize(
    "change",
    ["method=vanilla", "method.k=8", "task=qasper", "length=513", "n=3", "batch=2", "seed=1",
     "dtype=bfloat16", "threads=1", "measure=speed", "data.split=test"],
)  # fmt: skip
def test_whatever_can_change_the_numbers_changes_the_key(tiny_t5, change, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    assert composed(tiny_t5).key != composed(tiny_t5, change).key


def test_what_cannot_change_the_numbers_does_not(tiny_t5):
    assert composed(tiny_t5).key == composed(tiny_t5, "results=elsewhere", "force=true").key


def test_where_code_and_weights_lie_is_in_no_key(tiny_t5):
    cell = composed(tiny_t5)
    moved = replace(
        cell,
        method={**cell.method, "target": "elsewhere:VCC"},
        task={**cell.task, "target": "elsewhere:Scrolls"},
        model={**cell.model, "family": "elsewhere:T5Family", "path": "/", "original_path": "/"},
    )
    for name in ("key", "plan_key", "prediction_key"):
        assert getattr(moved, name) == getattr(cell, name)
    other = replace(cell, method={**cell.method, "target": "methods.vcc.vcc:Other"})
    assert other.key != cell.key


def test_other_weights_are_another_cell(tiny_t5, tmp_path):
    for file in tiny_t5.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    before = composed(tmp_path).key
    changed[-1] ^= 1
    weights.write_bytes(changed)
    assert composed(tmp_path).key != before


def test_more_rows_reuse_the_predictions_of_fewer(tiny_t5):
    assert composed(tiny_t5).prediction_key == composed(tiny_t5, "n=3").prediction_key
    for change in ("method.h=1", "task.max_new_tokens=3"):
        assert composed(tiny_t5).prediction_key != composed(tiny_t5, change).prediction_key


@pytest.mark.parametrize("group", ["method", "task"])
def test_every_choice_builds(group):
    for name in plugins.available(group):
        conf = plugins.conf(group, name)
        # Hydra gives what a YAML holds where it names no other YAML and no value of another.
        assert "defaults" not in conf and "${" not in json.dumps(conf), name
        assert plugins.build(conf).scaled_down() if group == "method" else plugins.build(conf)


def test_each_kind_of_choice_composes():
    """A task of each class, and a method with and one without a label, are what their YAMLs say."""
    tasks = {conf["target"]: name for name, conf in plugins.usable("task").items()}
    methods = {"label" in conf: name for name, conf in plugins.usable("method").items()}
    for task, method in itertools.zip_longest(tasks.values(), methods.values(), fillvalue="vcc"):
        request = compose.compose([f"task={task}", f"method={method}"])
        assert request["task"].keys() == plugins.undescribed(plugins.conf("task", task)).keys()
        assert request["method"].items() >= {"name": method}.items()
        assert plugins.build(request["task"]).name == task and plugins.build(request["method"])


@pytest.fixture
def shipped(tiny_t5, conf_folder):
    """Two models: `general` leaves qasper to `special`, whose vcc was trained with k=4."""
    (conf_folder / "model").mkdir()
    one = {"family": "bench.models.t5:T5Family", "path": str(tiny_t5), "weights": "embedded"}
    own = {"adapted": {"vcc": str(tiny_t5)}, "adapted_with": {"vcc": {"k": 4}}, "longest": 256}
    general = {"name": "general", **one, "by_task": {"qasper": "special"}}
    for conf in (general, {"name": "special", **one, **own}):
        (conf_folder / "model" / f"{conf['name']}.yaml").write_text(yaml.safe_dump(conf))


def test_a_model_may_have_another_stand_in_on_a_task(shipped):
    short = ["length=512", "n=2"]
    found = bench.compose("model=general", *short, "task=qasper")
    assert found.model["name"] == "special"
    assert found.key == bench.compose("model=special", *short, "task=qasper").key
    assert bench.compose("model=general", *short, "task=narrativeqa").model["name"] == "general"
    changed = bench.compose("model=general", *short, "task=qasper", "model.weights=random")
    assert changed.model["name"] == "general", "a changed model is meant as it is"


def test_a_model_reads_no_more_than_its_longest(shipped):
    assert bench.compose("model=special", "length=512", "n=2").length == 256
    assert bench.compose("model=special", "length=200", "n=2").length == 200


def test_adapted_weights_bring_the_parameters_they_were_trained_with(shipped):
    k = {
        words: bench.compose("model=special", "n=2", *words).method["k"]
        for words in ((), ("method.k=8",), ("protocol=swap",))
    }
    assert k == {(): 4, ("method.k=8",): 8, ("protocol=swap",): 16}


def test_a_label_names_what_makes_a_method_another_algorithm():
    label = plugins.method_label
    assert label("iceformer", {"search": "dci", "k": 5}) == "iceformer·dci"
    assert label("iceformer", '{"search": "exact"}') == "iceformer·exact"
    for unknown in ("{}", None, "[]", "no JSON", '{"k": 5}'):  # older and contributed rows
        assert label("iceformer", unknown) == "iceformer"
    assert label("vcc", {"k": 5}) == "vcc"
    assert label("of_a_plugin", {"search": "dci"}) == "of_a_plugin"
    assert label(None, None) is None


def test_a_label_is_no_part_of_a_cell(tiny_t5):
    cell = composed(tiny_t5, "method=iceformer", "method.search=dci", "data=embedded")
    assert "label" not in cell.method
    assert json.loads(cell.columns["method_params"])["search"] == "dci"
    assert cell.title.startswith("iceformer·dci × ")


def test_a_model_of_the_current_folder_is_found_by_a_run_in_the_projects(tmp_path, monkeypatch):
    folder = made.checkpoint(tmp_path / "models" / "own")
    (tmp_path / "lab").mkdir()
    monkeypatch.chdir(tmp_path / "lab")
    cell = bench.compose("model=../models/own", "task=narrativeqa", "length=512", "n=2")
    assert cell.model["original_path"] == cell.model["path"] == str(folder)
    assert bench.compose("length=512").model["original_path"] == "bench/models/embedded/t5"


@pytest.mark.parametrize(
    ("model", "length", "expected"),
    [
        ("embedded-llama", 32769, "length=32769 exceeds the 32768 tokens that embedded-llama is"),
        ("embedded-llama", 32768, None),
        ("embedded", 32769, None),
        ("random-llama-1b", 999999, None),
    ],
)
def test_a_length_beyond_a_decoders_positions_is_said(model, length, expected):
    said = beyond_positions(compose.compose([f"model={model}", f"length={length}"]))
    assert said is None if expected is None else said.startswith(expected)
