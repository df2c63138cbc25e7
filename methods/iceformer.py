"""IceFormer (Mao, Ester, Li, arXiv 2405.02842): every query reads the k keys it weighs most.

A query's k nearest keys under the embeddings T_Q and T_K are those with the largest attention
weights (§4.1); the softmax runs over them alone (algorithm 1). Weights stay frozen: inference only.
The searches are in `methods/knn.py`:

    exact      scores every key, in chunks: recall 1, the reference of the others
    dci        Prioritized DCI, the paper's: m, L, k0, k1 as in algorithms 2 and 3
    quantized  scores every key in 8 bits, and a few more than k exactly: the fastest here

What the official code does and this doesn't: keys that aren't divided by c, levels of randomly
promoted keys searched by beam (algorithms 2 and 3 have none), projections seeded by the clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods import indices, kernels, knn
from methods.base import Call, Memory, Method, Shape, Unsupported, per_head
from methods.vanilla import exact_attention

SEARCHES = ("exact", "dci", "quantized")
RULES = ("fixed", "alpha")
DECODINGS = ("exact", "method")
TRAINING = "iceformer reads with frozen weights: the choice of keys has no gradient"


@dataclass(frozen=True)
class IceFormer(Method):
    """k         keys that a query reads
    k_rule    "fixed", or "alpha": k = max(min(⌊n·alpha⌋, 50), 30) for n valid tokens (eq. 29)
    search    "exact", "dci" or "quantized"
    layers    "all", or such as "16-31" or "0,2,8-11"; the others are exact
    m, L      simple indices in a composite one, composite indices
    k0, k1    keys to retrieve (below 1: a share of those seen) and to visit in a composite index
    seed      of the projections; each layer has its own
    kernel    "native" where that can, or "torch"
    decoding  what reads the new tokens of a causal model: "exact" attention (the paper's
              figures are of prompts), or "method": its indices, which grow by each token (§4.3)
    """

    k: int = 20
    k_rule: str = "fixed"
    alpha: float = 5e-3
    search: str = "quantized"
    layers: str = "all"
    m: int = 4
    L: int = 2
    k0: float = 0.1
    k1: int | None = None
    seed: int = 0
    kernel: str = "native"
    decoding: str = "exact"

    def __post_init__(self) -> None:
        kernels.check("kernel", self.kernel, kernels.KERNELS)
        kernels.check("search", self.search, SEARCHES)
        kernels.check("k_rule", self.k_rule, RULES)
        kernels.check("decoding", self.decoding, DECODINGS)
        for name in ("k", "alpha", "m", "L", "k0", "k1"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        self.takes(0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        """query [B, H, n or 1, d], key and value [B, H or a divisor, n, d] → [B, H, n or 1, d]; 0
        where a query sees no valid key. Raises Unsupported where a gradient is wanted."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise Unsupported(TRAINING)
        if not self.takes(call.layer):
            return exact_attention(query, key, value, call)
        rows = self._rows(query, key, value, call)
        outputs = [self._read(reads, call.layer)[0] for reads, _ in rows]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return knn.unfolded(output, query.shape).to(query.dtype)

    def decodes(self) -> bool:
        return self.decoding == "method"

    def memory(self) -> Memory:
        from methods.ice_memory import IceMemory

        return IceMemory(self)

    def exact(self) -> Method:
        return replace(self, k=2048)

    def small(self) -> Method:
        return replace(self, k=5)

    def unsupported(self, shape: Shape) -> str | None:
        return TRAINING if shape.training else None

    def state_bytes(self, shape: Shape) -> int:
        """One layer's index: 8-bit projections, or 8-bit keys and a scale for each; `exact`: the
        scores of a chunk."""
        sizes = {
            "exact": 4 * min(knn.ROWS, shape.length),
            "dci": self.m * self.L,
            "quantized": shape.head_size + 4,
        }
        return shape.batch * shape.heads * shape.length * sizes[self.search]

    def takes(self, layer: int) -> bool:
        """Whether the queries of this layer read k keys; otherwise the layer is exact."""
        try:
            spans = [[int(end) for end in span.split("-")] for span in self.layers.split(",")]
        except ValueError:
            if self.layers == "all":
                return True
            accepted = "'all' or such as '16-31' or '0,2,8-11'"
            raise ValueError(f"layers is {self.layers!r}; it takes {accepted}") from None
        return any(span[0] <= layer <= span[-1] for span in spans)

    def keys_read(self, n: int) -> int:
        """k for a row of n valid tokens."""
        if self.k_rule == "fixed":
            return self.k
        return max(min(math.floor(n * self.alpha + 1e-9), 50), 30)  # eq. 29

    def index(self, d: int, layer: int) -> knn.Index:
        """An empty index for keys of size d."""
        if self.search == "exact":
            return indices.Exact()
        if self.search == "quantized":
            return indices.Quantized()
        return indices.Dci(d, self.m, self.L, self.k0, self.k1, self.seed + layer)

    def diagnose(
        self, query: Tensor, key: Tensor, call: Call, queries: int = 512
    ) -> dict[str, float]:
        """`Method.diagnose` against brute force, over `queries` evenly spread valid tokens of each
        row; query [B, H, n, d], key [B, H or a divisor, n, d]. Empty for a layer that is exact."""
        if not self.takes(call.layer):
            return {}
        parts: dict[str, list[Tensor]] = {"recall": [], "mass": [], "mass_best": []}
        for reads, tokens in self._rows(query, key, key, call):
            spread = torch.linspace(0, len(tokens) - 1, min(queries, len(tokens)))
            some = reads.of(tokens[spread.round().long().to(tokens.device)])
            ids = self._read(some, call.layer)[1]
            for name, values in knn.quality(some, ids).items():
                parts[name].append(values.flatten())
        return {name: float(torch.cat(values).mean()) for name, values in parts.items()}

    def _rows(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call
    ) -> Iterator[tuple[knn.Reads, Tensor]]:
        """What is read, and the queries that aren't padding, [j] int64: the batch as one, or row
        by row where there is padding or a bias of a row's own. Queries are the last tokens."""
        sequence, (batch, _, n, _) = call.sequence, key.shape
        last = slice(n - query.shape[2], n)
        if call.bias is not None:  # each query head has a bias of its own
            key, value = per_head(query, key, value)
        query, groups = knn.folded(query, key), query.shape[1] // key.shape[1]
        valid = sequence.valid
        if valid is None or bool(valid.all()):
            valid = torch.ones(batch, n, dtype=torch.bool, device=query.device)
        alone = call.bias is not None or sequence.log_multiplicity is not None
        together = not alone and bool(valid.all())
        for row in [slice(None)] if together else [slice(b, b + 1) for b in range(batch)]:
            kept = valid[row][0]
            before = kept.cumsum(0) if sequence.causal else kept.sum().expand(n)
            reads = knn.Reads(
                query=query[row],
                key=key[row] if together else key[row][:, :, kept],
                value=value[row] if together else value[row][:, :, kept],
                seen=before[last].repeat_interleave(groups),
                k=self.keys_read(int(kept.sum())),
                scale=call.scale,
                bias=knn.Bias.of(call, row, kept, last) if alone else None,
            )
            yield reads, kept[last].repeat_interleave(groups).nonzero()[:, 0]

    def _read(self, reads: knn.Reads, layer: int) -> tuple[Tensor, Tensor]:
        index = self.index(reads.key.shape[-1], layer)
        done: tuple[Tensor, Tensor] | str = "kernel=torch"
        if self.kernel == "native":
            done = index.native(reads) if reads.key.numel() else "nothing to read"
        products = "int8" if self.search == "quantized" else "float32"
        kernels.note(self, done, products)
        if not isinstance(done, str):
            return done
        index.add(reads.key)
        return knn.read(reads, index)
