"""Attention as functions of heads.

Tensors are ``[batch, heads, length, width]`` as in
``torch.nn.functional.scaled_dot_product_attention``. These functions are the
dispatcher ops ``torch.ops.luna.*`` with Python's manners: ``key_mask`` for the
op's ``key_weight``, the output alone unless ``return_state=True``, and inputs
cast as ``torch.autocast`` asks.

Common arguments:

* ``key_mask``: ``[B,m]`` or ``[B,H,m]``; bool, true where the key takes part,
  or float weights >= 0 (differentiable).
* ``cu_seqlens_q``, ``cu_seqlens_k``: packed sequences of batch 1, int32 or
  int64 ``[S+1]`` from 0 to the total length; states and other tensors that
  belong to a sequence then have S in place of B.
* ``state``: where the sums start, as a call with ``return_state=True`` gave it.
* ``dropout_p``, ``seed``: the dropout of probabilities is a pure function of
  ``seed``, an int64 tensor of two numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from luna.nn import FeatureMap

__all__ = [
    "feature_map",
    "linear_attention",
    "linear_attention_step",
    "nested_causal_attention",
    "nested_causal_attention_step",
    "pack_attention",
    "universal_attention",
    "universal_attention_step",
    "universal_table",
    "unpack_attention",
]


def check_tensors(function: str, **tensors: object) -> None:
    """Refuses what is not a tensor, by name."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{function}: expected {name} to be a Tensor, got "
                f"{type(value).__name__}"
            )


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype, where it is on."""
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind):
        return tensors
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x
        for x in tensors
    )


def _check_key_mask(function: str, mask: Tensor | None, key: Tensor) -> None:
    """mask is [B,m] or [B,H,m], bool or floating; ``key`` ``[B,H,m,d]``."""
    if mask is None or key.dim() != 4:  # of the rank, the op itself speaks
        return
    check_tensors(function, key_mask=mask)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{function}: expected key_mask of bool (true = takes part) or "
            f"float weights, got {mask.dtype}; call .bool() on it"
        )
    batch, heads, length = key.shape[:3]
    shape = list(mask.shape)
    if shape != [batch, length] and shape != [batch, heads, length]:
        raise ValueError(
            f"{function}: expected key_mask of shape [{batch}, {length}] or "
            f"[{batch}, {heads}, {length}], got {shape}"
        )


def _check_feature_map(function: str, given: object) -> None:
    from luna.nn import FeatureMap

    if not isinstance(given, FeatureMap):
        raise TypeError(
            f"{function}: expected feature_map to be a luna.FeatureMap, got "
            f"{type(given).__name__}"
        )


def universal_table(feature_map: FeatureMap) -> Tensor:
    """psi as its exact table: a cache that makes many calls a little faster.

    It is not differentiated; gradients go to the feature map's parameters.

    Example::

        table = luna.universal_table(feature_map)
        out = luna.universal_attention(q, k, v, feature_map, table=table)
    """
    _check_feature_map("universal_table", feature_map)
    return feature_map.prepare()


def feature_map(x: Tensor, feature_map: FeatureMap) -> Tensor:
    """phi(x): ``[..., d]`` -> ``[..., M*L]``, for analysis.

    Example::

        phi = luna.feature_map(torch.randn(2, 4, 100, 32), luna.FeatureMap(32))
        kernel = phi @ phi.mT  # what takes exp(q.k)'s place
    """
    _check_feature_map("feature_map", feature_map)
    check_tensors("feature_map", x=x)
    return feature_map(x)


def universal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    *,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    causal: bool = False,
    state: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    table: Tensor | None = None,
    return_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with a learned kernel, linear in the length.

    Stands where ``scaled_dot_product_attention`` was. ``query`` is not scaled.
    ``query_mask`` ``[B,n]`` is read by ``ch_rms`` alone.

    Returns the output ``[B,H,n,dv]``, with ``return_state=True`` also the
    state ``[B,H,M*L,dv+1]``.

    Example::

        q = k = v = torch.randn(2, 4, 1000, 32)
        out = luna.universal_attention(q, k, v, luna.FeatureMap(32))
    """
    _check_feature_map("universal_attention", feature_map)
    check_tensors("universal_attention", query=query, key=key, value=value)
    _check_key_mask("universal_attention", key_mask, key)
    query, key, value = autocast(query, key, value)
    out, state = feature_map.attend(
        query,
        key,
        value,
        key_weight=key_mask,
        query_mask=query_mask,
        causal=causal,
        state=state,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        prepared=table,
    )
    return (out, state) if return_state else out


