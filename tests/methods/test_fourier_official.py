"""Fourier in BART against the official encoder, written out: the global residual is summed inside
the last layer, before that layer's own final norm."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import gelu, interpolate

from bench.models.bart import BartFamily
from bench.train.trainer import CheckpointedMethod
from methods.base import SequenceInfo
from methods.fourier.fourier import Fourier
from methods.vanilla import Vanilla
from tests.methods.test_fourier import filter_of, numbers

EXACT = {"rtol": 1e-9, "atol": 1e-9}
SETTINGS = [("0", 0.2), ("2", 0.5), ("1,2", 0.6), ("0,2", 1.0)]


def official(encoder, ids, filters, r):
    """ids [B, n] without padding → [B, n, D]"""
    x = encoder.embed_tokens(ids) + encoder.embed_positions(ids)
    x, stored = encoder.layernorm_embedding(x), []
    for index, layer in enumerate(encoder.layers):
        if str(index) in filters.split(","):
            stored.append(x)
            x = filter_of(x.shape[1], math.ceil(r * x.shape[1])) @ x
        x = layer.self_attn_layer_norm(x + attention(layer.self_attn, x))
        x = x + layer.fc2(gelu(layer.fc1(x)))
        if index == len(encoder.layers) - 1:
            stored.append(x)
            x = sum(interpolate(state.mT, size=ids.shape[1]).mT for state in stored)
        x = layer.final_layer_norm(x)
    return x


def attention(module, x):
    query, key, value = (
        project(x).unflatten(2, (module.num_heads, -1)).transpose(1, 2)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    read = (query @ key.mT * module.scaling).softmax(-1) @ value
    return module.out_proj(read.transpose(1, 2).flatten(2))


def bart(method):
    """A tiny BART in float64 whose norms have weights that matter, and its encoder."""
    family = BartFamily.tiny(method)
    draw = torch.Generator().manual_seed(0)
    for norm in (layer.final_layer_norm for layer in family.model.get_encoder().layers):
        norm.weight.data.uniform_(0.5, 1.5, generator=draw)
        norm.bias.data.normal_(generator=draw)
    family.model.double()
    return family, family.model.get_encoder()


def tokens(rows, n):
    return torch.randint(3, 64, (rows, n), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layers, r", SETTINGS)
@torch.no_grad()
def test_bart_is_the_official_encoder(layers, r):
    family, encoder = bart(Fourier(layers=layers, r=r))
    for n in (20, 31):
        ids = tokens(2, n)
        expected = official(encoder, ids, layers, r)
        torch.testing.assert_close(family.encode(ids, SequenceInfo()), expected, **EXACT)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "checkpointed"])
def test_gradients_are_the_official_encoders(wrapped):
    method, ids = Fourier(layers="1,2", r=0.5), tokens(2, 19)
    family, encoder = bart(CheckpointedMethod(method) if wrapped else method)
    read = []
    for states in (family.encode(ids, SequenceInfo()), official(encoder, ids, "1,2", 0.5)):
        family.model.zero_grad()
        states.pow(3).sum().backward()
        read.append([w.grad.clone() for w in encoder.parameters() if w.grad is not None])
    assert len(read[0]) == len(read[1]) > 40
    for ours, theirs in zip(*read, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@torch.no_grad()
def test_with_every_frequency_bart_is_as_near_to_vanilla_as_officially():
    family = BartFamily.tiny(Vanilla())
    ids = tokens(2, 100)
    exact = family.encode(ids, SequenceInfo())
    for layers, distance in (("0", 0.314), ("1", 0.303), ("2", 0.321)):
        family.method = Fourier(layers=layers, r=1.0)
        apart = (family.encode(ids, SequenceInfo()) - exact).norm() / exact.norm()
        assert apart.item() == pytest.approx(distance, abs=0.02)
    family.method = Fourier(r=1.0, global_residual=False)
    torch.testing.assert_close(family.encode(ids, SequenceInfo()), exact, rtol=1e-4, atol=1e-4)


def test_the_state_of_the_first_token_is_upsampled_to_it_alone():
    """Officially it is interpolated with the others, and reaches the second token."""
    x, unchanged = numbers(1, 20, 3), [lambda hidden, sequence: hidden]
    method = Fourier(r=0.5, pooling="cls", global_residual=False)
    short, _ = replace(method, upsample=False).encode_shorter(unchanged, x, SequenceInfo())
    ours, theirs = method.encode(unchanged, x, SequenceInfo())[0], interpolate(short.mT, size=20).mT
    assert ours[0].equal(x[0, 0]) and ours[1].equal(short[0, 1]) and theirs[0, 1].equal(x[0, 0])
