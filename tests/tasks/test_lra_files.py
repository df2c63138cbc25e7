"""LRA's own files: tables, parquet, PNG images, folders and zips, whole and broken."""

import gzip
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from tasks.base import Data, DataError
from tasks.generators import pathfinder
from tasks.loading import lra_files
from tests.made import task as build
from tests.tasks import parquet

TREE = "( ( ( [SM 5 ) 7 ) ] )"
GREY = np.arange(1024, dtype=np.uint8).reshape(32, 32)


def png(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load(name, folder, n=None, split=None):
    task = build(name)
    return task.load(Data("local", folder, split), n, task.length, 0)


def test_first_n_and_the_rest_counted(tmp_path):
    lines = "".join(f"{TREE}\t{at}\n" for at in range(5))
    packed = gzip.compress(f"Source\tTarget\n{lines}".encode())
    put(tmp_path / "listops-1000" / "basic_train.tsv.gz", packed)
    loaded = load("lra_listops", tmp_path, 2, "train")
    assert [row.references for row in loaded.rows] == [("0",), ("1",)]
    assert loaded.n_available == 5 and len(loaded.sha256) == 64


def test_imdb_is_drawn_over_its_sorted_labels(tmp_path):
    texts = [f"text {at}" for at in range(40)]
    columns = {"text": texts, "label": [0] * 20 + [1] * 20}
    parquet.write(tmp_path / "imdb" / "plain_text" / "test-00000-of-00001.parquet", columns)
    loaded = load("lra_text", tmp_path, 12)
    assert loaded.n_available == 40 and {row.references for row in loaded.rows} == {("0",), ("1",)}
    assert load("lra_text", tmp_path, 5, "validation").rows[0].document == loaded.rows[0].document
    assert loaded.rows[0].id == f"test-0000{texts.index(loaded.rows[0].document):02d}"


def test_cifar_becomes_grey(tmp_path):
    images = [{"bytes": png(GREY), "path": None}] * 10
    place = tmp_path / "cifar10" / "plain_text"
    parquet.write(place / "train-00000-of-00001.parquet", {"img": images, "label": list(range(10))})
    loaded = load("lra_image", tmp_path, split="validation")
    assert [row.references for row in loaded.rows] == [("9",)]
    assert loaded.rows[0].document == GREY.tobytes().decode("latin-1")
    large = load("lra_image64", tmp_path, 1, "train").rows[0]
    assert len(large.document) == 4096
    parquet.write(place / "test-0.parquet", {"img": images, "y": list(range(10))})
    with pytest.raises(DataError, match="row 1: no column 'label'; found img, y"):
        load("lra_image", tmp_path)


def test_grey_cuts_the_fraction_off():
    pixels = np.array([[[255, 255, 255], [255, 0, 0], [0, 0, 0]]], np.uint8)
    assert lra_files.grey(pixels).tolist() == [[255, 76, 0]]


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 3)])
def test_png_is_read_as_it_was_written(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert (lra_files.read_png(png(pixels)) == pixels).all()


def test_broken_png():
    whole, deep = png(GREY), png(GREY.astype(np.uint16))
    mode = Image.open(io.BytesIO(deep)).mode  # its name depends on Pillow's version
    for broken, message in (
        (b"GIF89a", "not a PNG"),
        (whole[:20], "cut short|not a PNG"),
        (whole[:60], "cut short"),
        (whole[:-16], "cut short"),
        (whole[:50] + b"\0" + whole[51:], "damaged"),
        (deep, f"PNG of mode {mode}; expected 8 bits, grey"),
        (png(np.zeros((1, 5000), np.uint8)), "PNG of 5000×1 pixels; expected 1 to 4096"),
    ):
        with pytest.raises(ValueError, match=message):
            lra_files.read_png(broken)


META = "pathfinder32/curv_contour_length_14/metadata/0.npy"
IMGS = "pathfinder32/curv_contour_length_14/imgs/0/sample_0.png"


def zipped(folder, members):
    (folder / "pathfinder").mkdir()
    path = folder / "pathfinder" / "pathfinder32.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_generated_images_are_read_from_a_folder(tmp_path):
    images = pathfinder.batch(32, 0, "test", 0)
    pathfinder.write(tmp_path, 32, images)
    loaded = load("lra_pathfinder", tmp_path, split="train")
    assert len(loaded.rows) == 6 and load("lra_pathfinder", tmp_path).n_available == 1
    for row, image in zip(loaded.rows, images, strict=False):
        assert row.document == image.pixels.tobytes().decode("latin-1")
        assert row.references == (str(image.label),)
    before = loaded.sha256
    name = next(tmp_path.rglob("sample_7.png"))
    name.write_bytes(b"")  # an empty image is left out, as the official reader does
    assert load("lra_pathfinder", tmp_path, split="train").sha256 != before


LINE = "imgs/0 sample_0.png 0 1 1.0 14 4 2 0.5 1 1\n"
ZIPS = [
    ({META: LINE * 10, IMGS: b"x"}, "0.npy line 10: not a PNG"),
    ({META: LINE * 10, IMGS: png(GREY[:9])}, "image of 32×9 pixels, expected 32×32"),
    ({META: "imgs/0 sample_0.png\n"}, "line 1: found 2 fields, expected at least 4"),
    ({META: LINE.replace("0 1 1.0", "0 2 1.0")}, "line 1: label '2'; expected 0 to 1"),
    ({META: LINE.replace("imgs/0", "../../..")}, "line 1: .* climbs out of the folder"),
    ({"../x": "", META: LINE}, "unsafe member '../x'"),
    ({"x": ""}, "has no member 'pathfinder32/.*; it holds x"),
]


@pytest.mark.parametrize(("members", "message"), ZIPS)
def test_broken_zips_are_named(tmp_path, members, message):
    path = zipped(tmp_path, members)
    with pytest.raises(DataError, match=message) as raised:
        load("lra_pathfinder", tmp_path)
    assert str(path) in str(raised.value)
