"""luna data translation: what it reads, drops and writes."""

import gzip
import json
import os
import pathlib
import random
import re
import unicodedata

import program
import pytest
from program import needs_program
from safetensors.numpy import load_file
from texts import random_string
from tokenizers import Tokenizer, normalizers

pytestmark = needs_program


def prepare(folder, *arguments, code=0):
    return program.luna(
        "data", "translation", *arguments, "--out", folder, code=code
    )


def facts_of(folder):
    return json.loads((folder / "translation.json").read_text())


def texts_of(folder, split):
    """Both sides of a split, put together again by PyPI's packages."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    data = load_file(folder / f"{split}.safetensors")
    return [
        [
            tokenizer.decode(data[side][a:b].tolist())
            for a, b in zip(offsets, offsets[1:], strict=False)
        ]
        for side, offsets in (
            (side, data[f"{side}_offsets"]) for side in ("source", "target")
        )
    ]


def write_pairs(folder, sources, targets):
    (folder / "x.en").write_text("".join(s + "\n" for s in sources))
    with gzip.open(folder / "x.de.gz", "wt") as f:
        f.write("".join(t + "\n" for t in targets))
    return f"{folder / 'x.en'},{folder / 'x.de.gz'}"


def test_info_says_what_was_said_when_it_was_made(tmp_path):
    pairs = write_pairs(tmp_path, ["a b", "a b", "c"], ["x", "x", "y z"])
    out = tmp_path / "out"
    made = prepare(out, "--train", pairs, "--merges", 5).stdout
    assert program.luna("data", "info", out).stdout == made
    told = program.luna("data", "info", out, "--json").stdout
    assert json.loads(told) == facts_of(out)
    (out / "translation.json").write_text("{}")
    refused = program.luna("data", "info", out, code=1).stderr
    assert str(out / "translation.json") in refused


def test_text_comes_back_normalised(tmp_path):
    rng = random.Random(12)
    texts = [
        re.sub(r"[\n\r]", " ", random_string(rng, ["the", "Ärger", "각", "े"]))
        for _ in range(800)
    ]
    pairs = write_pairs(tmp_path, texts, texts)
    out = tmp_path / "out"
    prepare(out, "--train", pairs, "--max-tokens", 0, "--merges", 300)
    nfc = normalizers.NFC().normalize_str
    space = (
        r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
    )
    wanted = [re.sub(space, " ", nfc(t)).strip(" ") for t in texts]
    kept = list(dict.fromkeys(w for w in wanted if w))
    assert texts_of(out, "train") == [kept, kept]
    left_out = facts_of(out)["splits"]["train"]["left_out"]
    assert left_out["empty"] == wanted.count("")
    assert left_out["duplicates"] == len(texts) - len(kept) - wanted.count("")
    assert sum(unicodedata.combining(c) > 0 for t in texts for c in t) > 500


def test_either_direction_is_made_of_the_same_files(tmp_path):
    (tmp_path / "x.tsv").write_text("a cat\teine Katze\n")
    pairs = write_pairs(tmp_path, ["a dog", "a hat"], ["ein Hund", "ein Hut"])
    files = ("--train", tmp_path / "x.tsv", "--train", pairs)
    prepare(tmp_path / "there", *files, "--merges", 0)
    prepare(tmp_path / "back", *files, "--merges", 0, "--reverse")
    there = texts_of(tmp_path / "there", "train")
    assert there[1] == ["eine Katze", "ein Hund", "ein Hut"]
    assert texts_of(tmp_path / "back", "train") == there[::-1]
    facts = facts_of(tmp_path / "back")
    assert facts["name"] == "back" and facts["reverse"] is True


def test_nothing_of_validation_is_dropped_for_its_length(tmp_path):
    long = "word " * 20_000  # 100,000 characters
    pairs = write_pairs(tmp_path, ["a", long, "a"], ["b", long, "b"])
    out = tmp_path / "out"
    done = prepare(out, "--train", pairs, "--validation", pairs)
    splits = facts_of(out)["splits"]
    assert splits["train"]["read"] == 3 and splits["train"]["kept"] == 1
    assert splits["train"]["left_out"]["too long"] == 1
    assert splits["train"]["left_out"]["duplicates"] == 1
    assert "1 too long, 1 duplicates" in done.stdout
    assert texts_of(out, "validation")[0] == ["a", long.strip(), "a"]
    # Once more over the folder, with its own tokenizer.
    first = (out / "train.safetensors").read_bytes()
    prepare(out, "--train", pairs, "--tokenizer", out / "tokenizer.json")
    assert (out / "train.safetensors").read_bytes() == first
    assert not (out / "validation.safetensors").exists()


def test_mistakes(tmp_path):
    pairs = write_pairs(tmp_path, ["a"], ["b"])
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "blank").write_text(" \n \n")
    out = tmp_path / "out"
    for arguments, code, message in [
        (["--train", f"{tmp_path}/two,{tmp_path}/x.en"], 1, "expected 2 lines"),
        (["--train", f"{tmp_path}/two"], 2, "SOURCE,TARGET or a .tsv"),
        (["--train", f"{tmp_path}/two,{tmp_path}/none"], 1, "none"),
        (
            ["--train", f"{tmp_path}/blank,{tmp_path}/two"],
            1,
            "--train: expected a pair to keep, got none of 2 read; empty: 2",
        ),
        (["--train", pairs, "--tokenizer", tmp_path / "none"], 1, "none"),
    ]:
        done = prepare(out, *arguments, code=code)
        assert message in done.stderr, done.stderr
        assert not out.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    done = prepare(tmp_path / "mine", "--train", pairs, code=2)
    assert "--out" in done.stderr and (tmp_path / "mine/precious").exists()


def test_multi30k(tmp_path):
    data = os.environ.get("LUNA_DATA")
    if not data or not (pathlib.Path(data) / "mt").is_dir():
        pytest.skip("needs LUNA_DATA, a folder with mt/*")
    base = f"{data}/mt/multi30k"
    prepare(
        tmp_path / "out",
        *("--train", f"{base}_train.en.gz,{base}_train.de.gz"),
        *(
            "--test",
            f"{base}_test_2016_flickr.en.gz,{base}_test_2016_flickr.de.gz",
        ),
    )
    splits = facts_of(tmp_path / "out")["splits"]
    assert splits["train"]["read"] == 29_000
    assert splits["test"]["kept"] == 1_000
    with gzip.open(f"{base}_test_2016_flickr.de.gz", "rt") as f:
        assert texts_of(tmp_path / "out", "test")[1] == [
            " ".join(line.split()) for line in f
        ]
