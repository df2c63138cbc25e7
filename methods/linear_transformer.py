"""Linear Transformer (Katharopoulos et al., arXiv 2006.16236): attention with φ(x) = elu(x) + 1.

output_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j) (§3.2, eqs. 4-7): O(n d²) time, and in a
causal model a state of d (d + 1) numbers (§3.3). It does not approximate softmax: weights must be
trained with it. The scale of scores is not used.

Official codes: idiap/fast-transformers (MIT), google-research/long-range-arena and
mlpen/Nystromformer (both Apache-2.0).

Differs from official codes:
- LRA's has no padding mask, and adds 10⁻⁶ to the denominator.
- Nyströmformer's harness has no denominator and divides by √n.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from methods.base import AttentionCall
from methods.parts.linear import LinearMethod


@dataclass(frozen=True)
class LinearTransformer(LinearMethod):
    """It has no hyper-parameters."""

    def log_features(self, x: Tensor, call: AttentionCall) -> Tensor:
        """log(elu(x) + 1): x below 0, log(1 + x) above."""
        return x.clamp(max=0) + x.relu().log1p()

    def feature_count(self, head_size: int) -> int:
        return head_size
