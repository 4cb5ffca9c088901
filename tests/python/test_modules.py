"""The modules: names, padding, packs, streams, dropout."""

import inspect

import luna
import pytest
import torch
from modules import (
    BATCH,
    HEADS,
    LENGTH,
    MODULES,
    SLOTS,
    STREAMS,
    WIDTH,
    every_module,
    padded,
)

LINEAR = ("weight", "bias")
PSI = ("hidden_weight", "hidden_bias", "output_weight", "output_bias")


def names(*linears, feature_map=()):
    expected = [f"{name}.{part}" for name in linears for part in LINEAR]
    return expected + [f"feature_map.{name}" for name in feature_map]


MULTI_HEAD = ("q_proj", "k_proj", "v_proj", "out_proj")
MAP = ("projection", "projection_bias", *PSI)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            luna.UniversalAttention(WIDTH, HEADS),
            names(*MULTI_HEAD, feature_map=MAP),
        ),
        (
            luna.UniversalAttention(WIDTH, HEADS, gated=True),
            names(*MULTI_HEAD, feature_map=(*MAP, "gate_weight", "gate_bias")),
        ),
        (
            luna.UniversalAttention(WIDTH, HEADS, local=3),
            [*names(*MULTI_HEAD, feature_map=MAP), "local.weight"],
        ),
        (luna.MultiHeadAttention(WIDTH, HEADS, "softmax"), names(*MULTI_HEAD)),
        (luna.MultiHeadAttention(WIDTH, HEADS, "linear"), names(*MULTI_HEAD)),
        (
            luna.MultiHeadAttention(WIDTH, HEADS, "rff"),
            names(*MULTI_HEAD, feature_map=("random_projection",)),
        ),
        (
            luna.NestedAttention(WIDTH, HEADS),
            names("pq_proj", "pc_proj", "q_proj", "c_proj", "out_proj"),
        ),
        (
            luna.NestedAttention(WIDTH, HEADS, tied=False),
            names(
                "pq_proj",
                "pk_proj",
                "pv_proj",
                "q_proj",
                "k_proj",
                "v_proj",
                "out_proj",
            ),
        ),
        (
            luna.NestedCausalAttention(WIDTH, HEADS),
            names("pq_proj", "pc_proj", "q_proj", "c_proj", "out_proj"),
        ),
        (
            luna.NestedCausalAttention(WIDTH, HEADS, tied=False),
            names(
                "pq_proj", "pc_proj", "q_proj", "k_proj", "v_proj", "out_proj"
            ),
        ),
    ],
    ids=lambda value: (
        type(value).__name__ if hasattr(value, "training") else ""
    ),
)
def test_names_of_weights(module, expected):
    assert list(module.state_dict()) == expected


def test_python_and_library_know_the_same_mechanisms():
    table = {entry["name"]: entry for entry in luna.attentions()}
    assert list(table)[:5] == [
        "softmax",
        "universal",
        "nested",
        "linear",
        "rff",
    ]
    from luna.nn.multi_head_attention import MECHANISMS

    head_level = [
        name for name, entry in table.items() if entry["traits"]["head_level"]
    ]
    assert set(head_level) == set(MECHANISMS)
    classes = {name: [MECHANISMS[name]] for name in head_level}
    classes["nested"] = [luna.NestedAttention, luna.NestedCausalAttention]
    for name, entry in table.items():
        options = {x["name"]: x["default"] for x in entry["options"]}
        found = {}
        for module in classes[name]:
            for parameter in inspect.signature(module).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY:
                    found[parameter.name] = parameter.default
        if name == "nested":  # 0 and None both say: as many as num_heads
            assert found.pop("pack_heads") is None
            assert options.pop("pack_heads") == 0
        assert found == options, name
        assert entry["summary"] and entry["publication"]


