"""Nested attention: how it starts, its formula, its stream."""

import luna
import pytest
import torch
from modules import BATCH, HEADS, LENGTH, MODULES, SLOTS, WIDTH


def test_nested_projections_start_xavier():
    for module in (
        luna.NestedAttention(256, 4, tied=False),
        luna.NestedCausalAttention(256, 4),
    ):
        for name, linear in module.named_children():
            gain = 1 if name == "out_proj" else 0.5**0.5
            bound = gain * (6 / (256 + 256)) ** 0.5
            assert 0.99 * bound < linear.weight.abs().max().item() <= bound
            assert not linear.bias.any()


def test_nested_attention_is_its_formula():
    layer = luna.NestedAttention(WIDTH, HEADS, tied=False, pack_heads=2)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    context = torch.randn(BATCH, 9, WIDTH)
    memory = torch.randn(BATCH, SLOTS, WIDTH)
    mask = torch.arange(9) < torch.tensor([[9], [3], [6]])
    out, packed = layer(x, memory, context, key_mask=mask)

    def attend(q, k, v, heads, allowed):
        q, k, v = (
            y.unflatten(-1, (heads, WIDTH // heads)).transpose(1, 2)
            for y in (q, k, v)
        )
        scores = q @ k.mT / (WIDTH // heads) ** 0.5
        scores = scores.masked_fill(~allowed[:, None, None], -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    expected_packed = attend(
        layer.pq_proj(memory),
        layer.pk_proj(context),
        layer.pv_proj(context),
        2,
        mask,
    )
    torch.testing.assert_close(packed, expected_packed)
    # Dynamic projection: the second sample has three tokens, so three rows.
    rows = torch.arange(SLOTS) < mask.sum(1, keepdim=True)
    assert rows.sum(1).tolist() == [5, 3, 5]
    expected = attend(
        layer.q_proj(x),
        layer.k_proj(expected_packed),
        layer.v_proj(expected_packed),
        HEADS,
        rows,
    )
    torch.testing.assert_close(out, layer.out_proj(expected))


@pytest.mark.parametrize("name", ["nested_causal", "nested_causal_untied"])
def test_nested_stream_equals_whole(name):
    module = MODULES[name]()
    layer, memory = module.layer, module.memory
    x = torch.randn(BATCH, LENGTH, WIDTH)
    mask = torch.rand(BATCH, SLOTS) < 0.6
    mask[:, 0] = True
    whole = layer(x, memory, memory_mask=mask)
    with torch.no_grad():
        first, state = layer(
            x[:, :4], memory, memory_mask=mask, return_state=True
        )
        second, state = layer(x[:, 4:7], state=state, return_state=True)
        rest = [layer.step(x[:, t], state) for t in range(7, LENGTH)]
    got = torch.cat([first, second, torch.stack(rest, 1)], 1)
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-5)
