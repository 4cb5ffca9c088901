"""luna.hf: transformers' models with luna's attention, and the program's
folders in it and its folders in the program."""

import copy
import pickle
import re
import subprocess
import sys
import tomllib

import luna
import luna.hf
import pytest
import torch
from program import ROOT, needs_program
from safetensors.torch import load_file, save_file
from test_hugging_face import (
    bert_config,
    close,
    compare,
    make,
    tokens,
    vit_config,
)
from test_hugging_face import luna as program
from transformers import (
    AutoModel,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2Model,
    ViTForImageClassification,
    ViTModel,
)

ATTENTIONS = [
    ("luna_universal", {}),
    ("luna_universal", {"M": 3, "L": 5, "hidden": 7, "per_head": True}),
    ("luna_universal", {"gated": True, "ch_rms": True}),
    ("luna_linear", {}),
    ("luna_rff", {"features": 24}),
]
each_attention = pytest.mark.parametrize(
    ("attention", "options"), ATTENTIONS, ids=str
)


def pictures(config, batch=2):
    size = config.image_size
    return {"pixel_values": torch.randn(batch, config.num_channels, size, size)}


MODELS = [
    (BertForSequenceClassification, bert_config(num_labels=3), tokens),
    (BertForMaskedLM, bert_config(), tokens),
    (BertModel, bert_config(), tokens),
    (ViTForImageClassification, vit_config(), pictures),
    (ViTModel, vit_config(), pictures),
]
each_model = pytest.mark.parametrize(
    ("kind", "config", "inputs"),
    MODELS,
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)


def first(output):
    """What a model is asked for: logits or hidden states."""
    return output.get("logits", output.get("last_hidden_state"))


def make_linear(kind, config, attention="luna_universal", **options):
    return luna.hf.convert(
        make(kind, copy.deepcopy(config)), attention, **options
    )


@each_attention
def test_padding_changes_nothing(attention, options):
    if "ch_rms" in options:
        options = options | {"ch_rms": False}  # a statistic of the batch
    config = bert_config()
    model = make_linear(BertModel, config, attention, **options)
    batch = tokens(config)
    with torch.no_grad():
        together = model(**batch).last_hidden_state
        for i, mask in enumerate(batch["attention_mask"]):
            count = int(mask.sum())
            alone = {k: v[i : i + 1, :count] for k, v in batch.items()}
            got = model(**alone).last_hidden_state[0]
            close(got, together[i, :count])
        unmasked = model(batch["input_ids"]).last_hidden_state
    assert not torch.allclose(unmasked[1, 0], together[1, 0], atol=1e-3)


@needs_program
@pytest.mark.parametrize("number", range(5))
def test_program_reads_what_python_saved(number, tmp_path):
    kind, config, inputs = MODELS[number]
    attention, options = ATTENTIONS[number]
    model = make_linear(kind, config, attention, **options)
    model.save_pretrained(tmp_path / "model")
    compare(tmp_path / "model", model, inputs(config), tmp_path)


@needs_program
@pytest.mark.parametrize(
    ("number", "attention"), enumerate(["universal", "linear", "rff"] * 2)
)
def test_python_loads_what_the_program_wrote(number, attention, tmp_path):
    kind, config, inputs = (MODELS[:1] + MODELS)[number]
    make(kind, config).save_pretrained(tmp_path / "model")
    out = tmp_path / "linear"
    program(
        *("convert", "--model", tmp_path / "model"),
        *("--attention", attention, "--out", out),
    )
    model = luna.hf.load(out)
    assert type(model) is kind and not model.training
    compare(out, model, inputs(config), tmp_path)


