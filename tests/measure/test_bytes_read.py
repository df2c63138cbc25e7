"""The bytes that a step reads of each method's cache, counted and reported."""

from types import SimpleNamespace

import pytest
import torch

from bench.measure import memory
from bench.measure.bytes_read import Reads
from bench.models.decoder import DecoderFamily
from bench.request import plugins
from bench.rows import row_facts
from methods.base import KVCache, Method, SequenceInfo

BITS = {"bits": 4, "group": 32, "residual": 32}
MORE = {
    "iceformer": [{"decoding": "method", "search": each}
                  for each in ("exact", "dci", "quantized", "blocks")],
    "kivi": [BITS], "quest": [{"share": "head"}, {"dense_layers": 1}],
    "streaming_llm": [{"positions": "true"}], "synthesizer": [{"form": "random", "n": 256}],
}  # fmt: skip
CASES = [
    (name, more)
    for name in sorted(plugins.available("method"))
    if plugins.load(plugins.conf("method", name)["target"]).kv_cache is not Method.kv_cache
    for more in [{}, *MORE.get(name, [])]
] + [("vanilla", {})]
N, NEW = 150, 6


class Wide(DecoderFamily):
    """Heads of 32 channels, so that a number for each entry is below 5 % of it."""

    tiny_config = DecoderFamily.tiny_config | {"hidden_size": 128}


def ids(batch: int = 2) -> torch.Tensor:
    return torch.randint(5, 60, (batch, N), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "more"), CASES, ids=lambda x: x if isinstance(x, str) else str(x))
@torch.inference_mode()
def test_each_methods_cache_reports_what_it_reads(name, more):
    conf = plugins.conf("method", name)
    if "budget" in conf:
        conf["budget"] = 0.4
    if conf.get("dense_layers"):
        conf["dense_layers"] = 0
    method = plugins.build({**conf, **more})
    family = Wide.tiny(method)
    if reason := method.unsupported(family.workload(N, 2)):
        pytest.skip(reason)
    found = memory.columns(family, ids(), SequenceInfo(), NEW, None)
    assert "counted" not in getattr(method, "kernel_used", "")
    assert found["kv_read_reported_pct"] == pytest.approx(100, abs=5)
    assert row_facts.mem_agree(found) is True


@torch.inference_mode()
def test_a_step_in_which_storage_grows_and_a_padded_batch_do_not_count():
    family = Wide.tiny(plugins.build({**plugins.conf("method", "sparq"), "budget": 8}))
    # 128 entries fill their storage, which the third of four steps copies: the second counted one.
    found = memory.columns(family, ids()[:, :126], SequenceInfo(), 5, None)
    assert found["kv_read_reported_pct"] == pytest.approx(100, abs=5)
    padded = SequenceInfo(valid=torch.arange(N) >= torch.tensor([[0], [9]]))
    assert memory.columns(family, ids(), padded, NEW, None)["kv_read_reported_pct"] is None


def test_each_number_counts_once_and_views_and_writes_do_not():
    x, index = torch.zeros(4, 8, dtype=torch.float16), torch.tensor([1, 1, 3])

    def read(work) -> int:
        with torch.inference_mode(), Reads([x, index]) as reads:
            work(x)
        return reads.bytes()

    assert read(lambda x: x[1:].mT.unflatten(0, (2, 4)).chunk(2)) == 0
    assert read(lambda x: (x[:, :2].fill_(1), x[2].copy_(torch.ones(8)), x.new_zeros(3))) == 0
    assert read(lambda x: torch.ones(4, 8).expand_as(x) + torch.zeros_like(x)) == 0
    assert read(lambda x: (x.sum(), x[1].clone(), x[:2] @ x[:2].mT)) == x.nbytes
    assert read(lambda x: (x[:, 2:4] + 1, x[:, 3:5].float())) == 4 * 3 * 2
    assert read(lambda x: x[:, ::2][None].expand(3, 4, 4) * 1) == x.nbytes // 2
    assert read(lambda x: x.index_select(0, index)) == 2 * 8 * 2
    assert read(lambda x: x[1:, 4:][:, index]) == 3 * 2 * 2
    assert read(lambda x: x.gather(1, index[None].expand(4, 3))) == 4 * 2 * 2
    assert read(lambda x: x[0].expand(4, 8).take_along_dim(index[None], 1)) == 2 * 2
    assert read(lambda x: index + 1) == 0


class Unseen:
    """A cache whose reads torch doesn't dispatch."""

    read_bytes = 0

    def __init__(self) -> None:
        self.kept = torch.zeros(8)

    def decode(self, query, key, value, call):
        self.read_bytes += self.kept.nbytes
        return query

    def held(self):
        return [self.kept]


def test_a_cache_whose_reads_are_not_seen_is_not_counted():
    cache: KVCache = Unseen()
    step = SimpleNamespace(cache=cache, step=lambda ids: cache.decode(ids, ids, ids, None))
    sizes = SimpleNamespace(bytes_per_entry=lambda: 4, batch=1, length=1)
    family = SimpleNamespace(prefill=lambda *_: step, workload=lambda *_: sizes)
    found = memory.columns(family, ids(1), SequenceInfo(), NEW, None)
    assert found["kv_read_reported_pct"] is None and found["kv_bytes_read_per_token"] == 32
    assert row_facts.mem_agree(found) is None
