"""Caches whose heads hold different numbers of entries: limit, rows, storage, copies, models."""

import math
from dataclasses import replace

import pytest
import torch

from bench.measure.decoding import copied
from bench.measure.memory import held_bytes
from methods.adakv import AdaKV
from methods.base import SequenceInfo
from methods.duo_attention import DuoAttention
from methods.parts.kv_cache import BLOCK
from methods.parts.ragged_entries import Choice, RaggedEntries
from methods.vanilla import Vanilla
from tests.methods.decoder import call_of, check_rows, chosen, decoded, inputs, stored, workload
from tests.methods.sizes import KEY_HEADS, PROMPT, SIZE, VALID, N
from tests.models.decoders import tiny

METHODS = [
    AdaKV(kernel_size=1),
    AdaKV(alpha=0.0, normalize=True),
    DuoAttention(),
    DuoAttention(pattern="1 0; 0 1"),
]
FEATURES = {"softcap": 1.5, "sinks": torch.tensor([0.5, -1, 2, 0])}


def exact(query, key, value, **features):
    return Vanilla().attend(query, key, value, call_of(query.shape[2], **features))


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("feature", [None, *FEATURES])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_its_limit_is_exact(method, feature, chunk):
    qkv, features = inputs(N, 2), {feature: FEATURES[feature]} if feature else {}
    _, outputs = decoded(method.exact_limit(), *qkv, PROMPT, chunk, **features)
    torch.testing.assert_close(outputs, exact(*qkv, **features))
    _, outputs = decoded(method.scaled_down(), *qkv, PROMPT, chunk, **features)
    far = (outputs - exact(*qkv, **features)).abs().amax((0, 1, 3))
    assert far[:PROMPT].max() < 1e-12 and far[PROMPT:].max() > 0.01


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_padded_row_is_as_if_alone(method, chunk):
    method = method.scaled_down()
    if isinstance(method, AdaKV):
        method = replace(method, budget=0.5)
    check_rows(method, chunk, work=workload(PROMPT, 3))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_tokens_at_once_are_as_one_by_one(method):
    qkv = inputs(N, 2)
    cache, outputs = decoded(method.scaled_down(), *qkv, PROMPT, chunk=N - PROMPT)
    other, expected = decoded(method.scaled_down(), *qkv, PROMPT)
    torch.testing.assert_close(outputs, expected)
    assert chosen(cache, qkv[1]) == chosen(other, qkv[1])


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_its_storage_is_what_it_counts(method):
    """After the prompt, only the entries' storage; later, with room that grows by blocks."""
    qkv, place = inputs(3 * BLOCK, 2), 8 * 2 * KEY_HEADS
    entry = 2 * 8 * SIZE
    cache, _ = decoded(method.scaled_down(), *(x[:, :, :PROMPT] for x in qkv), PROMPT)
    held = [head for row in chosen(cache, qkv[1]) for head in row]
    assert len({*map(len, held)}) > 1 and sum(map(len, held)) < 2 * KEY_HEADS * PROMPT
    assert stored(cache) == entry * sum(map(len, held)) + place
    before, storages = 0, set()
    for i in range(PROMPT, 3 * BLOCK):
        cache.decode(*(x[:, :, i : i + 1] for x in qkv), call_of(i + 1))
        storages.add(cache.layers[0].runs[0].parts[0].untyped_storage().data_ptr())
        runs = cache.layers[0].runs
        rooms = sum(run.heads * run.parts[0].shape[2] for run in runs)
        used = sum(run.heads * run.size for run in runs)
        assert stored(cache) == entry * rooms + place == sum(x.nbytes for x in cache.held())
        assert rooms - used < BLOCK * sum(run.heads for run in runs)
        assert cache.read_bytes - before == entry * used
        before = cache.read_bytes
    assert len(storages) <= math.ceil((3 * BLOCK - PROMPT) / BLOCK)


def test_neighbours_of_equal_length_are_read_together():
    key, kept = torch.randn(1, 5, 9, 4), torch.zeros(1, 5, 9, dtype=torch.bool)
    for head, count in enumerate((3, 3, 7, 3, 3)):
        kept[0, head, -count:] = True
    entries = RaggedEntries(key, key, Choice.of(kept))
    assert [(run.heads, run.size) for run in entries.runs] == [(2, 3), (1, 7), (2, 3)]
    assert [x.shape[0] for x in entries._parts] == [19, 19]


@pytest.mark.parametrize("method", [AdaKV(window=4), DuoAttention(sinks=2, recent=6)], ids=repr)
def test_caches_that_take_one_prompt_score_it_once(method, monkeypatch):
    module = "methods.parts.observation_window" if isinstance(method, AdaKV) else (
        "methods.duo_attention"
    )  # fmt: skip
    scored, received = [], __import__(module, fromlist=["x"]).attention_received
    monkeypatch.setattr(
        f"{module}.attention_received", lambda *given: scored.append(given) or received(*given)
    )
    parts, call = inputs(PROMPT, 3), call_of(PROMPT, VALID, memo={})
    name = "budget" if isinstance(method, AdaKV) else "share"
    for value in (0.3, 0.6):
        several = replace(method, **{name: value})
        taken, alone = (several.kv_cache(workload(PROMPT, 3)) for _ in range(2))
        taken.take(*parts, call)
        first = len(scored)
        alone.prefill(*parts, call_of(PROMPT, VALID))
        del scored[first:]
        for one, other in zip(taken.held(), alone.held(), strict=True):
            assert torch.equal(one, other)
    assert len(scored) <= 3


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_copy_goes_on_by_itself(method):
    qkv = inputs(N)
    cache, _ = decoded(method.scaled_down(), *(x[:, :, :PROMPT] for x in qkv), PROMPT)
    outputs = [], []
    for one, other in ((copied(cache), outputs[0]), (cache, outputs[1])):
        assert stored(one) == stored(cache)
        for i in range(PROMPT, N):
            other.append(one.decode(*(x[:, :, i : i + 1] for x in qkv), call_of(i + 1)))
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
@torch.no_grad()
def test_grouped_heads_and_windows_apart(method, kind):
    """A model's layers with a window stay exact; a padded batch decodes as its rows alone."""
    method = replace(method.scaled_down(), **({"budget": 8} if isinstance(method, AdaKV) else {}))
    family, ids = tiny(kind, method), torch.arange(3, 43).repeat(2, 1)
    valid = torch.arange(40) >= torch.tensor([[0], [9]])
    together = family.prefill(ids, SequenceInfo(valid=valid))
    full = tiny(kind, Vanilla()).prefill(ids, SequenceInfo(valid=valid))
    assert held_bytes(together.cache) < held_bytes(full.cache)
    steps = [together.step(ids[:, i : i + 1]) for i in range(4)]
    for row in range(2):
        alone = family.prefill(ids[row : row + 1, valid[row]], SequenceInfo())
        for i, logits in enumerate(steps):
            torch.testing.assert_close(alone.step(ids[:1, i : i + 1])[0], logits[row])
    kinds = {i: type(layer) for i, layer in together.cache.layers.items()}
    assert [i for i in kinds if kinds[i] is not RaggedEntries] == sorted(family.exact_layers)
    assert len(family.exact_layers) == (kind != "qwen3")
