"""Properties of every method whose new tokens read some of the cache: its limit, its rows, and that
entries that it doesn't count are never read."""

import copy
from dataclasses import replace

import pytest
import torch

from methods.parts.sparse_reading import LayerEntries
from methods.quest import Quest
from methods.sparq import SparQ
from methods.vanilla import Vanilla
from methods.vattention import VAttention
from tests.methods.decoder import call_of, check_rows, decoded, inputs, stored
from tests.methods.sizes import KEY_HEADS, PROMPT, SIZE, N

RANKING = [Quest(), Quest(share="head"), Quest(newest="ranked"), SparQ()]
METHODS = [*RANKING, VAttention()]


def small(method):
    return replace(method.scaled_down(), budget=12)


def named(method):
    return type(method).__name__ + getattr(method, "share", "") + getattr(method, "newest", "")


@pytest.mark.parametrize("budget", [12, 0.5])
@pytest.mark.parametrize(("chunk", "several"), [(1, None), (4, None), (4, "sparse")])
@pytest.mark.parametrize("method", METHODS, ids=named)
def test_a_padded_row_is_as_if_alone(method, chunk, several, budget):
    method = replace(small(method), budget=budget, several=several)
    cache, own = check_rows(method, chunk, 1 if several else chunk)
    assert cache.read_bytes == sum(one.read_bytes for one in own)


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_several_new_tokens_are_read_exactly_and_then_one_sparsely(method):
    """The last token chooses among all of them, as if they had come one by one."""
    method, (query, key, value) = small(method), inputs(N)
    _, outputs = decoded(method, query, key, value, PROMPT, N - PROMPT - 1)
    exact = Vanilla().attend(query, key, value, call_of(N))
    torch.testing.assert_close(outputs[:, :, :-1], exact[:, :, :-1])
    _, expected = decoded(replace(method, several="sparse"), query, key, value, PROMPT, N - PROMPT)
    torch.testing.assert_close(outputs[:, :, -1:], expected[:, :, -1:])
    assert (expected - exact)[:, :, PROMPT:-1].abs().amax() > 0.01
    several, _ = decoded(method, query, key, value, PROMPT, N - PROMPT)
    assert several.read_bytes == 8 * KEY_HEADS * 2 * SIZE * N


@pytest.mark.parametrize("method", RANKING, ids=named)
def test_reads_what_it_counts(method, monkeypatch):
    """Entries, and channels of keys, that aren't counted may be NaN."""
    cache, _ = decoded(small(method), *inputs(PROMPT), PROMPT)
    query, key, value = (x[:, :, -1:] for x in inputs(PROMPT + 1, seed=1))
    poisoned, seen, attend_at = copy.deepcopy(cache), [], LayerEntries.attend_at

    def recorded(layer, query, place, read, scale):
        seen.append(place.where(read, place[..., :1]))
        return attend_at(layer, query, place, read, scale)

    with monkeypatch.context() as patch:
        patch.setattr(LayerEntries, "attend_at", recorded)
        output = cache.decode(query, key, value, call_of(PROMPT + 1))
    unread = torch.ones(KEY_HEADS, PROMPT + 1, dtype=torch.bool)
    unread.scatter_(1, seen[0].reshape(KEY_HEADS, -1), False)
    layer, count = poisoned.layers[0], int((~unread).sum()) * 2 * SIZE
    layer.key[0, unread[:, :PROMPT]] = layer.value[0, unread[:, :PROMPT]] = torch.nan
    if isinstance(method, SparQ):
        channels = query.unflatten(1, (KEY_HEADS, -1)).abs().sum(2).topk(2).indices.flatten(1, 3)
        left = torch.ones(KEY_HEADS, SIZE, dtype=torch.bool)
        left.scatter_(1, channels.view(KEY_HEADS, 2), False)
        layer.by_channel.parts()[0][0, left.flatten()] = torch.nan
        count += KEY_HEADS * (2 * (PROMPT + 1) + SIZE)
    else:
        count += KEY_HEADS * 2 * SIZE * 13
    assert unread.sum() > 20 and cache.read_bytes == 8 * count
    again = poisoned.decode(query, key, value, call_of(PROMPT + 1))
    torch.testing.assert_close(again, output)


def test_holds_everything_and_what_chooses():
    """In addition to the entries, with their tokens and room to grow: the bounds of 13 pages of 4;
    a copy of the keys and the sum of values; nothing."""
    entries = 64 * (2 * SIZE + 1)
    for method, more in (
        (Quest(), 13 * 2 * SIZE), (SparQ(), 52 * SIZE + SIZE), (VAttention(), 0),
    ):  # fmt: skip
        cache, _ = decoded(small(method), *inputs(52), 52)
        assert stored(cache) == 8 * KEY_HEADS * (entries + more)
