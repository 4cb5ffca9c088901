"""`luna train` and `luna eval`, run as a user runs them."""

import json
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest
from program import PROGRAM, luna, needs_program

pytestmark = needs_program

CONFIG = {
    "data": {
        "task": "listops",
        "samples": 60,
        "settings": {"min_length": 4, "max_length": 24, "max_depth": 3,
                     "max_args": 3},
    },
    "model": {"attention": "universal", "layers": 1, "width": 16, "ffn": 16,
              "heads": 2},
    "optimizer": {"lr": 0.003},
    "steps": 30, "batch": 4, "log_every": 5, "eval_every": 10,
    "checkpoint_every": 5,
}  # fmt: skip


def start(*arguments):
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path, process):
    end = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("train") / "tiny.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def data(config):
    return config.parent / "data"


@pytest.fixture(scope="module")
def finished(config, data):
    run = config.parent / "finished"
    done = luna("train", config, "--out", run, "--data", data, "--json")
    return run, done


def outcome(run):
    """All of a run that does not depend on the clock."""
    files = {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*.safetensors"))
    }
    lines = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        fields = json.loads(line)
        for name in ("tokens_per_s", "steps_per_s", "seconds"):
            fields.pop(name, None)
        lines.append(fields)
    return files, lines


@pytest.mark.parametrize("command", ["train", "eval"])
def test_every_help_has_an_example(command):
    assert "Example" in luna(command, "--help").stdout


def test_train_gives_its_summary(finished):
    run, done = finished
    summary = json.loads(done.stdout)
    assert summary["steps"] == 30
    assert summary["finished"] is True
    assert summary["side_by_side"] == 1
    assert summary["task"] == "listops"
    assert 0 <= summary["test_accuracy"] <= 1
    assert "validation" in done.stderr  # lines, where there is no terminal
    assert "\r" not in done.stderr
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-00000025", "step-00000030"]
    start_names = (run / "start.safetensors").read_bytes()[:2000]
    assert b"hidden_weight" in start_names


def test_summary_names_the_commit_it_was_built_of(finished):
    run, _ = finished
    built_of = json.loads(luna("info", "--json").stdout)["commit"]
    summary = json.loads((run / "summary.json").read_text())
    if (PROGRAM.parent / "../../.git").exists():
        assert re.fullmatch("[0-9a-f]{12}(-dirty)?", built_of)
    assert summary.get("commit", "") == built_of


def test_eval_finds_what_training_found(finished):
    run, done = finished
    found = json.loads(luna("eval", run, "--json").stdout)
    summary = json.loads(done.stdout)
    assert found["accuracy"] == summary["test_accuracy"]
    assert found["samples"] == sum(map(sum, found["confusion"]))
    correct = sum(row[i] for i, row in enumerate(found["confusion"]))
    assert found["accuracy"] == pytest.approx(correct / found["samples"])
    text = luna("eval", run, "--split", "validation").stdout
    assert "validation: accuracy" in text and "recall" in text


def test_a_finished_run_says_so(finished):
    run, done = finished
    again = luna("train", "--resume", run, "--json")
    assert "finished" in again.stderr
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_killed_at_random_times_it_resumes_to_the_same_bits(
    finished, config, data
):
    run = config.parent / "killed"
    chance = random.Random(7)
    kills = 0
    arguments = ["train", config, "--out", run, "--data", data]
    while True:
        process = start(*arguments)
        try:
            process.communicate(timeout=chance.uniform(0.2, 1.2))
            assert process.returncode == 0
            break
        except subprocess.TimeoutExpired:
            if kills == 6:  # enough: the next may end
                process.communicate()
                break
            process.kill()
            process.communicate()
            kills += 1
        if (run / "config.json").exists():
            arguments = ["train", "--resume", run]
    assert process.returncode == 0
    assert outcome(run) == outcome(finished[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_exit(config, data, finished, number):
    run = config.parent / f"signal-{number.name}"
    arguments = ["train", config, "--out", run, "--data", data]
    process = start(*arguments, "--set", "steps=100000")
    wait_for(run / "checkpoints" / "step-00000005", process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"luna train --resume {run}" in errors
    saved = errors.split("saved ")[1].split()[0]
    assert (pathlib.Path(saved) / "state.json").exists()


def test_a_second_process_is_refused(config, data, finished):
    run = config.parent / "two"
    first = start(
        "train", config, "--out", run, "--data", data, "--set", "steps=100000"
    )
    try:
        wait_for(run / "checkpoints" / "step-00000005", first)
        second = luna("train", "--resume", run, code=1)
        assert str(first.pid) in second.stderr
    finally:
        first.terminate()
        first.communicate(timeout=60)


def test_an_existing_run_points_to_resume(finished, config, data):
    done = luna("train", config, "--out", finished[0], "--data", data, code=2)
    assert f"--resume {finished[0]}" in done.stderr


def test_a_full_disk_is_named(config, data, finished):
    run = config.parent / "full"
    done = luna(
        "train", config, "--out", run, "--data", data,
        code=1, env={"LUNA_FAULT": "fail:sync:14"},
    )  # fmt: skip
    assert str(run) in done.stderr and "No space left" in done.stderr
    assert done.stderr.count("error") == 1
    luna("train", "--resume", run)
    assert outcome(run) == outcome(finished[0])


def test_dry_run_writes_nothing(config):
    before = sorted(config.parent.iterdir())
    plan = json.loads(luna("train", config, "--dry-run", "--json").stdout)
    parameters = plan["parameters"]
    assert parameters["all"] == sum(parameters["parts"].values())
    assert plan["memory_bytes"] > 16 * parameters["all"]
    assert plan["schedule"][-1]["step"] == 29
    text = luna("train", config, "--dry-run").stdout
    assert "memory" in text and "learning rate" in text
    assert sorted(config.parent.iterdir()) == before


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--set", "model.widht=3"], ["widht", "nearest: width"]),
        (["--set", "stepz=3"], ["stepz", "nearest: steps"]),
        (["--set", "steps=no"], ["steps", "no"]),
        (["--set", "data.task=lisops"], ["nearest: listops"]),
        (["--set", "model.attention=univrsal"], ["universal"]),
    ],
)
def test_wrong_values_are_named(config, arguments, parts):
    done = luna("train", config, "--dry-run", *arguments, code=2)
    assert done.stderr.startswith(f"luna train: error: {' '.join(arguments)}")
    for part in parts:
        assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["train"],
        ["train", "a.json", "--resume", "b"],
        ["train", "--resume", "b", "--out", "c"],
        ["train", "a.json", "--device", "tpu"],
        ["eval"],
        ["eval", "a", "--split", "tset"],
    ],
)
def test_wrong_usage(config, arguments):
    arguments = [str(config) if a == "a.json" else a for a in arguments]
    luna(*arguments, code=2)
