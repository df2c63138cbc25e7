"""Methods equal transformers' own modules, on the same projections, where both follow the paper."""

import math

import pytest
import torch
import transformers
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform
from transformers.models.led.modeling_led import LEDEncoderSelfAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from methods.base import AttentionCall, SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.fnet import FNet
from methods.longformer.longformer import Longformer
from methods.nystromformer import Nystromformer
from methods.reformer.reformer import Reformer

HEADS, SIZE = 2, 4
HIDDEN = HEADS * SIZE


def hidden_states(n, batch=2):
    draw = torch.Generator().manual_seed(n)
    return torch.randn(batch, n, HIDDEN, generator=draw, dtype=torch.float64)


def made(module):
    """In float64 and evaluation, with weights large enough for scores to differ."""
    draw = torch.Generator().manual_seed(0)
    for weight in module.double().eval().parameters():
        weight.data.normal_(std=0.5, generator=draw)
    return module


def heads(projected):
    return projected.unflatten(2, (-1, SIZE)).transpose(1, 2)


def merged(output):
    return output.transpose(1, 2).flatten(2)


class Projections:
    """The sub-layer of a module with `query`, `key` and `value`."""

    attended = False

    def __init__(self, module):
        self.query, self.key, self.value = (
            lambda hidden, project=project: heads(project(hidden))
            for project in (module.query, module.key, module.value)
        )

    def output(self, read):
        return merged(read)


def attended(method, module, hidden, **sequence):
    """The method's output with the module's projections."""
    names = "query", "key", "value"
    call = AttentionCall(SequenceInfo(**sequence), 1 / math.sqrt(SIZE), 0)
    with torch.no_grad():
        return merged(method.attend(*(heads(getattr(module, x)(hidden)) for x in names), call))


def close(output, expected, atol=1e-12):
    torch.testing.assert_close(output, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("led", [False, True], ids=["longformer", "led"])
@torch.no_grad()
def test_longformer(led):
    n, window, valid = 48, 8, torch.ones(2, 48, dtype=torch.bool)
    valid[1, 40:] = False
    given = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "attention_window": [window]}
    if led:
        given = {"d_model": HIDDEN, "encoder_attention_heads": HEADS, "attention_window": [window]}
        module = LEDEncoderSelfAttention(transformers.LEDConfig(**given, attention_dropout=0.0), 0)
    else:
        module = LongformerSelfAttention(transformers.LongformerConfig(**given), 0)
    made(module)
    mask = torch.zeros(2, n, dtype=torch.float64).masked_fill(~valid, -10000.0)
    mask[:, 0] = 10000.0
    hidden = hidden_states(n)
    expected = module(
        hidden,
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=True,
    )[0]
    own = {
        f"{name}_{kind}": getattr(getattr(module, f"{name}_global"), kind)
        for name in ("query", "key", "value")
        for kind in ("weight", "bias")
    }
    call = AttentionCall(SequenceInfo(valid=valid), 1 / math.sqrt(SIZE), 0, parameters=own)
    output = Longformer(window, "first").mix(hidden, Projections(module), call)
    close(output[valid], expected[valid], 1e-6)  # a softmax there is in float32


@torch.no_grad()
def test_nystromformer():
    """One row and one head: with more, the scale of Z₀ there is that of all matrices together."""
    n, m = 60, 6
    config = transformers.NystromformerConfig(
        hidden_size=SIZE, num_attention_heads=1, num_landmarks=m, segment_means_seq_len=n,
        conv_kernel_size=5, inv_coeff_init_option=False,
    )  # fmt: skip
    module = made(NystromformerSelfAttention(config))
    hidden, own = hidden_states(n, 1)[..., :SIZE], {"convolution": module.conv.weight}
    call = AttentionCall(SequenceInfo(), 1 / math.sqrt(SIZE), 0, parameters=own)
    read = (heads(x(hidden)) for x in (module.query, module.key, module.value))
    close(merged(Nystromformer(m, convolution=5).attend(*read, call)), module(hidden)[0])


@pytest.mark.parametrize("rounds", [1, 3])
@torch.no_grad()
def test_reformer(rounds):
    """Other buckets are read there, pairs counted, and each round's first chunk reads the last one
    of the round before."""
    n, chunk, buckets = 40, 8, 4
    config = transformers.ReformerConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, attention_head_size=SIZE, num_hashes=rounds,
        lsh_attn_chunk_length=chunk, num_buckets=buckets, lsh_num_chunks_after=0,
        is_decoder=False,
    )  # fmt: skip
    module = made(LSHSelfAttention(config, layer_idx=0))
    method = Reformer(chunk, rounds, buckets, False, "counted", "previous")
    hidden = hidden_states(n)
    module.query = module.key = module.query_key
    x = heads(module.query(hidden))
    hashes = [one + i * buckets for i, one in enumerate(method.hashes(x, 0))]
    expected = module(hidden, buckets=torch.cat(hashes, -1)).hidden_states
    close(attended(method, module, hidden), expected, 1e-5)  # ε there in the length of a key


@torch.no_grad()
def test_fnet():
    hidden = hidden_states(30)
    expected = FNetBasicFourierTransform(transformers.FNetConfig(hidden_size=HIDDEN))(hidden)[0]
    close(FNet().mix(hidden, None, AttentionCall(SequenceInfo(), 1.0, 0)), expected)


@torch.no_grad()
def test_bigbird():
    """Outside training all random blocks there are the first block: it counts as often for each
    but the global queries, the first and the last block."""
    n, block, random = 48, 4, 2
    config = transformers.BigBirdConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, block_size=block,
        num_random_blocks=random, max_position_embeddings=n,
    )  # fmt: skip
    module, hidden = made(BigBirdBlockSparseAttention(config, seed=0)), hidden_states(n)
    ones = torch.ones(2, n, dtype=torch.float64)
    masks = transformers.BigBirdModel.create_masks_for_block_sparse_attn(ones, block)
    blocked, band, rows, columns = masks
    expected = module(hidden, band, rows, columns, blocked, blocked)[0]
    counts = torch.ones(2, n, dtype=torch.float64)
    counts[:, :block] += random
    method, inner = BigBird(block, random=0, kernel="torch"), slice(block, n - block)
    output = attended(method, module, hidden)
    output[:, inner] = attended(method, module, hidden, log_multiplicity=counts.log())[:, inner]
    close(output, expected)
