"""OpenVINO's pipeline in a process: see bench.engines.process. It reads requests as lines of JSON,
and answers each with a line for every token and one with `token` null."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from bench.engines import process

BLOCK = 32
SNAPKV_WINDOW = 32


def eviction(genai: Any, settings: Mapping[str, Any], tokens: int) -> Any:
    """Eviction settings for prompts of `tokens` tokens: a quarter of the budget for the newest
    tokens, one block for the first ones, and the rest for the tokens with the highest scores."""
    kept = max(4 * BLOCK, round(settings["budget"] * tokens) // BLOCK * BLOCK)
    recent = max(BLOCK, kept // 4 // BLOCK * BLOCK)
    crush = round(settings["kvcrush"] * kept) // BLOCK
    return genai.CacheEvictionConfig(
        start_size=BLOCK,
        recent_size=recent,
        max_cache_size=kept,
        aggregation_mode=genai.AggregationMode.NORM_SUM,
        snapkv_window_size=SNAPKV_WINDOW if settings["eviction"] == "snapkv" else 0,
        kvcrush_config=genai.KVCrushConfig(budget=crush) if crush else None,
    )


def pipeline(genai: Any, settings: Mapping[str, Any]) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.num_kv_blocks = settings["tokens"] // BLOCK + 8
    scheduler.max_num_batched_tokens = max(2048, settings["tokens"])
    if settings["attention"] != "dense":
        modes = genai.SparseAttentionMode
        scheduler.use_sparse_attention = True
        scheduler.sparse_attention_config = genai.SparseAttentionConfig(
            mode=modes.XATTENTION if settings["attention"] == "xattention" else modes.TRISHAPE,
            num_retained_start_tokens_in_cache=settings["start_tokens"],
            num_retained_recent_tokens_in_cache=settings["recent_tokens"],
            xattention_threshold=settings["threshold"],
            xattention_block_size=settings["block"],
            xattention_stride=settings["stride"],
        )
    if settings["eviction"] != "none":
        scheduler.use_cache_eviction = True
        scheduler.cache_eviction_config = eviction(genai, settings, settings["tokens"])
    return genai.LLMPipeline(
        settings["file"], "CPU", scheduler_config=scheduler,
        INFERENCE_NUM_THREADS=settings["threads"], INFERENCE_PRECISION_HINT=settings["precision"],
        KV_CACHE_PRECISION=settings["cache_precision"],
    )  # fmt: skip


def main(content: str) -> None:
    settings = json.loads(content)
    process.prepared(settings)
    import numpy as np
    import openvino
    import openvino_genai as genai

    class Tokens(genai.StreamerBase):  # type: ignore[misc, name-defined]
        def write(self, token: Any) -> Any:
            for one in token if isinstance(token, list) else [token]:
                process.send(token=int(one))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None: ...

    try:
        model = pipeline(genai, settings)
    except Exception as error:  # the library raises any type for a model that it can't load
        reason = " ".join(str(error).split())
        process.send(error=f"OpenVINO can't load {settings['file']}: {reason}")
        return
    process.send(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        given = model.get_generation_config()
        given.do_sample, given.max_new_tokens = False, asked["new_tokens"]
        given.ignore_eos, given.stop_strings = asked["exactly"], set(asked["stop"])
        given.apply_chat_template = False
        ids = openvino.Tensor(np.array([asked["ids"]], np.int64))
        mask = openvino.Tensor(np.ones((1, len(asked["ids"])), np.int64))
        model.generate(genai.TokenizedInputs(ids, mask), given, Tokens())
        process.send(token=None)


if __name__ == "__main__":
    main(sys.argv[1])
