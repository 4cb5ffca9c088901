"""Linear attention with features that are not learned."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.nn.gated_attention import attend_gated, step_gated
from luna.nn.head_attention import HeadAttention


class _FixedFeatures(HeadAttention):
    """Linear attention over features without parameters: phi is `forward`."""

    eps = 1e-6  # the least size of what a sum is divided by

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
    ) -> tuple[Tensor, Tensor]:
        return torch.ops.luna.linear_attention(
            self(query),
            self(key),
            value,
            key_weight=key_weight,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            causal=causal,
            eps=self.eps,
            state=state,
        )

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: Tensor,
        *,
        key_weight: Tensor | None = None,
        prepared: Tensor | None = None,
    ) -> Tensor:
        return torch.ops.luna.linear_attention_step(
            self(query),
            self(key),
            value,
            state,
            key_weight=key_weight,
            eps=self.eps,
        )


class LinearAttention(_FixedFeatures):
    """Linear attention with the features phi(x) = elu(x) + 1.

    Example::

        out, _ = luna.nn.LinearAttention(32).attend(q, k, v)
    """

    def __init__(self, head_dim: int, num_heads: int = 1) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """phi(x), ``[..., d]`` -> ``[..., d]``."""
        # elu(x) + 1 without its rounding to 0 far below 0. (And in torch 2.11
        # elu's gradient has wrong strides under some backends of compile.)
        return x.clamp_max(0).exp() + x.relu()


class RffAttention(_FixedFeatures):
    """Linear attention with fixed random Fourier features.

    phi(x) = [sin(W x'), cos(W x')] / sqrt(F/2) with x' = x d^-1/4, so that
    phi(q).phi(k) ~ exp(-|q' - k'|^2 / 2). W ~ N(0,1) is the buffer
    ``random_projection``, drawn once; nothing is learned. The ablation of
    universal attention's paper. With ``unit`` x' = x / |x|, as in RFA; ``gate``
    is RFA's gate, for causal attention alone: sums forget by
    sigmoid(gate_weight.k + gate_bias), which is learned. Sums of weights, by
    which others are divided, count as no less than ``eps``.

    Example::

        out, _ = luna.nn.RffAttention(32, features=128).attend(q, k, v)
    """

    random_projection: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int = 1,
        *,
        features: int = 64,
        unit: bool = False,
        gate: bool = False,
        eps: float = _FixedFeatures.eps,
    ) -> None:
        super().__init__()
        if features < 2 or features % 2:
            raise ValueError(
                "RffAttention: expected features to be an even number >= 2, "
                f"got {features}"
            )
        if not eps >= 1e-12:
            raise ValueError(f"RffAttention: expected eps >= 1e-12, got {eps}")
        self.unit, self.gate, self.eps = unit, gate, eps
        self.register_buffer(
            "random_projection", torch.randn(features // 2, head_dim)
        )
        if gate:
            self.gate_weight = torch.nn.Parameter(
                torch.zeros(num_heads, head_dim)
            )
            self.gate_bias = torch.nn.Parameter(torch.full((num_heads,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        """phi(x), ``[..., d]`` -> ``[..., F]``."""
        # Angles lose their meaning in half precision.
        with torch.autocast(x.device.type, enabled=False):
            projection = self.random_projection
            half, width = projection.shape
            dtype = torch.promote_types(x.dtype, projection.dtype)
            scaled = x.to(dtype)
            if self.unit:
                norm = scaled.norm(dim=-1, keepdim=True)
                scaled = scaled / norm.clamp_min(1e-6)
            else:
                scaled = scaled * width**-0.25
            angles = F.linear(scaled, projection.to(dtype))
            phi = torch.cat([angles.sin(), angles.cos()], -1)
            return (phi * math.sqrt(1 / half)).to(x.dtype)

    def _gate_of(self, key: Tensor) -> Tensor:
        """Before the sigmoid: ``[B, H, ..., d]`` -> ``[B, H, ...]``."""
        weight, bias = (
            p.to(key.dtype) for p in (self.gate_weight, self.gate_bias)
        )
        if key.dim() == 4:
            weight, bias = weight.unsqueeze(1), bias.unsqueeze(1)
        return (key * weight).sum(-1) + bias

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
    ) -> tuple[Tensor, Tensor]:
        if not self.gate:
            return super().attend(
                query,
                key,
                value,
                key_weight=key_weight,
                causal=causal,
                state=state,
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_k=cu_seqlens_k,
            )
        if not causal:
            raise ValueError(
                "rff: gate: expected causal attention, got another"
            )
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            raise ValueError(
                "rff: gate: expected no packed sequences, got some"
            )
        return attend_gated(
            self(query),
            self(key),
            value,
            self._gate_of(key),
            self.eps,
            key_weight,
            state,
        )

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: Tensor,
        *,
        key_weight: Tensor | None = None,
        prepared: Tensor | None = None,
    ) -> Tensor:
        if not self.gate:
            return super().step(query, key, value, state, key_weight=key_weight)
        return step_gated(
            self(query),
            self(key),
            value,
            self._gate_of(key),
            state,
            self.eps,
            key_weight,
        )
