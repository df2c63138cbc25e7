"""Checks of a resolved request: each value by itself, and the memory and time that it needs on
this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from bench.errors import RequestError, unknown
from bench.host import gpu, host
from bench.request import protocol, questions, schema
from bench.units import memory, span


def check_values(request: Mapping[str, Any]) -> None:
    """Checks each value of a resolved request by itself. Raises RequestError."""
    for name in ("length", "batch", "n", "threads", "deadline_s"):
        value = request[name]
        if value is not None and value < 1:
            raise RequestError(f"{name}={value} is not accepted: it must be 1 or more")
    if request["seed"] < 0:
        raise RequestError(f"seed={request['seed']} is not accepted: it must be 0 or more")
    for name, accepted in (("dtype", schema.DTYPES), ("measure", schema.MEASURES),
                           ("probe", (None, *schema.PROBES))):  # fmt: skip
        if request[name] not in accepted:
            raise unknown(name, request[name], filter(None, accepted))
    _check_new_tokens(request)
    questions.check_values(request)
    if request.get("recipe"):
        protocol.check_recipe(request["recipe"])
    if request["data"]["source"] not in schema.SOURCES:
        raise unknown("data source", request["data"]["source"], schema.SOURCES)
    if request["data"]["source"] == "local" and not request["data"].get("dir"):
        raise RequestError("data=local needs the folder: data.dir=FOLDER (DATA_DIR=FOLDER)")
    if request["data"]["source"] != "local" and request["data"].get("dir"):
        source = request["data"]["source"]
        raise RequestError(f"data.dir={request['data']['dir']} is for data=local; given: {source}")
    check_size(request)


def decoded_tokens(request: Mapping[str, Any]) -> int | None:
    """How many new tokens a request decodes after each prompt; None: decoding isn't measured."""
    planned = None if request["probe"] else schema.MEASURES[request["measure"]].new_tokens
    return request.get("new_tokens") or planned


def _check_new_tokens(request: Mapping[str, Any]) -> None:
    given = request.get("new_tokens")
    if given is None:
        return
    if given < 2:
        raise RequestError(
            f"new_tokens={given} is not accepted: 2 or more, as the first one is the prefill's "
            f"({schema.VERDICT_TOKENS} for a verdict)"
        )
    timed = [name for name, plan in schema.MEASURES.items() if plan.speed]
    if request["probe"] or request["measure"] not in timed:
        name = "probe" if request["probe"] else "measure"
        chosen = f"{name}={request[name]}"
        raise RequestError(
            f"new_tokens={given}: {chosen} times no decoding; accepted with it: "
            f"measure={', '.join(timed)}"
        )


def check_device(device: Mapping[str, Any]) -> None:
    """Raises RequestError when this machine doesn't have the device."""
    if device["kind"] == "cpu":
        return
    found = gpu.name()
    if not found:
        raise RequestError(f"device={device['name']}: no CUDA GPU on this machine; accepted: cpu")
    required = device.get("require")
    # As a word: a GH200 is no H200.
    if required and not re.search(rf"\b{re.escape(required)}\b", found, re.IGNORECASE):
        raise RequestError(
            f"device={device['name']} requires an {required}; here: {found} "
            "(device=cuda takes any GPU)"
        )


# Limits of this machine, checked before any row is generated or a model is loaded.
#
# The estimates are generous: they refuse what is out of reach by far, and leave what is near the
# limit to the run itself, whose end becomes a row.

BYTES_PER_TOKEN = 4
"""Memory of a token of a generated row, for most tasks."""
TOKENS_PER_S = 1e6
"""Tokens that one core generates in a second, for most tasks."""


def check_threads(threads: int | None) -> None:
    """Raises RequestError for more threads than this process may use cores."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None and threads > cores:
        raise RequestError(
            f"threads={threads} is not accepted: this process may use {cores} cores; accepted: "
            f"1 to {cores}, null for all"
        )


def generating_s(request: Mapping[str, Any]) -> float:
    """Seconds that the embedded rows of a request take to generate; 0 of another source."""
    return float(request["length"] * _generated(request) / TOKENS_PER_S)


def check_size(request: Mapping[str, Any]) -> None:
    """Raises RequestError for rows or a batch that can't be held in memory here, and for embedded
    rows that can't be generated within the request's deadline."""
    tokens = request["length"] * max(_generated(request), request["batch"])
    size, free = tokens * BYTES_PER_TOKEN, host.available_memory()
    seconds, deadline = generating_s(request), request["deadline_s"]
    if size <= free and seconds <= deadline:
        return
    asked = " ".join(
        f"{name}={request[name]}" for name in ("length", "n", "batch") if request[name] is not None
    )
    raise RequestError(
        f"{asked} would need about {memory(size)} for the tokens alone and {span(seconds)} to "
        f"generate rows; this machine has {memory(free)} free, and deadline_s is {deadline}"
    )


def _generated(request: Mapping[str, Any]) -> int:
    """Rows that are generated."""
    return int(request["n"] or 0) if request["data"]["source"] == "embedded" else 0