@each_attention
@each_model
def test_save_and_load(kind, config, inputs, attention, options, tmp_path):
    model = make_linear(kind, config, attention, **options)
    model.save_pretrained(tmp_path / "a", max_shard_size="20KB")
    again = luna.hf.load(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")  # and once more
    batch = inputs(config)
    with torch.no_grad():
        want = first(model(**batch))
        others = [again, luna.hf.load(tmp_path / "b"), copy.deepcopy(model)]
        for other in [*others, pickle.loads(pickle.dumps(again))]:
            assert type(other) is kind
            assert torch.equal(first(other(**batch)), want)


def test_feature_maps_learn(tmp_path):
    config = bert_config(num_labels=3)
    model = make_linear(BertForSequenceClassification, config, gated=True)
    batch = tokens(config) | {"labels": torch.tensor([0, 1, 2])}
    maps = {
        name: parameter
        for name, parameter in model.named_parameters()
        if ".feature_map." in name
    }
    assert len(maps) == 2 * 8  # layers; six tensors of phi, two of the gate
    optimizer = torch.optim.Adam(maps.values(), lr=0.01)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())
        for name, parameter in maps.items():
            assert parameter.grad is not None, name
            # At the start all keys have one gate, a factor that cancels: its
            # bias has a gradient of rounding alone, or none.
            if step > 0 or not name.endswith(".gate_bias"):
                assert parameter.grad.abs().max() > 0, name
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    model.save_pretrained(tmp_path)
    again = luna.hf.load(tmp_path)
    for name, parameter in maps.items():
        assert torch.equal(again.get_parameter(name), parameter)


def test_gradients_are_those_of_the_layer():
    """One layer's attention beside luna's own module with its weights."""
    config = bert_config(num_hidden_layers=1)
    model = make_linear(BertModel, config)
    theirs = model.encoder.layer[0].attention.self
    ours = luna.UniversalAttention(24, 3)
    with torch.no_grad():
        ours.out_proj.weight.copy_(torch.eye(24))
        ours.out_proj.bias.zero_()
        ours.feature_map.load_state_dict(theirs.feature_map.state_dict())
        for mine, name in (("q", "query"), ("k", "key"), ("v", "value")):
            linear = getattr(ours, f"{mine}_proj")
            linear.load_state_dict(getattr(theirs, name).state_dict())
    x, mask = torch.randn(2, 7, 24), torch.arange(7) < torch.tensor([[7], [3]])
    got, _ = theirs(x, attention_mask=mask)
    want = ours(x, key_mask=mask)
    close(got, want)
    weight = torch.randn_like(got)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for name, parameter in ours.feature_map.named_parameters():
        close(theirs.feature_map.get_parameter(name).grad, parameter.grad)


def test_half_precision_keeps_feature_maps(tmp_path):
    config = bert_config()
    make_linear(BertModel, config).save_pretrained(tmp_path)
    model = luna.hf.load(tmp_path, dtype=torch.bfloat16)
    half = make(BertModel, config).bfloat16()
    for one in (model, luna.hf.convert(half)):
        for name, parameter in one.named_parameters():
            kept = ".feature_map." in name
            assert parameter.dtype == (
                torch.float32 if kept else torch.bfloat16
            )
        one(**tokens(config)).last_hidden_state.sum().backward()


def test_linear_needs_no_parameters():
    config = bert_config()
    model = make(BertModel, config)
    batch = tokens(config)
    model.set_attn_implementation("luna_linear")
    other = make_linear(BertModel, config, "luna_linear")
    with torch.no_grad():
        assert torch.equal(first(model(**batch)), first(other(**batch)))


def test_softmax_takes_luna_out_again():
    config = bert_config()
    model = make(BertModel, config)
    names = list(model.state_dict())
    batch = tokens(config)
    with torch.no_grad():
        want = first(model(**batch))
        luna.hf.convert(model)
        assert not torch.allclose(first(model(**batch)), want, atol=1e-3)
        luna.hf.convert(model, "softmax")
        assert torch.equal(first(model(**batch)), want)
    assert list(model.state_dict()) == names
    assert "luna" not in model.config.to_dict()


def test_other_heads_of_bert(tmp_path):
    config = bert_config(num_labels=4)
    model = make_linear(BertForTokenClassification, config)
    model.save_pretrained(tmp_path)
    again = luna.hf.load(tmp_path)
    batch = tokens(config)
    with torch.no_grad():
        assert torch.equal(first(again(**batch)), first(model(**batch)))


def test_universal_without_parameters(tmp_path):
    config = bert_config()
    model = make(BertModel, config)
    model.save_pretrained(tmp_path)
    switched = BertModel.from_pretrained(
        tmp_path, attn_implementation="luna_universal"
    )
    model.set_attn_implementation("luna_universal")
    rff = make_linear(BertModel, config, "luna_rff")
    rff.set_attn_implementation("luna_universal")
    for one, found in ((model, "none"), (switched, "none"), (rff, "Rff")):
        with pytest.raises(ValueError, match=f"feature_map.*got {found}.*conv"):
            one(**tokens(config))


