"""The ops by their formulas, quadratic and plain: what the tests compare with.

Nothing here is shared with the library. Differentiable in any dtype.
"""

import math

import torch


def feature_map(x, projection, projection_bias, *psi, nonneg=True):
    u = x @ projection.mT
    u = u + (
        projection_bias
        if projection_bias.dim() == 1
        else projection_bias[:, None, :]
    )
    hidden_weight, hidden_bias, output_weight, output_bias = psi
    hidden = (u[..., None, None] * hidden_weight + hidden_bias).relu()
    out = (hidden * output_weight).sum(-1) + output_bias
    out = out.relu() if nonneg else out
    return out.flatten(-2) / math.sqrt(projection.shape[-2])


def _weights(key_weight, like):
    """[B,1 or H,1,m] of `like`'s dtype."""
    weight = key_weight.to(like.dtype)
    return (weight[:, None] if weight.dim() == 2 else weight)[:, :, None]


def linear_attention(
    query,
    key,
    value,
    *,
    key_weight=None,
    causal=False,
    normalize=True,
    eps=1e-6,
    state=None,
):
    ones = torch.ones_like(value[..., :1])
    value = torch.cat([value, ones], -1)
    scores = query @ key.mT
    keys = key
    if key_weight is not None:
        weight = _weights(key_weight, query)
        scores = scores * weight
        keys = key * weight.mT
    if causal:
        scores = scores.tril()
    sums = scores @ value
    end = keys.mT @ value
    if state is not None:
        sums = sums + query @ state
        end = end + state
    out, total = sums[..., :-1], sums[..., -1:]
    if not normalize:
        return out, end
    held = total.abs() <= eps
    guard = torch.where(total < 0, -eps, eps).to(total.dtype)
    return out / torch.where(held, guard, total), end


def universal_attention(
    query, key, value, *parameters, nonneg=True, table=None, **options
):
    return linear_attention(
        feature_map(query, *parameters, nonneg=nonneg),
        feature_map(key, *parameters, nonneg=nonneg),
        value,
        **options,
    )


def softmax_attention(query, key, value, *, key_weight=None, scale=None):
    """pack_attention and unpack_attention, without dropout."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.mT
    if key_weight is None:
        return scores.softmax(-1) @ value
    weight = _weights(key_weight, query)
    peak = scores.where(weight > 0, -math.inf).amax(-1, keepdim=True)
    peak = peak.where(peak.isfinite(), 0.0).detach()
    p = weight * (scores - peak).clamp_max(60).exp()
    total = p.sum(-1, keepdim=True)
    return (p / total.where(total > 0, 1.0)) @ value


def nested_causal_attention(
    query,
    pack_key,
    key,
    value,
    packed_query,
    *,
    packed_mask=None,
    activation="softplus",
    scale=None,
    key_state=None,
    value_state=None,
    count=None,
):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    inner = pack_key @ (packed_query * scale).mT
    if activation == "softplus":
        a = torch.nn.functional.softplus(inner, beta=math.log(2))
    else:
        a = torch.nn.functional.elu(inner) + 1
    key_sums = (key[..., :, None] * a[..., None, :]).cumsum(2)
    value_sums = (a[..., :, None] * value[..., None, :]).cumsum(2)
    batch, length = query.shape[0], query.shape[2]
    seen = torch.arange(1, length + 1).expand(batch, -1)
    if key_state is not None:
        key_sums = key_sums + key_state[:, :, None]
        value_sums = value_sums + value_state[:, :, None]
        seen = seen + count[:, None]
    t = seen[:, None, :, None].to(query.dtype)
    u = torch.einsum("bhnd,bhndl->bhnl", query * scale, key_sums) / t
    if packed_mask is not None:
        u = u.masked_fill(~packed_mask[:, None, None], -math.inf)
    out = torch.einsum("bhnl,bhnle->bhne", u.softmax(-1), value_sums) / t
    if length:
        return (
            out,
            key_sums[:, :, -1],
            value_sums[:, :, -1],
            seen[:, -1].clone(),
        )
    if key_state is None:
        slots, width = packed_query.shape[2], query.shape[3]
        heads = query.shape[:2]
        return (
            out,
            query.new_zeros(*heads, width, slots),
            query.new_zeros(*heads, slots, value.shape[3]),
            torch.zeros(batch, dtype=torch.int64),
        )
    return out, key_state, value_state, count
