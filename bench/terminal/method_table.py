"""`bench ls methods`, from the descriptions in YAML. No method is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.terminal import text_table

METHOD_COLUMNS = ("kind", "hooks", "families", "trains", "causal", "paper", "year")
"""Columns of a method in a listing.

kind      one of KINDS
hooks     the replaced parts of a model: attend, mix, encode, a decoder's kv_cache; engine: all
families  the model families in which it runs, or all
trains    whether it can be trained; causal: whether it runs in a causal model

A YAML may also name a package that a method `needs`, and give its `prompt_passes`: the time in
which it reads a prompt, in forward passes of the model.
"""
KINDS = ("exact", "sparse", "low-rank", "kernel", "pooling", "recurrent", "eviction", "quantised",
         "oracle", "engine")  # fmt: skip


def method_facts(content: Mapping[str, Any]) -> dict[str, str]:
    """METHOD_COLUMNS of a method, from its YAML; empty if the YAML has none."""
    given = content.get("facts")
    known = given if isinstance(given, dict) else {}
    return {name: _text(known.get(name)) for name in METHOD_COLUMNS}


def method_table(records: Sequence[Mapping[str, Any]]) -> str:
    """A line for each method."""
    lines = [(record["name"], *(record[c] or "–" for c in METHOD_COLUMNS)) for record in records]
    return "\n".join(text_table.aligned([("method", *METHOD_COLUMNS), *lines]))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
