"""KVzip against a model that reads prompt and request at once, and by hand."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

import longctx_bench
from methods import kvzip
from methods.base import Method, SequenceInfo, Unsupported
from methods.kvzip import REPEAT, REPEAT_PART, KVzip
from methods.vanilla import Vanilla
from tests.methods.decoder import call_of, stored, workload
from tests.models.decoders import tiny

IDS = torch.randint(3, 64, (1, 45), generator=torch.Generator().manual_seed(5))


def sizes(cache):
    return [
        run.size for layer in cache.layers.values() for run in layer.runs for _ in range(run.heads)
    ]


def test_scores_and_budget_by_hand():
    """Two queries give .2 .1 .6 and .05 .7 .1 to three tokens, and the rest to themselves."""
    key = torch.eye(5)[None, None]
    rows = torch.tensor([[0.2, 0.1, 0.6, 0.1, 1], [0.05, 0.7, 0.1, 0.1, 0.05]])
    method = KVzip(budget=2, sinks=0)
    cache = method.kv_cache(workload(3, layers=1, key_heads=1))
    cache.prefill(*[key[:, :, :3]] * 3, call_of(3))
    rereads = cache.rereads(torch.tensor([[7, 8, 9]]), None)
    more, sequence, attend = next(rereads)
    assert more.tolist() == [[7, 8, 9]] and sequence.positions.tolist() == [[*range(6)]]
    call = call_of(5, scale=1.0)
    output = attend(rows.log()[None, None], key[:, :, 3:], key[:, :, 3:], call)
    weights = torch.tensor([[0.2, 0.1, 0.6, 0.1, 0], [0.05, 0.7, 0.1, 0.1, 0.05]])
    torch.testing.assert_close(output[0, 0], weights)
    assert [*rereads] == []
    (run,) = cache.layers[0].runs
    assert torch.equal(run.parts[0][0, 0], torch.eye(5)[1:3])


def test_caps_and_sink_weights_count_in_both_softmaxes(monkeypatch):
    """The second of two chunks, in blocks of one query, against softmaxes over whole matrices."""
    monkeypatch.setattr(kvzip, "CPU_WEIGHTS", 1)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 9, 4, generator=generator) for heads in (4, 2, 2))
    query, extra = query[:, :, 6:], torch.randn(4, generator=generator)
    call = call_of(9, scale=0.5, softcap=2.0, sinks=extra)
    output, largest = kvzip._read_again(query, key, value, call, 1, slice(3, 6))
    scores = 2 * torch.tanh(query @ key.repeat_interleave(2, 1).mT / 2 / 2)
    scores = scores.masked_fill(torch.ones(3, 9).triu(7).bool(), -torch.inf)
    scores = torch.cat((scores, extra[None, :, None, None].expand(1, 4, 3, 1)), 3)
    expected = scores.softmax(3)[..., :9] @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(output, expected)
    read = [0, *range(3, 10)]  # the first entry, the chunk, the queries' own and the sink weight
    torch.testing.assert_close(largest, scores[..., read].softmax(3)[..., 1:4].amax(2))


def test_all_layers_and_heads_share_one_budget():
    scores = torch.tensor([[[0.0, 9, 8, 7], [0, 1, 1, 2]], [[0, 6, 5, 0], [0, 0, 4, 3]]])
    kept = KVzip(budget=0.5, sinks=1).kept(scores, workload(4))
    assert kept.sum(-1).tolist() == [[4, 1], [2, 1]]
    assert kept[:, :, 0].all()
    assert KVzip(budget=1.0).kept(scores, workload(4)).all()


@dataclass(frozen=True)
class Recorder(Method):
    """Exact attention that records queries and keys by layer."""

    seen: dict = field(default_factory=dict)

    def attend(self, query, key, value, call):
        self.seen[call.layer] = (query, key)
        return super().attend(query, key, value, call)


@torch.no_grad()
def test_equals_its_twin():
    """A model that reads the prompt and each request in one forward pass."""

    def tokenizer(text, **_):
        return SimpleNamespace(input_ids={REPEAT: [4, 5], REPEAT_PART: [6]}[text])

    method = KVzip(budget=0.4, chunk=20, overlap=3, sinks=2)
    family = tiny("qwen3", method)
    family.tokenizer = tokenizer
    cache = family.prefill(IDS, SequenceInfo()).cache
    recorder, n, tokens = Recorder(), 45, IDS[0].tolist()
    family.method, scores = recorder, torch.zeros(2, 2, n)
    for chunk in (range(2, 22), range(22, 42), range(42, 45)):
        request = [4, 5] if chunk[0] == 2 else [6, *tokens[chunk[0] - 3 : chunk[0]]]
        whole = torch.tensor([tokens + request + tokens[chunk[0] : chunk[-1] + 1]])
        family.encode(whole, SequenceInfo())
        for layer, (query, key) in recorder.seen.items():
            for head in range(4):
                for at in range(n, whole.shape[1]):
                    read = [0, 1, *chunk, *range(n, at + 1)]
                    weights = (key[0, head // 2, read] @ query[0, head, at] / 4).softmax(0)
                    own = scores[layer, head // 2, [*chunk]]
                    scores[layer, head // 2, [*chunk]] = torch.maximum(
                        own, weights[2 : 2 + len(chunk)]
                    )
    scores[:, :, :2] = torch.inf
    best = scores.flatten().topk(4 * 18).indices
    kept = torch.zeros(4 * n, dtype=torch.bool).index_fill(0, best, True).view(2, 2, n)
    assert sizes(cache) == kept.sum(-1).flatten().tolist() and len({*sizes(cache)}) > 1
    for layer, (_, key) in recorder.seen.items():
        held = torch.cat([run.parts[0].flatten(0, 2) for run in cache.layers[layer].runs])
        torch.testing.assert_close(held, key[0, :, :n][kept[layer]])


@torch.no_grad()
def test_a_padded_row_and_a_shared_prefill_are_as_alone():
    method = KVzip().scaled_down()
    family, ids = tiny("qwen3", method), IDS.repeat(3, 1)
    valid = torch.arange(45) >= torch.tensor([[0], [19], [44]])
    together = family.prefill(ids, SequenceInfo(valid=valid))
    after = together.step(ids[:, :1])
    for row in range(3):
        alone = family.prefill(ids[row : row + 1, valid[row]], SequenceInfo())
        torch.testing.assert_close(alone.step(ids[:1, :1])[0], after[row])
    shared = family.prefill_each(
        IDS, SequenceInfo(), [Vanilla(), method, replace(method, budget=0.5)]
    )
    assert sizes(shared[1].cache) == sizes(family.prefill(IDS, SequenceInfo()).cache)
    assert sum(sizes(shared[2].cache)) == 4 * 22


@torch.no_grad()
def test_its_second_reading_is_a_part_of_the_prefill(monkeypatch):
    """The tokens after the sinks are read twice before the first token is computed."""
    family, read = tiny("qwen3", KVzip(budget=12, chunk=16, sinks=2)), []
    run = family._run
    monkeypatch.setattr(family, "_run", lambda *a, **k: read.append(a[1].shape[1]) or run(*a, **k))
    cache = family.prefill(IDS, SequenceInfo()).cache
    assert read == [45, 16, 16 + 8, 11 + 8] and sum(sizes(cache)) == 4 * 12
    assert stored(cache) == sum(sizes(cache)) * 2 * 16 * 4 + 2 * 2 * 8


def test_a_model_that_reads_a_prompt_once_is_refused():
    with pytest.raises(Unsupported, match="read the prompt again"):
        longctx_bench.cache("kvzip", tiny("qwen3", Vanilla()).model)


@torch.no_grad()
def test_budgets_share_the_readings_of_a_prompt(monkeypatch):
    family = tiny("qwen3", KVzip())
    settings = [KVzip(budget=0.5), KVzip(budget=0.25), KVzip(budget=0.25, chunk=20)]
    alone = []
    for family.method in settings:
        decoding = family.prefill(IDS, SequenceInfo())
        alone.append((decoding.cache, decoding.step(IDS[:, :1])))
    counts = []
    run = family._run
    monkeypatch.setattr(family, "_run", lambda *rest, **own: counts.append(1) or run(*rest, **own))
    rows = family.prefill_each(IDS, SequenceInfo(), settings)
    assert len(counts) == 1 + 1 + 3  # the prompt, and once more in chunks of 45 and of 20
    for row, (cache, logits) in zip(rows, alone, strict=True):
        assert row.error is None and row.cache.memo is None
        torch.testing.assert_close(row.step(IDS[:, :1]), logits)
        assert sizes(row.cache) == sizes(cache)
