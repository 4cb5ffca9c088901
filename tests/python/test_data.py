"""`luna data`, run as a user runs it."""

import json
import lzma
import os
import re
import signal
import struct
import subprocess
import zlib

import program
import pytest
from program import PROGRAM, needs_program

pytestmark = needs_program


def luna(*arguments, code=0, env=None):
    env = {"LUNA_DATA": None} if env is None else env
    return program.luna("data", *arguments, code=code, env=env)


def review(split, number):
    return f"{split} review {number}: caf\N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The user's files: reviews as .tsv.xz, pictures as binary batches."""
    folder = tmp_path_factory.mktemp("sources")
    for split in ("train", "test"):
        lines = [
            f"{n // 25}\t{n % 25}\t5\ttt{split}{n % 25}\t{review(split, n)}\n"
            for n in range(50)
        ]
        packed = lzma.compress("".join(lines).encode())
        (folder / f"imdb_{split}.tsv.xz").write_bytes(packed)
    for batch in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        records = [
            bytes([label]) + bytes((label * 20 + i) % 256 for i in range(3072))
            for label in range(10)
        ]
        (folder / f"{batch}.bin").write_bytes(b"".join(records))
    return folder


@pytest.fixture(scope="module")
def packed(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    for task in ("text", "image", "retrieval-imdb"):
        luna("pack", task, "--data", sources, "--out", folder / task)
    luna("pack", "image", "--data", sources, "--out", folder / "small",
         "--compress")  # fmt: skip
    return folder


def read(path):
    """The format as docs/data.md has it, read without luna."""
    data = path.read_bytes()
    magic, version, size, _ = struct.unpack_from("<8sIIQ", data)
    assert (magic, version) == (b"lunadata", 1)
    manifest = json.loads(data[24 : 24 + size])
    parts = {}
    for section in manifest["sections"]:
        at = section["at"]
        assert at % 64 == 0
        part = data[at : at + section["stored"]]
        if "xz" in section["coding"]:
            part = lzma.decompress(part)
        assert len(part) == section["bytes"]
        parts[section["name"]] = part
    labels = struct.unpack(f"<{len(parts['labels']) // 8}q", parts["labels"])
    offsets = struct.unpack(f"<{len(parts['offsets']) // 8}q", parts["offsets"])
    sequences = [
        parts["ids"][a:b] for a, b in zip(offsets, offsets[1:], strict=False)
    ]
    return manifest, labels, sequences


def test_packed_files_are_what_the_documentation_says(packed):
    manifest, labels, sequences = read(packed / "text" / "test.luna")
    assert manifest["task"] == "text" and manifest["split"] == "test"
    assert labels == (0,) * 25 + (1,) * 25
    assert sequences == [review("test", n).encode() for n in range(50)]
    train = read(packed / "text" / "train.luna")[2]
    held = read(packed / "text" / "validation.luna")[2]
    assert len(held) == 4
    assert sorted(train + held) == sorted(
        review("train", n).encode() for n in range(50)
    )


def test_grey_is_the_rounded_sum(packed):
    _, labels, pictures = read(packed / "image" / "test.luna")
    assert labels == tuple(range(10))
    for label, picture in zip(labels, pictures, strict=True):
        colours = [(label * 20 + i) % 256 for i in range(3072)]
        for i in range(1024):
            r, g, b = colours[i], colours[1024 + i], colours[2048 + i]
            exact = (2989 * r + 5870 * g + 1140 * b) / 10000
            assert abs(picture[i] - exact) <= 0.5


def test_compressed_pictures_hold_the_same(packed, tmp_path):
    luna("unpack", packed / "small", "--out", tmp_path / "big")
    for split in ("train", "validation", "test"):
        big = (tmp_path / "big" / f"{split}.luna").read_bytes()
        assert big == (packed / "image" / f"{split}.luna").read_bytes()


def test_info(packed):
    text = luna("info", packed / "retrieval-imdb").stdout
    assert "pairs" in text and "train.luna" in text and "test.luna" in text
    (info,) = json.loads(
        luna("info", packed / "small" / "test.luna", "--json").stdout
    )
    assert info["compressed"] and info["samples"] == 10
    assert info["height"] == info["width"] == 32
    assert info["origin"]["source"].startswith("CIFAR-10")


def test_show_prints_text(packed):
    done = luna("show", packed / "text" / "test.luna", "--index", 30)
    assert review("test", 30) in done.stdout
    assert "label 1, positive" in done.stdout
    many = luna("show", packed / "text" / "test.luna", "--count", 0, "--json")
    samples = json.loads(many.stdout)
    assert [s["text"] for s in samples] == [
        review("test", n) for n in range(50)
    ]
    pair = luna("show", packed / "retrieval-imdb").stdout
    assert "first: " in pair and "second: " in pair


def test_show_draws_pictures(packed, tmp_path):
    file = packed / "image" / "test.luna"
    done = luna("show", file, "--index", 3)
    assert "label 3, cat" in done.stdout and "@@" in done.stdout
    assert "\x1b" not in done.stdout  # not a terminal
    (sample,) = json.loads(luna("show", file, "--json").stdout)
    assert bytes(sum(sample["pixels"], [])) == read(file)[2][0]

    sheet = tmp_path / "sheet.png"
    luna("show", file, "--png", sheet, "--count", 4)
    data = sheet.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2 + 2 * 98, 2 + 2 * 98)
    assert data.count(b"IEND") == 1
    at = data.index(b"IHDR")
    assert (
        zlib.crc32(data[at : at + 17])
        == struct.unpack(">I", data[at + 17 : at + 21])[0]
    )


