"""Hugging Face's transformers with luna's attention: BERT and ViT.

`convert` puts linear attention into a model of transformers, `load` reads a
folder that was saved with it, by ``save_pretrained`` or by the program's
``luna convert``; the program reads what ``save_pretrained`` writes.

Importing this module registers ``luna_universal``, ``luna_linear`` and
``luna_rff`` with transformers, attention and mask alike. ``luna_linear`` has
no parameters, so ``model.set_attn_implementation("luna_linear")`` is enough
for it; the others need `convert` or `load`.

Example::

    import luna.hf
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification.from_pretrained("path/to/bert")
    luna.hf.convert(model, "luna_universal", M=16)
    ...  # train it: the feature maps start fresh
    model.save_pretrained("linear")
    model = luna.hf.load("linear")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from luna.nn.head_attention import HeadAttention
from luna.nn.linear_attention import LinearAttention
from luna.nn.multi_head_attention import MECHANISMS, make_heads
from luna.registry import known_and_nearest

try:
    import transformers
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
        AutoConfig,
        PreTrainedModel,
    )
    from transformers.masking_utils import bidirectional_mask_function
    from transformers.models.bert.modeling_bert import BertSelfAttention
    from transformers.models.vit.modeling_vit import ViTAttention
except ImportError as error:
    raise ImportError(
        "luna.hf: expected transformers (5.22.2 is tested), got "
        f"{error}; pip install 'luna[hf]'"
    ) from error

__all__ = ["convert", "load"]

_PREFIX = "luna_"
#: What stands for softmax, by model_type, where a feature map is put.
_ATTENTIONS: dict[str, type[nn.Module]] = {
    "bert": BertSelfAttention,
    "vit": ViTAttention,
}

#: Half precision is too coarse for a feature map's parameters.
_KEPT = {"feature_map"}


def convert(
    model: PreTrainedModel, attention: str = "luna_universal", **options: Any
) -> PreTrainedModel:
    """Puts luna's attention into a BERT or a ViT, in place; returns it.

    Each layer gets ``feature_map``, with parameters that start fresh: the
    model has to be trained before it is as good as it was. ``model.config``
    remembers attention and options, so ``save_pretrained`` and `load` do.

    Args:
        model: any model of transformers' BERT or ViT that is no decoder.
        attention: "luna_universal", "luna_linear" or "luna_rff", or without
            "luna_"; "softmax" takes luna's attention out again.
        options: the mechanism's, as `luna.attentions()` lists them.

    Example::

        luna.hf.convert(model, "luna_universal", M=16, per_head=True)
    """
    name = _mechanism("convert", attention)
    layers = list(_attention_layers("convert", model))
    if name == "softmax":
        if options:
            raise ValueError(
                "convert: expected no options with softmax, got "
                f"{', '.join(options)}"
            )
        for layer in layers:
            if hasattr(layer, "feature_map"):
                del layer.feature_map
        if hasattr(model.config, "luna"):
            del model.config.luna
        model.set_attn_implementation("sdpa")
        return model
    _attach(model, name, options)
    for layer in layers:
        like = next(layer.parameters())
        dtype = torch.promote_types(like.dtype, torch.float32)
        layer.feature_map.to(like.device, dtype)
    model.config.luna = {"attention": name, "attention_options": options}
    model.set_attn_implementation(_PREFIX + name)
    return model


def load(path: str | os.PathLike[str], **options: Any) -> PreTrainedModel:
    """The model of a folder that ``luna convert`` or ``save_pretrained`` wrote.

    It is a plain model of the class that config.json names, in eval mode,
    whose attention is luna's. transformers' own ``from_pretrained`` would
    leave the feature maps out.

    Args:
        path: the folder.
        options: for ``from_pretrained``, such as ``dtype``.

    Example::

        model = luna.hf.load("linear")
        logits = model(**tokenizer("One.", return_tensors="pt")).logits
    """
    # from_pretrained would ask the network for a folder that is not there.
    if not os.path.isdir(path):
        raise ValueError(f"load: expected a folder, got {path}")
    config = AutoConfig.from_pretrained(path)
    section = getattr(config, "luna", None)
    where = os.path.join(path, "config.json")
    if not isinstance(section, dict) or "attention" not in section:
        raise ValueError(
            f'load: {where}: luna: expected {{"attention": NAME, ...}}, got '
            f"{'none' if section is None else section}; luna.hf.convert adds "
            "it to a model"
        )
    try:
        name = _mechanism("load", section["attention"])
    except ValueError as error:
        raise ValueError(f"{where}: luna: {error}") from error
    base = _model_class(where, config)

    def start(self: PreTrainedModel, config: Any, *rest: Any) -> None:
        base.__init__(self, config, *rest)
        try:
            _attach(self, name, section.get("attention_options", {}))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: luna: {error}") from error

    # from_pretrained makes a model of a class and then fills it. For as long
    # as that takes there is one with feature maps; transformers looks up by
    # its name and module how tensors are called in files.
    changes = {
        "__init__": start,
        "__module__": base.__module__,
        "_keep_in_fp32_modules_strict": _KEPT,
    }
    kind, attention = base, {}
    if name != "softmax":
        kind = type(base.__name__, (base,), changes)
        attention = {"attn_implementation": _PREFIX + name}
    others_may_differ = options.pop("ignore_mismatched_sizes", False)
    model, info = kind.from_pretrained(
        path,
        config=config,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # so that they are named below
        **attention,
        **options,
    )
    model.__class__ = base
    missing = sorted(info["missing_keys"])
    wrong = [
        f"{key} (expected {list(expected)}, got {list(got)})"
        for key, got, expected in sorted(info["mismatched_keys"])
        if "feature_map." in key or not others_may_differ
    ]
    if missing or wrong:
        raise ValueError(
            f"load: {path}: expected the weights of {base.__name__} with "
            f"{name} attention, got {len(missing)} missing and {len(wrong)} "
            f"of another shape: {', '.join(missing + wrong)}"
        )
    return model


def _mechanism(owner: str, attention: object) -> str:
    """The name in luna.attentions() of "luna_universal" or "universal"."""
    name = str(attention).removeprefix(_PREFIX)
    if name not in MECHANISMS:
        known = [_PREFIX + known for known in _registered()] + ["softmax"]
        raise ValueError(
            f"{owner}: expected attention to be one of "
            f"{known_and_nearest(attention, known)}, got {attention!r}"
        )
    return name


def _registered() -> list[str]:
    return [name for name in MECHANISMS if name != "softmax"]


def _model_class(where: str, config: Any) -> type[PreTrainedModel]:
    """The class that config.json's architectures names."""
    names = config.architectures or []
    base = getattr(transformers, names[0], None) if len(names) == 1 else None
    if not isinstance(base, type) or not issubclass(base, PreTrainedModel):
        raise ValueError(
            f"load: {where}: architectures: expected the name of one model of "
            f"transformers, got {names}"
        )
    return base


