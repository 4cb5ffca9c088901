"""luna: linear attention, exact and fast.

Two families of attention at linear cost: *universal* (a learned kernel feature
map) and *nested* (two nested softmax attentions through a short memory), as
modules, as functions of heads, and as ops ``torch.ops.luna.*``.

Example::

    import torch, luna

    attention = luna.UniversalAttention(embed_dim=256, num_heads=8)
    x = torch.randn(2, 1000, 256)
    mask = torch.ones(2, 1000, dtype=torch.bool)  # true = takes part
    out = attention(x, key_mask=mask)             # [2, 1000, 256]

    # In the place of scaled_dot_product_attention, on [B, H, n, d]:
    q = k = v = torch.randn(2, 8, 1000, 32)
    out = luna.universal_attention(q, k, v, luna.FeatureMap(32))

``luna.attentions()`` lists the mechanisms.
"""

from luna import _library

__version__ = _library.load()

# ruff: noqa: E402 - the ops must be there before what uses them
from luna import nn
from luna.functional import (
    feature_map,
    linear_attention,
    linear_attention_step,
    nested_causal_attention,
    nested_causal_attention_step,
    pack_attention,
    universal_attention,
    universal_attention_step,
    universal_table,
    unpack_attention,
)
from luna.nn import (
    FeatureMap,
    MultiHeadAttention,
    NestedAttention,
    NestedCausalAttention,
    StreamState,
    UniversalAttention,
)
from luna.registry import attentions

__all__ = [
    "FeatureMap",
    "MultiHeadAttention",
    "NestedAttention",
    "NestedCausalAttention",
    "StreamState",
    "UniversalAttention",
    "attentions",
    "feature_map",
    "linear_attention",
    "linear_attention_step",
    "nested_causal_attention",
    "nested_causal_attention_step",
    "nn",
    "pack_attention",
    "universal_attention",
    "universal_attention_step",
    "universal_table",
    "unpack_attention",
]
