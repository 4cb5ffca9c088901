"""luna's BLEU and chrF beside sacreBLEU's: equal to 1e-9."""

import gzip
import json
import os
import pathlib
import random

import luna as package
import program
import pytest
from program import needs_program
from sacrebleu.metrics import BLEU, CHRF
from texts import FULL, random_string

pytestmark = needs_program

WORDS = (
    'ein Mann (im) Hut, 3.14 1,000 10-20 U.S.A. »sagt« "ja"! it\'s '
    "&quot;x&amp;lt; a/b $5 50% <skipped> – … … 中文。 ١٢٫٣ e\u0301 x\u00a0y "
    "the the the cat sat on mat . , - ' 5. .5 5, ,5 -5 5- ½ Ⅷ © € ^ ~"
).split(" ")


def score(folder, lines, references, *options):
    (folder / "hypothesis").write_text("".join(x + "\n" for x in lines))
    arguments = []
    for i, reference in enumerate(references):
        path = folder / f"reference{i}"
        path.write_text("".join(x + "\n" for x in reference))
        arguments += ["--reference", path]
    done = program.luna(
        "score", folder / "hypothesis", "--json", *arguments, *options,
        "--metric", "bleu", "--metric", "chrf", "--metric", "chrf++",
    )  # fmt: skip
    return json.loads(done.stdout)


def compare(
    folder, lines, references, tokens="13a", effective=False, smooth="exp"
):
    options = ["--tokenize", tokens]
    options += ["--effective-order"] if effective else []
    options += ["--no-smoothing"] if smooth == "none" else []
    got = score(folder, lines, references, *options)
    metric = BLEU(
        tokenize=tokens, effective_order=effective, smooth_method=smooth
    )
    want = metric.corpus_score(lines, references)
    bleu = got["bleu"]
    assert abs(bleu["score"] - want.score) < 1e-9, (bleu, want)
    assert bleu["matches"] == want.counts and bleu["totals"] == want.totals
    assert bleu["length"] == want.sys_len
    assert bleu["reference_length"] == want.ref_len
    assert abs(bleu["brevity_penalty"] - want.bp) < 1e-12
    ours = f"version:luna-{package.__version__}"
    signature = str(metric.get_signature())
    assert bleu["signature"] == signature.replace("version:2.6.0", ours)
    for name, order in (("chrf", 0), ("chrf++", 2)):
        metric = CHRF(word_order=order)
        want = metric.corpus_score(lines, references).score
        assert abs(got[name]["score"] - want) < 1e-9, name
        signature = str(metric.get_signature())
        assert got[name]["signature"] == signature.replace(
            "version:2.6.0", ours
        )


def damaged(rng, line):
    """The line with words left out, doubled and exchanged."""
    words = [w for w in line.split(" ") if rng.random() < 0.9]
    for _ in range(len(words) // 6):
        i = rng.randrange(len(words))
        words[i] = rng.choice([words[i] * 2, rng.choice(WORDS), words[0]])
    return " ".join(words)


@pytest.mark.parametrize("tokens", ["13a", "intl", "char", "none"])
def test_random_texts(tmp_path, tokens):
    rng = random.Random(9)
    for size in (1, 3, 200):
        references = [
            [
                " ".join(rng.choices(WORDS, k=rng.randrange(15)))
                for _ in range(size)
            ]
            for _ in range(2)
        ]
        lines = [damaged(rng, line) for line in references[0]]
        for count in (1, 2):
            compare(tmp_path, lines, references[:count], tokens)


@pytest.mark.parametrize("tokens", ["13a", "intl", "char", "none"])
def test_any_unicode(tmp_path, tokens):
    rng = random.Random(10)
    count = 20_000 if FULL else 400

    def text():
        return random_string(rng, WORDS).replace("\n", " ").replace("\r", " ")

    references = [[text() for _ in range(count)]]
    lines = [damaged(rng, line) for line in references[0]]
    compare(tmp_path, lines, references, tokens)


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("", ""),
        ("", "a b c d"),
        ("a b c d", ""),
        ("word", "word"),
        ("word", "other"),
        ("a b", "a b"),
        ("a b c d", "a b c d"),
        (" ", "a"),
        ("!", "!"),
        ("a.", "a ."),
        ("the the the the", "the"),
        ("x" * 10_000, "x" * 9_999),
    ],
)
@pytest.mark.parametrize(
    ("effective", "smooth"), [(False, "exp"), (True, "none")]
)
def test_edges(tmp_path, line, reference, effective, smooth):
    compare(tmp_path, [line], [[reference]], effective=effective, smooth=smooth)


def test_edges_among_empty_lines(tmp_path):
    compare(tmp_path, ["", "a b", ""], [["", "a b", ""]])
    compare(tmp_path, ["", "a b", ""], [["x y", "a b", ""]], smooth="none")
    compare(tmp_path, ["", "a b", ""], [["x y", "", "z"]], effective=True)


def test_the_data_sets(tmp_path):
    data = os.environ.get("LUNA_DATA")
    if not data or not (pathlib.Path(data) / "mt").is_dir():
        pytest.skip("needs LUNA_DATA, a folder with mt/*")
    rng = random.Random(11)
    files = sorted((pathlib.Path(data) / "mt").glob("*test*.gz"))
    assert files
    for path in files:
        with gzip.open(path, "rt", newline="\n") as f:
            reference = f.read().split("\n")[:-1][:: 1 if FULL else 5]
        lines = [damaged(rng, line) for line in reference]
        for tokens in ("13a", "intl", "char", "none") if FULL else ("13a",):
            compare(tmp_path, lines, [reference], tokens)


def test_shown_as_sacrebleu_shows_it(tmp_path):
    lines, reference = ["a b c d e f"], ["a b c d f e g"]
    score(tmp_path, lines, [reference])
    done = program.luna(
        "score", tmp_path / "hypothesis", "--metric", "bleu",
        "--reference", tmp_path / "reference0",
    )  # fmt: skip
    metric = BLEU()
    want = metric.corpus_score(lines, [reference])
    text = want.format(signature=str(metric.get_signature()))
    ours = f"version:luna-{package.__version__}"
    assert done.stdout == text.replace("version:2.6.0", ours) + "\n"


def test_mistakes(tmp_path):
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "three").write_text("a\nb\nc\n")
    (tmp_path / "bad").write_bytes(b"a\n\xff\n")
    (tmp_path / "empty").write_text("")

    def message(path, *options, code=1):
        done = program.luna("score", tmp_path / path, *options, code=code)
        return done.stderr

    bleu = ["--metric", "bleu", "--reference"]
    text = message("two", *bleu, tmp_path / "three")
    assert "three: expected 2 lines" in text and "got 3" in text
    text = message("two", *bleu, tmp_path / "bad")
    assert "line 2 of a reference: expected UTF-8" in text
    assert "empty file" in message("empty", *bleu, tmp_path / "two")
    text = message("two", "--metric", "bleu", code=2)
    assert "expected --reference FILE" in text
    assert "BLUE" in message("two", "--metric", "BLUE", code=2)
    text = message("two", "--reference", tmp_path / "two", code=2)
    assert "expected --metric" in text
