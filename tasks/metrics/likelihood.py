"""Figures of the likelihood of a continuation. A prediction is a JSON object of lists with a number
for each token: `nll`, its negative log-likelihood in nats; and, if the method isn't vanilla, `kl`,
the KL divergence of the prediction from vanilla's, and `equal`, whether both have the same most
likely token (1 or 0)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

NAMES = {"nll": "nats_per_token", "kl": "kl", "equal": "top1_agree"}


def figures(prediction: str, references: Sequence[Any]) -> dict[str, float]:
    """Means over all tokens, and means of `nll` and `kl` over the first and the last quarter.
    Raises ValueError for a prediction of another form."""
    found: dict[str, float] = {}
    lists = json.loads(prediction)
    if not isinstance(lists, dict) or "nll" not in lists or lists.keys() - NAMES:
        raise ValueError(f"{prediction!r:.60}; expected an object with nll, a list of numbers")
    for name, values in lists.items():
        figure, quarter = NAMES[name], math.ceil(len(values) / 4)
        found[figure] = fmean(values)
        if name != "equal":
            found[f"{figure}_first_quarter"] = fmean(values[:quarter])
            found[f"{figure}_last_quarter"] = fmean(values[-quarter:])
    return found
