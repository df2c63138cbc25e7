"""An engine: a system that answers prompts by itself, such as llama.cpp or a server, and is
observed from outside: its text, and the times at which its tokens arrive.

An engine takes the place of a method in a cell: its settings are parameters, its rows are compared
with vanilla's. It reads the token ids that every other method of the cell gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from methods.base import Method, Workload


class Answer(NamedTuple):
    """A greedy answer, with the nanoseconds from the request to its first and to its last token."""

    text: str
    tokens: int
    first_ns: int
    last_ns: int

    @property
    def token_ns(self) -> int | None:
        """Mean nanoseconds of the tokens after the first; None without one."""
        return (self.last_ns - self.first_ns) // (self.tokens - 1) if self.tokens > 1 else None


class Session(Protocol):
    """An engine that has loaded a model.

    version  name and version for the row, such as "xllamacpp 2026.10"
    """

    version: str

    def generate(
        self, ids: Sequence[int], new_tokens: int, stop: Sequence[str] = (), exactly: bool = False
    ) -> Answer:
        """Reads a prompt and answers with up to `new_tokens`, until an end-of-sequence token or one
        of the strings `stop`; `exactly`: with this number of tokens. Nothing of an earlier prompt
        is reused. Raises RunError."""

    def peak_bytes(self) -> int | None:
        """The most resident memory of the engine's process so far; None where it isn't known."""

    def close(self) -> None:
        """Ends the engine's process, if this session has started it."""


@dataclass(frozen=True)
class Start:
    """Arguments for the start of an engine: the checkpoint's folder, its tokenizer, and the maximum
    number of tokens of a prompt and its answer together."""

    folder: Path
    tokenizer: Any
    tokens: int
    threads: int


class Engine(Method):
    """The settings of an engine."""

    def start(self, given: Start) -> Session:
        """Raises RequestError for a model or settings that the engine doesn't take, or where its
        package isn't installed."""
        raise NotImplementedError

    def unsupported(self, workload: Workload) -> str | None:
        if not workload.causal:
            return "an engine runs decoders"
        return None if workload.batch == 1 else "an engine answers one prompt at a time: batch=1"
