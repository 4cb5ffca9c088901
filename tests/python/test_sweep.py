"""`luna sweep`, run as a user runs it."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from program import PROGRAM, luna, needs_program
from test_train_cli import CONFIG

pytestmark = needs_program


def write(folder, name, **model):
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(json.dumps(CONFIG))
    config["model"] |= model
    (folder / name).write_text(json.dumps(config))
    return folder / name


@pytest.fixture
def configs(tmp_path):
    """Two recipes that share a file's name."""
    return [
        write(tmp_path / "configs" / "a", "tiny.json", attention="universal"),
        write(tmp_path / "configs" / "b", "tiny.json", attention="softmax"),
    ]


def sweep(configs, out, *more, code=0):
    return luna("sweep", *configs, "--out", out, "--threads", 1, *more,
                code=code)  # fmt: skip


def accuracy(folder):
    return json.loads((folder / "summary.json").read_text())["test_accuracy"]


def test_runs_every_config_and_seed_and_leaves_finished_runs_alone(
    configs, tmp_path
):
    out = tmp_path / "runs"
    done = sweep(configs, out, "--seeds", 2, "--jobs", 2, "--json")
    names = ["a-tiny-s1", "a-tiny-s2", "b-tiny-s1", "b-tiny-s2"]
    assert sorted(p.parent.name for p in out.glob("*/summary.json")) == names
    for name in names:
        config = json.loads((out / name / "config.json").read_text())
        assert config["seed"] == int(name[-1])
        summary = json.loads((out / name / "summary.json").read_text())
        assert summary["side_by_side"] == 2
    groups = json.loads(done.stdout)["results"]
    assert sorted(len(group["runs"]) for group in groups) == [2, 2]

    before = {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")}
    again = sweep(configs, out, "--seeds", 2)
    assert "started" not in again.stderr
    assert before == {
        p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")
    }


def test_a_run_of_a_sweep_is_the_run_of_luna_train(configs, tmp_path):
    out = tmp_path / "runs"
    sweep(configs[:1], out)
    luna("train", configs[0], "--out", tmp_path / "one", "--threads", 1)
    assert accuracy(out / "a-tiny-s1") == accuracy(tmp_path / "one")


def test_trains_what_a_list_asks_for_and_was_not_kept(tmp_path):
    softmax = write(tmp_path / "lists" / "a", "tiny.json", attention="softmax")
    write(tmp_path / "lists" / "b", "tiny.json", attention="universal")
    runs = tmp_path / "lists" / "runs.txt"
    runs.write_text("a/tiny.json:2\nb/tiny.json  steps=4  # fewer\n")
    first, kept, out = (tmp_path / name for name in ("first", "kept", "out"))
    sweep([softmax], first)
    luna("report", first, "--keep", kept)

    plan = sweep([f"@{runs}"], out, "--kept", kept, "--dry-run").stdout
    assert [line.split()[0::2] for line in plan.splitlines()[1:]] == [
        ["a-tiny-s1", "kept"], ["b-tiny-s1"], ["a-tiny-s2"],
    ]  # fmt: skip
    done = sweep([f"@{runs}"], out, "--kept", kept, "--json")
    names = {p.parent.name for p in out.glob("*/summary.json")}
    assert names == {"b-tiny-s1", "a-tiny-s2"}
    steps = json.loads((out / "b-tiny-s1" / "config.json").read_text())["steps"]
    assert steps == 4
    groups = json.loads(done.stdout)["results"]
    assert sorted(len(g["runs"]) for g in groups) == [1, 2], "kept ones count"


def write_long(folder, steps=10**6):
    """A config that does not end by itself while a test waits."""
    long = write(folder, "long.json")
    config = json.loads(long.read_text()) | {"steps": steps}
    long.write_text(json.dumps(config))
    return long


def wait_for_training(out, process):
    """Until the run of configs/long.json has a line of metrics."""
    metrics = out / "configs-long-s1" / "metrics.jsonl"
    end = time.monotonic() + 60
    while not metrics.exists() or '"train"' not in metrics.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def start_long(configs_folder, out, steps=400):
    """A sweep of one run, in its training; the config and the process."""
    long = write_long(configs_folder, steps)
    process = subprocess.Popen(
        [PROGRAM, "sweep", long, "--out", out, "--threads", "1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_training(out, process)
    return long, process


def test_goes_on_where_it_was_stopped(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    long, process = start_long(tmp_path / "configs", cut)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.01)
    process.send_signal(signal.SIGTERM)  # as `timeout` does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on" in errors
    sweep([long], whole)
    sweep([long], cut)
    weights = [
        (folder / "configs-long-s1" / "best" / "model.safetensors").read_bytes()
        for folder in (whole, cut)
    ]
    assert weights[0] == weights[1]


def test_ends_in_order_when_its_minutes_are_over(tmp_path):
    long = write_long(tmp_path / "configs")
    out = tmp_path / "out"
    start = time.monotonic()
    done = sweep([long], out, "--minutes", 0.1, code=130)
    assert time.monotonic() - start >= 6
    assert "0.1 minutes are over" in done.stderr
    assert "the same command goes on" in done.stderr
    assert list((out / "configs-long-s1" / "checkpoints").iterdir())


def test_a_second_signal_ends_it_at_once(tmp_path):
    _, process = start_long(tmp_path / "configs", tmp_path / "out", 10**6)
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    run = int(tasks.read_text().split()[0])
    os.kill(run, signal.SIGSTOP)  # it would never save
    try:
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
    finally:
        os.kill(run, signal.SIGKILL)


def test_a_run_that_fails_does_not_stop_the_others(configs, tmp_path):
    blocked = write(tmp_path / "configs" / "a", "blocked.json")
    out = tmp_path / "runs"
    out.mkdir()
    (out / "a-blocked-s1").write_text("a file where the folder shall be")
    done = sweep([blocked, configs[0]], out, code=1)
    assert "a-blocked-s1: failed: " in done.stderr
    assert "1 of 2 runs failed" in done.stderr
    assert accuracy(out / "a-tiny-s1") >= 0
    log = out / "logs" / "a-blocked-s1.log"
    assert "a-blocked-s1" in log.read_text()


def test_a_task_without_data_does_not_stop_the_others(configs, tmp_path):
    config = json.loads(configs[0].read_text())
    config["data"] = {"task": "retrieval", "path": "nowhere"}
    missing = tmp_path / "configs" / "a" / "missing.json"
    missing.write_text(json.dumps(config))
    out = tmp_path / "runs"
    done = sweep([missing, configs[0]], out, "--seeds", 2, code=1)
    assert "missing-s1: failed: data.path: expected" in done.stderr
    assert "missing-s2: failed: no data, as above" in done.stderr
    assert "2 of 4 runs failed" in done.stderr
    assert len(list(out.glob("*tiny-s*/summary.json"))) == 2


def test_finished_runs_need_no_data(configs, tmp_path):
    out, data = tmp_path / "runs", tmp_path / "data"
    sweep(configs[:1], out, "--data", data)
    shutil.rmtree(data)
    sweep(configs[:1], out, "--data", data)
    assert not data.exists()


def test_a_wrong_config_is_named_before_anything_runs(configs, tmp_path):
    bad = write(tmp_path / "configs" / "a", "bad.json", heads=3)
    done = sweep([configs[0], bad], tmp_path / "runs", code=1)
    assert "bad.json" in done.stderr and "heads" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_refuses_a_folder_of_another_config(configs, tmp_path):
    out = tmp_path / "runs"
    sweep(configs[:1], out)
    done = sweep(configs[:1], out, "--set", "steps=31", code=1)
    assert "another config" in done.stderr and "tiny-s1" in done.stderr


def test_refuses_two_data_sets_of_one_task(configs, tmp_path):
    other = write(tmp_path / "configs" / "a", "other.json")
    config = json.loads(other.read_text())
    config["data"]["samples"] = 61
    other.write_text(json.dumps(config))
    done = sweep([configs[0], other], tmp_path / "runs", code=1)
    assert "different data" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_dry_run_lists_and_writes_nothing(configs, tmp_path):
    out = tmp_path / "runs"
    done = sweep(configs, out, "--seeds", 3, "--dry-run")
    lines = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    # The first seed of all, then the second.
    assert lines[:2] == ["a-tiny-s1", "b-tiny-s1"] and len(lines) == 6
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--jobs", "0"], "--jobs"),
        (["--seeds", "0"], "--seeds"),
        (["--device", "abacus"], "--device"),
        (["--minutes", "-1"], "--minutes"),
    ],
)
def test_bad_arguments_are_usage_errors(configs, tmp_path, more, says):
    done = sweep(configs, tmp_path / "runs", *more, code=2)
    assert says in done.stderr
    assert "luna sweep" in done.stderr
    assert luna("sweep", code=2).stderr.startswith("luna sweep: error")


def test_mps_needs_a_gpu(configs, tmp_path):
    done = sweep(configs, tmp_path / "runs", "--mps", code=2)
    assert "--mps: expected a GPU" in done.stderr
    assert not (tmp_path / "runs").exists()
