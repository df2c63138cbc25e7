"""The pieces that `make gpu` measures, in the order of their value: each is a sweep of `bench run
-m` on the GPU, with a twin on a processor, the same cells at toy size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAPERS = "vanilla,vcc,bigbird,fourier,vanilla_eager,iceformer"
CACHES = (
    "vanilla,streaming_llm,snapkv,adakv,tova,pyramidkv,knorm,expected_attention,quest,sparq,"
    "vattention,nomad,kivi,q8_0,q4_0,turboquant"
)
CONFORMANCE = "conformance"
ROWS, CHECKS, SUMMARY = "rows", "conformance.jsonl", "summary.md"
"""Files of a run in its folder: rows, a line of JSON for each check, the summary."""
CUDA_LOST = 75
"""Exit code of the checks after an error that CUDA doesn't survive: all later calls would fail."""


@dataclass(frozen=True)
class Piece:
    """`words` are the arguments of the sweep, `toy` those that differ in its twin; `share` is its
    part of the time, relative to the others'. The conformance checks aren't a sweep and have none.
    """

    name: str
    share: float
    words: Mapping[str, str]
    toy: Mapping[str, str]

    def overrides(self, device: str | None) -> list[str]:
        """Overrides of the sweep on this GPU, or of the twin without a GPU."""
        chosen = {**self.words, "device": device} if device else {**self.words, **self.toy}
        return [f"{name}={value}" for name, value in chosen.items()]


PIECES = (
    Piece(
        "caches",
        5,
        {
            "experiment": "kv_times", "model": "random-llama-1b", "task": "longeval_lines",
            "dtype": "bfloat16", "n": "1", "length": "16384,65536", "method": CACHES,
            "deadline_s": "60",
        },
        {"model": "embedded-llama", "length": "192,256", "new_tokens": "4"},
    ),
    Piece(
        "first_tokens",
        2,
        {
            "experiment": "sparse_prefill", "model": "random-llama-1b", "task": "longeval_lines",
            "dtype": "bfloat16", "n": "1", "length": "16384,65536",
            "method": "vanilla,vertical_slash,a_shape", "deadline_s": "60",
        },
        {"model": "embedded-llama", "length": "256,384", "n": "4"},
    ),
    Piece(
        "frontier",
        4,
        {
            "experiment": "frontier", "dtype": "bfloat16", "measure": "glance", "n": "1",
            "method": PAPERS, "length": "16384,65536,4096,262144", "deadline_s": "60",
        },
        {"model": "embedded", "length": "192,256"},
    ),
    Piece(CONFORMANCE, 3, {}, {}),
    Piece(
        "longest",
        1,
        {
            "experiment": "frontier", "dtype": "bfloat16", "measure": "glance", "n": "1",
            "method": PAPERS, "length": "16384", "probe": "max_length", "deadline_s": "60",
        },
        {"model": "embedded", "length": "1024", "deadline_s": "2"},
    ),
    Piece(
        "quickstart",
        1,
        {"experiment": "quickstart"},
        {"length": "256", "n": "2"},
    ),
)  # fmt: skip