def test_check_finds_damage(packed, tmp_path):
    assert luna("check", packed / "text").stdout.count("intact") == 3
    for split, byte in (("ids", -1), ("labels", 0)):
        good = (packed / "text" / "test.luna").read_bytes()
        manifest = read(packed / "text" / "test.luna")[0]
        places = {s["name"]: s["at"] for s in manifest["sections"]}
        at = len(good) - 1 if byte == -1 else places[split]
        bad = bytearray(good)
        bad[at] ^= 0x10
        (tmp_path / "bad.luna").write_bytes(bad)
        done = luna("check", tmp_path / "bad.luna", code=1)
        assert done.stderr.startswith("luna data check: error: ")
        assert f"{tmp_path / 'bad.luna'}: section {split}" in done.stderr
        assert "damaged" in done.stderr and done.stderr.count("\n") == 1


def test_list_has_every_task(packed):
    tasks = json.loads(luna("list", "--json").stdout)
    text = luna("list").stdout
    help_text = " ".join(luna("pack", "--help").stdout.split())
    for task in tasks:
        assert task["name"] in text and task["how"] in text
        assert f"{task['name']}: {task['what']}" in help_text
    assert {"text", "image", "retrieval", "retrieval-imdb"} <= {
        t["name"] for t in tasks
    }


