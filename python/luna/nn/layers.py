"""What the layers have in common: checks, and the way to heads and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.functional import check_tensors
from luna.nn.stream_state import StreamState


def check_width(layer: str, embed_dim: int, num_heads: int) -> None:
    if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
        raise ValueError(
            f"{layer}: expected embed_dim to be a multiple of the number of "
            f"heads, got {embed_dim} and {num_heads} heads"
        )


def check_dropout(layer: str, dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"{layer}: expected dropout in [0, 1), got {dropout}")


def check_sequence(layer: str, name: str, x: Tensor, embed_dim: int) -> None:
    """x is ``[B,n,D]``."""
    check_tensors(layer, **{name: x})
    if x.dim() != 3 or x.shape[2] != embed_dim:
        raise ValueError(
            f"{layer}: expected {name} of shape [batch, length, {embed_dim}], "
            f"got {list(x.shape)}"
        )


def check_context(
    layer: str, x: Tensor, context: Tensor | None, embed_dim: int
) -> Tensor:
    """Where the keys come from: ``context``, checked, or ``x``."""
    if context is None:
        return x
    check_sequence(layer, "context", context, embed_dim)
    if context.shape[0] != x.shape[0]:
        raise ValueError(
            f"{layer}: expected context of batch {x.shape[0]} (x's), got "
            f"{context.shape[0]}"
        )
    return context


def check_mask(
    layer: str, name: str, mask: Tensor | None, batch: int, length: int
) -> None:
    """mask is ``[batch, length]``, bool or floating."""
    if mask is None:
        return
    check_tensors(layer, **{name: mask})
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{layer}: expected {name} of bool (true = takes part) or float "
            f"weights, got {mask.dtype}; call .bool() on it"
        )
    if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] != length:
        raise ValueError(
            f"{layer}: expected {name} of shape [{batch}, {length}], got "
            f"{list(mask.shape)}"
        )


def check_memory(
    layer: str,
    memory: Tensor,
    memory_mask: Tensor | None,
    sequences: int,
    embed_dim: int,
) -> Tensor:
    """The memory as ``[B,l,D]`` or ``[1,l,D]``; it may be given as [l,D]."""
    check_tensors(layer, memory=memory)
    packed = memory.unsqueeze(0) if memory.dim() == 2 else memory
    if (
        packed.dim() != 3
        or packed.shape[2] != embed_dim
        or packed.shape[0] not in (1, sequences)
    ):
        raise ValueError(
            f"{layer}: expected memory of shape [{sequences}, length, "
            f"{embed_dim}], or [length, {embed_dim}] for all, got "
            f"{list(memory.shape)}"
        )
    check_mask(layer, "memory_mask", memory_mask, sequences, packed.shape[1])
    return packed


def check_token(
    layer: str, x: Tensor, state: StreamState, embed_dim: int, tensors: int
) -> None:
    """x is ``[B,D]``, and ``state`` what forward returned."""
    check_tensors(layer, x=x)
    if x.dim() != 2 or x.shape[1] != embed_dim:
        raise ValueError(
            f"{layer}: expected a token x of shape [batch, {embed_dim}], got "
            f"{list(x.shape)}"
        )
    check_state(layer, state, tensors)


def check_state(layer: str, state: StreamState, tensors: int) -> None:
    if not isinstance(state, StreamState):
        raise TypeError(
            f"{layer}: expected the luna.StreamState that forward returned, "
            f"got {type(state).__name__}"
        )
    if len(state.tensors) < tensors:
        raise ValueError(
            f"{layer}: expected the state that forward returned ({tensors} "
            f"tensors), got {len(state.tensors)} tensors"
        )


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """``[B,n,H*d]`` -> ``[B,H,n,d]``, a view."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """``[B,H,n,d]`` -> ``[B,n,H*d]``."""
    return x.transpose(1, 2).flatten(2)


def split_token(x: Tensor, num_heads: int) -> Tensor:
    """``[B,H*d]`` -> ``[B,H,d]``, a view."""
    return x.unflatten(-1, (num_heads, -1))


def draw_seed(x: Tensor, dropout_p: float) -> Tensor | None:
    """Two random words for an op's dropout; none where nothing is dropped."""
    if dropout_p == 0:
        return None
    return torch.randint(2**63 - 1, (2,), device=x.device)


def start_nested_projections(layer: nn.Module) -> None:
    """Xavier uniform, gain 1/sqrt(2), or 1 for out_proj; biases 0."""
    for name, linear in layer.named_children():
        gain = 1.0 if name == "out_proj" else 0.5**0.5
        nn.init.xavier_uniform_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
