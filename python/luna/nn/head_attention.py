"""What a mechanism over heads is."""

from __future__ import annotations

from torch import Tensor, nn


class HeadAttention(nn.Module):
    """A function of the heads' q, k and v, in the place of SDPA.

    A mechanism implements `attend`, and `step` and `prepare` where it streams.

    Example::

        heads = luna.nn.LinearAttention(head_dim=32)
        out, state = heads.attend(q, k, v, causal=True)
    """

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
    ) -> tuple[Tensor, Tensor | None]:
        """``[B,H,n,d]``, ``[B,H,m,d]``, ``[B,H,m,dv]`` -> output, state."""
        raise NotImplementedError

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
        """One token: ``[B,H,d]`` -> ``[B,H,dv]``; ``state`` in place."""
        raise ValueError(
            "step: expected a mechanism that streams (see luna.attentions()), "
            f"got {type(self).__name__}, which keeps no state"
        )

    def prepare(self) -> Tensor | None:
        """What follows from the weights alone, once for many steps."""
        return None
