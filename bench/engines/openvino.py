"""OpenVINO GenAI (github.com/openvinotoolkit/openvino.genai, Apache-2.0), version 2026.4, run by
its pipeline with continuous batching, which has sparse prefill and cache eviction.

It reads a model's GGUF file. Eviction starts once the whole prompt has been read, so it saves
memory and time only for the tokens after it. The algorithms are OpenVINO's versions: compare
`methods.xattention` and `methods.snapkv`. Not offered: its adaptive R-KV, whose pipeline ends with
"Token diversity must be registered before each eviction", and matrices in float32, which its reader
of GGUF refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from time import perf_counter_ns
from typing import Annotated, Any, Literal

from bench.engines.base import Answer, Engine, Session, Start
from bench.engines.gguf_weights import file_of
from bench.engines.process import EngineProcess, check_installed
from methods.parts.parameters import Range

PACKAGE = "openvino-genai"


@dataclass(frozen=True)
class OpenVINO(Engine):
    """
    weights    those of the model's GGUF file, unchanged or converted
    precision  number format of its computation
    cache_precision  number format of keys and values; with precision=bf16 it must be bf16
    attention  attention to prompts: dense, xattention or tri_shape
    threshold, block, stride  for xattention: the share of scores that the read blocks hold, tokens
               of a block, and the stride of its diagonals
    start_tokens, recent_tokens  tokens at both ends that tri_shape reads
    eviction   scores by which entries are dropped after the prompt: snapkv: those of its last
               tokens; h2o: the sums over all tokens; none: no entries are dropped
    budget     share of the prompt's tokens that is kept
    kvcrush    share of the budget that KVCrush chooses
    """

    weights: Literal["file", "f16", "q8_0", "q4_0"] = "f16"
    precision: Literal["f32", "bf16"] = "f32"
    cache_precision: Literal["f32", "f16", "bf16", "u8"] = "f32"
    attention: Literal["dense", "xattention", "tri_shape"] = "dense"
    threshold: Annotated[float, Range(above=0, most=1)] = 0.9
    block: Annotated[int, Range(1)] = 128
    stride: Annotated[int, Range(1)] = 16
    start_tokens: Annotated[int, Range(32, step=32)] = 128
    recent_tokens: Annotated[int, Range(32, step=32)] = 512
    eviction: Literal["none", "snapkv", "h2o"] = "none"
    budget: Annotated[float, Range(above=0, most=1)] = 0.25
    kvcrush: Annotated[float, Range(0, most=0.9)] = 0.0

    def start(self, given: Start) -> Session:
        check_installed("openvino_genai", "openvino")
        process = EngineProcess(
            "openvino_pipeline", given.threads, file=str(file_of(given.folder, self.weights)),
            tokens=given.tokens, **asdict(self),
        )  # fmt: skip
        return PipelineSession(process, given.tokenizer)


class PipelineSession:
    """A session with a pipeline in a separate process."""

    def __init__(self, process: EngineProcess, tokenizer: Any) -> None:
        self.process, self.tokenizer = process, tokenizer
        self.version = f"{PACKAGE} {version(PACKAGE)}"

    def generate(
        self, ids: Sequence[int], new_tokens: int, stop: Sequence[str] = (), exactly: bool = False
    ) -> Answer:
        tokens, first_ns, last_ns = list[int](), 0, 0
        began = perf_counter_ns()
        self.process.write(ids=list(ids), new_tokens=new_tokens, stop=list(stop), exactly=exactly)
        while (line := self.process.read()).get("token") is not None:
            last_ns = perf_counter_ns() - began
            first_ns = first_ns or last_ns
            tokens.append(line["token"])
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return Answer(text, len(tokens), first_ns, last_ns)

    def peak_bytes(self) -> int | None:
        return self.process.peak_bytes()

    def close(self) -> None:
        self.process.close()
