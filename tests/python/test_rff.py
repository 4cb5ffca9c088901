"""Random features: their guard, their gate."""

import luna
import pytest
import torch


@pytest.mark.parametrize("gate", [False, True])
def test_rffs_sums_count_as_no_less_than_eps(gate):
    torch.manual_seed(2)
    eps, heads, n, width = 0.3, 2, 20, 4
    module = luna.nn.RffAttention(
        width, heads, features=8, unit=True, gate=gate, eps=eps
    ).double()
    q, k, v = torch.randn(3, 2, heads, n, width, dtype=torch.float64)
    with torch.no_grad():
        out, _ = module.attend(q, k, v, causal=True)
        scores = (module(q) @ module(k).mT).tril()
        if gate:  # of a = 0 and c = 2
            g = torch.tensor(2.0, dtype=torch.float64).sigmoid()
            age = torch.arange(n)[:, None] - torch.arange(n)
            scores = scores * (1 - g) * g ** age.clamp_min(0)
        total = scores.sum(-1, keepdim=True)
        small = total.abs() < eps
        assert small.any() and not small.all()
        want = scores @ v / total.abs().clamp_min(eps).copysign(total)
        torch.testing.assert_close(out, want)
        state = torch.zeros(2, heads, 8, width + 1, dtype=torch.float64)
        for t in range(n):
            y = module.step(q[:, :, t], k[:, :, t], v[:, :, t], state)
            torch.testing.assert_close(y, want[:, :, t])
    with pytest.raises(ValueError, match="eps"):
        luna.nn.RffAttention(width, eps=0.0)


@pytest.mark.parametrize("unit", [False, True])
def test_rffs_gate_is_the_recurrence(unit):
    torch.manual_seed(1)
    heads, n, width = 2, 70, 4  # more than a chunk
    module = luna.nn.RffAttention(
        width, heads, features=8, unit=unit, gate=True
    ).double()
    with torch.no_grad():
        module.gate_weight.normal_()
    q, k, v = torch.randn(3, 2, heads, n, width, dtype=torch.float64)
    weight = (torch.rand(2, n) < 0.8).double()
    start = torch.rand(2, heads, 8, width + 1, dtype=torch.float64)
    out, state = module.attend(
        q, k, v, causal=True, key_weight=weight, state=start
    )

    gate = torch.einsum("bhnd,hd->bhn", k, module.gate_weight)
    g = (gate + module.gate_bias[:, None]).sigmoid()
    sums, want = start.clone(), []
    moving = start.clone()
    for t in range(n):
        row = torch.cat([v[:, :, t], torch.ones(2, heads, 1)], -1)
        new = module(k[:, :, t])[..., None] * row[..., None, :]
        moved = g[:, :, t, None, None] * sums
        moved = moved + (1 - g[:, :, t, None, None]) * new
        sums = torch.where(weight[:, t, None, None, None] > 0, moved, sums)
        total = (module(q[:, :, t])[..., None, :] @ sums)[..., 0, :]
        want.append(total[..., :-1] / total[..., -1:])
        with torch.no_grad():
            stepped = module.step(
                q[:, :, t], k[:, :, t], v[:, :, t], moving,
                key_weight=weight[:, t],
            )  # fmt: skip
        torch.testing.assert_close(stepped, want[-1], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(state, sums)
    torch.testing.assert_close(out, torch.stack(want, 2), rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="causal"):
        module.attend(q, k, v)