@pytest.mark.parametrize("command", [[], ["pack"], ["show"]])
def test_every_help_has_an_example(command):
    text = luna(*command, "--help").stdout
    assert "Example" in text and "luna data" in text.split("Example")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "luna data: error: expected one of list, pack"),
        (["pak"], r"luna data: error: unknown command pak; .*nearest: pack"),
        (["qqq"], r"unknown command qqq; there is list, .*, show$"),
        (["pack"], "luna data pack: error: .*(task|--out)"),
        (["pack", "txet", "--out", "x"], "nearest: text.*got txet"),
        (["pack", "text", "--out", "x", "--smaples", "3"],
         "luna data pack: error: .*nearest: --samples"),
        (["pack", "text", "--out", "x", "--samples", "-3"], "--samples"),
        (["pack", "text", "--out", "x", "--set", "a=1"], "--set"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_code_2(arguments, message, tmp_path):
    arguments = [tmp_path / "x" if a == "x" else a for a in arguments]
    done = luna(*arguments, code=2)
    assert re.search(message, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_index_beyond_the_end_and_pictures_of_text(packed, tmp_path):
    file = packed / "text" / "test.luna"
    assert (
        "expected 0 to 49" in luna("show", file, "--index", 50, code=2).stderr
    )
    done = luna("show", file, "--png", tmp_path / "x.png", code=2)
    assert "pictures" in done.stderr and not (tmp_path / "x.png").exists()


def test_missing_files_are_explained_and_nothing_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    done = luna(
        "pack", "text", "--data", tmp_path / "empty", "--out", out, code=1
    )
    assert str(tmp_path / "empty") in done.stderr
    assert "looked for" in done.stderr and "https://" in done.stderr
    assert "--data DIR" in luna("pack", "image", "--out", out, code=1).stderr
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_generated_tasks_need_no_files(tmp_path):
    for task, settings in (
        ("needles", ["length=30"]),
        ("listops", ["min_length=5", "max_length=20"]),
        ("pathfinder", ["preset=32-easy"]),
    ):
        options = [f"--set={s}" for s in settings]
        luna("pack", task, "--samples", 8, *options, "--out", tmp_path / task)
        manifest, labels, _ = read(tmp_path / task / "validation.luna")
        assert manifest["task"] == task and len(labels) == 8
        for setting in settings:
            name, value = setting.split("=")
            assert manifest["origin"][name] == value
    assert "[M" in luna("show", tmp_path / "listops", "--count", 8).stdout
    done = luna("pack", "listops", "--set", "max_depht=3", "--out",
                tmp_path / "x", code=2)  # fmt: skip
    assert "nearest: max_depth" in done.stderr


def test_environment_names_the_data(sources, tmp_path):
    luna("pack", "text", "--out", tmp_path / "x", "--samples", 5,
         env={"LUNA_DATA": str(sources)})  # fmt: skip
    (train, _, _) = json.loads(luna("info", tmp_path / "x", "--json").stdout)
    assert train["samples"] == 5 and train["origin"]["samples"] == "5"


def test_other_peoples_folders_are_not_replaced(sources, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    done = luna("pack", "text", "--data", sources, "--out", tmp_path, code=2)
    assert "precious.txt" in done.stderr
    (tmp_path / "precious.txt").unlink()
    (tmp_path / "train.luna").write_text("an earlier one")
    luna("pack", "text", "--data", sources, "--out", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "train.luna", "validation.luna", "test.luna",
    }  # fmt: skip


def test_interrupt_leaves_nothing(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    lines = "".join(
        f"{i % 2}\t{i}\t1\ttt{i // 4}\t{os.urandom(500).hex()}\n"
        for i in range(20000)
    )
    for split in ("train", "test"):
        (source / f"imdb_{split}.tsv").write_text(lines)
    process = subprocess.Popen(
        [PROGRAM, "data", "pack", "text", "--data", source, "--out",
         tmp_path / "out", "--compress"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for line in process.stderr:
            if line.startswith("writing train"):
                break
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stderr == "luna data pack: interrupted; wrote nothing\n"
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_check_lists_all_files_and_info_says_things_once(packed, tmp_path):
    bad = tmp_path / "bad.luna"
    bad.write_bytes((packed / "text" / "test.luna").read_bytes()[:-1])
    good = packed / "image" / "test.luna"
    done = luna("check", bad, tmp_path / "none.luna", good, code=1)
    assert done.stdout == f"{good}: intact, 10 samples\n"
    errors = done.stderr.splitlines()
    assert len(errors) == 2 and str(bad) in errors[0]
    assert "none.luna" in errors[1]

    luna("pack", "needles", "--samples", 5, "--out", tmp_path / "needles")
    info = luna("info", tmp_path / "needles" / "test.luna").stdout
    assert info.count("samples") == 1
    shown = luna("show", tmp_path / "needles").stdout
    assert re.search(r"^sample 0 of 5: label \d$", shown, re.MULTILINE)