def _attention_layers(owner: str, model: object) -> Iterator[nn.Module]:
    """The modules that compute attention; refuses what is no BERT or ViT."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"{owner}: expected a model of transformers, got "
            f"{type(model).__name__}"
        )
    config = model.config
    kind = _ATTENTIONS.get(config.model_type)
    if kind is None:
        raise ValueError(
            f"{owner}: expected a model of type {' or '.join(_ATTENTIONS)}, "
            f"got {type(model).__name__} ({config.model_type})"
        )
    if getattr(config, "is_decoder", False):
        raise ValueError(
            f"{owner}: expected an encoder, got {type(model).__name__} with "
            "is_decoder"
        )
    return (module for module in model.modules() if isinstance(module, kind))


def _attach(
    model: PreTrainedModel, attention: str, options: dict[str, Any]
) -> None:
    """Gives each layer a feature map of its own."""
    config = model.config
    for layer in _attention_layers("luna.hf", model):
        layer.feature_map = make_heads(
            _PREFIX + attention,
            attention,
            config.hidden_size,
            config.num_attention_heads,
            options,
        )


def _attention_of(name: str) -> Callable[..., tuple[Tensor, None]]:
    """What transformers calls where softmax attention was."""
    kind = MECHANISMS[name]
    # It has no parameters: one serves every layer of every model.
    shared = LinearAttention(1) if kind is LinearAttention else None

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **ignored: Any,
    ) -> tuple[Tensor, None]:
        heads: HeadAttention | None = getattr(module, "feature_map", shared)
        if not isinstance(heads, kind):
            raise ValueError(
                f"{_PREFIX}{name}: expected {type(module).__name__} to have "
                f"the feature_map of {name} attention, got "
                f"{'none' if heads is None else type(heads).__name__}; "
                f'luna.hf.convert(model, "{_PREFIX}{name}") makes one, '
                "luna.hf.load(path) reads it"
            )
        if ignored.get("is_causal", getattr(module, "is_causal", False)):
            raise ValueError(
                f"{_PREFIX}{name}: expected attention that is not causal, got "
                f"causal {type(module).__name__}"
            )
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(
                f"{_PREFIX}{name}: expected attention_mask of shape [batch, "
                "length] (linear attention has no weight for each pair), got "
                f"{list(attention_mask.shape)}"
            )
        out, _ = heads.attend(
            query,
            key,
            value,
            key_weight=attention_mask,
            query_mask=attention_mask,
        )
        return out.transpose(1, 2).contiguous(), None

    return attention


def _key_mask(
    *,
    mask_function: Callable[..., Any] = bidirectional_mask_function,
    attention_mask: Tensor | None = None,
    **ignored: Any,
) -> Tensor | None:
    """Which keys take part, ``[batch, length]``; None: all.

    Without a mask function of the attention's name transformers drops the
    mask, and padding is attended to.
    """
    if mask_function is not bidirectional_mask_function:
        raise ValueError(
            "luna.hf: expected a mask of padding alone, got one that is "
            "causal or of the caller's own making"
        )
    return None if attention_mask is None else attention_mask.bool()


for _name in _registered():
    AttentionInterface.register(_PREFIX + _name, _attention_of(_name))
    AttentionMaskInterface.register(_PREFIX + _name, _key_mask)
