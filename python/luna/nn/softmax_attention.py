"""Softmax attention: what the others are measured against."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.nn.head_attention import HeadAttention


class SoftmaxAttention(HeadAttention):
    """softmax(q k^T / sqrt(d)) v by torch's scaled_dot_product_attention.

    The quadratic mechanism that the others are measured against. A float
    weight w_j multiplies exp(q.k_j), as in pack_attention.

    Example::

        out, _ = luna.nn.SoftmaxAttention(32).attend(q, k, v)
    """

    def __init__(
        self, head_dim: int, num_heads: int = 1, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= dropout <= 1:
            raise ValueError(
                "SoftmaxAttention: expected dropout >= 0 and <= 1, got "
                f"{dropout}"
            )
        self.dropout = dropout

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_weight: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
        state: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        prepared: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if state is not None:
            raise ValueError(
                "SoftmaxAttention: expected no state (it keeps none of "
                "constant size), got one"
            )
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            sequences = _sequences(
                query, key, value, key_weight, cu_seqlens_q, cu_seqlens_k
            )
            outputs = [
                self.attend(q, k, v, key_weight=w, causal=causal)[0]
                for q, k, v, w in sequences
            ]
            return torch.cat([value[:, :, :0], *outputs], 2), None
        if causal and query.shape[2] != key.shape[2]:
            raise ValueError(
                "SoftmaxAttention: expected as many keys as queries with "
                f"causal, got {key.shape[2]} keys and {query.shape[2]} queries"
            )
        bias = _score_bias(query, key, key_weight, causal)
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal and bias is None,
        )
        return out, None


def _score_bias(
    query: Tensor, key: Tensor, weight: Tensor | None, causal: bool
) -> Tensor | None:
    """What is added to the scores, or None."""
    if weight is None:
        return None
    weight = (weight.unsqueeze(1) if weight.dim() == 2 else weight).unsqueeze(2)
    if weight.dtype == torch.bool:
        removed = ~weight
        bias = torch.zeros_like(weight, dtype=query.dtype)
    else:
        # The logarithm's slope at 0 is infinite: keep it out of the gradient.
        removed = weight == 0
        bias = weight.masked_fill(removed, 1.0).log().to(query.dtype)
    if causal:
        length = query.shape[2], key.shape[2]
        future = torch.ones(length, dtype=torch.bool, device=query.device)
        removed = removed | future.triu(1)
    return bias.masked_fill(removed, -math.inf)


def _sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Packed sequences one by one: right, not fast."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise ValueError(
            "SoftmaxAttention: expected both cu_seqlens_q and cu_seqlens_k, "
            "got one of them"
        )
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    if len(starts_q) != len(starts_k):
        raise ValueError(
            "SoftmaxAttention: expected cu_seqlens_k of shape "
            f"[{len(starts_q)}] (cu_seqlens_q's), got [{len(starts_k)}]"
        )
    for i in range(len(starts_q) - 1):
        rows = slice(*starts_q[i : i + 2])
        cols = slice(*starts_k[i : i + 2])
        yield (
            query[:, :, rows],
            key[:, :, cols],
            value[:, :, cols],
            None if weight is None else weight[..., cols],
        )
