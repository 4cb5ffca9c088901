"""Universal attention's learned feature map."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.nn.head_attention import HeadAttention

_TARGET_RMS = 0.1
_OPEN_GATE = math.log(math.e - 1)  # softplus of it is 1
_NORM_EPS = 1e-6
# Of the start "softmax": where psi follows exp, and how many times the
# coordinates its projections are.
_RANGE = 4.0
_STEEPNESS = 2.0


def _directions(count: int, width: int, both_ways: bool) -> Tensor:
    """[count, width]: coordinates, their negatives unless psi goes both ways,
    then blocks of orthogonal directions of length width^(1/4)."""
    identity = torch.eye(width, dtype=torch.float64)
    blocks = [] if count < width else [identity]
    if blocks and not both_ways:
        blocks.append(-identity)
    while len(blocks) * width < count:
        drawn = torch.randn(width, width, dtype=torch.float64)
        blocks.append(torch.linalg.qr(drawn)[0] * width**0.25)
    return torch.cat(blocks)[:count] * _STEEPNESS


def _slope(channel: int) -> float:
    """1, -1, 1/2, -1/2, 3/2, -3/2, 2, ..."""
    pair = channel // 2
    size = (1.0, 0.5)[pair] if pair < 2 else 0.5 * (pair + 1)
    return size if channel % 2 == 0 else -size


class FeatureMap(HeadAttention):
    """phi(x) = h(x) [psi_c(w_i . x + b_i)]_{i,c} / sqrt(M), M-major.

    psi_c are scalar networks 1 -> hidden -> 1 with ReLU; their cost does not
    grow with ``hidden``. h is 1 unless ``gated``.

    Args:
        head_dim: width d of queries and keys.
        num_heads: heads, read with ``per_head`` alone.
        M: projections.
        L: channels, functions psi of each projection.
        hidden: hidden width of psi.
        shared_channels: one hidden layer for all channels.
        nonneg: ReLU on psi's output.
        gated: weigh keys by h(k) = softplus(a.k + c), 1 at the start.
        ch_rms: scale each channel down to a root mean square of 0.1 over the
            valid tokens of the batch; not with causal.
        per_head: projections of its own for each head.
        normalize: phi of x / rms(x).
        start: of phi. ``"random"``, as published; ``"ramps"``: psi_c are
            ReLU(+-u - t_c) / spread with thresholds t_c from 0 to twice
            ``spread``; ``"softmax"``: the
            projections are twice the coordinates of x (and, if L is 1, their
            negatives), then orthogonal directions, and psi_c are exponentials
            (best with L = 1 and M = 2 d).
        spread: the projections start as N(0,1) spread / sqrt(d).
        lift: added to psi's output bias at the start; 1 keeps all of its
            channels alive then.
        eps: denominators, sums of phi(q).phi(k), count as no less than this.

    Parameters: ``projection`` ``[M,d]`` (``[H,M,d]`` per head),
    ``projection_bias``, ``hidden_weight`` and ``hidden_bias`` ``[L,hidden]``
    (``[1,hidden]`` where shared), ``output_weight`` ``[L,hidden]``,
    ``output_bias`` ``[L]``; gated: ``gate_weight`` ``[d]``, ``gate_bias``.
    They may stay float32 whatever the dtype of the inputs.

    Example::

        feature_map = luna.FeatureMap(32, M=16)
        out = luna.universal_attention(q, k, v, feature_map)
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int = 1,
        *,
        M: int = 8,
        L: int = 8,
        hidden: int = 64,
        shared_channels: bool = False,
        nonneg: bool = True,
        gated: bool = False,
        ch_rms: bool = False,
        per_head: bool = False,
        normalize: bool = False,
        start: str = "random",
        spread: float = 1.0,
        lift: float = 0.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        sizes = dict(
            head_dim=head_dim, num_heads=num_heads, M=M, L=L, hidden=hidden
        )
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(
                    f"FeatureMap: expected {name} >= 1, got {size}"
                )
        if start not in ("random", "ramps", "softmax"):
            raise ValueError(
                "FeatureMap: expected start random, ramps or softmax, "
                f"got {start!r}"
            )
        if start == "ramps" and shared_channels and hidden < L:
            raise ValueError(
                "FeatureMap: expected hidden >= L with start = ramps and "
                f"shared_channels, got {hidden} and {L}"
            )
        if start == "ramps" and not spread > 0:
            raise ValueError(
                "FeatureMap: expected spread > 0 with start = ramps, "
                f"got {spread}"
            )
        if not eps >= 1e-12:
            raise ValueError(f"FeatureMap: expected eps >= 1e-12, got {eps}")
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.M = M
        self.L = L
        self.hidden = hidden
        self.shared_channels = shared_channels
        self.nonneg = nonneg
        self.gated = gated
        self.ch_rms = ch_rms
        self.per_head = per_head
        self.normalize = normalize
        self.start = start
        self.spread = spread
        self.lift = lift
        self.eps = eps

        projections = (num_heads, M) if per_head else (M,)
        trunks = 1 if shared_channels else L
        self.projection = nn.Parameter(torch.empty(*projections, head_dim))
        self.projection_bias = nn.Parameter(torch.empty(projections))
        self.hidden_weight = nn.Parameter(torch.empty(trunks, hidden))
        self.hidden_bias = nn.Parameter(torch.empty(trunks, hidden))
        self.output_weight = nn.Parameter(torch.empty(L, hidden))
        self.output_bias = nn.Parameter(torch.empty(L))
        if gated:
            self.gate_weight = nn.Parameter(torch.empty(head_dim))
            self.gate_bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the start values anew."""
        nn.init.normal_(self.projection, std=self.spread * self.head_dim**-0.5)
        nn.init.zeros_(self.projection_bias)
        # As Linear(1, hidden) and Linear(hidden, 1): U(+-1/sqrt(fan in)).
        bound = self.hidden**-0.5
        nn.init.uniform_(self.hidden_weight, -1, 1)
        nn.init.uniform_(self.hidden_bias, -1, 1)
        nn.init.uniform_(self.output_weight, -bound, bound)
        nn.init.uniform_(self.output_bias, self.lift - bound, self.lift + bound)
        if self.gated:
            nn.init.zeros_(self.gate_weight)
            nn.init.constant_(self.gate_bias, _OPEN_GATE)
        if self.start == "ramps":
            self._start_from_ramps()
        if self.start == "softmax":
            self._start_from_softmax()

    @torch.no_grad()
    def _start_from_ramps(self) -> None:
        pairs = (self.L + 1) // 2
        self.output_weight.zero_()
        self.output_bias.fill_(self.lift)
        for channel in range(self.L):
            trunk, unit = (0, channel) if self.shared_channels else (channel, 0)
            self.hidden_weight[trunk, unit] = -1 if channel % 2 else 1
            threshold = 2 * self.spread * (channel // 2) / pairs
            self.hidden_bias[trunk, unit] = -threshold
            self.output_weight[channel, unit] = 1 / self.spread

    @torch.no_grad()
    def _start_from_softmax(self) -> None:
        for of_head in self.projection if self.per_head else [self.projection]:
            of_head.copy_(_directions(self.M, self.head_dim, self.L > 1))
        # psi(u) = b + sum_j a_j ReLU(u - t_j) goes through exp at each t_j.
        ends = torch.linspace(
            -_RANGE, _RANGE, self.hidden + 1, dtype=torch.float64
        )
        self.hidden_weight.fill_(1)
        self.hidden_bias.copy_(-ends[:-1].expand_as(self.hidden_bias))
        for channel in range(self.L):
            value = (ends * _slope(channel)).exp()
            steep = value.diff() / ends.diff()
            self.output_weight[channel] = torch.cat([steep[:1], steep.diff()])
            self.output_bias[channel] = value[0]

    def extra_repr(self) -> str:
        text = f"{self.head_dim}, M={self.M}, L={self.L}, hidden={self.hidden}"
        for name in (
            "shared_channels",
            "gated",
            "ch_rms",
            "per_head",
            "normalize",
        ):
            text += f", {name}=True" if getattr(self, name) else ""
        return text if self.nonneg else text + ", nonneg=False"

    def map_parameters(self) -> tuple[Tensor, ...]:
        """The six tensors that the ops ``torch.ops.luna.*`` take."""
        return (
            self.projection,
            self.projection_bias,
            self.hidden_weight,
            self.hidden_bias,
            self.output_weight,
            self.output_bias,
        )

    def prepare(self) -> Tensor:
        """psi's table: see `luna.universal_table`."""
        return torch.ops.luna.universal_table(*self.map_parameters()[2:])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """phi(x), ``[B,H,n,d]`` (``[..., d]`` without per_head and ch_rms).

        ``mask`` ``[B,n]``: the tokens that ch_rms counts.
        """
        x = self._scaled(x)
        phi = self._features(x)
        if self.ch_rms:
            phi = self._scale_channels(phi, mask)
        if self.gated:
            phi = phi * self._gate(x).unsqueeze(-1).to(phi.dtype)
        return phi

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
        query, key = self._scaled(query), self._scaled(key)
        if self.ch_rms:
            if causal or state is not None:
                raise ValueError(
                    "FeatureMap: expected neither causal nor a state with "
                    "ch_rms (a statistic of the whole batch, the future "
                    f"included), got causal = {causal}, state "
                    f"{'not given' if state is None else 'given'}"
                )
            return torch.ops.luna.linear_attention(
                self._scale_channels(self._features(query), query_mask),
                self._scale_channels(self._features(key), key_weight),
                value,
                key_weight=self._gated_weight(key, key_weight),
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_k=cu_seqlens_k,
                eps=self.eps,
            )
        return torch.ops.luna.universal_attention(
            query,
            key,
            value,
            *self.map_parameters(),
            key_weight=self._gated_weight(key, key_weight),
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            causal=causal,
            nonneg=self.nonneg,
            eps=self.eps,
            state=state,
            table=prepared,
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
        if self.ch_rms:
            raise ValueError(
                "FeatureMap: expected no step with ch_rms (a statistic of the "
                "whole batch), got one"
            )
        query, key = self._scaled(query), self._scaled(key)
        return torch.ops.luna.universal_attention_step(
            query,
            key,
            value,
            state,
            *self.map_parameters(),
            key_weight=self._gated_weight(key, key_weight),
            nonneg=self.nonneg,
            eps=self.eps,
            table=prepared,
        )

    @torch.no_grad()
    def dead_features(
        self, samples: int = 4096, generator: torch.Generator | None = None
    ) -> float:
        """The share of features that are 0 for all of ``samples`` inputs.

        Inputs are drawn from N(0,1). At the start a ReLU holds them dead.

        Example::

            print(f"{luna.FeatureMap(32).dead_features():.0%} start dead")
        """
        heads = self.num_heads if self.per_head else 1
        like = self.projection
        x = torch.randn(
            (1, heads, samples, self.head_dim),
            generator=generator,
            dtype=like.dtype,
            device=like.device,
        )
        alive = self._features(x).ne(0).any(2)
        return 1 - alive.double().mean().item()

    def _scaled(self, x: Tensor) -> Tensor:
        if not self.normalize:
            return x
        return nn.functional.rms_norm(x, (self.head_dim,), eps=_NORM_EPS)

    def _features(self, x: Tensor) -> Tensor:
        return torch.ops.luna.feature_map(
            x, *self.map_parameters(), nonneg=self.nonneg
        )

    def _scale_channels(self, phi: Tensor, mask: Tensor | None) -> Tensor:
        """Per channel c: times min(1, 0.1 / (rms of psi_c + 1e-6))."""
        dtype = torch.promote_types(phi.dtype, torch.float32)
        channels = phi.to(dtype).unflatten(-1, (self.M, self.L))
        squares = channels.square() * self.M  # phi holds psi / sqrt(M)
        if mask is None:
            mean = squares.flatten(0, -2).mean(0)
        else:
            valid = (mask.unsqueeze(1) if mask.dim() == 2 else mask) > 0
            valid = valid.expand(phi.shape[:-1])[..., None, None]
            count = valid.sum().clamp_min(1) * self.M
            mean = squares.where(valid, 0.0).flatten(0, -2).sum(0) / count
        # The square root's slope at 0, where a channel is dead, is infinite.
        rms = mean.clamp_min(1e-24).sqrt()
        scale = (_TARGET_RMS / (rms + 1e-6)).clamp_max(1)
        return (channels * scale).flatten(-2).to(phi.dtype)

    def _gate(self, x: Tensor) -> Tensor:
        """h(x), ``[..., d]`` -> ``[...]``, in the parameters' precision."""
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, self.gate_weight.dtype)
            inner = x.to(dtype) @ self.gate_weight.to(dtype)
            return F.softplus(inner + self.gate_bias.to(dtype))

    def _gated_weight(
        self, key: Tensor, weight: Tensor | None
    ) -> Tensor | None:
        """The gate and the mask as one weight of each key."""
        if not self.gated:
            return weight
        gate = self._gate(key)
        if weight is None:
            return gate
        if weight.dim() < gate.dim():
            weight = weight.unsqueeze(1)
        if weight.dtype == torch.bool:
            return gate.where(weight, 0.0)
        return gate * weight
