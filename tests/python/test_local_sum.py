"""Sums over neighbours beside attention."""

import luna
import pytest
import torch
from modules import HEADS, WIDTH


@pytest.mark.parametrize("columns", [0, 4])
def test_a_local_sum_is_added_before_the_last_projection(columns):
    x, mask = torch.randn(2, 12, WIDTH), torch.arange(12) < 9
    mask = torch.stack([mask, torch.ones_like(mask)])
    layer = luna.UniversalAttention(
        WIDTH, HEADS, local=3, local_columns=columns
    )
    plain = luna.UniversalAttention(WIDTH, HEADS)
    plain.load_state_dict(layer.state_dict(), strict=False)
    plain.out_proj = torch.nn.Identity()
    values = layer.v_proj(x) * mask[..., None]
    picture = values.transpose(1, 2).reshape(2, WIDTH, -1, columns or 12)
    near = torch.nn.functional.conv2d(
        picture,
        layer.local.weight.unsqueeze(1),
        padding=(layer.local.weight.shape[1] // 2, 1),
        groups=WIDTH,
    )
    near = near.flatten(2).transpose(1, 2)
    torch.testing.assert_close(
        layer(x, key_mask=mask)[mask],
        layer.out_proj(plain(x, key_mask=mask) + near)[mask],
    )


@pytest.mark.parametrize(
    "given", [{"causal": True}, {"context": True}, {"return_state": True}]
)
def test_a_local_sum_is_neither_causal_nor_of_a_context(given):
    x = torch.randn(1, 5, WIDTH)
    layer = luna.UniversalAttention(WIDTH, HEADS, local=3)
    if "context" in given:
        given = {"context": x}
    with pytest.raises(ValueError, match="local"):
        layer(x, **given)
    with pytest.raises(ValueError, match="odd"):
        luna.UniversalAttention(WIDTH, HEADS, local=2)
