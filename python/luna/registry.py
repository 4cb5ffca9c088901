"""The table of attention mechanisms, as the library has it."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

import torch


def attentions() -> list[dict[str, Any]]:
    """Every mechanism, in the order of the documentation.

    Each is a dict of ``name``, ``summary``, ``traits`` (``head_level``,
    ``causal``, ``cross``, ``streams``, ``memory``), ``publication`` and
    ``options`` (dicts of ``name``, ``type``, ``help``, ``default``, ...).

    Example::

        for attention in luna.attentions():
            print(attention["name"], attention["summary"])
    """
    return json.loads(torch.ops.luna.attentions())


def find_attention(owner: str, name: str) -> dict[str, Any]:
    """The mechanism of that name; an unknown one lists the known ones."""
    table = {entry["name"]: entry for entry in attentions()}
    if name not in table:
        raise ValueError(
            f"{owner}: expected attention to be one of "
            f"{known_and_nearest(name, table)}, got {name!r}"
        )
    return table[name]


def known_and_nearest(name: object, known: Iterable[str]) -> str:
    """ "a, b, c (nearest: b)": part of a message about an unknown name."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    text = ", ".join(names) or "none"
    return text + (f" (nearest: {near[0]})" if near else "")
