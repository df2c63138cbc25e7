"""Vanilla: exact attention (Vaswani et al., arXiv 1706.03762, §3.2), fused and unfused.

The two baselines of every comparison. `Vanilla` is what a user has today: torch's fused attention,
with position biases and padding that never become an n×n tensor. `VanillaEager` is what papers
usually compare with: scores, softmax and product as three steps over n×n tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from methods import kernels
from methods.base import Call, Method, Sequence, Shape, per_head

GAPS = "a position bias, and gaps among the positions"
ROWS = 64
"""Queries that get their bias at once: larger masks leave the cache; 256 take twice the time."""


@dataclass(frozen=True)
class Vanilla(Method):
    """Exact attention in every layer, layer after layer: O(n²) time, O(n) memory.

    kernel    "torch": torch's fused attention, the baseline of every ratio; "native": the kernel
              of methods/kernels where it can: not in training
    products  of the native kernel: "float32", or "bfloat16" (rounded, sums in float32)
    """

    kernel: str = "torch"
    products: str = "float32"

    def __post_init__(self) -> None:
        kernels.check("kernel", self.kernel, kernels.KERNELS)
        kernels.check("products", self.products, kernels.PRODUCTS)
        if self.products != "float32" and self.kernel != "native":
            raise ValueError(f"products={self.products} needs kernel=native")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        if self.kernel == "torch":
            return exact_attention(query, key, value, call)
        return native_attention(self, query, key, value, call, self.products)

    def exact(self) -> Method:
        return self


@dataclass(frozen=True)
class VanillaEager(Method):
    """Exact attention, unfused: softmax(q kᵀ · scale + bias) v with n×n tensors in memory."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        sequence, n = call.sequence, query.shape[2]
        key, value = per_head(query, key, value)
        scores = query @ key.transpose(-1, -2) * call.scale
        if call.bias is not None:
            positions, _ = _positions(sequence, n, query.device)
            scores = scores + call.bias(positions, positions).to(query.dtype)
        key_bias = sequence.key_bias(query.dtype)
        if key_bias is not None:
            scores = _add_key_bias(scores, key_bias)
        if sequence.causal:
            scores = _hide_future(scores, 0)
        return dropout(scores.softmax(-1), call.dropout) @ value

    def exact(self) -> Method:
        return self

    def state_bytes(self, shape: Shape) -> int:
        """Scores and probabilities of one layer."""
        return 2 * shape.bytes_per_element * shape.batch * shape.heads * shape.length**2


def native_attention(
    method: Method, query: Tensor, key: Tensor, value: Tensor, call: Call, products: str = "float32"
) -> Tensor:
    """`exact_attention` by the native kernel where it can; the method notes which ran."""
    bias = bias_by_distance(call, query.shape[2], query.device)
    done: Tensor | str = bias if isinstance(bias, str) else "dropout"
    if not isinstance(bias, str) and not call.dropout:
        key_bias, causal = call.sequence.key_bias(torch.float32), call.sequence.causal
        done = kernels.dense(query, key, value, call.scale, key_bias, products, causal, bias)
    kernels.note(method, done, products)
    return exact_attention(query, key, value, call) if isinstance(done, str) else done


def bias_by_distance(call: Call, n: int, device: torch.device) -> Tensor | str | None:
    """A call's position bias as the native kernels take it, [H, 2n-1] float32; None where it has
    none, or in words why they can't."""
    if call.bias is None:
        return None
    _, contiguous = _positions(call.sequence, n, device)
    return call.bias.diagonals(n).float() if contiguous else GAPS


def exact_attention(query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
    """softmax(q kᵀ · scale + bias + key bias) v, fused, without an n×n tensor.

    query [B, H, n, d], key and value [B, H or a divisor, n, d] → [B, H, n, d]; differentiable.
    (Where the position bias itself is trained, torch has no fused kernel, and the backward pass
    keeps what it needs, n×n in all.) Rows without a single valid key come out finite.
    """
    sequence, n = call.sequence, query.shape[2]
    key_bias = sequence.key_bias(query.dtype)
    attend = _Fused(key, value, call)
    if call.bias is None and (key_bias is None or not sequence.causal):
        return attend(query, key_bias, causal=sequence.causal)
    positions, contiguous = _positions(sequence, n, query.device)
    diagonals = None
    if call.bias is not None and contiguous and query.device.type == "cpu":
        diagonals = call.bias.diagonals(n).to(query.dtype)
    if diagonals is None or diagonals.requires_grad or sequence.causal:
        return _by_rows(query, attend, key_bias, positions, call)

    # Row r of this view of 2n-1 numbers is the bias of query n-1-r: the whole n×n bias, unstored.
    # (CUDA kernels want aligned rows, and the view's gradient is slower than a gather's.)
    bias = diagonals.unfold(-1, n, 1)[None]
    query = query.flip(2)
    if key_bias is None:
        return attend(query, bias).flip(2)
    outputs = [
        attend(query[:, :, rows], _add_key_bias(bias[:, :, rows], key_bias)) for rows in _slices(n)
    ]
    return torch.cat(outputs, 2).flip(2)


@dataclass(frozen=True)
class _Fused:
    key: Tensor
    value: Tensor
    call: Call

    def __call__(self, query: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        return scaled_dot_product_attention(
            query,
            self.key,
            self.value,
            attn_mask=bias,
            dropout_p=self.call.dropout,
            is_causal=causal,
            scale=self.call.scale,
            enable_gqa=query.shape[1] != self.key.shape[1],
        )


def _by_rows(
    query: Tensor, attend: _Fused, key_bias: Tensor | None, positions: Tensor, call: Call
) -> Tensor:
    n = query.shape[2]
    outputs = []
    for rows in _slices(n):
        bias = query.new_zeros(1, 1, rows.stop - rows.start, n)
        if call.bias is not None:
            bias = call.bias(positions[:, rows], positions).to(query.dtype)
        if key_bias is not None:
            bias = _add_key_bias(bias, key_bias, own=not bias.requires_grad)
        if call.sequence.causal:
            bias = _hide_future(bias, rows.start)
        outputs.append(attend(query[:, :, rows], bias))
    return torch.cat(outputs, 2)


def _slices(n: int) -> list[slice]:
    return [slice(start, min(start + ROWS, n)) for start in range(0, n, ROWS)]


def _positions(sequence: Sequence, n: int, device: torch.device) -> tuple[Tensor, bool]:
    """Positions, and whether each token stands right after the one before it in every row. Then
    they are 0 … n-1, [1, n], wherever rows begin: a position bias knows distances alone."""
    given = sequence.positions
    if given is None or bool((given.diff(dim=1) == 1).all()):
        return torch.arange(n, device=device)[None], True
    return given, False


def _add_key_bias(scores: Tensor, key_bias: Tensor, own: bool = False) -> Tensor:
    """own: `scores` may be overwritten, which is faster."""
    own = own and len(key_bias) == len(scores)
    scores = scores.add_(key_bias) if own else scores + key_bias
    if scores.dtype == torch.float16:  # here a bias on top of the lowest number rounds to -inf
        scores = scores.clamp(min=torch.finfo(torch.float16).min)
    return scores


def _hide_future(scores: Tensor, first: int) -> Tensor:
    """Lowest number where the key comes after the query; row 0 is query number `first`."""
    q, k = scores.shape[-2:]
    future = torch.ones(q, k, dtype=torch.bool, device=scores.device).triu(first + 1)
    return scores.masked_fill(future, torch.finfo(scores.dtype).min)
