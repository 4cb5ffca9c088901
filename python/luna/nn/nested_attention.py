"""Nested attention: two softmax attentions through a short memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.nn import layers


class NestedAttention(nn.Module):
    """A layer of nested attention, self or cross; the memory P is its input.

    Y_P = softmax(pq(P) s . K_p^T) V_p packs the sequence into l rows, and
    Y_X = out(softmax(q(X) s . K_u^T) V_u), with K_u and V_u from Y_P, unpacks
    them. Residuals and norms are the model's; P' = LN(P + Y_P) is the next
    layer's memory.

    Args:
        embed_dim: model width D.
        num_heads: heads of unpack.
        tied: keys are the values, one projection for both.
        pack_heads: heads of pack; None or 0: as many as of unpack.
        dropout: on both attention maps.
        dynamic_projection: a sequence shorter than the memory uses as many of
            the memory's rows as it has tokens.

    Weights: ``pq_proj``, ``q_proj``, ``out_proj`` and, tied: ``pc_proj``,
    ``c_proj``; untied: ``pk_proj``, ``pv_proj``, ``k_proj``, ``v_proj``.

    Example::

        layer = luna.NestedAttention(embed_dim=256, num_heads=8)
        memory = torch.nn.Parameter(torch.randn(16, 256) / 16)
        out, packed = layer(torch.randn(2, 1000, 256), memory)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        tied: bool = True,
        pack_heads: int | None = None,
        dropout: float = 0.0,
        dynamic_projection: bool = True,
    ) -> None:
        super().__init__()
        pack_heads = pack_heads or num_heads
        layers.check_width("NestedAttention", embed_dim, num_heads)
        layers.check_width("NestedAttention", embed_dim, pack_heads)
        layers.check_dropout("NestedAttention", dropout)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.pack_heads = pack_heads
        self.tied = tied
        self.dropout = dropout
        self.dynamic_projection = dynamic_projection

        self.pq_proj = nn.Linear(embed_dim, embed_dim)
        if tied:
            self.pc_proj = nn.Linear(embed_dim, embed_dim)
        else:
            self.pk_proj = nn.Linear(embed_dim, embed_dim)
            self.pv_proj = nn.Linear(embed_dim, embed_dim)
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
            f"num_heads={self.num_heads}, pack_heads={self.pack_heads}, "
            f"tied={self.tied}, dropout={self.dropout}"
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        context: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns (Y_X ``[B,n,D]``, Y_P ``[B,l,D]``).

        Args:
            x: ``[B,n,D]``.
            memory: P ``[B,l,D]``, or ``[l,D]`` for all.
            context: ``[B,m,D]``: pack this, not x.
            key_mask: ``[B,m]`` bool, true = takes part, or float weights >= 0.
            memory_mask: ``[B,l]``: the rows of the memory that are read.
            cu_seqlens_q: packed sequences: x ``[1,total,D]``, int ``[S+1]``;
                memory and Y_P then have S in place of B.
            cu_seqlens_k: those of the context.
        """
        name = "NestedAttention"
        layers.check_sequence(name, "x", x, self.embed_dim)
        keys = layers.check_context(name, x, context, self.embed_dim)
        layers.check_mask(name, "key_mask", key_mask, *keys.shape[:2])
        if context is None and cu_seqlens_k is None:
            cu_seqlens_k = cu_seqlens_q
        starts = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
        sequences = x.shape[0] if starts is None else starts.shape[0] - 1
        memory = layers.check_memory(
            name, memory, memory_mask, sequences, self.embed_dim
        )
        if self.dynamic_projection:
            used = _rows_in_use(keys, memory.shape[1], key_mask, cu_seqlens_k)
            if memory_mask is None:
                memory_mask = used
            elif used is not None:
                memory_mask = memory_mask * used

        packed = self._pack(memory, keys, key_mask, cu_seqlens_k)
        return self._unpack(x, packed, memory_mask, cu_seqlens_q), packed

    def _pack(
        self,
        memory: Tensor,
        keys: Tensor,
        key_mask: Tensor | None,
        cu_seqlens_k: Tensor | None,
    ) -> Tensor:
        dropout_p = self.dropout if self.training else 0.0
        project_key = self.pc_proj if self.tied else self.pk_proj
        key = layers.split_heads(project_key(keys), self.pack_heads)
        value = (
            key
            if self.tied
            else layers.split_heads(self.pv_proj(keys), self.pack_heads)
        )
        packed = torch.ops.luna.pack_attention(
            layers.split_heads(self.pq_proj(memory), self.pack_heads),
            key,
            value,
            key_weight=key_mask,
            cu_seqlens_k=cu_seqlens_k,
            dropout_p=dropout_p,
            seed=layers.draw_seed(keys, dropout_p),
        )
        return layers.merge_heads(packed)

    def _unpack(
        self,
        x: Tensor,
        packed: Tensor,
        memory_mask: Tensor | None,
        cu_seqlens_q: Tensor | None,
    ) -> Tensor:
        dropout_p = self.dropout if self.training else 0.0
        project_key = self.c_proj if self.tied else self.k_proj
        key = layers.split_heads(project_key(packed), self.num_heads)
        value = (
            key
            if self.tied
            else layers.split_heads(self.v_proj(packed), self.num_heads)
        )
        out = torch.ops.luna.unpack_attention(
            layers.split_heads(self.q_proj(x), self.num_heads),
            key,
            value,
            key_weight=memory_mask,
            cu_seqlens_q=cu_seqlens_q,
            dropout_p=dropout_p,
            seed=layers.draw_seed(x, dropout_p),
        )
        return self.out_proj(layers.merge_heads(out))


def _rows_in_use(
    keys: Tensor,
    memory_length: int,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Tensor | None:
    """bool ``[B,l]``, row i is read where i < the sequence's length.

    None where every sequence is as long as the memory.
    """
    if cu_seqlens is not None:
        ends = cu_seqlens.long()
        if key_mask is not None:
            counts = (key_mask[0] > 0).cumsum(0)
            ends = torch.cat([counts.new_zeros(1), counts])[ends]
        lengths = ends.diff()
    elif key_mask is not None:
        lengths = (key_mask > 0).sum(1)
    elif keys.shape[1] >= memory_length:
        return None
    else:
        lengths = torch.full(
            (keys.shape[0],), keys.shape[1], device=keys.device
        )
    rows = torch.arange(memory_length, device=keys.device)
    return rows < lengths.unsqueeze(1)
