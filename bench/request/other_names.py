"""What other harnesses, lm-eval before all, call the names of a request."""

from __future__ import annotations

from bench.errors import RequestError
from bench.request.schema import NAMES

OTHER_NAMES = {
    "tasks": "task", "limit": "n", "num_samples": "n", "models": "model", "model_args": "model",
    "model_name_or_path": "model", "pretrained": "model", "methods": "method",
    "batch_size": "batch", "max_length": "length", "max_seq_length": "length",
    "output_path": "results", "output_dir": "results", "num_threads": "threads",
    "data_dir": "data.dir", "split": "data.split", "torch_dtype": "dtype",
}  # fmt: skip
"""Name elsewhere → name here."""


def our_name(given: str) -> str | None:
    """The name of a request that a word such as `--tasks`, `limit` or `--data-dir` stands for."""
    name = given.lstrip("-").partition("=")[0].replace("-", "_")
    own = name if name in NAMES else None
    return OTHER_NAMES.get(name, own)


def not_a_word(given: str) -> RequestError:
    """The error for an argument of a request that isn't NAME=VALUE with a name of ours."""
    name = our_name(given)
    accepted = f"write {name}=…" if name else "a request is made of NAME=VALUE"
    return RequestError(f"can't read '{given}': {accepted}; see bench run --help")
