"""Projections and heads around a mechanism of heads."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor, nn

from luna.nn import layers
from luna.nn.feature_map import FeatureMap
from luna.nn.head_attention import HeadAttention
from luna.nn.linear_attention import LinearAttention, RffAttention
from luna.nn.local_sum import LocalSum
from luna.nn.softmax_attention import SoftmaxAttention
from luna.nn.stream_state import StreamState
from luna.registry import find_attention, known_and_nearest

#: Head-level mechanisms by the name they have in `luna.attentions()`.
MECHANISMS: dict[str, type[HeadAttention]] = {
    "softmax": SoftmaxAttention,
    "universal": FeatureMap,
    "linear": LinearAttention,
    "rff": RffAttention,
}

#: Types of options, as `luna.attentions()` calls them: in words, and Python's.
_OPTION_TYPES: dict[str, tuple[str, type]] = {
    "bool": ("True or False", bool),
    "integer": ("an integer", numbers.Integral),
    "number": ("a number", numbers.Real),
    "string": ("a string", str),
}


class MultiHeadAttention(nn.Module):
    """out_proj(attend(q_proj(x), k_proj(c), v_proj(c))), c = context or x.

    Args:
        embed_dim: model width D, a multiple of ``num_heads``.
        num_heads: heads.
        attention: a head-level mechanism of `luna.attentions()`: "softmax",
            "universal", "linear" or "rff".
        local: taps of a `luna.nn.LocalSum` of the values, added to what
            attention gives before ``out_proj``; 0: none. Such a layer is
            neither causal nor takes a context.
        local_columns: of pictures: taps in rows and columns.
        options: the mechanism's, as `luna.attentions()` lists them.

    Its weights are ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj`` and
    ``feature_map``, the mechanism itself (``feature_map.random_projection`` of
    "rff"; nothing of "softmax" and "linear"), and ``local.weight``.

    Example::

        layer = luna.MultiHeadAttention(256, 8, "universal", M=16, gated=True)
        out = layer(torch.randn(2, 1000, 256), causal=True)
    """

    feature_map: HeadAttention

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: str = "universal",
        *,
        local: int = 0,
        local_columns: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        layers.check_width(type(self).__name__, embed_dim, num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.attention = attention
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.feature_map = make_heads(
            type(self).__name__, attention, embed_dim, num_heads, options
        )
        if local_columns and not local:
            raise ValueError(
                f"{type(self).__name__}: expected local with local_columns, "
                "got none"
            )
        self.local = (
            LocalSum(embed_dim, local, local_columns) if local else None
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
        state: StreamState | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, StreamState]:
        """``[B,n,D]`` -> ``[B,n,D]``, with ``return_state`` also the state.

        Args:
            x: ``[B,n,D]``.
            context: ``[B,m,D]``: attend to this, not to x.
            key_mask: ``[B,m]`` bool, true = takes part, or float weights >= 0.
            query_mask: ``[B,n]``, read by ch_rms alone; key_mask where x
                attends to itself.
            causal: position t sees positions j <= t only.
            state: go on from here.
            cu_seqlens_q: packed sequences: x ``[1,total,D]``, int ``[S+1]``.
            cu_seqlens_k: those of the context.
            return_state: also return where a stream goes on.
        """
        name = type(self).__name__
        layers.check_sequence(name, "x", x, self.embed_dim)
        keys = layers.check_context(name, x, context, self.embed_dim)
        layers.check_mask(name, "key_mask", key_mask, *keys.shape[:2])
        layers.check_mask(name, "query_mask", query_mask, *x.shape[:2])
        if causal and context is not None:
            raise ValueError(
                f"{name}: expected no context together with causal, got one"
            )
        if self.local is not None:
            for what, is_given in (
                ("causal", causal),
                ("a context", context is not None),
                ("a state", state is not None or return_state),
            ):
                if is_given:
                    raise ValueError(
                        f"{name}: expected neither causal nor a context nor a "
                        f"state with local, got {what}"
                    )
        if context is None:
            query_mask = key_mask if query_mask is None else query_mask
            cu_seqlens_k = (
                cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
            )
        sums = prepared = None
        if state is not None:
            layers.check_state(name, state, 1)
            sums = state.tensors[0]
            # While training, the weights may have changed since.
            if not torch.is_grad_enabled():
                prepared = state.prepared
        if return_state and prepared is None:
            prepared = self.feature_map.prepare()

        values = self.v_proj(keys)
        out, sums = self.feature_map.attend(
            layers.split_heads(self.q_proj(x), self.num_heads),
            layers.split_heads(self.k_proj(keys), self.num_heads),
            layers.split_heads(values, self.num_heads),
            key_weight=key_mask,
            query_mask=query_mask,
            causal=causal,
            state=sums,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            prepared=prepared,
        )
        merged = layers.merge_heads(out)
        if self.local is not None:
            merged = merged + self.local(values, key_mask, cu_seqlens_q)
        out = self.out_proj(merged)
        if not return_state:
            return out
        if sums is None:
            raise ValueError(
                f"{name}: expected a mechanism that streams with return_state "
                f"(see luna.attentions()), got {self.attention}"
            )
        return out, StreamState((sums,), prepared)

    def step(self, x: Tensor, state: StreamState) -> Tensor:
        """One token of a causal stream, ``[B,D]`` -> ``[B,D]``.

        Advances in place the ``state`` that forward returned: of a prompt, or
        of x ``[B,0,D]`` to start from nothing. For inference, under
        ``torch.no_grad()``.

        Example::

            with torch.no_grad():
                out, state = layer(prompt, causal=True, return_state=True)
                for token in tokens:
                    out = layer.step(token, state)
        """
        if self.local is not None:
            raise ValueError(
                f"{type(self).__name__}: expected no step with local, whose "
                "neighbours come later, got one"
            )
        layers.check_token(type(self).__name__, x, state, self.embed_dim, 1)
        out = self.feature_map.step(
            layers.split_token(self.q_proj(x), self.num_heads),
            layers.split_token(self.k_proj(x), self.num_heads),
            layers.split_token(self.v_proj(x), self.num_heads),
            state.tensors[0],
            prepared=state.prepared,
        )
        return self.out_proj(out.flatten(1))


class UniversalAttention(MultiHeadAttention):
    """A layer of universal attention: a learned kernel at linear cost.

    Options are `luna.FeatureMap`'s: M, L, hidden, shared_channels, nonneg,
    gated, ch_rms, per_head, normalize, start, spread, lift, eps. Weights:
    ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, ``feature_map.*``.

    Example::

        layer = luna.UniversalAttention(embed_dim=256, num_heads=8)
        out = layer(torch.randn(2, 1000, 256))
    """

    feature_map: FeatureMap

    def __init__(self, embed_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, "universal", **options)


def make_heads(
    owner: str,
    attention: str,
    embed_dim: int,
    num_heads: int,
    options: dict[str, Any],
) -> HeadAttention:
    entry = find_attention(owner, attention)
    if not entry["traits"]["head_level"]:
        raise ValueError(
            f"{owner}: expected a head-level mechanism, one of "
            f"{', '.join(MECHANISMS)}, got {attention!r}, which is a whole "
            "layer"
        )
    known = {option["name"]: option["type"] for option in entry["options"]}
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"{owner}: expected an option that {attention} reads, got "
                f"{name}; it reads {known_and_nearest(name, known)}"
            )
        words, kind = _OPTION_TYPES[known[name]]
        right = isinstance(value, kind)
        if not right or isinstance(value, bool) != (kind is bool):
            raise TypeError(f"{owner}: {name}: expected {words}, got {value!r}")
    return MECHANISMS[attention](embed_dim // num_heads, num_heads, **options)
