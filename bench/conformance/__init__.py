"""What every method keeps in every family, checked on tiny models in seconds.

    for name, family in families().items():
        for line in check(method, family.tiny(method)):      # one line a failure
            print(name, line)

The method runs as it is on 331 tokens, and as `Method.small()` on fewer. What it must equal is
itself: alone and in a batch, before and after other inputs, in clean and dirty memory; and vanilla
at the parameters that `Method.exact()` names.
"""

from __future__ import annotations

import warnings

import torch

from bench import plugins
from bench.conformance import checks
from bench.conformance.subject import LONG, MIXED, Subject
from bench.models.auto import AUTO, FAMILIES
from bench.models.base import Family
from methods.base import Method


def check(method: Method, family: Family) -> list[str]:
    """One line for each thing that `method` doesn't keep in `family` (a `Family.tiny`); none where
    it says itself that it doesn't support the family. Global random state stays as it is."""
    if method.unsupported(family.shape(LONG, len(MIXED))):
        return []
    failures: list[str] = []
    for one in checks.CHECKS:
        subject = Subject(method if one is checks.long_input else method.small(), family)
        family.model.eval()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                failures += [f"{one.__name__}: {line}" for line in one(subject)]
            except Exception as error:
                line = next(iter(str(error).splitlines()), "")
                failures.append(f"{one.__name__}: {type(error).__name__}: {line}")
    return failures


def families() -> dict[str, type[Family]]:
    """Name → class of every family that a model of the configuration, a plugin's too, is of."""
    configured = (plugins.conf("model", name)["family"] for name in plugins.available("model"))
    targets = sorted({*FAMILIES.values(), *configured} - {AUTO})
    named = {target.rpartition(":")[2].removesuffix("Family").lower(): target for target in targets}
    return {name: plugins.load(target) for name, target in sorted(named.items())}
