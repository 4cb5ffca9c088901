"""Small run folders as `luna train` writes them, made by hand."""

import base64
import json
import math
import random
import re
import struct
from pathlib import Path

HARNESS = Path(__file__).parents[2] / "configs" / "lra" / "universal"
MACHINE = {"cpu": "Test CPU", "logical_cores": 2, "threads": 2, "isa": "avx2"}
IMAGE_CLASSES = ["plane", "car", "bird", "cat", "deer"]

# attention: accuracy it ends at, steps a second, peak memory
SPEEDS = {
    "softmax": (0.42, 1.25, 3.1e9),
    "universal": (0.63, 4.4, 4.2e8),
    "nested": (0.47, 5.1, 3.6e8),
    "linear": (0.38, 6.3, 2.9e8),
}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def feature_maps(rng, layers, start=None, moved=0.0):
    """psi's parameters of some layers; from `start`, moved a little."""
    tensors = {}
    for layer in range(layers):
        prefix = f"layers.{layer}.attention.feature_map."
        for name, shape, bound in (
            ("projection", [8, 32], 0.2),
            ("projection_bias", [8], 0.0),
            ("hidden_weight", [8, 64], 1.0),
            ("hidden_bias", [8, 64], 1.0),
            ("output_weight", [8, 64], 1 / 8),
            ("output_bias", [8], 1 / 8),
        ):
            count = math.prod(shape)
            if start is None:
                values = [rng.uniform(-bound, bound) for _ in range(count)]
            else:
                values = [
                    v + moved * rng.gauss(0, bound)
                    for v in start[prefix + name][1]
                ]
            tensors[prefix + name] = (shape, values)
    return tensors


def feature_use(step, spread):
    """u of the first layer from -spread to 2 spread; of the second nothing."""
    return {
        "kind": "features", "step": step,
        "map": "layers.0.attention.feature_map",
        "query": {"live": 0.25, "silent": 0.125},
        "key": {"live": 0.0625, "silent": 0.5},
        "u": [spread * (3 * i / 100 - 1) for i in range(101)],
    }  # fmt: skip


def samples(task, rng):
    found = []
    for i in range(10):
        right = i % 3 != 2
        classes = IMAGE_CLASSES if task == "image" else ["negative", "positive"]
        label = rng.randrange(len(classes))
        predicted = label if right else (label + 1) % len(classes)
        sample = {"label": label, "predicted": predicted}
        rest = 0.3 / (len(classes) - 1)
        sample["probabilities"] = [
            0.7 if c == predicted else rest for c in range(len(classes))
        ]
        if task == "image":
            pixels = bytes(
                int(127 + 120 * math.sin((x * (i + 1) + y * y) / 24))
                for y in range(32)
                for x in range(32)
            )
            sample |= {
                "kind": "picture",
                "pixels": base64.b64encode(pixels).decode(),
                "height": 32,
                "width": 32,
            }
        elif task == "listops":
            sample |= {"kind": "symbols", "text": "[MAX 4 [MIN 2 7 ] 9 ] " * 9}
        else:
            sample |= {
                "kind": "text",
                "text": "A <b>film</b> & its “sequel”, which I saw twice. " * 9,
            }
        found.append(sample)
    return {"task": task, "classes": classes, "samples": found}


def write_run(
    folder,
    task="image",
    attention="universal",
    seed=1,
    steps=2000,
    done=None,
    length=1024,
):
    """A run; one that stops after `done` steps has no summary and no test."""
    rng = random.Random(f"{task} {attention} {seed}")
    accuracy, speed, memory = SPEEDS[attention]
    folder.mkdir(parents=True)
    # As the universal paper's harness has it, for whatever attention.
    text = (HARNESS / f"{task}-softmax.json").read_text()
    config = json.loads(re.sub("//.*", "", text))
    config |= {
        "name": f"{task}-{attention}-{seed}",
        "steps": steps,
        "seed": seed,
    }
    config["model"]["attention"] = attention
    (folder / "config.json").write_text(json.dumps(config))
    lines, best, best_step = [], 0, 0
    if attention == "universal":
        lines.append(feature_use(0, 1))
    for step in range(20, (done or steps) + 1, 20):
        share = 1 - math.exp(-4 * step / steps)
        lines.append({
            "kind": "train", "step": step,
            "loss": 2.3 - 1.6 * accuracy * share * 2 + rng.gauss(0, 0.05),
            "accuracy": accuracy * share, "lr": 1e-3, "tokens_per_s": 4e4,
            "steps_per_s": speed, "seconds": step / speed,
        })  # fmt: skip
        if step % 100 == 0:
            value = accuracy * share + rng.gauss(0, 0.006)
            if value > best:
                best, best_step = value, step
            lines.append({
                "kind": "validation", "step": step, "loss": 2.2 - value,
                "accuracy": value, "seconds": step / speed,
            })  # fmt: skip
    if done is None:
        test = best - 0.004
        lines.append({
            "kind": "test", "step": best_step, "loss": 1.4, "accuracy": test,
        })  # fmt: skip
        if attention == "universal":
            lines.append(feature_use(best_step, 10))
        title = "nested-16" if attention == "nested" else attention
        summary = {
            "name": config["name"], "task": task, "attention": attention,
            "attention_title": title, "seed": seed, "parameters": 214_538,
            "attention_parameters": 34_304, "steps": steps,
            "best_step": best_step, "validation_accuracy": best,
            "test_accuracy": test, "test_loss": 1.4,
            "steps_per_s": speed * (1 + 0.01 * seed), "tokens_per_s": 41_000.0,
            "peak_memory_bytes": int(memory), "load_share": 0.004,
            "seconds": steps / speed, "length": length,
            "batch": config["batch"], "machine": MACHINE, "luna": "0.1.0",
            "torch": "2.11.0",
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "samples.json").write_text(json.dumps(samples(task, rng)))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if done is not None:
        text += '{"kind": "train", "st'  # torn: the machine went down
    (folder / "metrics.jsonl").write_text(text)
    if attention == "universal":
        start = feature_maps(rng, 2)
        write_safetensors(folder / "start.safetensors", start)
        best_folder = folder / "best"
        best_folder.mkdir()
        write_safetensors(
            best_folder / "model.safetensors",
            feature_maps(rng, 2, start, moved=0.5),
        )
    return folder


def write_runs(folder):
    """What a small study leaves behind: mechanisms, seeds, one still going."""
    for attention in SPEEDS:
        for seed in (1, 2, 3) if attention == "universal" else (1,):
            write_run(
                folder / "image" / f"{attention}-{seed}",
                attention=attention,
                seed=seed,
            )
    for attention in ("softmax", "universal"):
        write_run(
            folder / "retrieval-imdb" / attention,
            task="retrieval-imdb",
            attention=attention,
            length=4000,
        )
    write_run(folder / "listops", task="listops", attention="nested", done=600)
    return folder