@every_module
def test_padding_changes_nothing(name):
    if name == "ch_rms":
        pytest.skip("a batch statistic: exempt by design")
    module = MODULES[name]().eval()
    x, mask = padded()
    out = module(x, key_mask=mask)
    other = torch.where(mask[..., None], x, torch.randn_like(x) * 5)
    valid = mask[..., None]
    torch.testing.assert_close(
        out * valid, module(other, key_mask=mask) * valid
    )
    for i in range(BATCH):
        length = int(mask[i].sum())
        alone = module(x[i : i + 1, :length])
        torch.testing.assert_close(
            alone[0], out[i, :length], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ["universal", "gated", "softmax", "nested"])
def test_float_weights_of_keys(name):
    """Weight 2 on a key is the same as the key twice."""
    module = MODULES[name]()
    x = torch.randn(1, 6, WIDTH)
    weight = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0, 1.0]])
    twice = torch.cat([x[:, :4], x[:, 1:2], x[:, 5:]], 1)
    out = module(x, key_mask=weight)
    expected = module(twice)
    torch.testing.assert_close(out[:, :4], expected[:, :4])
    torch.testing.assert_close(out[:, 5], expected[:, 5])


@pytest.mark.parametrize("name", STREAMS)
def test_stream_equals_whole(name):
    layer = MODULES[name]()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    whole = layer(x, causal=True)
    with torch.no_grad():
        first, state = layer(x[:, :4], causal=True, return_state=True)
        kept = state.clone()
        second, state = layer(
            x[:, 4:7], causal=True, state=state, return_state=True
        )
        rest = [layer.step(x[:, t], state) for t in range(7, LENGTH)]
    got = torch.cat([first, second, torch.stack(rest, 1)], 1)
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-5)
    # A piece goes on from a state without changing it.
    again, _ = layer(x[:, 4:7], causal=True, state=kept, return_state=True)
    torch.testing.assert_close(again, second)


@pytest.mark.parametrize("name", ["universal", "nested_causal"])
def test_stream_from_nothing_and_from_padded_prompts(name):
    module = MODULES[name]()
    nested = name == "nested_causal"
    layer = module.layer if nested else module

    def run(x, **options):
        if nested:
            if "state" not in options:
                options["memory"] = module.memory
            return layer(x, **options)
        return layer(x, causal=True, **options)

    x, mask = padded()
    lengths = mask.sum(1).tolist()
    tokens = torch.randn(4, BATCH, WIDTH)
    with torch.no_grad():
        _, state = run(x, key_mask=mask, return_state=True)
        got = torch.stack([layer.step(token, state) for token in tokens], 1)
        for i, length in enumerate(lengths):
            whole = torch.cat([x[i, :length], tokens[:, i]])[None]
            expected = run(whole)[0, length:]
            torch.testing.assert_close(got[i], expected, rtol=1e-4, atol=1e-5)
        _, empty = run(x[:, :0], return_state=True)
        start = torch.stack([layer.step(x[:, t], empty) for t in range(3)], 1)
        torch.testing.assert_close(start, run(x[:, :3]), rtol=1e-4, atol=1e-5)


