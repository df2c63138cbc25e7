"""llama.cpp's server in a process: see bench.engines.process. Its `address` is the first line."""

from __future__ import annotations

import json
import sys

from bench.engines import process


def main(content: str) -> None:
    settings = json.loads(content)
    process.prepared(settings)
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path = settings["file"]
    given.n_ctx, given.n_parallel = settings["tokens"], 1
    for threads in (given.cpuparams, given.cpuparams_batch):
        threads.n_threads = settings["threads"]
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{settings['cache'].upper()}")
    given.cache_type_k = given.cache_type_v = kind
    switch = "ENABLED" if settings["flash"] else "DISABLED"
    given.flash_attn_type = getattr(
        xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{switch}"
    )
    given.hostnames, given.port, given.ui = ["127.0.0.1"], 0, False
    given.cache_ram_mib = 0  # keeps no earlier prompts
    try:
        server = xllamacpp.Server(given)
    except Exception as error:  # the library raises any type for a model that it can't load
        process.send(error=f"llama.cpp can't load {settings['file']}: {error}")
        return
    process.send(address=server.listening_address, vectors=vectors(xllamacpp.get_system_info()))
    sys.stdin.read()


def vectors(features: str) -> str:
    """The widest vectors of a build of llama.cpp by its line of features, "… | AVX2 = 1 | …", or
    "": a package for many processors may use fewer features than this processor has."""
    widest = (name for name in ("AVX512", "AVX2", "AVX", "NEON") if f" {name} = 1 " in features)
    return next(widest, "")


if __name__ == "__main__":
    main(sys.argv[1])
