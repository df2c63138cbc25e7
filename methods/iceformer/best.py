"""The k largest of each row of scores, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 4  # scores in a group, which their maximum represents
FEW = 2  # up to this many groups for each of the k, a search among all scores is as fast


def best_of(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row [..., n], k ≤ n, and their indices, [..., k] each, in any order.

    `torch.topk` takes as long for a row as fused attention. But the k largest numbers are all in
    the k groups with the largest maxima, since k numbers are above those of any other group. So
    only these groups are searched, and the maxima in the same way.
    """
    n = scores.shape[-1]
    groups = n // GROUP
    if groups <= FEW * k:
        all_of_them = scores.topk(k, sorted=False)
        return all_of_them.values, all_of_them.indices
    whole = groups * GROUP  # group i has the numbers i, i + groups, i + 2·groups, …
    maxima = scores[..., :whole].unflatten(-1, (GROUP, groups)).amax(-2)
    chosen = best_of(maxima, k)[1]
    places = (chosen[..., None] + torch.arange(0, whole, groups, device=chosen.device)).flatten(-2)
    if whole < n:
        rest = torch.arange(whole, n, device=chosen.device).expand(*chosen.shape[:-1], -1)
        places = torch.cat((places, rest), -1)
    values, best = scores.gather(-1, places).topk(k, sorted=False)
    return values, places.gather(-1, best)
