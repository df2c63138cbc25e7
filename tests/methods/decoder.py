"""A layer of a decoder: random queries, keys and values, rotary positions, a method's cache driven
over them, and dense attention to chosen entries."""

import torch

from methods.base import AttentionCall, SequenceInfo, Workload
from tests.methods.sizes import HEADS, KEY_HEADS, PROMPT, SCALE, SIZE, VALID, N


def workload(length=64, batch=1, layers=2, key_heads=KEY_HEADS):
    sizes = {"length": length, "batch": batch, "layers": layers, "causal": True, "rotatable": True}
    return Workload(heads=HEADS, head_size=SIZE, hidden_size=32, key_heads=key_heads, **sizes)


def inputs(n, batch=1, seed=0):
    """Query [batch, 4, n, 8], key and value [batch, 2, n, 8], float64."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, n, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    return [2 * torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def rotate(x, by):
    """x [B, H, n, d] moved forward by [B or 1, n] positions: pairs (i, i + d/2), base 100."""
    half = x.shape[-1] // 2
    turn = by[:, None, :, None] * 100 ** -(torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()), -1)


def call_of(n, valid=None, layer=0, scale=SCALE, rotate=rotate, **features):
    positions = None if valid is None else (valid[:, :n].cumsum(1) - 1).clamp(min=0)
    sequence = SequenceInfo(positions, None if valid is None else valid[:, :n], causal=True)
    return AttentionCall(sequence, scale, layer, rotate=rotate, **features)


def decoded(method, query, key, value, prompt, chunk=1, work=None, **call):
    """The cache, and the outputs [B, H, n, d] of the prompt and new tokens, `chunk` at a time."""
    cache = method.kv_cache(work or workload(prompt, len(query)))
    parts = [x[:, :, :prompt] for x in (query, key, value)]
    outputs = [cache.prefill(*parts, call_of(prompt, **call))]
    for start in range(prompt, query.shape[2], chunk):
        end = min(start + chunk, query.shape[2])
        parts = [x[:, :, start:end] for x in (query, key, value)]
        outputs.append(cache.decode(*parts, call_of(end, **call)))
    return cache, torch.cat(outputs, 2)


def weights(query, key, entries):
    """Softmax weights [m] of one query [d] on the entries, indices into key [n, d]."""
    return (key[entries] @ query * SCALE).softmax(0)


def check_reads(outputs, query, key, value, at, head, entries):
    """Checks that token `at` of the first row reads exactly these entries of a KV head."""
    for one in (2 * head, 2 * head + 1):
        weight = weights(query[0, one, at], key[0, head], entries)
        torch.testing.assert_close(outputs[0, one, at], weight @ value[0, head, entries])


def check_rows(method, chunk=1, own_chunk=None, work=None):
    """Checks that rows of a batch whose padding is noise decode as if alone: `chunk` tokens at a
    time, and `own_chunk` alone. Returns the caches, of the batch and of each row."""
    qkv, own = inputs(N, 3), []
    cache, outputs = decoded(method, *qkv, PROMPT, chunk, work, valid=VALID)
    for row, valid in enumerate(VALID):
        alone = [x[row : row + 1, :, valid] for x in qkv]
        prompt = int(valid[:PROMPT].sum())
        one, expected = decoded(method, *alone, prompt, own_chunk or chunk, work)
        torch.testing.assert_close(outputs[row : row + 1, :, valid], expected)
        own.append(one)
    return cache, own


def one_hot(*rows):
    """Query and key [1, 1, n, n] whose attention weights are these rows, at scale 1."""
    n = len(rows)
    query = torch.full((1, 1, n, n), 1e-12, dtype=torch.float64)
    for i, row in enumerate(rows):
        query[0, 0, i, : len(row)] = torch.tensor(row, dtype=torch.float64).clamp(min=1e-12)
    return query.log(), torch.eye(n, dtype=torch.float64)[None, None]


def tokens(cache, layer=0):
    """The tokens that are held, sorted, for each row and KV head, without the token that the next
    one replaces."""
    entries = cache.layers[layer]
    held = entries.token.clone()
    if entries.place is not None:
        held.scatter_(2, entries.place, -1)
    return [[sorted(x for x in head if x >= 0) for head in row] for row in held.tolist()]


def chosen(cache, key, layer=0):
    """The tokens whose keys [B, G, n, d] a `RaggedCache` holds, in its order, for each row and KV
    head."""
    runs = cache.layers[layer].runs
    heads = [head for run in runs for head in run.parts[0][0, :, : run.size]]
    found = [
        (held[:, None] == own).all(-1).long().argmax(1).tolist()
        for held, own in zip(heads, key.flatten(0, 1), strict=True)
    ]
    return [found[i : i + key.shape[1]] for i in range(0, len(found), key.shape[1])]


def stored(cache):
    """Bytes of all storage that is held."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in cache.held()}
    return sum(storage.nbytes() for storage in storages.values())
