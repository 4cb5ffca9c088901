"""Linear attention whose sums forget, as with RFA's gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 64


def _sums_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _with_ones(value: Tensor) -> Tensor:
    return F.pad(value, (0, 1), value=1.0)


def _divide(sums: Tensor, eps: float) -> Tensor:
    """Sums ``[..., dv + 1]`` to outputs ``[..., dv]``."""
    below = sums[..., -1:]
    small = torch.full_like(below, eps).copysign(below)
    return sums[..., :-1] / torch.where(below.abs() < eps, small, below)


def attend_gated(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    eps: float,
    key_weight: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) [v_t, 1]^T, causal.

    Features ``[B, H, n, F]``, value ``[B, H, n, dv]``, gate (before the
    sigmoid) ``[B, H, n]`` -> output and state, chunk after chunk. A key of
    weight 0 leaves the sums as they are.
    """
    # Sums of half precision would forget more than they are told to.
    with torch.autocast(value.device.type, enabled=False):
        dtype = _sums_type(value)
        q, k, v = query.to(dtype), key.to(dtype), _with_ones(value.to(dtype))
        kept, taken = (
            F.logsigmoid(gate.to(dtype)),
            torch.sigmoid(-gate.to(dtype)),
        )
        if key_weight is not None:
            weight = (
                key_weight if key_weight.dim() == 3 else key_weight[:, None]
            )
            kept = kept.masked_fill(weight == 0, 0.0)
            taken = taken * weight.to(dtype)
        if state is None:
            state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
        state = state.to(dtype)
        parts = [v[:, :, :0]]
        for first in range(0, q.shape[2], _CHUNK):
            q_c, k_c, v_c, kept_c, taken_c = (
                x[:, :, first : first + _CHUNK] for x in (q, k, v, kept, taken)
            )
            # log of the product of the gates from the chunk's start on
            since = kept_c.cumsum(-1)
            count = since.shape[-1]
            later = torch.ones(
                count, count, dtype=torch.bool, device=q.device
            ).triu(1)
            between = since.unsqueeze(-1) - since.unsqueeze(-2)
            between = between.masked_fill(later, 0.0).exp()
            between = between.masked_fill(later, 0.0) * taken_c.unsqueeze(-2)
            scores = q_c @ k_c.transpose(-1, -2) * between
            parts.append(
                scores @ v_c + since.exp().unsqueeze(-1) * (q_c @ state)
            )
            last = since[..., -1:]
            weight = ((last - since).exp() * taken_c).unsqueeze(-1)
            state = last.exp().unsqueeze(-1) * state + (
                k_c.transpose(-1, -2) @ (v_c * weight)
            )
        return _divide(torch.cat(parts, 2), eps).to(value.dtype), state


def step_gated(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    state: Tensor,
    eps: float,
    key_weight: Tensor | None = None,
) -> Tensor:
    """One token; the state advances in place."""
    dtype = state.dtype
    kept, taken = torch.sigmoid(gate.to(dtype)), torch.sigmoid(-gate.to(dtype))
    if key_weight is not None:
        weight = key_weight if key_weight.dim() == 2 else key_weight[:, None]
        kept = kept.masked_fill(weight == 0, 1.0)
        taken = taken * weight.to(dtype)
    row = _with_ones(value.to(dtype)) * taken.unsqueeze(-1)
    state.mul_(kept[..., None, None]).add_(
        key.to(dtype).unsqueeze(-1) * row.unsqueeze(-2)
    )
    total = (query.to(dtype).unsqueeze(-2) @ state).squeeze(-2)
    return _divide(total, eps).to(value.dtype)
