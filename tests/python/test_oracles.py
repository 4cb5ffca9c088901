"""Against an implementation that nobody here wrote.

linear-attention-transformer 0.19.1 (PyPI) computes, for queries a and keys b,

    causal      softmax_d(a_t) . sum_{j<=t} exp(b_j) v_j^T
                / softmax_d(a_t) . sum_{j<=t} exp(b_j)
    non-causal  softmax_d(a_t) d^-1/2 . sum_j softmax_n(b)_j v_j^T

A softmax of logarithms is the numbers themselves, made to sum to 1. So with
a = log phi(q), b = log phi(k), phi = elu + 1, the causal one is linear
attention as it stands (the scale of a row of queries cancels), and the
non-causal one is with a = log(phi(q) * sum_j phi(k_j)), times sqrt(d).
"""

import luna
import pytest
import torch
import torch.nn.functional as F
from linear_attention_transformer.linear_attention_transformer import (
    causal_linear_attn,
    linear_attn,
)

B, H, N, D = 2, 3, 24, 8


def phi(x):
    return F.elu(x) + 1


def theirs_causal(q, k, v, mask):
    # bucket_size=1: a position sees itself and all before it.
    return causal_linear_attn(
        phi(q).log(), phi(k).log(), v.clone(), kv_mask=mask, bucket_size=1
    )


def theirs_whole(q, k, v, mask):
    keys = phi(k)
    total = keys if mask is None else keys * mask[:, None, :, None]
    total = total.sum(2, keepdim=True)
    out = linear_attn(
        (phi(q) * total).log(), keys.log(), v.clone(), kv_mask=mask
    )
    return out * D**0.5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_agrees(causal, masked):
    theirs = theirs_causal if causal else theirs_whole
    mask = None
    if masked:
        mask = torch.rand(B, N) < 0.6
        mask[:, 0] = True
    leaves = [
        torch.randn(B, H, N, D, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]
    q, k, v = leaves
    ours = luna.linear_attention(
        phi(q), phi(k), v, causal=causal, key_mask=mask
    )
    expected = theirs(q, k, v, mask)
    torch.testing.assert_close(ours, expected)
    weights = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad((ours * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_registered_linear_mechanism_agrees(causal):
    layer = luna.MultiHeadAttention(H * D, H, "linear").double()
    x = torch.randn(B, N, H * D, dtype=torch.float64)

    def heads(y):
        return y.view(B, N, H, D).transpose(1, 2)

    theirs = theirs_causal if causal else theirs_whole
    expected = theirs(
        heads(layer.q_proj(x)),
        heads(layer.k_proj(x)),
        heads(layer.v_proj(x)),
        None,
    )
    expected = layer.out_proj(expected.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, causal=causal), expected)
