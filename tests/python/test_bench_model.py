"""luna bench --model: a whole BERT or ViT, softmax beside linear attention."""

import json

import pytest
from program import luna, needs_program
from test_hugging_face import bert_config, make, vit_config
from transformers import BertForSequenceClassification, ViTModel

pytestmark = needs_program
QUICK = ("--tokens", "64", "--repeat", "1")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "model"
    make(BertForSequenceClassification, bert_config()).save_pretrained(folder)
    return folder


def test_softmax_beside_universal(bert, tmp_path):
    page, saved = tmp_path / "new" / "bench.html", tmp_path / "bench.json"
    done = luna(
        *("bench", "--model", bert, "--lengths", "8,16,64", *QUICK),
        *("--html", page, "--out", saved),
    )
    results = json.loads(saved.read_text())
    rows = {(m["length"], m["attention"]) for m in results["measurements"]}
    assert rows == {(n, a) for n in (8, 16) for a in ("softmax", "universal")}
    model = make(BertForSequenceClassification, bert_config())
    weights = sum(4 * p.numel() for p in model.parameters())
    for m in results["measurements"]:
        assert m["mode"] == "forward" and m["batch"] == 64 // m["length"]
        assert m["seconds"]["median"] > 0
        assert m["peak_bytes"] > weights
    assert results["settings"]["heads"] == 3
    assert "BertForSequenceClassification of" in done.stdout
    assert "with backward" not in done.stdout  # a column without numbers
    assert "left out at n = 64: the model has 33 positions" in done.stdout
    assert "BertForSequenceClassification of" in page.read_text()
    assert luna("bench", "--load", saved).stdout == done.stdout


def test_folders_with_linear_attention(bert, tmp_path):
    out = tmp_path / "rff"
    luna("convert", "--model", bert, "--attention", "rff", "--out", out)
    done = luna(
        *("bench", "--model", out, "--json", "--lengths", "16", *QUICK),
        *("--attention", "linear"),
    )
    rows = json.loads(done.stdout)["measurements"]
    assert [m["attention"] for m in rows] == ["softmax", "rff", "linear"]


def test_lengths_of_a_vit_are_squares(tmp_path):
    make(ViTModel, vit_config()).save_pretrained(tmp_path / "vit")
    done = luna(
        *("bench", "--model", tmp_path / "vit", "--json"),
        *("--lengths", "8,9,16,30", *QUICK, "--dtype", "bfloat16"),
    )
    rows = json.loads(done.stdout)["measurements"]
    # 3 x 3, 4 x 4 and 5 x 5 patches, and [CLS]
    assert {m["length"] for m in rows} == {10, 17, 26}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--causal"], "expected no --causal with --model"),
        (["--mode", "both"], "expected no --mode with --model"),
        (["--attention", "nested"], "one of softmax, universal, linear, rff"),
        (["--lengths", "0"], "lengths: expected at least 1, got 0"),
    ],
)
def test_refuses_what_a_model_does_not_have(bert, options, message):
    assert message in luna("bench", "--model", bert, *options, code=2).stderr


def test_says_which_folder_is_missing(tmp_path):
    done = luna("bench", "--model", tmp_path / "none", code=1)
    assert str(tmp_path / "none" / "config.json") in done.stderr
