"""Texts on which tokenizers are compared."""

import os
import unicodedata

FULL = os.environ.get("LUNA_FULL_TESTS") == "1"
# Accents of classes 230, 220, 240 and 1; a class-0 accent; spacing marks with
# a class; a decomposition of two accents; characters that grow or shrink.
MARKS = "\u0301\u0323\u0345\u0334\u034f\u302e\U0001d165\u0344"
TRICKY = (
    MARKS + "\u0130\u00df\u1e9e\ufb01\u212b\uac01\u1fad\u0958中\u200b\u00ad"
)


def scalars():
    """Every scalar value, or those with properties and some of the others."""
    every = (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    if FULL:
        return list(every)
    plain = {"Lo", "Co", "Cn"}
    return [
        c
        for c in every
        if c % 61 == 0
        or c < 0x3000
        or unicodedata.category(chr(c)) not in plain
    ]


def random_string(rng, words):
    """Letters, accents in any order, words, and anything at all."""
    kinds = [
        lambda: rng.choice("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789"),
        lambda: rng.choice(" \t\n .,-'#[]"),
        lambda: rng.choice(TRICKY),
        lambda: chr(rng.randrange(0xA0, 0x3000)),
        lambda: chr(
            rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])
        ),
        lambda: rng.choice(words),
    ]
    weights = [8, 3, 3, 1, 1, 0.3]
    size = rng.choice([0, 1, 5, 20, 60, 150])
    return "".join(k() for k in rng.choices(kinds, weights, k=size))
