"""A ViT on the command line: trained from scratch on pictures in CIFAR-10's
form, read by transformers, made linear."""

import functools
import json

import luna.hf
import numpy
import program
import pytest
import torch
from PIL import Image
from program import ROOT, needs_program
from safetensors.torch import load_file
from transformers import ViTForImageClassification, ViTImageProcessorPil

pytestmark = needs_program

luna_ = functools.partial(
    program.luna, timeout=120, env={"OMP_NUM_THREADS": "1"}
)
SMALL = {
    "model.layers": 2,
    "model.width": 16,
    "model.ffn": 32,
    "model.heads": 2,
    "model.patch": 8,
    "steps": 60,
    "batch": 20,
    "schedule.warmup": 5,
    "optimizer.lr": 0.005,
    "eval_every": 60,
    "eval_batch": 20,
    "autocast": "none",
}


def picture(label, rng):
    """Red, green and blue planes: a class has a brightness and a colour."""
    planes = numpy.full((3, 32, 32), 22 * label)
    planes[label % 3] += 30
    return planes + rng.integers(0, 20, planes.shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """cifar10: pictures; run: a ViT trained on them."""
    folder = tmp_path_factory.mktemp("vit")
    (folder / "cifar10").mkdir()
    rng = numpy.random.default_rng(1)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for name in names:
        records = b""
        for i in range(20):
            planes = picture(i % 10, rng).astype(numpy.uint8)
            records += bytes([i % 10]) + planes.tobytes()
        (folder / "cifar10" / f"{name}.bin").write_bytes(records)
    for i in range(3):
        planes = picture(3 * i, rng).astype(numpy.uint8)
        Image.fromarray(planes.transpose(1, 2, 0)).save(folder / f"{i}.png")
    settings = [
        word
        for key, value in SMALL.items()
        for word in ("--set", f"{key}={value}")
    ]
    luna_(
        *("train", ROOT / "configs" / "vit" / "cifar10.json", *settings),
        *("--data", folder / "cifar10", "--out", folder / "run"),
    )
    return folder


def test_training_lowers_the_loss(folder):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    final = next(x for x in map(json.loads, lines) if x["kind"] == "test")
    assert final["loss"] < 0.9 * numpy.log(10)
    assert final["accuracy"] > 0.3


def test_transformers_gives_the_same_logits(folder, tmp_path):
    made = folder / "run" / "hugging_face"
    model, notes = ViTForImageClassification.from_pretrained(
        made, output_loading_info=True
    )
    assert not any(notes[key] for key in ("missing_keys", "unexpected_keys"))
    processor = ViTImageProcessorPil.from_pretrained(made)
    paths = [folder / f"{i}.png" for i in range(3)]
    inputs = processor([Image.open(path) for path in paths])
    with torch.no_grad():
        pixels = torch.tensor(numpy.stack(inputs["pixel_values"]))
        expected = model.eval()(pixels).logits
    arguments = [word for path in paths for word in ("--image", path)]
    out = tmp_path / "new" / "states.safetensors"  # the folder is made
    luna_("encode", made, *arguments, "--out", out)
    torch.testing.assert_close(
        load_file(out)["logits"], expected, atol=1e-5, rtol=0
    )
    run = folder / "run"
    rows = json.loads(luna_("classify", run, *arguments, "--json").stdout)
    assert [row["label"] for row in rows] == [
        model.config.id2label[i] for i in expected.argmax(1).tolist()
    ]


def test_conversion_reports_what_eval_says(folder):
    out = folder / "linear"
    data = ("--task", "cifar10", "--data", folder / "cifar10")
    luna_(
        *("convert", "--model", folder / "run", *data, "--out", out),
        *("--fit-steps", 20, "--stage2-epochs", 1, "--batch", 20),
    )
    report = json.loads((out / "conversion.json").read_text())
    scores = {m["name"]: m["score"] for m in report["milestones"]}
    assert list(scores) == [
        *("original", "swapped", "fitted", "stage 1", "stage 2")
    ]
    before, after = (
        numpy.mean(report["divergence"][key]) for key in ("before", "after")
    )
    assert after < before
    found = json.loads(luna_("eval", out, *data, "--json").stdout)
    assert found["accuracy"] == scores["stage 2"]
    of_run = json.loads(
        luna_(
            *("eval", folder / "run", "--data", folder / "cifar10", "--json"),
        ).stdout
    )
    assert of_run["accuracy"] == scores["original"]
    # transformers runs it with luna's attention, to the same logits.
    model = luna.hf.load(out)
    path = folder / "1.png"
    pixels = ViTImageProcessorPil.from_pretrained(out)([Image.open(path)])
    with torch.no_grad():
        inputs = torch.tensor(numpy.stack(pixels["pixel_values"]))
        expected = model(inputs).logits.softmax(-1)[0]
    rows = json.loads(luna_("classify", out, "--image", path, "--json").stdout)
    assert list(rows[0]["probabilities"].values()) == pytest.approx(
        expected.tolist(), abs=1e-5
    )


def test_mistakes_are_named(folder):
    made = folder / "run" / "hugging_face"
    refused = luna_("eval", made, code=2).stderr
    assert "--task" in refused and "cifar10" in refused
    refused = luna_(
        *("eval", made, "--task", "sst2", "--data", folder / "cifar10"), code=1
    ).stderr
    assert "expected for a ViTForImageClassification one of cifar10" in refused
