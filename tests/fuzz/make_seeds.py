"""Writes the inputs that the fuzz targets start from: make_seeds.py FOLDER.

A folder for each target, with small files that are right, so that a fuzzer
begins behind the first checks. Where a target reads several kinds of files the
first byte says which (tests/fuzz/*.cpp).
"""

import json
import lzma
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def text(value):
    return json.dumps(value).encode()


def safetensors():
    def file(header, data):
        head = header if isinstance(header, bytes) else text(header)
        head += b" " * (-len(head) % 8)
        return struct.pack("<Q", len(head)) + head + data

    def tensor(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    yield file({}, b"")
    yield file({"a": tensor("F32", [2, 2], 0, 16)}, bytes(16))
    yield file(
        {
            "__metadata__": {"format": "pt"},
            "b": tensor("BOOL", [3], 16, 19),
            "a": tensor("I64", [], 0, 8),
            "c": tensor("BF16", [0, 7], 19, 19),
            "d": tensor("F64", [1], 8, 16),
        },
        bytes(19),
    )


BERT = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "tie_word_embeddings": True,
    "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
}
VIT = {
    "architectures": ["ViTModel"],
    "model_type": "vit",
    "image_size": [8, 8],
    "patch_size": 4,
    "num_channels": 3,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "qkv_bias": True,
    "pooler_act": "tanh",
}


def config():
    linear = {"attention": "linear", "attention_options": {}}
    softmax = {"attention": "softmax", "attention_options": {"dropout": 0.5}}
    for number, model in enumerate((BERT, VIT)):
        for change in ({}, {"luna": linear}, {"luna": softmax}):
            yield bytes([number]) + text(model | change)
    for path in sorted((ROOT / "configs" / "small").glob("*.json")):
        yield b"\2" + path.read_bytes()


def tokenizer():
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat a ##b ##t , \u4e2d".split()
    added = [
        {
            "id": i,
            "content": word,
            "single_word": False,
            "lstrip": word == "[MASK]",
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, word in enumerate(words[:5])
    ]

    def piece(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    single = [
        piece("SpecialToken", "[CLS]", 0),
        piece("Sequence", "A", 0),
        piece("SpecialToken", "[SEP]", 0),
    ]
    pair = [piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)]
    yield b"\0" + text(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": single,
                "pair": single + pair,
                "special_tokens": {
                    name: {"id": name, "ids": [i], "tokens": [name]}
                    for i, name in ((2, "[CLS]"), (3, "[SEP]"))
                },
            },
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {word: i for i, word in enumerate(words)},
            },
        }
    )
    yield b"\1" + "\n".join(words).encode()
    yield b"\2" + text({"do_lower_case": False, "unk_token": "[UNK]"})
    yield b"\2" + text(
        {
            "tokenize_chinese_chars": False,
            "strip_accents": True,
            "pad_token": {"content": "[PAD]"},
            "tokenizer_class": "BertTokenizer",
        }
    )


def crc64(data):
    """As in xz."""
    crc = (1 << 64) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return crc ^ (1 << 64) - 1


def packed(coding):
    """Manifest and sections, without the 24 bytes of the head."""
    labels, offsets, ids = [1, 0], [0, 3, 5], bytes([1, 2, 0, 2, 2])
    sections = [struct.pack(f"<{len(x)}q", *x) for x in (labels, offsets)]
    sections.append(ids)
    stored = [lzma.compress(x) if coding == "xz" else x for x in sections]
    start = 0
    while True:
        at, rows, body = start, [], b""
        names = ("labels", "offsets", "ids")
        for name, plain, kept in zip(names, sections, stored, strict=True):
            at += -at % 64
            body = body.ljust(at - start, b"\0") + kept
            rows.append(
                {
                    "name": name,
                    "at": at,
                    "stored": len(kept),
                    "bytes": len(plain),
                    "crc64": f"{crc64(plain):016x}",
                    "coding": coding,
                }
            )
            at += len(kept)
        manifest = text(
            {
                "task": "needles",
                "vocabulary": 3,
                "classes": 2,
                "pairs": False,
                "height": 0,
                "width": 0,
                "split": "train",
                "samples": 2,
                "longest": 3,
                "origin": {"seed": "1"},
                "sections": rows,
            }
        )
        end = 24 + len(manifest)
        if start == end + -end % 64:
            return manifest, bytes(start - end) + body
        start = end + -end % 64


def manifest():
    for coding in ("raw", "xz"):
        head, body = packed(coding)
        yield b"\0" + head + body
        start = b"lunadata" + struct.pack("<II", 1, len(head))
        whole = start + struct.pack("<Q", crc64(start + head)) + head + body
        yield b"\1" + whole
    yield b"\2" + text(
        {
            "metadata": {"total_size": 1, "more": [{}]},
            "weight_map": {
                "embeddings.cls_token": "a.safetensors",
                "layernorm.bias": "b.safetensors",
            },
        }
    )


def main():
    (folder,) = map(pathlib.Path, sys.argv[1:])
    for make in (safetensors, config, tokenizer, manifest):
        (folder / make.__name__).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(make()):
            (folder / make.__name__ / f"{number}").write_bytes(seed)


if __name__ == "__main__":
    main()
