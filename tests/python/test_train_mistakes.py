"""What a newcomer gets wrong with `luna train`, `eval`, `report`, `weights`."""

import json
import re
import shutil

import pytest
from program import ROOT, luna, needs_program
from test_train_cli import CONFIG

pytestmark = needs_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "tiny.json").write_text(json.dumps(CONFIG))
    constant = CONFIG | {"schedule": {"name": "constant"}, "steps": 10}
    (folder / "constant.json").write_text(json.dumps(constant))
    return folder


@pytest.fixture(scope="module")
def run(folder):
    luna("train", folder / "constant.json", "--out", folder / "run")
    return folder / "run"


def names(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def dry_run(config, *arguments, code=0):
    return luna("train", config, "--dry-run", *arguments, code=code)


def test_a_dry_run_needs_no_data(folder):
    before = names(folder)
    plan = json.loads(dry_run(folder / "tiny.json", "--json").stdout)
    assert plan["samples"] == {"train": 60, "validation": 60, "test": 60}
    assert plan["length"] == 23  # expressions of fewer than 24 symbols
    assert plan["steps_per_epoch"] == 15
    text = dry_run(folder / "tiny.json").stdout
    assert "60 / 60 / 60 samples" in text
    assert "luna data pack listops --out DIR --samples 60" in text
    image = ROOT / "configs" / "lra" / "universal" / "image-universal.json"
    text = dry_run(image, "--set", "batch=1").stdout
    assert "45,000 / 5,000 / 10,000 samples" in text
    assert names(folder) == before


def test_dry_and_real_run_say_the_same_of_missing_data(folder):
    image = ROOT / "configs" / "lra" / "universal" / "image-universal.json"
    options = ["--set", "batch=1", "--out", folder / "none"]
    for data in ([], ["--data", folder / "nowhere"]):
        note = dry_run(image, *options, *data).stdout
        error = luna("train", image, *options, *data, code=1).stderr
        said = error.removeprefix("luna train: error: ").strip()
        assert said.startswith("data.path: expected")
        assert "luna data pack image --data FILES --out DIR" in said
        assert said in note
    assert not (folder / "none").exists()


def test_a_dry_run_checks_device_and_threads(folder):
    assert (
        "--device"
        in dry_run(folder / "tiny.json", "--device", "tpu", code=2).stderr
    )
    assert (
        "--threads"
        in dry_run(folder / "tiny.json", "--threads", -1, code=2).stderr
    )


def test_dry_run_and_info_break_the_model_down_alike(folder):
    config = ROOT / "configs" / "small" / "needles-nested.json"
    plan = json.loads(dry_run(config, "--json").stdout)
    info = json.loads(luna("info", config, "--json").stdout)
    assert plan["parameters"] == info["parameters"]
    table = luna("info", config).stdout.split("\n\n")[-1]
    assert table in dry_run(config).stdout


def test_what_is_no_run_folder_is_named_and_left_alone(folder, run):
    before = names(folder)
    for command in (["eval"], ["train", "--resume"], ["report"]):
        for wrong in ("best", "best/", "checkpoints/step-00000010"):
            error = luna(*command, f"{run}/{wrong}", code=1).stderr
            assert "not a run folder" in error
            assert f"did you mean {run}?" in error
        error = luna(*command, folder / "nothing", code=1).stderr
        assert f"{folder}/nothing: not a run folder (no such folder)" in error
    assert names(folder) == before


def test_eval_before_the_first_validation(folder):
    early = folder / "early"
    early.mkdir()
    shutil.copy(folder / "tiny.json", early / "config.json")
    error = luna("eval", early, code=1).stderr
    assert f"luna train --resume {early}" in error
    assert [path.name for path in early.iterdir()] == ["config.json"]


def test_less_data_than_asked_for_is_told_and_recorded(folder, tmp_path):
    data = folder / "few"
    settings = [f"--set={k}={v}" for k, v in CONFIG["data"]["settings"].items()]
    luna("data", "pack", "listops", "--samples", 20, "--out", data, *settings)
    config = folder / "constant.json"
    few = "data.samples = 60 asks for: train 20 of 60, validation 20 of 60"
    assert few in dry_run(config, "--data", data).stderr
    out = folder / "less"
    done = luna("train", config, "--data", data, "--out", out)
    assert f"luna train: warning: data: fewer samples than {few}" in done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["samples"] == {"train": 20, "validation": 20, "test": 20}
    report = luna("report", out, "--html", tmp_path / "x.html", "--json")
    (reported,) = json.loads(report.stdout)["runs"]
    assert reported["data_samples"] == summary["samples"]
    assert any("train 20 of 60" in note for note in reported["notes"])


def test_a_run_leaves_no_lock(run):
    assert not (run / "lock").exists()


def test_a_long_warm_up_is_told(folder):
    done = dry_run(folder / "tiny.json", "--set", "schedule.warmup=40")
    assert re.search(
        r"warning: schedule.warmup: .*30 steps, got 40", done.stderr
    )


def test_report_writes_beside_the_run_and_says_where(run):
    done = luna("report", run)
    assert f"wrote {run}/report.html" in done.stderr
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_resume_with_other_values(folder, run):
    longer = folder / "longer"
    shutil.copytree(run, longer)
    luna("train", "--resume", longer, "--set", "steps=20")
    assert json.loads((longer / "summary.json").read_text())["steps"] == 20
    error = luna("train", "--resume", run, "--set", "batch=8", code=2).stderr
    assert "steps, log_every, checkpoint_every" in error
    assert f"luna train {run}/config.json --out OTHER --set batch=8" in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "expected at least data.task and model.attention, got no data"),
        ('{"data": {"task": "text"}}', "got no model.attention"),
        ('{"steps": 3,}', r":1:13: not JSON: unexpected '}'"),
        ("", ":1:1: not JSON: unexpected end of input"),
        ("[]", "expected an object"),
        ('{"steps": "x"}', "expected steps to be an integer, got the string x"),
        (
            '{"data": {"task": "lisops"}, "model": {"attention": "linear"}}',
            r"data: expected task to be one of .*\(nearest: listops\)",
        ),
        (
            '{"data": {"task": "text"}, "model": {"attention": "qqqqqq"}}',
            r"model: expected attention to be one of .*rff, got qqqqqq$",
        ),
        (
            '{"data": {"task": "listops", "settings": {"max_depht": 3}}, '
            '"model": {"attention": "linear"}}',
            r"data\.settings: listops: .*max_depht.*\(nearest: max_depth\)",
        ),
    ],
)
def test_bad_configs_are_named(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    for command in (["info"], ["train", "--dry-run"]):
        error = luna(*command, path, code=1).stderr
        assert error.startswith(f"luna {command[0]}: error: {path}:")
        assert re.search(message, error.strip()), error
        assert error.count("\n") == 1


def test_weights_of_a_run_are_in_best(run, tmp_path):
    error = luna("weights", run, code=1).stderr
    assert f"did you mean {run}/best?" in error
    other = tmp_path / "notes.safetensors"
    other.write_text("These are notes.\n")
    error = luna("weights", other, code=1).stderr
    assert "not safetensors" in error and "These are" in error


def test_help_config_is_what_the_documentation_has():
    keys = json.loads(luna("train", "--help-config", "--json").stdout)
    assert {"key": "model.width", "default": "64", "allowed": "from 1",
            "help": "model width"} in keys  # fmt: skip
    rows = []
    for key in keys:
        help_text = key["help"]
        if key["allowed"]:
            help_text += f" ({key['allowed']})"
        default = f"`{key['default']}`" if key["default"] else ""
        rows.append(f"| `{key['key']}` | {default} | {help_text} |\n")
    assert "".join(rows) in (ROOT / "docs" / "training.md").read_text()
    text = luna("train", "--help-config").stdout
    assert all(key["key"] in text and key["help"] in text for key in keys)
