"""llama.cpp (github.com/ggml-org/llama.cpp, MIT), run by its server in the package xllamacpp: bound
to loopback, at a free port, started and stopped with the measurement.

Differs from our methods: GGUF's own number formats are computed with, not dequantised weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from bench.engines.base import Engine, Session, Start
from bench.engines.gguf_weights import Weights, file_of
from bench.engines.openai import ServerSession
from bench.engines.process import EngineProcess, check_installed
from bench.engines.stream import Completions

PACKAGE = "xllamacpp"


@dataclass(frozen=True)
class LlamaCpp(Engine):
    """
    weights  those of the model's GGUF file, unchanged or converted
    cache    number format of keys and values
    flash    flash attention; quantised values need it
    """

    weights: Weights = "file"
    cache: Literal["f16", "f32", "bf16", "q8_0", "q4_0"] = "f16"
    flash: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.flash and self.cache.startswith("q"):
            raise ValueError(f"cache={self.cache} needs flash=true: llama.cpp reads no other so")

    def start(self, given: Start) -> Session:
        check_installed(PACKAGE, "llama-cpp")
        process = EngineProcess(
            "llama_server", given.threads, file=str(file_of(given.folder, self.weights)),
            tokens=given.tokens, cache=self.cache, flash=self.flash,
        )  # fmt: skip
        return LlamaSession(process)


class LlamaSession(ServerSession):
    """A session with a llama.cpp server that this process has started."""

    def __init__(self, process: EngineProcess) -> None:
        client = Completions(process.ready["address"] + "/v1")
        fields = {"cache_prompt": False}
        build = f"{PACKAGE} {version(PACKAGE)} {process.ready['vectors']}".strip()
        super().__init__(client, build, None, fields)
        self.process = process

    def peak_bytes(self) -> int | None:
        return self.process.peak_bytes()

    def close(self) -> None:
        self.process.close()
