"""`bench ls methods`: what each method's YAML says of it under `facts`. None is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.terminal import text_table

COLUMNS = ("kind", "hooks", "families", "trains", "causal", "paper", "year")
"""What a listing has of a method.

kind      one of KINDS
hooks     which parts of a model it replaces: attend, mix, encode, a decoder's kv_cache; engine: all
families  the model families that it runs in, or all
trains    whether it can be trained; causal: whether it runs in a causal model

A YAML may also say which package a method `needs`.
"""
KINDS = ("exact", "sparse", "low-rank", "kernel", "pooling", "recurrent", "eviction", "quantised",
         "oracle", "engine")  # fmt: skip
NAMES = ("method", *COLUMNS)


def facts(content: Mapping[str, Any]) -> dict[str, str]:
    """COLUMNS of a method, from its YAML; empty where that has none."""
    given = content.get("facts")
    known = given if isinstance(given, dict) else {}
    return {name: _text(known.get(name)) for name in COLUMNS}


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """A line for each method; those that can't be used last, with the reason."""
    usable = [record for record in records if not record["problem"]]
    lines = [NAMES, *((record["name"], *(record[c] or "–" for c in COLUMNS)) for record in usable)]
    broken = [f"{r['name']}  can't be used: {r['problem']}" for r in records if r["problem"]]
    return "\n".join([*text_table.aligned(lines), *broken])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
