"""Sums over neighbours, which a layer may add to what attention gives."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LocalSum(nn.Module):
    """A depthwise convolution: each channel's own sum over its neighbours.

    Args:
        width: channels D.
        taps: neighbours along the sequence, itself included; odd.
        columns: of a picture: then taps x taps of them, in rows and columns.

    Its weight is ``weight``, ``[D,1,taps]`` or ``[D,taps,taps]``, and starts as
    torch's convolutions do.

    Example::

        near = luna.nn.LocalSum(256, taps=5)
        out = near(torch.randn(2, 1000, 256))
    """

    def __init__(self, width: int, taps: int, columns: int = 0) -> None:
        super().__init__()
        if taps < 1 or taps % 2 == 0:
            raise ValueError(
                f"LocalSum: expected an odd number of taps, got {taps}"
            )
        self.columns = columns
        rows = taps if columns else 1
        self.weight = nn.Parameter(torch.empty(width, rows, taps))
        bound = (rows * taps) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """``[B,n,D]`` -> ``[B,n,D]``.

        Args:
            x: ``[B,n,D]``; of pictures n is rows * columns.
            mask: ``[B,n]``, bool or weights: values are multiplied by it.
            cu_seqlens: packed sequences: x ``[1,total,D]``, int ``[S+1]``.
        """
        if mask is not None:
            rows = mask.unsqueeze(-1)
            if mask.dtype == torch.bool:  # what is masked may be NaN
                x = torch.where(rows, x, x.new_zeros(()))
            else:
                x = x * rows.to(x.dtype)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return torch.ops.luna._local_sum(
            x, self.weight.to(wide), self.columns, cu_seqlens
        )

    def extra_repr(self) -> str:
        width, rows, taps = self.weight.shape
        size = (
            f"{rows} x {taps}, columns={self.columns}" if self.columns else taps
        )
        return f"{width}, taps={size}"
