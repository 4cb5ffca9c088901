"""scripts/gpu-sweep, with the CPU for the GPU."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from program import PROGRAM, ROOT, needs_program
from test_sweep import write

pytestmark = needs_program


def gpu_sweep(runs, out, *more, folder=PROGRAM.parent, code):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "scripts" / "gpu-sweep", folder, runs, out, *more],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    return done


def test_brings_back_what_ended_and_what_did_not(tmp_path):
    short = write(tmp_path / "configs", "short.json")
    long = write(tmp_path / "configs", "long.json")
    config = json.loads(long.read_text()) | {"steps": 10**6}
    long.write_text(json.dumps(config))
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


def test_says_at_once_that_there_is_no_program(tmp_path):
    runs = tmp_path / "runs"
    done = gpu_sweep(runs, tmp_path, "a.json", folder=tmp_path, code=1)
    assert "expected a program that runs" in done.stderr
    assert not runs.exists()
