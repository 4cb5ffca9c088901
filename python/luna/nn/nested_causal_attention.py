"""Nested attention for decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.nn import layers
from luna.nn.stream_state import StreamState
from luna.registry import known_and_nearest

_NAME = "NestedCausalAttention"
_ACTIVATIONS = ("softplus", "elu")


class NestedCausalAttention(nn.Module):
    """A causal layer of nested attention: t sees positions j <= t only.

    The memory P must hold nothing of x: a learned parameter, or the encoder's
    memory. Residuals and norms are the model's.

    Args:
        embed_dim: model width D.
        num_heads: heads.
        tied: keys are the values, one projection for both.
        dropout: on both attention maps.
        activation: of the packing, "softplus" (to the base 2) or "elu" (+ 1).

    Weights: ``pq_proj`` (of P), ``pc_proj`` (packing keys), ``q_proj``,
    ``out_proj`` and, tied: ``c_proj``; untied: ``k_proj``, ``v_proj``.

    A state holds key sums ``[B,H,d,l]``, value sums ``[B,H,l,d]``, positions
    seen ``[B]``, the projected memory ``[B,H,l,d]`` and the memory mask where
    one was given.

    Example::

        layer = luna.NestedCausalAttention(embed_dim=256, num_heads=8)
        memory = torch.nn.Parameter(torch.randn(16, 256) / 16)
        out = layer(torch.randn(2, 1000, 256), memory)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        tied: bool = True,
        dropout: float = 0.0,
        activation: str = "softplus",
    ) -> None:
        super().__init__()
        layers.check_width(_NAME, embed_dim, num_heads)
        layers.check_dropout(_NAME, dropout)
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"{_NAME}: expected activation to be one of "
                f"{known_and_nearest(activation, _ACTIVATIONS)}, got "
                f"{activation!r}"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.tied = tied
        self.dropout = dropout
        self.activation = activation

        self.pq_proj = nn.Linear(embed_dim, embed_dim)
        self.pc_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        if tied:
            self.c_proj = nn.Linear(embed_dim, embed_dim)
        else:
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the start values anew."""
        layers.start_nested_projections(self)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, tied={self.tied}, "
            f"dropout={self.dropout}, activation={self.activation!r}"
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        state: StreamState | None = None,
        cu_seqlens: Tensor | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, StreamState]:
        """``[B,n,D]`` -> ``[B,n,D]``, with ``return_state`` also the state.

        Args:
            x: ``[B,n,D]``.
            memory: P ``[B,l,D]``, or ``[l,D]`` for all; not with a state,
                which holds it.
            key_mask: ``[B,n]`` bool, true = takes part. Padding may be on the
                right only: it is harmless, and the mask keeps it out of the
                state.
            memory_mask: ``[B,l]`` bool: the rows of the memory that are read.
            state: go on from here.
            cu_seqlens: packed sequences: x ``[1,total,D]``, int ``[S+1]``.
            return_state: also return where a stream goes on.
        """
        layers.check_sequence(_NAME, "x", x, self.embed_dim)
        layers.check_mask(_NAME, "key_mask", key_mask, *x.shape[:2])
        if (memory is None) == (state is None):
            raise ValueError(
                f"{_NAME}: expected either a memory or a state, got "
                f"{'neither' if memory is None else 'both'}"
            )
        if key_mask is not None:
            _check_padding(key_mask, cu_seqlens)

        sums: tuple[Tensor | None, ...] = (None, None, None)
        if state is not None:
            layers.check_state(_NAME, state, 4)
            *sums, packed_query = state.tensors[:4]
            memory_mask = state.tensors[4] if len(state.tensors) > 4 else None
        else:
            starts = cu_seqlens
            sequences = x.shape[0] if starts is None else starts.shape[0] - 1
            memory = layers.check_memory(
                _NAME, memory, memory_mask, sequences, self.embed_dim
            )
            packed_query = layers.split_heads(
                self.pq_proj(memory), self.num_heads
            )

        key, value = self._keys_values(x)
        key = layers.split_heads(key, self.num_heads)
        value = layers.split_heads(value, self.num_heads)
        if key_mask is not None:
            # Nothing of the padding enters the sums.
            padding = ~key_mask[:, None, :, None]
            key = key.masked_fill(padding, 0.0)
            value = key if self.tied else value.masked_fill(padding, 0.0)
        dropout_p = self.dropout if self.training else 0.0
        out, key_sums, value_sums, count = (
            torch.ops.luna.nested_causal_attention(
                layers.split_heads(self.q_proj(x), self.num_heads),
                layers.split_heads(self.pc_proj(x), self.num_heads),
                key,
                value,
                packed_query,
                packed_mask=memory_mask,
                cu_seqlens=cu_seqlens,
                activation=self.activation,
                dropout_p=dropout_p,
                seed=layers.draw_seed(x, dropout_p),
                key_state=sums[0],
                value_state=sums[1],
                count=sums[2],
            )
        )
        out = self.out_proj(layers.merge_heads(out))
        if not return_state:
            return out
        if key_mask is not None:
            count = key_mask.sum(1)
            if sums[2] is not None:
                count = count + sums[2]
        packed_query = packed_query.expand(count.shape[0], -1, -1, -1)
        tensors = (key_sums, value_sums, count, packed_query)
        if memory_mask is not None:
            tensors += (memory_mask,)
        return out, StreamState(tensors)

    def step(self, x: Tensor, state: StreamState) -> Tensor:
        """One token, ``[B,D]`` -> ``[B,D]``.

        Advances in place the ``state`` that forward returned: of a prompt, or
        of x ``[B,0,D]`` to start from nothing. For inference, under
        ``torch.no_grad()``.

        Example::

            with torch.no_grad():
                out, state = layer(prompt, memory, return_state=True)
                for token in tokens:
                    out = layer.step(token, state)
        """
        layers.check_token(_NAME, x, state, self.embed_dim, 4)
        key_sums, value_sums, count, packed_query = state.tensors[:4]
        key, value = self._keys_values(x)
        out = torch.ops.luna.nested_causal_attention_step(
            layers.split_token(self.q_proj(x), self.num_heads),
            layers.split_token(self.pc_proj(x), self.num_heads),
            layers.split_token(key, self.num_heads),
            layers.split_token(value, self.num_heads),
            packed_query,
            key_sums,
            value_sums,
            count,
            packed_mask=state.tensors[4] if len(state.tensors) > 4 else None,
            activation=self.activation,
        )
        return self.out_proj(out.flatten(1))

    def _keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = self.c_proj(x) if self.tied else self.k_proj(x)
        return key, key if self.tied else self.v_proj(x)


def _check_padding(mask: Tensor, cu_seqlens: Tensor | None) -> None:
    """Refuses padding before a token: positions count from the first one."""
    if mask.dtype != torch.bool:
        raise TypeError(f"{_NAME}: expected key_mask of bool, got {mask.dtype}")
    if cu_seqlens is not None:
        raise ValueError(f"{_NAME}: expected key_mask or cu_seqlens, got both")
    late = (mask & (~mask).cumsum(1).bool()).any(1)
    message = (
        f"{_NAME}: expected key_mask with padding on the right only (positions "
        "count from the first token), got a masked position before a token"
    )
    if torch.compiler.is_compiling():  # a value cannot steer a graph
        torch._assert_async(~late.any(), message)
    elif late.any():
        raise ValueError(f"{message} in row {late.nonzero()[0].item()}")
