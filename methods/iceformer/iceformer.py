"""IceFormer (Mao, Ester, Li, arXiv 2405.02842): each query attends to the k keys with the largest
weights.

A query's k nearest keys under the embeddings T_Q and T_K are those with the largest attention
weights (§4.1); the softmax runs over them alone (algorithm 1). Weights stay frozen: inference only.
The search decides which keys are scored:

    auto       the fastest that loses few keys: on the native kernel `quantized`, or `blocks` from
               8,192 keys on (AVX2: 4,096); `exact` where the kernel can't run. Not the paper's
    quantized  all n² pairs in 8 bits, then the best few exactly (`scans.py`); slow in torch, where
               it is the reference for the kernel
    blocks     `quantized`, but only in blocks of similar keys that may hold one of the best
               (`blocks.py`); same as `quantized` where a query doesn't see all keys or no block can
               be skipped
    dci        the paper's Prioritized DCI (`dci.py`): m, L, k0, k1 as in algorithms 2 and 3, with
               the defaults of the official README; with k0=0.8 nearly all keys are scored too
    exact      all keys: recall 1, the reference of the others

Official code: yuzhenmao/IceFormer (MIT; its index MDCI is MPL-2.0).

Differs from the official code, where the search is `dci`:

- keys are divided by c (eq. 3); officially they stay at radius c, the queries at radius 1
- all keys are in one node; officially in a tree of three levels of randomly promoted keys, searched
  with a beam of k (algorithms 2 and 3 have no levels)
- k0 and k1 count in each composite index; officially in all together, so that with L = 2 half the
  visits are made, as with `k1=0.5`
- directions are drawn by `seed` and layer; officially by the clock
- c bounds the keys that a query sees; officially also those after it
- rows of a batch may differ in length, with padding anywhere; officially all have the first row's
- a bias on scores is part of the softmax, but not of the search; officially there is none
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, KVCache, Method, Unsupported, Workload
from methods.iceformer import blocks, dci, inputs, knn, scans
from methods.iceformer.decoding import IndexedCache
from methods.parts.dense import NativeMethod, attend_exactly
from methods.parts.parameters import LayerRanges, Positive, Range, in_layer_ranges

Search = Literal["auto", "exact", "dci", "quantized", "blocks"]
AboveZero = Annotated[float, Range(above=0)]
BLOCKS_FROM = {"avx512": 8192, "avx2": 4096}
"""Keys from which search="auto" is `blocks`, by the kind of vectors: on the keys of two trained
models it took at most 0.7 of the time of `quantized` from there on, at a recall of .98 to .998 up
to 65,536 keys, and of .97 at 131,072."""
TRAINING = "IceFormer needs frozen weights: the selection of keys has no gradient"


@dataclass(frozen=True)
class IceFormer(NativeMethod):
    """k         keys that a query attends to
    k_rule    "fixed", or "alpha": k = max(min(⌊n·alpha⌋, 50), 30) for n valid tokens (eq. 29)
    search    "auto", "exact", "dci", "quantized" or "blocks"
    layers    "all", one such as 1, or ranges such as "16-31" or "0,2,8-11"; the others are exact
    m, L      simple indices in a composite one, composite indices
    k0, k1    keys to retrieve and to visit in a composite index (below 1: shares of all)
    directions  how projections are drawn: "independent" (algorithm 2), or "orthogonal" as far as
                possible
    seed      seed of the directions, from which each layer draws others
    kernel    "auto" or "native": native where it can run; or "torch"
    decoding  how the new tokens of a causal model attend: "exact" (the paper's figures are about
              prompts), or "method": through the indices, to which each token is added (§4.3)
    """

    k: Positive = 20
    k_rule: Literal["fixed", "alpha"] = "fixed"
    alpha: AboveZero = 5e-3
    search: Search = "auto"
    layers: LayerRanges = "all"
    m: Positive = 4
    L: Positive = 2
    k0: AboveZero = 0.8
    k1: AboveZero | None = None
    directions: dci.Directions = "independent"
    seed: int = 0
    kernel: kernels.Kernel = "auto"
    decoding: Literal["exact", "method"] = "exact"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """query [B, H, n or 1, d], key and value [B, H or a divisor, n, d] → [B, H, n or 1, d]; 0
        where a query sees no valid key. Raises Unsupported where a gradient is needed."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise Unsupported(TRAINING)
        if not self.is_sparse(call.layer):
            return attend_exactly(self, query, key, value, call, self.kernel)
        rows = inputs.inputs_by_row(query, key, value, call, self.k_for)
        outputs = [self._attend_row(row, call.layer) for row, _ in rows]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return inputs.unfold_groups(output, query.shape).to(query.dtype)

    def kv_cache(self, workload: Workload) -> KVCache | None:
        return IndexedCache(self) if self.decoding == "method" else None

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return not self.is_sparse(layer) or self.k_for(workload.length) >= workload.length

    def exact_limit(self) -> Method:
        return replace(self, k=2048)

    def scaled_down(self) -> Method:
        return replace(self, k=5)

    def unsupported(self, workload: Workload) -> str | None:
        return TRAINING if workload.training else None

    def state_bytes(self, workload: Workload) -> int:
        """One layer's index: 8-bit projections, or 8-bit keys and a scale for each; for `exact`,
        the scores of a chunk."""
        sizes = {
            "exact": 4 * min(inputs.LEAST, workload.length),
            "dci": self.m * self.L,
            "quantized": workload.head_size + 4,
        }
        sizes["blocks"] = workload.head_size + 4 + 4 * kernels.AXES
        long = workload.length >= min(BLOCKS_FROM.values())
        sizes["auto"] = sizes["blocks" if long else "quantized"]
        return workload.batch * workload.heads * workload.length * sizes[self.search]

    def is_sparse(self, layer: int) -> bool:
        """Whether the queries of this layer attend to k keys; otherwise the layer is exact."""
        return in_layer_ranges(self.layers, layer)

    def k_for(self, n: int) -> int:
        """k for a row of n valid tokens."""
        if self.k_rule == "fixed":
            return self.k
        return max(min(math.floor(n * self.alpha + 1e-9), 50), 30)  # eq. 29

    def new_index(self, d: int, layer: int) -> knn.Index:
        """An empty index for keys of size d, for the torch path."""
        if self.search in ("auto", "exact"):
            return scans.Exact()
        if self.search in ("quantized", "blocks"):
            return scans.Quantized() if self.search == "quantized" else blocks.Blocks()
        seed = self.seed + layer
        return dci.Dci(d, self.m, self.L, self.k0, self.k1, seed, self.directions)

    def select(self, row: inputs.TopKInputs, layer: int) -> tuple[Tensor, Tensor]:
        """The output [B, H, q, d] and the ids of the selected keys [B, H, q, k]: see
        `knn.topk_attention`."""
        ids = row.seen.new_empty(*row.query.shape[:3], row.k)
        return self._attend_row(row, layer, ids), ids

    def _attend_row(self, row: inputs.TopKInputs, layer: int, ids: Tensor | None = None) -> Tensor:
        new_index = partial(self.new_index, row.key.shape[-1], layer)
        native = new_index()
        if self.search == "auto":
            fewest = BLOCKS_FROM.get(kernels.width() or "", math.inf)
            native = blocks.Blocks() if row.key.shape[2] >= fewest else scans.Quantized()
        result: tuple[Tensor, Tensor] | str = kernels.ASKED
        if self.kernel != "torch":
            result = native.native(row) if row.key.numel() else "nothing to read"
        kernels.note(self, result, "float32" if self.search == "dci" else "int8")
        if not isinstance(result, str):
            if ids is not None:
                ids.copy_(result[1])
            return result[0]
        return knn.attend_by_head(row, new_index, ids)

    def diagnose(
        self, query: Tensor, key: Tensor, call: AttentionCall, queries: int = 512
    ) -> dict[str, float]:
        """`Method.diagnose` against brute force, over `queries` evenly spread valid tokens of each
        row; query [B, H, n, d], key [B, H or a divisor, n, d]. Empty for a layer that is exact."""
        if not self.is_sparse(call.layer):
            return {}
        rows = inputs.inputs_by_row(query, key, key, call, self.k_for)
        return knn.mean_quality(rows, lambda row: self.select(row, call.layer)[1], queries)