def universal_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    feature_map: FeatureMap,
    *,
    key_mask: Tensor | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """One token of a causal stream: advances ``state`` in place.

    query, key ``[B,H,d]``, value ``[B,H,dv]`` -> ``[B,H,dv]``; ``key_mask``
    ``[B]`` or ``[B,H]``. For inference, under ``torch.no_grad()``.

    Example::

        with torch.no_grad():
            out, state = luna.universal_attention(
                q, k, v, feature_map, causal=True, return_state=True
            )
            out = luna.universal_attention_step(
                q_t, k_t, v_t, state, feature_map
            )
    """
    _check_feature_map("universal_attention_step", feature_map)
    check_tensors(
        "universal_attention_step",
        query=query,
        key=key,
        value=value,
        state=state,
    )
    query, key, value = autocast(query, key, value)
    return feature_map.step(
        query,
        key,
        value,
        state,
        key_weight=key_mask,
        prepared=table,
    )


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    normalize: bool = True,
    state: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    eps: float = 1e-6,
    return_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Linear attention over features that are given.

    ``query`` and ``key`` are phi(q), phi(k) ``[B,H,n,F]``. ``normalize=False``
    gives the plain sums phi(q) . sum phi(k) v^T.

    Example::

        phi = lambda x: torch.nn.functional.elu(x) + 1
        out = luna.linear_attention(phi(q), phi(k), v, causal=True)
    """
    check_tensors("linear_attention", query=query, key=key, value=value)
    _check_key_mask("linear_attention", key_mask, key)
    query, key, value = autocast(query, key, value)
    out, state = torch.ops.luna.linear_attention(
        query,
        key,
        value,
        key_weight=key_mask,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        causal=causal,
        normalize=normalize,
        eps=eps,
        state=state,
    )
    return (out, state) if return_state else out


def linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    key_mask: Tensor | None = None,
    normalize: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """One token of a causal stream: advances ``state`` in place.

    query, key ``[B,H,F]``, value ``[B,H,dv]`` -> ``[B,H,dv]``; ``key_mask``
    ``[B]`` or ``[B,H]``. For inference, under ``torch.no_grad()``.

    Example::

        out, state = luna.linear_attention(
            q, k, v, causal=True, return_state=True
        )
        out = luna.linear_attention_step(q_t, k_t, v_t, state)
    """
    check_tensors(
        "linear_attention_step", query=query, key=key, value=value, state=state
    )
    query, key, value = autocast(query, key, value)
    return torch.ops.luna.linear_attention_step(
        query,
        key,
        value,
        state,
        key_weight=key_mask,
        normalize=normalize,
        eps=eps,
    )


def pack_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """Softmax attention of a few queries over many keys.

    query ``[B,H,l,d]``, or ``[1,H,l,d]`` shared by the batch -> ``[B,H,l,dv]``.

    Example::

        packed = luna.pack_attention(torch.randn(1, 4, 16, 32), k, v)
    """
    check_tensors("pack_attention", query=query, key=key, value=value)
    _check_key_mask("pack_attention", key_mask, key)
    query, key, value = autocast(query, key, value)
    return torch.ops.luna.pack_attention(
        query,
        key,
        value,
        key_weight=key_mask,
        cu_seqlens_k=cu_seqlens_k,
        scale=scale,
        dropout_p=dropout_p,
        seed=seed,
    )


def unpack_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """Softmax attention of many queries over a few keys.

    query ``[B,H,n,d]``, key ``[B,H,l,d]``, value ``[B,H,l,dv]`` ->
    ``[B,H,n,dv]``.

    Example::

        out = luna.unpack_attention(q, packed, packed)
    """
    check_tensors("unpack_attention", query=query, key=key, value=value)
    _check_key_mask("unpack_attention", key_mask, key)
    query, key, value = autocast(query, key, value)
    return torch.ops.luna.unpack_attention(
        query,
        key,
        value,
        key_weight=key_mask,
        cu_seqlens_q=cu_seqlens_q,
        scale=scale,
        dropout_p=dropout_p,
        seed=seed,
    )


def nested_causal_attention(
    query: Tensor,
    pack_key: Tensor,
    key: Tensor,
    value: Tensor,
    packed_query: Tensor,
    *,
    packed_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    activation: str = "softplus",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
    state: tuple[Tensor, Tensor, Tensor] | None = None,
    return_state: bool = False,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Nested attention where position t sees positions j <= t only.

    query, pack_key, key ``[B,H,n,d]``, value ``[B,H,n,dv]``, packed_query
    ``[B,H,l,d]`` or ``[1,H,l,d]``; ``packed_mask`` bool ``[B,l]``: the slots
    that take part. ``activation``: "softplus" (to the base 2) or "elu"
    (elu + 1).

    Returns the output ``[B,H,n,dv]``, with ``return_state=True`` also the
    state: key sums ``[B,H,d,l]``, value sums ``[B,H,l,dv]``, positions seen
    int64 ``[B]``.

    Example::

        out = luna.nested_causal_attention(
            q, c, k, v, torch.randn(1, 4, 16, 32)
        )
    """
    check_tensors(
        "nested_causal_attention",
        query=query,
        pack_key=pack_key,
        key=key,
        value=value,
        packed_query=packed_query,
    )
    query, pack_key, key, value, packed_query = autocast(
        query, pack_key, key, value, packed_query
    )
    key_state, value_state, count = state or (None, None, None)
    out, *state_now = torch.ops.luna.nested_causal_attention(
        query,
        pack_key,
        key,
        value,
        packed_query,
        packed_mask=packed_mask,
        cu_seqlens=cu_seqlens,
        activation=activation,
        scale=scale,
        dropout_p=dropout_p,
        seed=seed,
        key_state=key_state,
        value_state=value_state,
        count=count,
    )
    return (out, tuple(state_now)) if return_state else out


def nested_causal_attention_step(
    query: Tensor,
    pack_key: Tensor,
    key: Tensor,
    value: Tensor,
    packed_query: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    *,
    packed_mask: Tensor | None = None,
    activation: str = "softplus",
    scale: float | None = None,
) -> Tensor:
    """One token of a causal stream: advances the three tensors of ``state``.

    query, pack_key, key ``[B,H,d]``, value ``[B,H,dv]`` -> ``[B,H,dv]``. For
    inference, under ``torch.no_grad()``.

    Example::

        out, state = luna.nested_causal_attention(
            q, c, k, v, packed_query, return_state=True
        )
        out = luna.nested_causal_attention_step(
            q_t, c_t, k_t, v_t, packed_query, state
        )
    """
    check_tensors(
        "nested_causal_attention_step",
        query=query,
        pack_key=pack_key,
        key=key,
        value=value,
        packed_query=packed_query,
    )
    query, pack_key, key, value, packed_query = autocast(
        query, pack_key, key, value, packed_query
    )
    return torch.ops.luna.nested_causal_attention_step(
        query,
        pack_key,
        key,
        value,
        packed_query,
        *state,
        packed_mask=packed_mask,
        activation=activation,
        scale=scale,
    )
