"""What luna's ops compute, in plain tensor operations of any dtype."""

import math

import torch


def features(x, parameters):
    """phi of universal attention as its paper lists it: every hidden unit of
    every channel's MLP is made."""
    projection, bias, hidden, hidden_bias, output, output_bias = (
        p.to(x.dtype) for p in parameters
    )
    u = (x @ projection.T + bias)[..., None, None]
    psi = (torch.relu(u * hidden + hidden_bias) * output).sum(-1) + output_bias
    return torch.relu(psi).flatten(-2) / math.sqrt(projection.size(0))


def universal(q, k, v, parameters):
    """By sums over the keys, linear in their number."""
    a, b = features(q, parameters), features(k, parameters)
    sums = b.transpose(-1, -2) @ v.to(b.dtype)
    return (a @ sums) / (a @ b.sum(-2).unsqueeze(-1)).clamp_min(1e-6)


def by_rows(q, k, v, *parameters):
    """Universal attention by its whole map: what the op is held against."""
    return of_rows(scores(q, k, parameters), v)


def by_causal_rows(q, k, v, *parameters):
    return of_rows(scores(q, k, parameters).tril(), v)


def scores(q, k, parameters):
    return features(q, parameters) @ features(k, parameters).transpose(-1, -2)


def of_rows(rows, v):
    return (rows @ v) / rows.sum(-1, keepdim=True).clamp_min(1e-6)


def attend(q, k, v):
    rows = (q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1))
    return rows.softmax(-1) @ v


def nested(q, k, v, memory):
    packed = attend(memory, k, v)
    return attend(q, packed, packed)


def nested_causal(q, k, v, memory):
    """As the public implementation has it: all prefix sums side by side,
    [.., n, width, slots] twice."""
    scale = 1 / math.sqrt(q.size(-1))
    a = k @ (memory * scale).transpose(-1, -2)
    a = torch.nn.functional.softplus(a, beta=math.log(2))
    count = torch.arange(1, q.size(-2) + 1, device=q.device).to(q.dtype)

    def sums_before(x, y, z):
        sums = (y.unsqueeze(-1) * z.unsqueeze(-2)).cumsum(-3)
        return (x.unsqueeze(-2) @ sums).squeeze(-2) / count.unsqueeze(-1)

    rows = sums_before(q * scale, k, a).softmax(-1)
    return sums_before(rows, a, v)
