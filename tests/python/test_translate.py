"""From parallel text to a score: luna data translation, train, translate,
score; and what becomes of bad input."""

import json
import os
import random
import signal
import subprocess
import time

import program
import pytest
import sacrebleu
from program import PROGRAM, needs_program

pytestmark = needs_program

WORDS = {
    "a": "ein",
    "dog": "Hund",
    "cat": "Katze",
    "sees": "sieht",
    "the": "der",
    "house": "Haus",
    "runs": "läuft",
}


def sentences(count):
    random.seed(3)
    found = {}
    while len(found) < count:
        words = random.choices(list(WORDS), k=random.randint(2, 6))
        found[" ".join(words)] = " ".join(WORDS[w] for w in reversed(words))
    return list(found.items())


CONFIG = {
    "name": "tiny",
    "data": {"task": "translation"},
    "model": {
        "attention": "nested",
        "layers": 1,
        "width": 32,
        "ffn": 32,
        "heads": 2,
        "memory_length": 4,
        "norm": "pre",
        "positions": "sinusoidal",
        "activation": "relu",
        "dropout": 0,
        "init": "xavier",
    },
    "optimizer": {"name": "adam", "lr": 0.005},
    "schedule": {"name": "constant", "warmup": 10},
    "translation": {"batch_tokens": 256, "beam": 2},
    "steps": 250,
    "batch": 16,
    "eval_every": 250,
    "checkpoint_every": 125,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that knows its lines by heart, the folder of its data beside it."""
    folder = tmp_path_factory.mktemp("translate")
    pairs = sentences(30)
    for side, column in (("en", 0), ("de", 1)):
        (folder / f"x.{side}").write_text(
            "".join(pair[column] + "\n" for pair in pairs)
        )
    files = f"{folder}/x.en,{folder}/x.de"
    program.luna(
        "data", "translation", "--train", files, "--validation", files,
        "--test", files, "--merges", 40, "--out", folder / "data",
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(CONFIG))
    program.luna(
        "train", folder / "config.json", "--data", folder / "data",
        "--out", folder / "run", "--threads", 1,
    )  # fmt: skip
    return folder / "run"


def translate(run, text, *options, code=0):
    return program.luna(
        "translate", run, "--threads", 1, *options, text=text, code=code
    )


def test_a_run_translates_the_lines_it_has_learnt(run, tmp_path):
    source, target = ((run.parent / f"x.{s}").read_text() for s in ("en", "de"))
    for beam in (1, 4):
        assert translate(run, source, "--beam", beam).stdout == target
    (tmp_path / "out.de").write_text(target)
    score = program.luna(
        "score", "--metric", "bleu", tmp_path / "out.de",
        "--reference", run.parent / "x.de", "--json",
    )  # fmt: skip
    ours = json.loads(score.stdout)["bleu"]["score"]
    theirs = sacrebleu.corpus_bleu(target.splitlines(), [target.splitlines()])
    assert ours == pytest.approx(theirs.score, abs=1e-9)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test_bleu"] == pytest.approx(100, abs=1e-9)
    assert summary["validation_bleu"] == pytest.approx(100, abs=1e-9)
    evaluated = program.luna(
        "eval", run, "--data", run.parent / "data", "--threads", 1
    )
    assert "bleu 100.00" in evaluated.stdout
    assert program.luna("report", run, "--json").returncode == 0


def test_a_dry_run_counts_tokens_not_passes(run):
    dry = [
        "train", run.parent / "config.json", "--data", run.parent / "data",
        "--dry-run",
    ]  # fmt: skip
    assert "of up to 256 tokens of either language" in program.luna(*dry).stdout
    plan = json.loads(program.luna(*dry, "--json").stdout)
    assert plan["samples"]["train"] == 30
    assert "steps_per_epoch" not in plan


def test_order_and_result_do_not_depend_on_the_batch(run):
    lines = (run.parent / "x.en").read_text().splitlines()
    random.seed(1)
    # Lines it has not learnt, too: words in other orders.
    lines += [" ".join(random.choices(list(WORDS), k=n)) for n in range(1, 9)]
    random.shuffle(lines)
    text = "".join(line + "\n" for line in lines)
    outputs = {
        translate(run, text, "--batch", batch).stdout for batch in (1, 3, 64)
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(lines)


def test_json_has_scores_state_and_what_the_memory_attends_to(run):
    text = "a dog runs\n\nthe cat\n"
    done = translate(run, text, "--json", "--beam", 3, "--n-best", 2)
    first, empty, last = map(json.loads, done.stdout.splitlines())
    assert [x["line"] for x in (first, empty, last)] == [1, 2, 3]
    assert empty["translations"] == []
    scores = [t["score"] for t in first["translations"]]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert first["state_bytes"] > 0
    attention = first["memory_attention"]
    assert attention["tokens"][-1] == "</s>"
    assert len(attention["rows"]) == 4  # or fewer, for shorter sources
    for row in attention["rows"]:
        assert len(row) == len(attention["tokens"])
        assert sum(row) == pytest.approx(1, abs=1e-4)
    # Text of several: number, score, line.
    plain = translate(run, text, "--beam", 3, "--n-best", 2).stdout
    rows = [line.split("\t") for line in plain.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "3", "3"]
    assert rows[0][2] == first["translations"][0]["text"]


def test_bad_lines_come_out_empty_and_are_counted(run, tmp_path):
    text = b"a dog\n\xff\xfe\nthe cat\n" + b"dog " * 25_000 + b"\na cat\n"
    done = subprocess.run(
        [PROGRAM, "translate", run, "--threads", "1"],
        input=text, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    lines = done.stdout.decode().split("\n")
    assert len(lines) == 6 and lines[5] == ""
    assert [bool(line) for line in lines[:5]] == [
        True,
        False,
        True,
        False,
        True,
    ]
    errors = done.stderr.decode()
    assert "1 line left empty, not UTF-8: the first is line 2" in errors
    assert "more than 1,024 tokens: the first is line 4" in errors


def test_mistakes_are_named(run, tmp_path):
    assert "expected lines to translate" in translate(run, "", code=1).stderr
    assert (
        "--n-best"
        in translate(run, "a\n", "--beam", 2, "--n-best", 3, code=2).stderr
    )
    assert "config.json" in translate(tmp_path, "a\n", code=1).stderr
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", run, other], check=True)
    program.luna("bpe", run.parent / "x.en", "--merges", 5, "--out", tmp_path)
    os.replace(tmp_path / "tokenizer.json", other / "tokenizer.json")
    error = translate(other, "a\n", code=1).stderr
    assert "model.safetensors" in error and "embedding.tokens.weight" in error
    unwritable = translate(run, "a\n", "--out", tmp_path / "no/x", code=1)
    assert "no/x" in unwritable.stderr


def test_killed_it_leaves_whole_lines(run, tmp_path):
    lines = (run.parent / "x.en").read_text().splitlines() * 300
    expected = (run.parent / "x.de").read_text().splitlines() * 300
    (tmp_path / "in").write_text("".join(line + "\n" for line in lines))
    out = tmp_path / "out"
    for kind in (signal.SIGKILL, signal.SIGTERM):
        with open(tmp_path / "in") as text:
            process = subprocess.Popen(
                [PROGRAM, "translate", run, "--out", out, "--beam", "1",
                 "--batch", "16", "--threads", "1"],
                stdin=text, stderr=subprocess.PIPE,
            )  # fmt: skip
        limit = time.monotonic() + 60
        while not (out.exists() and out.stat().st_size > 0):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
        process.send_signal(kind)
        _, errors = process.communicate(timeout=60)
        text = out.read_text()
        assert text.endswith("\n")
        done = text.splitlines()
        assert 0 < len(done) < len(lines)
        assert done == expected[: len(done)]
        if kind == signal.SIGTERM:
            assert process.returncode == 130
            assert b"interrupted" in errors
        else:
            assert process.returncode == -signal.SIGKILL
        out.unlink()


def test_decoding_speed_is_measured_saved_and_shown_again(tmp_path):
    small = ["--layers", 1, "--width", 16, "--ffn", 16, "--heads", 2]
    small += ["--positions", "4,40", "--batch", 2, "--steps", 2, "--repeat", 2]
    saved, picture = tmp_path / "x.json", tmp_path / "x.svg"
    shown = program.luna(
        "bench", "decode", *small, "--attention", "softmax,nested",
        "--threads", 1, "--out", saved, "--svg", picture,
    )  # fmt: skip
    rows = json.loads(saved.read_text())["rows"]
    assert [(r["attention"], r["position"]) for r in rows] == [
        ("softmax", 4), ("softmax", 40), ("nested", 4), ("nested", 40),
    ]  # fmt: skip
    # 36 more tokens of width 16, keys and values, in float32.
    assert rows[1]["state_bytes"] - rows[0]["state_bytes"] == 36 * 16 * 2 * 4
    assert rows[2]["state_bytes"] == rows[3]["state_bytes"]
    assert picture.read_text().startswith("<svg")
    again = program.luna("bench", "decode", "--load", saved)
    assert again.stdout == shown.stdout
    saved.write_text('{"kind": "other"}')
    error = program.luna("bench", "decode", "--load", saved, code=1).stderr
    assert "x.json" in error and "luna bench decode" in error
    assert (
        "unknown option"
        in program.luna("bench", "decode", "--batches", 1, code=2).stderr
    )
