"""bench recall and bench spectrum: their measurements, and the files that figures read."""

import csv
import gzip

import numpy as np
import pytest
import torch

from bench.cli.main import dispatch
from bench.errors import RequestError
from tools.studies import command, knn_recall, spectrum, vectors

REQUEST = {
    "keys": 300, "queries": 20, "dims": 16, "k": 5, "repeats": 1, "seed": 0, "metric": None,
    "threads": 1, "data": None,
}  # fmt: skip


def silent(*_):
    pass


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_exact_searches_find_every_neighbour(metric, monkeypatch):
    monkeypatch.setattr(knn_recall, "PEERS", {})
    found = knn_recall.measure({**REQUEST, "metric": metric}, silent)
    rows = {(row["search"], row["parameters"].get("k0")): row for row in found["rows"]}
    assert rows["topk", None]["recall"] == rows["exact", None]["recall"] == 1
    assert min(rows[name, None]["recall"] for name in ("quantized", "blocks")) > 0.9
    assert rows["dci", 0.005]["recall"] < rows["dci", 0.4]["recall"]
    assert all(row["total_ns"] > 0 for row in found["rows"])


def test_recall_counts_a_key_once():
    wanted = torch.tensor([[1, 2, 3, 4]])
    assert knn_recall.recall(torch.tensor([[1, 1, 1, -1]]), wanted) == 0.25


def test_a_search_that_refuses_is_a_row(monkeypatch):
    def refuses(*_):
        def build(keys):
            raise RuntimeError("not today")

        yield knn_recall.Search("json:x", {}, build)

    monkeypatch.setattr(knn_recall, "PEERS", {"json": refuses})
    *_, row = knn_recall.measure(REQUEST, silent)["rows"]
    assert row["note"] == "RuntimeError: not today" and "recall" not in row


@pytest.mark.parametrize("peer", list(knn_recall.PEERS))
def test_peers_find_most_neighbours_with_most_effort(peer):
    pytest.importorskip(peer)
    keys, queries = vectors.drawn(300, 20, 16, 0)
    *_, search = knn_recall.PEERS[peer](5, "ip", 1, 0)
    ids = torch.as_tensor(np.asarray(search.build(keys)(queries)))
    assert knn_recall.recall(ids, knn_recall.nearest(keys, queries, 5, "ip")) > 0.8


def test_images_are_read_from_the_official_files(tmp_path):
    for name, count in zip(vectors.IMAGES, (6, 2), strict=True):
        head = np.array([0x803, count, 2, 3], ">i4").tobytes()
        pixels = np.arange(count * 6, dtype=np.uint8).tobytes()
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(head + pixels))
    keys, queries, metric = vectors.load({**REQUEST, "data": str(tmp_path), "keys": 5})
    assert keys.shape == (5, 6) and queries.shape == (2, 6) and metric == "l2"
    assert keys[1].tolist() == [6, 7, 8, 9, 10, 11]


def test_unusable_vectors_are_refused(tmp_path):
    with pytest.raises(RequestError, match="too few keys"):
        vectors.load({**REQUEST, "keys": 3})
    with pytest.raises(RequestError, match="accepted: a "):
        vectors.load({**REQUEST, "data": str(tmp_path)})
    np.savez(tmp_path / "v.npz", keys=np.zeros((9, 3)), queries=np.zeros((9, 4)))
    with pytest.raises(RequestError, match="equally long"):
        vectors.load({**REQUEST, "data": str(tmp_path / "v.npz")})


def test_a_wave_has_its_power_where_its_frequency_is():
    n = 1024
    wave = torch.cos(2 * torch.pi * 0.25 * torch.arange(n))[:, None].expand(n, 3)
    power = spectrum.spectrum(wave)
    assert power.shape == (spectrum.BINS,)
    assert abs(int(power.argmax()) - spectrum.BINS // 2) <= 1
    white = spectrum.spectrum(torch.randn(4096, 64, generator=torch.Generator().manual_seed(0)))
    assert white.std() / white.mean() < 0.1


def test_spectrum_writes_every_layer(tiny_t5, tmp_path):
    words = ["spectrum", str(tiny_t5), "length=512", "n=2", "threads=1", "--results", str(tmp_path)]
    assert dispatch(words) == 0
    (path,) = (tmp_path / "studies").glob("spectrum-*.csv")
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 4 * spectrum.BINS  # what three layers read, and the output
    for layer in "0123":
        powers = [float(line["power"]) for line in lines if line["layer"] == layer]
        assert np.mean(powers) == pytest.approx(1)


def test_short_rows_have_no_spectrum(tiny_t5, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(spectrum.arms, "prepare", lambda cell: None)
    here = lambda kind, module, request, threads: spectrum.measure(request, silent)  # noqa: E731
    monkeypatch.setattr(command, "_measured", here)
    words = ["spectrum", str(tiny_t5), "length=200", "n=1", "threads=1", "--results", str(tmp_path)]
    assert dispatch(words) == 2
    assert "256 tokens" in capsys.readouterr().err
