"""Modules: feature maps, mechanisms over heads, and whole layers."""

from luna.nn.feature_map import FeatureMap
from luna.nn.head_attention import HeadAttention
from luna.nn.linear_attention import LinearAttention, RffAttention
from luna.nn.local_sum import LocalSum
from luna.nn.multi_head_attention import MultiHeadAttention, UniversalAttention
from luna.nn.nested_attention import NestedAttention
from luna.nn.nested_causal_attention import NestedCausalAttention
from luna.nn.softmax_attention import SoftmaxAttention
from luna.nn.stream_state import StreamState

__all__ = [
    "FeatureMap",
    "HeadAttention",
    "LinearAttention",
    "LocalSum",
    "MultiHeadAttention",
    "NestedAttention",
    "NestedCausalAttention",
    "RffAttention",
    "SoftmaxAttention",
    "StreamState",
    "UniversalAttention",
]