def test_beams_can_be_reordered():
    layer = luna.UniversalAttention(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    order = torch.tensor([2, 0, 0])
    with torch.inference_mode():
        _, state = layer(x[:, :-1], causal=True, return_state=True)
        state = state.reorder(order)
        got = layer.step(x[order, -1], state)
        expected = layer(x, causal=True)[order, -1]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_finished_state_can_be_asked():
    layer = luna.UniversalAttention(WIDTH, HEADS)
    context = torch.randn(BATCH, LENGTH, WIDTH)
    x = torch.randn(BATCH, 5, WIDTH)
    _, state = layer(context[:, :1], context, return_state=True)
    torch.testing.assert_close(
        layer(x, context[:, :0], state=state), layer(x, context)
    )


def test_step_wants_no_gradient():
    layer = luna.UniversalAttention(WIDTH, HEADS)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    _, state = layer(x, causal=True, return_state=True)
    with pytest.raises(RuntimeError, match="no_grad"):
        layer.step(x[:, 0], state)


def test_causal_does_not_see_the_future():
    x = torch.randn(BATCH, LENGTH, WIDTH)
    changed = x.clone()
    changed[:, 7:] += 1
    for name in ("universal", "gated", "softmax", "linear", "rff"):
        layer = MODULES[name]()
        one, two = layer(x, causal=True), layer(changed, causal=True)
        torch.testing.assert_close(one[:, :7], two[:, :7])
        assert not torch.allclose(one[:, 7:], two[:, 7:])
    for name in ("nested_causal", "nested_causal_untied"):
        layer = MODULES[name]()
        one, two = layer(x), layer(changed)
        torch.testing.assert_close(one[:, :7], two[:, :7])


@pytest.mark.parametrize("name", ["universal", "softmax", "linear", "nested"])
def test_packed_equals_separate(name):
    module = MODULES[name]()
    layer = module.layer if name == "nested" else module
    lengths = [4, 2, 6]
    starts = torch.tensor([0, 4, 6, 12], dtype=torch.int32)
    x = torch.randn(1, 12, WIDTH)
    if name == "nested":
        out, memory = layer(x, module.memory, cu_seqlens_q=starts)
        assert memory.shape == (3, SLOTS, WIDTH)
    else:
        out = layer(x, causal=True, cu_seqlens_q=starts)
    pieces = []
    for i, piece in enumerate(x.split(lengths, 1)):
        if name == "nested":
            one, packed = layer(piece, module.memory)
            torch.testing.assert_close(memory[i : i + 1], packed)
        else:
            one = layer(piece, causal=True)
        pieces.append(one)
    torch.testing.assert_close(out, torch.cat(pieces, 1))


def test_dropout_is_off_in_eval_and_new_each_time_in_training():
    x = torch.randn(BATCH, LENGTH, WIDTH)
    memory = torch.randn(SLOTS, WIDTH)
    for layer in (
        luna.NestedAttention(WIDTH, HEADS, dropout=0.3),
        luna.NestedCausalAttention(WIDTH, HEADS, dropout=0.3),
    ):
        without = type(layer)(WIDTH, HEADS)
        without.load_state_dict(layer.state_dict())

        def first(out):
            return out[0] if isinstance(out, tuple) else out

        torch.testing.assert_close(
            first(layer.eval()(x, memory)), first(without(x, memory))
        )
        layer.train()
        once = first(layer(x, memory))
        assert not torch.equal(once, first(layer(x, memory)))
        torch.manual_seed(5)
        once = first(layer(x, memory))
        torch.manual_seed(5)
        assert torch.equal(once, first(layer(x, memory)))


def test_functions_give_states():
    q, k, v = (torch.rand(2, 4, 9, 8) for _ in range(3))
    feature_map = luna.FeatureMap(8)
    with torch.no_grad():
        table = luna.universal_table(feature_map)
        whole = luna.universal_attention(q, k, v, feature_map, causal=True)
        _, state = luna.universal_attention(
            q[:, :, :-1],
            k[:, :, :-1],
            v[:, :, :-1],
            feature_map,
            causal=True,
            return_state=True,
        )
        last = luna.universal_attention_step(
            q[:, :, -1],
            k[:, :, -1],
            v[:, :, -1],
            state,
            feature_map,
            table=table,
        )
        torch.testing.assert_close(last, whole[:, :, -1])

        whole = luna.linear_attention(q, k, v, causal=True)
        _, state = luna.linear_attention(
            q[:, :, :-1],
            k[:, :, :-1],
            v[:, :, :-1],
            causal=True,
            return_state=True,
        )
        last = luna.linear_attention_step(
            q[:, :, -1], k[:, :, -1], v[:, :, -1], state
        )
        torch.testing.assert_close(last, whole[:, :, -1])

        memory = torch.randn(1, 4, 3, 8)
        whole = luna.nested_causal_attention(q, k, k, v, memory)
        q, q_last = q[:, :, :-1], q[:, :, -1]
        k, k_last = k[:, :, :-1], k[:, :, -1]
        v, v_last = v[:, :, :-1], v[:, :, -1]
        _, state = luna.nested_causal_attention(
            q, k, k, v, memory, return_state=True
        )
        last = luna.nested_causal_attention_step(
            q_last, k_last, k_last, v_last, memory, state
        )
        torch.testing.assert_close(last, whole[:, :, -1])
