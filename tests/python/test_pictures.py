"""luna's image pre-processing beside Pillow's and transformers'."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from program import luna, needs_program
from safetensors.torch import load_file
from transformers import ViTConfig, ViTModel
from transformers.models.vit.image_processing_pil_vit import (
    ViTImageProcessorPil,
)

pytestmark = needs_program


def run(folder, images):
    out = folder / "out.safetensors"
    parts = [part for image in images for part in ("--image", image)]
    done = luna("encode", folder, "--out", out, *parts, code=None, timeout=60)
    return done, out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model so small that the pre-processing is all there is to it."""
    path = tmp_path_factory.mktemp("vit")
    config = ViTConfig(
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
        image_size=8,
        patch_size=4,
    )
    ViTModel(config).save_pretrained(path)
    return path


def pixels(folder, config, images):
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    done, out = run(folder, images)
    assert done.returncode == 0, done.stderr
    return load_file(out)["pixel_values"]


def picture(height, width, seed=0, channels=3):
    """Edges, colours and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack(
        [
            np.sin(x / (c + 1.5)) * np.cos(y / (2.5 - c / 2))
            for c in range(channels)
        ],
        -1,
    )
    noise = rng.integers(-40, 40, waves.shape)
    edges = np.where(((x // 7) + (y // 5)) % 3 == 0, 90, 0)[..., None]
    return np.clip(waves * 80 + 100 + noise + edges, 0, 255).astype(np.uint8)


CONFIGS = [
    {},
    {"size": {"height": 20, "width": 31}, "resample": 3},
    {"size": {"height": 90, "width": 70}, "resample": 1},
    {"size": {"height": 9, "width": 200}, "resample": 3},
    {
        "size": {"shortest_edge": 24},
        "do_center_crop": True,
        "crop_size": {"height": 21, "width": 17},
    },
    {
        "do_resize": False,
        "do_center_crop": True,
        "crop_size": {"height": 65, "width": 40},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
    {
        "size": {"height": 16, "width": 16},
        "do_normalize": False,
        "rescale_factor": 1 / 127,
    },
    {"size": {"height": 16, "width": 16}, "do_rescale": False},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_matches_transformers(folder, config, tmp_path):
    images = [
        Image.fromarray(picture(*shape))
        for shape in ((40, 57), (64, 33), (8, 8))
    ]
    paths = [tmp_path / f"{i}.png" for i in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    want = ViTImageProcessorPil(**config)(images, return_tensors="pt")
    got = pixels(folder, config, paths)
    torch.testing.assert_close(
        got, want["pixel_values"].float(), atol=1e-6, rtol=1e-6
    )


PLAIN = {"do_resize": False, "do_rescale": False, "do_normalize": False}


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {}),
        ("RGBA", {}),
        ("L", {}),
        ("LA", {}),
        ("P", {}),
        ("1", {}),
        ("P", {"bits": 2}),
    ],
    ids=str,
)
def test_png_of_every_mode(folder, mode, options, tmp_path):
    rgba = np.concatenate([picture(21, 30), picture(21, 30, 1, 1)], -1)
    image = Image.fromarray(rgba)
    if mode == "P":
        colours = 4 if options else 200
        image = image.convert("RGB").quantize(colours)
    else:
        image = image.convert(mode)
    path = tmp_path / "image.png"
    image.save(path, **options)
    want = np.asarray(Image.open(path).convert("RGB"))
    got = pixels(folder, PLAIN, [path])[0].permute(1, 2, 0)
    assert np.array_equal(got.numpy(), want)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95, "subsampling": 0},
        {"quality": 75, "subsampling": 2},
        {"quality": 30, "progressive": True},
    ],
    ids=str,
)
def test_jpeg(folder, mode, options, tmp_path):
    path = tmp_path / "image.jpeg"
    Image.fromarray(picture(45, 62)).convert(mode).save(path, **options)
    want = np.asarray(Image.open(path).convert("RGB")).astype(np.float32)
    got = pixels(folder, PLAIN, [path])[0].permute(1, 2, 0).numpy()
    # Another release of libjpeg may round otherwise, by one step.
    assert np.abs(got - want).max() <= 1


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_refuses_what_is_cut_short(folder, kind, tmp_path):
    path = tmp_path / f"image.{kind}"
    Image.fromarray(picture(40, 40)).save(path)
    (folder / "preprocessor_config.json").write_text("{}")
    whole = path.read_bytes()
    for size in (20, len(whole) // 2, len(whole) - 20):
        path.write_bytes(whole[:size])
        done, _ = run(folder, [path])
        assert done.returncode == 1
        assert str(path) in done.stderr and "expected" in done.stderr
