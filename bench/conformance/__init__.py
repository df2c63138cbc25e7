"""The properties of every method in every family, checked on tiny models in seconds.

    for name, family in families().items():
        for line in check(method, family.tiny(method)):      # one line a failure
            print(name, line)

The method runs with its own parameters on 331 tokens, and as `Method.scaled_down()` on fewer. Its
output must be the same alone and in a batch, before and after other inputs, in clean and dirty
memory; and equal vanilla's at the parameters of `Method.exact_limit()`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch

from bench.conformance import checks
from bench.conformance.subject import LONG, MIXED, Subject
from bench.errors import RequestError
from bench.models.auto import AUTO, FAMILIES
from bench.models.base import Family
from bench.request import plugins
from methods.base import Method, refusal


def check(method: Method, family: Family) -> list[str]:
    """One line for each property that `method` lacks in `family` (a `Family.tiny`); none where the
    method reports that it does not support the family. The global random state is restored."""
    if refusal(method, family.workload(LONG, len(MIXED))):
        return []
    return run(checks.CHECKS, method, family)


def run(some: Sequence[checks.Check], method: Method, family: Family) -> list[str]:
    """As `check`, with only `some` of the checks."""
    failures: list[str] = []
    for one in some:
        own = one in checks.OWN_PARAMETERS
        subject = Subject(method if own else method.scaled_down(), family)
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
    """Name → class of every family with a model in the configuration, plugins included. The names
    of families that can't be loaded are printed on standard error."""
    configured = (conf["family"] for conf in plugins.usable("model").values())
    targets = sorted({*FAMILIES.values(), *configured} - {AUTO})
    named = {target.rpartition(":")[2].removesuffix("Family").lower(): target for target in targets}
    loaded = {}
    for name, target in sorted(named.items()):
        try:
            loaded[name] = plugins.load(target)
        except RequestError as error:
            print(f"bench: {error}", file=sys.stderr)
    return loaded
