"""Modules that tests of several files call, and their inputs."""

import luna
import pytest
import torch

WIDTH, HEADS, BATCH, LENGTH, SLOTS = 32, 4, 3, 12, 5
STREAMS = ("universal", "gated", "linear", "rff")


class Memory(torch.nn.Module):
    """A nested layer with a memory of its own, to be called as the others."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.memory = torch.nn.Parameter(torch.randn(SLOTS, WIDTH))

    def forward(self, x, *, key_mask=None):
        out = self.layer(x, self.memory, key_mask=key_mask)
        return out[0] if isinstance(out, tuple) else out


MODULES = {
    "universal": lambda: luna.UniversalAttention(WIDTH, HEADS),
    "gated": lambda: luna.UniversalAttention(
        WIDTH, HEADS, gated=True, per_head=True, M=5, L=3, hidden=16
    ),
    "shared": lambda: luna.UniversalAttention(
        WIDTH, HEADS, shared_channels=True, nonneg=False
    ),
    "ch_rms": lambda: luna.UniversalAttention(WIDTH, HEADS, ch_rms=True),
    "softmax": lambda: luna.MultiHeadAttention(WIDTH, HEADS, "softmax"),
    "linear": lambda: luna.MultiHeadAttention(WIDTH, HEADS, "linear"),
    "local": lambda: luna.UniversalAttention(WIDTH, HEADS, local=3),
    "rff": lambda: luna.MultiHeadAttention(WIDTH, HEADS, "rff", features=32),
    "nested": lambda: Memory(luna.NestedAttention(WIDTH, HEADS)),
    "nested_untied": lambda: Memory(
        luna.NestedAttention(WIDTH, HEADS, tied=False, pack_heads=2)
    ),
    "nested_causal": lambda: Memory(luna.NestedCausalAttention(WIDTH, HEADS)),
    "nested_causal_untied": lambda: Memory(
        luna.NestedCausalAttention(WIDTH, HEADS, tied=False, activation="elu")
    ),
}
every_module = pytest.mark.parametrize("name", MODULES)


def padded():
    """x and its mask; what is masked is NaN-free noise."""
    x = torch.randn(BATCH, LENGTH, WIDTH)
    lengths = torch.tensor([[LENGTH], [7], [1]])
    return x, torch.arange(LENGTH) < lengths
