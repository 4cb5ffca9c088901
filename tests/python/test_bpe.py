"""luna's byte pairs beside PyPI's tokenizers: the same merges, the same ids.

The suite takes a sample of Unicode's rarer planes, of the random strings and of
the data; LUNA_FULL_TESTS=1 takes every scalar value, 100,000 strings and every
line of the data sets in LUNA_DATA.
"""

import gzip
import itertools
import json
import lzma
import os
import pathlib
import random

import program
import pytest
from program import needs_program
from texts import FULL, random_string, scalars
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIALS = ["<pad>", "<s>", "</s>"]
SPACES = " \t\n\r\u00a0\u2003\u3000\u200b\u0085\u2028"

pytestmark = needs_program


def tokenize(folder, values, *options):
    """What `luna tokenize --json` answers to each value."""
    done = program.luna(
        "tokenize", folder, "--json", *options,
        text="\n".join(map(json.dumps, values)), timeout=600,
    )  # fmt: skip
    return list(map(json.loads, done.stdout.split("\n")[:-1]))


def compare(folder, texts):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = tokenize(folder, texts)
    wanted = tokenizer.encode_batch_fast(texts)
    for text, got, want in zip(texts, found, wanted, strict=True):
        assert got["ids"] == want.ids, text
    # What --json gives is what --decode --json takes, and back.
    back = tokenize(folder, found, "--decode")
    assert [b["text"] for b in back] == texts
    assert tokenize(folder, back) == found
    assert tokenize(folder, [f["ids"] for f in found], "--decode") == back


def text_files():
    """Text that is always there: this project's own."""
    files = sorted(program.ROOT.glob("docs/*.md"))
    assert len(files) > 5
    return files + sorted(program.ROOT.glob("src/text/*.cpp"))


def learn(folder, *arguments):
    program.luna("bpe", *arguments, "--out", folder)
    return json.loads((folder / "tokenizer.json").read_text())


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bpe")
    rng = random.Random(4)
    # Letters of many scripts, so that merges make them.
    more = folder / "more.txt"
    words = ["the", "Straße", "中文", "Ελλάδα", "हिन्दी", "123", "don't"]
    more.write_text(
        "\n".join(
            random_string(rng, words).replace("\n", " ") for _ in "ab" * 99
        )
    )
    learn(folder, *text_files(), more, "--merges", 3000)
    return folder


@pytest.mark.parametrize("merges", [0, 1, 700, 1_000_000])
def test_learns_what_tokenizers_learns(tmp_path, merges):
    got = learn(tmp_path, *text_files(), "--merges", merges)
    size = len(got["model"]["vocab"])
    oracle = Tokenizer(models.BPE())
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = [line for f in text_files() for line in f.read_text().split("\n")]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    oracle.train_from_iterator(lines, trainer)
    want = json.loads(oracle.to_str())
    assert got["model"]["merges"] == want["model"]["merges"]
    assert got["model"]["vocab"] == want["model"]["vocab"]
    assert size > 256 + len(SPECIALS) or merges == 0


def test_file_is_as_tokenizers_writes_it(learnt):
    path = learnt / "tokenizer.json"
    theirs = Tokenizer.from_file(str(path)).to_str()
    assert json.loads(theirs) == json.loads(path.read_text())


@pytest.mark.parametrize("context", ["{}", "a{}b", " {} 1{}1", "!{}!  {}\t"])
def test_every_character(learnt, context):
    every = scalars()
    step = 1 if FULL else 32
    texts = [
        "".join(context.replace("{}", chr(c)) for c in every[i : i + step])
        for i in range(0, len(every), step)
    ]
    for i in range(0, len(texts), 100_000):
        compare(learnt, texts[i : i + 100_000])


def test_white_space_and_contractions(learnt):
    parts = [*SPACES, "a", "1", "!", "'s", "'", "'ll"]
    texts = ["".join(p) for p in itertools.product(parts, repeat=3)]
    texts += [p + "x's 'tis we'LL'd " + p for p in texts[::17]]
    compare(learnt, texts)