def test_refuses_what_it_cannot_convert():
    bert = make(BertModel, bert_config())
    with pytest.raises(ValueError, match="luna_linear.*got 'luna_linar'"):
        luna.hf.convert(bert, "luna_linar")
    with pytest.raises(ValueError, match="one of luna_uni.*got 'nested'"):
        luna.hf.convert(bert, "nested")
    with pytest.raises(ValueError, match="luna_universal.*got heads"):
        luna.hf.convert(bert, heads=2)
    with pytest.raises(ValueError, match="M >= 1, got 0"):
        luna.hf.convert(bert, M=0)
    with pytest.raises(ValueError, match="no options with softmax, got M"):
        luna.hf.convert(bert, "softmax", M=3)
    with pytest.raises(TypeError, match="model of transformers, got Linear"):
        luna.hf.convert(torch.nn.Linear(2, 2))
    gpt = GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9))
    with pytest.raises(ValueError, match="bert or vit, got GPT2Model"):
        luna.hf.convert(gpt)
    decoder = make(BertModel, bert_config(is_decoder=True))
    with pytest.raises(ValueError, match="an encoder, got BertModel"):
        luna.hf.convert(decoder)
    # None of them left something behind.
    assert not [name for name in bert.state_dict() if "feature_map" in name]
    assert bert.config._attn_implementation == "sdpa"


def test_refuses_masks_that_are_not_of_keys():
    config = bert_config()
    model = make_linear(BertModel, config)
    batch = tokens(config)
    batch["attention_mask"] = torch.zeros(3, 1, 17, 17)
    with pytest.raises(ValueError, match=r"\[batch, length\].*\[3, 1, 17, 17"):
        model(**batch)
    gpt = GPT2Model(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9))
    gpt.set_attn_implementation("luna_linear")
    with pytest.raises(ValueError, match="causal"):
        gpt(torch.zeros(1, 3, dtype=torch.long))


def test_refuses_folders_without_luna(tmp_path):
    config = bert_config()
    make(BertModel, config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="config.json: luna: .* got none"):
        luna.hf.load(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"universal"', '"univrsal"', "luna_universal.*got 'univrsal'"),
        ('"universal"', "7", "luna_universal.*got 7"),
        ('"M"', '"N"', "got N"),
        ('"M": 3', '"M": 0', "M >= 1, got 0"),
        ('"M": 3', '"M": "many"', "many"),
        (
            '"M": 3',
            '"M": 4',
            r"4 of another shape.*projection \(expected \[4, 8\], got \[3, 8\]",
        ),
        ('"BertModel"', '"BertModal"', "architectures.*BertModal"),
    ],
)
def test_refuses_sections_that_are_wrong(before, after, message, tmp_path):
    make_linear(BertModel, bert_config(), M=3).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(ValueError, match=f"(?s){tmp_path}.*{message}"):
        luna.hf.load(tmp_path)


@pytest.mark.parametrize(
    ("attention", "gone"),
    [
        (
            "universal",
            "encoder.layer.1.attention.self.feature_map.hidden_bias",
        ),
        ("universal", "encoder.layer.0.output.dense.weight"),
        ("softmax", "encoder.layer.0.output.dense.weight"),
    ],
)
def test_refuses_folders_without_a_weight(attention, gone, tmp_path):
    model = make_linear(BertModel, bert_config(), attention)
    model.config.luna = {"attention": attention}
    model.save_pretrained(tmp_path)
    luna.hf.load(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    del weights[gone]
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"1 missing.*{gone}"):
        luna.hf.load(tmp_path)


def test_plain_transformers_reads_the_rest(tmp_path):
    model = make_linear(BertModel, bert_config())
    model.save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))


def test_luna_does_without_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import luna\n"
        "try: import luna.hf\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "luna.hf: expected transformers" in done.stdout
    assert "luna[hf]" in done.stdout


def test_pinned_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = project["optional-dependencies"]["hf"]
    assert pin in (ROOT / "requirements" / "test.txt").read_text().split()
    version = pin.removeprefix("transformers==")
    assert re.search(
        rf"\({version} is tested",
        luna.hf.__loader__.get_data(luna.hf.__file__).decode(),
    )


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(ValueError, match="load: expected a folder, got"):
        luna.hf.load(tmp_path / "missing")
