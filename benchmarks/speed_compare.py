"""Official codes beside ours, in one process: `make speed-compare [OFFICIAL=DIR]`.

    make speed-compare OFFICIAL=~/official       # a folder with the codes that were built there

BigBird is Hugging Face's port of google-research/bigbird, as it is shipped. IceFormer is the module
that yuzhenmao/IceFormer builds (class DCI), found in OFFICIAL or installed, with the settings of
its README. What isn't installed is named, and left out. VCC's and Fourier's codes train and score
whole models of their own, whose parts don't take the inputs of ours: they aren't compared.

Lines are read as those of benchmarks.speed; `×` is against torch's fused attention.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from bench.errors import described
from benchmarks import speed
from benchmarks.speed import FUSED, SIZE, Arm
from benchmarks.speed_budget import Budget
from benchmarks.speed_rows import Part, Rows
from benchmarks.speed_table import Progress, Session
from methods.attention import exact_attention
from methods.base import AttentionCall, Method, SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.iceformer.iceformer import IceFormer

MODULES = ("dciknn", "mdci", "iceformer")
TRIED = 256
"""Tokens of the run that shows whether an official code runs here."""


@dataclass(frozen=True)
class HubBigBird(Method):
    """transformers' block-sparse attention. Its model attends exactly up to 5 + 2r blocks."""

    block_size: int = 64
    random: int = 3

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        n = query.shape[2]
        if n <= (5 + 2 * self.random) * self.block_size:
            return exact_attention(query, key, value, call)
        attention, masks = _hub_bigbird(query.shape[1], query.shape[3], n, self.block_size)
        blocked, band, from_mask, to_mask = masks
        context, _ = attention.bigbird_block_sparse_attention(
            query, key, value, band, from_mask, to_mask, blocked, blocked, query.shape[1],
            self.random, query.shape[3], self.block_size, self.block_size, query.shape[0], n, n,
            seed=0, plan_from_length=None, plan_num_rand_blocks=None,
        )  # fmt: skip
        output: Tensor = context.view(query.shape[0], n, *query.shape[1::2]).transpose(1, 2)
        return output


@functools.cache
def _hub_bigbird(heads: int, size: int, n: int, block: int) -> tuple[Any, Any]:
    """The attention module and its masks of an unpadded input."""
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=heads * size, num_attention_heads=heads, block_size=block,
        max_position_embeddings=n,
    )  # fmt: skip
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, n), block)
    return BigBirdBlockSparseAttention(config, seed=0).eval(), masks


@dataclass(frozen=True)
class OfficialIceFormer(Method):
    """MDCI with the settings of its README; k keys a query."""

    k: int = 20
    levels: int = 3

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        batch, heads, n, size = query.shape
        rows = [numpy.ascontiguousarray(x.reshape(-1, size)) for x in (key, query, value)]
        every = {"num_to_visit": n, "num_to_retrieve": -1, "prop_to_visit": 1.0}
        build = {**every, "prop_to_retrieve": 0.002, "field_of_view": 5}
        search = {**every, "prop_to_retrieve": 0.8, "field_of_view": self.k}
        output = _dci()(size, 2, 4).add_query(
            *rows,
            numpy.ones(batch * heads * n, dtype=bool),
            num_levels=self.levels,
            num_inst=batch * heads,
            num_points=n,
            num_neighbours=self.k,
            **{f"c_{name}": value for name, value in build.items()},
            **{f"q_{name}": value for name, value in search.items()},
            scale=call.scale,
            parallel_level=1,
            causal=False,
        )
        return torch.from_numpy(numpy.asarray(output, numpy.float32)).view(query.shape)


@functools.cache
def _dci() -> Any:
    """The class of the official search. Raises ImportError."""
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "DCI"):
            return module.DCI
    raise ImportError(f"not installed (no module {', '.join(MODULES)} with a class DCI)")


OURS_AND_OFFICIAL = {
    "BigBird": (Arm("bigbird", BigBird()), Arm("bigbird of transformers", HubBigBird())),
    "IceFormer": (Arm("iceformer", IceFormer()), Arm("iceformer official", OfficialIceFormer())),
}


def problem(method: Method) -> str | None:
    """Why an official code doesn't run here; None when it does."""
    inputs = speed.clustered(TRIED)
    try:
        method.attend(*inputs, AttentionCall(SequenceInfo(), SIZE**-0.5, 0))
    except Exception as error:  # whatever another project's code raises
        return str(error) if isinstance(error, ImportError) else f"fails: {described(error)}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--official", type=Path, help="a folder with official codes")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=5, help="at most; fewer where time is short")
    parser.add_argument("--seconds", type=float, default=120, help="for all")
    parser.add_argument("--results", type=Path, default=speed.RESULTS, help="where rows are kept")
    options = parser.parse_args()
    if options.official:
        if not options.official.expanduser().is_dir():
            parser.error(f"--official={options.official} is no folder; OFFICIAL=DIR names one")
        sys.path[:0] = [str(options.official.expanduser().resolve())]
    torch.set_num_threads(1)
    arms = [FUSED]
    for paper, (ours, official) in OURS_AND_OFFICIAL.items():
        if reason := problem(official.method):
            print(f"{paper}'s official code: {reason}; not compared")
        else:
            arms += [ours, official]
    session = Session(
        Budget(options.seconds, [n**0.5 for n in options.lengths]),
        Rows(options.results, {}),
        Progress(len(options.lengths)),
        options.rounds,
    )
    with session.progress.bar, torch.no_grad():
        for n in options.lengths:
            part = Part("attention", f"clustered keys, {SIZE} wide", n, speed.heads_of(n))
            session.budget.begin_part()
            speed.attention(session, part, 0.0, (*speed.clustered(n), SIZE**-0.5), arms)
            session.progress.end_part()
    session.rows.store()


if __name__ == "__main__":
    main()
