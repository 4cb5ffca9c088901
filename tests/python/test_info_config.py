"""`luna info CONFIG`: what a config makes."""

import json

import pytest
from program import ROOT, luna, needs_program

pytestmark = needs_program

NESTED = ROOT / "configs" / "lra" / "nested" / "image-nested-16.json"
UNIVERSAL = ROOT / "configs" / "lra" / "universal" / "image-universal.json"


def test_json_counts_parameters_by_part():
    info = json.loads(luna("info", NESTED, "--json").stdout)
    parts = info["parameters"]["parts"]
    assert sum(parts.values()) == info["parameters"]["all"]
    assert info["parameters"]["all"] - parts["tokens"] == 122_624
    assert parts["tokens"] == (256 + 2) * 64
    own = info["parameters"]["attention_own"]
    assert own == parts["attention"] + parts["memory"]
    assert "notes" not in info


def test_text_says_what_is_not_read():
    text = luna("info", UNIVERSAL).stdout
    assert "attention_dropout 0.1 is not read: universal" in text
    assert "0.0001 to 0.001 over 1,000 steps, then cosine to 0.0004" in text


def test_set_changes_the_config():
    info = luna(
        "info",
        "--set",
        "model.layers=3",
        "--set",
        "steps=7",
        UNIVERSAL,
        "--json",
    )
    info = json.loads(info.stdout)
    assert (info["layers"], info["steps"]) == (3, 7)


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        ([UNIVERSAL, "--set", "model.widht=3"], 2, ["widht", "nearest: width"]),
        (
            [UNIVERSAL, "--set", "model.pooling=memory"],
            2,
            ["nested", "universal"],
        ),
        (["missing.json"], 1, ["missing.json"]),
        (["--set", "steps=3"], 2, ["config"]),
    ],
)
def test_errors_name_the_cause(arguments, code, parts):
    error = luna("info", *arguments, code=code).stderr
    assert error.startswith("luna info: error: ")
    assert error.count("\n") == 1
    assert all(part in error for part in parts)
