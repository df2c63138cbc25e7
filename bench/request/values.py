"""Checks of each value of a resolved request by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.errors import RequestError, unknown
from bench.host import gpu
from bench.request import limits, protocol, questions, schema


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
    limits.check_size(request)


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
