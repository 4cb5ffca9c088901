"""scripts/gpu-sweep, with the CPU for the GPU."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from program import PROGRAM, ROOT, needs_program
from test_sweep import wait_for_training, write, write_long

pytestmark = needs_program


SCRIPT = ROOT / "scripts" / "gpu-sweep"


def environment():
    """In which python3 is the one that has torch."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path}


def gpu_sweep(runs, out, *more, folder=PROGRAM.parent, code):
    done = subprocess.run(
        [SCRIPT, folder, runs, out, *more],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    return done


def test_brings_back_what_ended_and_what_did_not(tmp_path):
    short = write(tmp_path / "configs", "short.json")
    long = write_long(tmp_path / "configs")
    runs, out = tmp_path / "runs", tmp_path / "out"
    options = ["--threads", "1", "--minutes", "0.3"]
    gpu_sweep(runs, out, *options, short, long, code=130)
    assert {p.name for p in out.iterdir()} == {
        "kept.tgz", "unfinished", "report.html", "report.txt",
    }  # fmt: skip
    with tarfile.open(out / "kept.tgz") as kept:
        names = kept.getnames()
    for run in ("configs-short-s1", "configs-long-s1"):
        assert f"kept/{run}/metrics.jsonl" in names, names

    # On another machine it goes on.
    other = tmp_path / "other"
    other.mkdir()
    archives = list((out / "unfinished").iterdir())
    assert [p.name for p in archives] == ["configs-long-s1.tgz"]
    with tarfile.open(archives[0]) as unfinished:
        unfinished.extractall(other, filter="data")
    assert [p.name for p in other.iterdir()] == ["configs-long-s1"]
    checkpoints = "configs-long-s1/checkpoints/*"
    steps = {int(p.name.split("-")[1]) for p in runs.glob(checkpoints)}
    assert len(steps) > 1, "old checkpoints are to be left out"
    brought = [int(p.name.split("-")[1]) for p in other.glob(checkpoints)]
    assert brought == [max(steps)]
    before = (other / "configs-long-s1" / "metrics.jsonl").read_text()
    gpu_sweep(other, out, "--threads", "1", "--minutes", "0.1", long, code=130)
    after = (other / "configs-long-s1" / "metrics.jsonl").read_text()
    assert len(after) > len(before) and after.startswith(before[:1000])


def test_a_checkpoint_that_was_being_written_is_none(tmp_path):
    """The run goes on from the newest whole one; of a mean all are brought."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    config = write(tmp_path / "configs", "short.json")
    gpu_sweep(runs, out, "--threads", "1", config, code=0)
    run = runs / "configs-short-s1"
    (run / "summary.json").unlink()
    whole = {"step-00000009", "step-00000010"}
    for name in [*whole, ".step-00000011.luna-part-9-0"]:
        (run / "checkpoints" / name).mkdir(exist_ok=True)
    for old in set(p.name for p in (run / "checkpoints").iterdir()) - whole:
        if not old.startswith("."):
            shutil.rmtree(run / "checkpoints" / old)

    # A program whose sweep is cut off at once.
    program = tmp_path / "program" / "luna"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$1" != sweep ] || exit 130\nexec {PROGRAM} "$@"\n'
    )
    program.chmod(0o755)

    def brought():
        gpu_sweep(runs, out, config, folder=program.parent, code=130)
        with tarfile.open(out / "unfinished" / "configs-short-s1.tgz") as tar:
            paths = [Path(name).parts for name in tar.getnames()]
        return {p[2] for p in paths if len(p) == 3 and p[1] == "checkpoints"}

    assert brought() == {"step-00000010"}
    text = (run / "config.json").read_text()
    assert '"average": 0' in text
    mean = text.replace('"average": 0', '"average": 2')
    (run / "config.json").write_text(mean)
    assert brought() == whole


def test_packs_what_there_is_when_it_is_interrupted(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    config = write_long(tmp_path / "configs")
    process = subprocess.Popen(
        [SCRIPT, PROGRAM.parent, runs, out, "--threads", "1", config],
        env=environment(),
    )
    wait_for_training(runs, process)
    process.terminate()  # the script alone
    assert process.wait(timeout=60) == 130
    assert (out / "unfinished" / "configs-long-s1.tgz").exists()
    assert (out / "kept.tgz").exists()


def test_says_that_not_all_could_be_packed(tmp_path):
    config = write(tmp_path / "configs", "short.json")
    out = tmp_path / "out"
    (out / "report.txt").mkdir(parents=True)  # where the report's words belong
    done = gpu_sweep(tmp_path / "runs", out, "--threads", "1", config, code=1)
    assert "not all could be packed" in done.stderr


def test_says_at_once_that_there_is_no_program(tmp_path):
    runs = tmp_path / "runs"
    done = gpu_sweep(runs, tmp_path, "a.json", folder=tmp_path, code=1)
    assert "expected a program that runs" in done.stderr
    assert not runs.exists()