def test_random_strings(learnt):
    rng = random.Random(5)
    words = [*SPECIALS, "the", "don't", "we'll", "'re", "   ", "中文"]
    count = 100_000 if FULL else 3_000
    compare(learnt, [random_string(rng, words) for _ in range(count)])


def test_no_text_becomes_a_special_token(learnt):
    ids = tokenize(learnt, ["</s><pad> <s>"])[0]["ids"]
    assert min(ids) >= len(SPECIALS)
    text = program.luna(
        "tokenize", learnt, "--decode",
        text=" ".join(map(str, [1, *ids, 2, 0])),
    ).stdout  # fmt: skip
    assert text == "</s><pad> <s>\n"


def test_a_word_of_100_000_letters(learnt):
    rng = random.Random(6)
    word = "".join(rng.choices("abcdefgh", k=100_000))
    compare(learnt, [word, "a" * 100_000, " " * 100_000])


def test_packed_files_and_tables_are_read_alike(tmp_path):
    lines = ["one two", "two three", "three one one"] * 3
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with gzip.open(tmp_path / "b.gz", "wt") as f:
        f.write("\r\n".join(lines) + "\r\n")
    with lzma.open(tmp_path / "c.tsv.xz", "wt") as f:
        f.write("\ufeff" + "\t".join(lines) + "\n")
    files = [
        learn(tmp_path / name, tmp_path / name.split("-")[0])
        for name in ("a.txt-out", "b.gz-out", "c.tsv.xz-out")
    ]
    assert files[0] == files[1] == files[2]


def test_data_sets(tmp_path):
    data = os.environ.get("LUNA_DATA")
    if not data or not (pathlib.Path(data) / "mt").is_dir():
        pytest.skip("needs LUNA_DATA, a folder with mt/*")
    mt = sorted((pathlib.Path(data) / "mt").glob("*"))
    learn(tmp_path, *[f for f in mt if FULL or "val" in f.name])
    others = ["mt/*", "glue/*.tsv", "text/*.txt", "imdb/*.xz"]
    files = [
        f
        for other in (others if FULL else others[:1])
        for f in sorted(pathlib.Path(data).glob(other))
    ]
    openers = {".gz": gzip.open, ".xz": lzma.open}
    texts = []
    for path in files:
        with openers.get(path.suffix, open)(
            path, "rt", encoding="utf-8", newline="\n"
        ) as f:
            lines = f.read().split("\n")
        texts += lines if FULL else lines[:: max(1, len(lines) // 300)]
    for i in range(0, len(texts), 100_000):
        compare(tmp_path, texts[i : i + 100_000])


def test_mistakes(tmp_path, learnt):
    (tmp_path / "empty.txt").write_text("")
    done = program.luna(
        "bpe", tmp_path / "empty.txt", "--out", tmp_path, code=1
    )
    assert "empty.txt: expected data, got an empty file" in done.stderr
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"hello " * 9)[:-9])
    done = program.luna("bpe", tmp_path / "cut.gz", "--out", tmp_path, code=1)
    assert "cut.gz: expected a whole gz file" in done.stderr
    (tmp_path / "no.gz").write_text("plain text")
    done = program.luna("bpe", tmp_path / "no.gz", "--out", tmp_path, code=1)
    assert "no.gz: expected an intact gz file" in done.stderr
    assert not (tmp_path / "tokenizer.json").exists()
    (tmp_path / "bad.txt").write_bytes(b"good good\nbad \xff\ngood\n")
    done = program.luna("bpe", tmp_path / "bad.txt", "--out", tmp_path)
    assert "left out: 1 lines that are not UTF-8" in done.stdout
    done = program.luna("tokenize", learnt, "--decode", text="1 2 x", code=1)
    assert "expected ids" in done.stderr
    done = program.luna("tokenize", learnt, "--decode", text="99999", code=1)
    assert "got 99999" in done.stderr
