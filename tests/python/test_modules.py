"""The modules: names, shapes, streams, padding, and life inside torch."""

import copy
import inspect
import io
import pickle

import luna
import pytest
import torch
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, BATCH, LENGTH, SLOTS = 32, 4, 3, 12, 5
LINEAR = ("weight", "bias")
PSI = ("hidden_weight", "hidden_bias", "output_weight", "output_bias")


class Memory(torch.nn.Module):
    """A nested layer with a memory of its own, to be called as the others."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.memory = torch.nn.Parameter(torch.randn(SLOTS, WIDTH))

    def forward(self, x, *, key_mask=None):
        out = self.layer(x, self.memory, key_mask=key_mask)
        return out[0] if isinstance(out, tuple) else out


MODULES = {
    "universal": lambda: luna.UniversalAttention(WIDTH, HEADS),
    "gated": lambda: luna.UniversalAttention(
        WIDTH, HEADS, gated=True, per_head=True, M=5, L=3, hidden=16
    ),
    "shared": lambda: luna.UniversalAttention(
        WIDTH, HEADS, shared_channels=True, nonneg=False
    ),
    "ch_rms": lambda: luna.UniversalAttention(WIDTH, HEADS, ch_rms=True),
    "softmax": lambda: luna.MultiHeadAttention(WIDTH, HEADS, "softmax"),
    "linear": lambda: luna.MultiHeadAttention(WIDTH, HEADS, "linear"),
    "local": lambda: luna.UniversalAttention(WIDTH, HEADS, local=3),
    "rff": lambda: luna.MultiHeadAttention(WIDTH, HEADS, "rff", features=32),
    "nested": lambda: Memory(luna.NestedAttention(WIDTH, HEADS)),
    "nested_untied": lambda: Memory(
        luna.NestedAttention(WIDTH, HEADS, tied=False, pack_heads=2)
    ),
    "nested_causal": lambda: Memory(luna.NestedCausalAttention(WIDTH, HEADS)),
    "nested_causal_untied": lambda: Memory(
        luna.NestedCausalAttention(WIDTH, HEADS, tied=False, activation="elu")
    ),
}
every_module = pytest.mark.parametrize("name", MODULES)
STREAMS = ("universal", "gated", "linear", "rff")


def padded():
    """x and its mask; what is masked is NaN-free noise."""
    x = torch.randn(BATCH, LENGTH, WIDTH)
    lengths = torch.tensor([[LENGTH], [7], [1]])
    return x, torch.arange(LENGTH) < lengths


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


def test_shapes_of_a_feature_map():
    plain = luna.FeatureMap(16, M=3, L=5, hidden=7)
    shapes = {name: tuple(x.shape) for name, x in plain.named_parameters()}
    assert shapes == dict(
        projection=(3, 16),
        projection_bias=(3,),
        hidden_weight=(5, 7),
        hidden_bias=(5, 7),
        output_weight=(5, 7),
        output_bias=(5,),
    )
    other = luna.FeatureMap(
        16, 4, M=3, L=5, hidden=7, per_head=True, shared_channels=True
    )
    assert other.projection.shape == (4, 3, 16)
    assert other.projection_bias.shape == (4, 3)
    assert other.hidden_weight.shape == (1, 7)
    assert other.output_weight.shape == (5, 7)


def test_feature_map_starts_as_the_paper_says():
    start = luna.FeatureMap(64, M=256, L=32, hidden=100, gated=True)
    assert start.projection.std().item() == pytest.approx(1 / 8, rel=0.03)
    assert not start.projection_bias.any()
    # PyTorch's Linear(1, h) and Linear(h, 1): U(+-1), U(+-1/sqrt(h)).
    for x, bound in (
        (start.hidden_weight, 1.0),
        (start.hidden_bias, 1.0),
        (start.output_weight, 0.1),
    ):
        assert bound * 0.99 < x.abs().max().item() <= bound
        assert x.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert start.output_bias.abs().max().item() <= 0.1
    x = torch.randn(2, 1, 9, 64)
    torch.testing.assert_close(start._gate(x), torch.ones(2, 1, 9))


def test_nested_projections_start_xavier():
    for module in (
        luna.NestedAttention(256, 4, tied=False),
        luna.NestedCausalAttention(256, 4),
    ):
        for name, linear in module.named_children():
            gain = 1 if name == "out_proj" else 0.5**0.5
            bound = gain * (6 / (256 + 256)) ** 0.5
            assert 0.99 * bound < linear.weight.abs().max().item() <= bound
            assert not linear.bias.any()


def test_phi_started_as_softmax_follows_the_exponential():
    x = torch.tensor([0.5, -1.0, 0.25, 0.0])
    one = luna.FeatureMap(4, M=8, L=1, start="softmax")
    phi = one(x.view(1, 1, 1, 4)).view(8)
    expected = torch.cat([(2 * x).exp(), (-2 * x).exp()]) / 8**0.5
    torch.testing.assert_close(phi, expected, rtol=3e-3, atol=0)
    two = luna.FeatureMap(
        4, num_heads=3, M=4, L=2, start="softmax", per_head=True
    )
    phi = two(x.expand(1, 3, 1, 4)).view(3, 4, 2)
    expected = torch.stack([(2 * x).exp(), (-2 * x).exp()], -1) / 2
    torch.testing.assert_close(phi, expected.expand(3, 4, 2), rtol=3e-3, atol=0)
    # Fewer projections than coordinates, and more than twice as many.
    for M in (3, 24):
        many = luna.FeatureMap(8, M=M, L=1, start="softmax")
        assert (many(torch.randn(1, 1, 50, 8)) > 0).all()
    with pytest.raises(ValueError, match="start.*tents"):
        luna.FeatureMap(4, start="tents")


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


@pytest.mark.parametrize("ch_rms", [False, True])
def test_universals_sums_count_as_no_less_than_eps(ch_rms):
    torch.manual_seed(4)
    plain = luna.FeatureMap(16, ch_rms=ch_rms).double()
    q, k, v = torch.randn(3, 2, 2, 20, 16, dtype=torch.float64)
    with torch.no_grad():
        scores = plain(q) @ plain(k).mT
        total = scores.sum(-1, keepdim=True)
        eps = total.median().item()
        assert eps > 1e-3
        module = luna.FeatureMap(16, ch_rms=ch_rms, eps=eps).double()
        module.load_state_dict(plain.state_dict())
        out, _ = module.attend(q, k, v)
        torch.testing.assert_close(out, scores @ v / total.clamp_min(eps))
    with pytest.raises(ValueError, match="eps"):
        luna.FeatureMap(16, eps=0.0)


@pytest.mark.parametrize("gate", [False, True])
def test_rffs_sums_count_as_no_less_than_eps(gate):
    torch.manual_seed(2)
    eps, heads, n, width = 0.3, 2, 20, 4
    module = luna.nn.RffAttention(
        width, heads, features=8, unit=True, gate=gate, eps=eps
    ).double()
    q, k, v = torch.randn(3, 2, heads, n, width, dtype=torch.float64)
    with torch.no_grad():
        out, _ = module.attend(q, k, v, causal=True)
        scores = (module(q) @ module(k).mT).tril()
        if gate:  # of a = 0 and c = 2
            g = torch.tensor(2.0, dtype=torch.float64).sigmoid()
            age = torch.arange(n)[:, None] - torch.arange(n)
            scores = scores * (1 - g) * g ** age.clamp_min(0)
        total = scores.sum(-1, keepdim=True)
        small = total.abs() < eps
        assert small.any() and not small.all()
        want = scores @ v / total.abs().clamp_min(eps).copysign(total)
        torch.testing.assert_close(out, want)
        state = torch.zeros(2, heads, 8, width + 1, dtype=torch.float64)
        for t in range(n):
            y = module.step(q[:, :, t], k[:, :, t], v[:, :, t], state)
            torch.testing.assert_close(y, want[:, :, t])
    with pytest.raises(ValueError, match="eps"):
        luna.nn.RffAttention(width, eps=0.0)


@pytest.mark.parametrize("unit", [False, True])
def test_rffs_gate_is_the_recurrence(unit):
    torch.manual_seed(1)
    heads, n, width = 2, 70, 4  # more than a chunk
    module = luna.nn.RffAttention(
        width, heads, features=8, unit=unit, gate=True
    ).double()
    with torch.no_grad():
        module.gate_weight.normal_()
    q, k, v = torch.randn(3, 2, heads, n, width, dtype=torch.float64)
    weight = (torch.rand(2, n) < 0.8).double()
    start = torch.rand(2, heads, 8, width + 1, dtype=torch.float64)
    out, state = module.attend(
        q, k, v, causal=True, key_weight=weight, state=start
    )

    gate = torch.einsum("bhnd,hd->bhn", k, module.gate_weight)
    g = (gate + module.gate_bias[:, None]).sigmoid()
    sums, want = start.clone(), []
    moving = start.clone()
    for t in range(n):
        row = torch.cat([v[:, :, t], torch.ones(2, heads, 1)], -1)
        new = module(k[:, :, t])[..., None] * row[..., None, :]
        moved = g[:, :, t, None, None] * sums
        moved = moved + (1 - g[:, :, t, None, None]) * new
        sums = torch.where(weight[:, t, None, None, None] > 0, moved, sums)
        total = (module(q[:, :, t])[..., None, :] @ sums)[..., 0, :]
        want.append(total[..., :-1] / total[..., -1:])
        with torch.no_grad():
            stepped = module.step(
                q[:, :, t], k[:, :, t], v[:, :, t], moving,
                key_weight=weight[:, t],
            )  # fmt: skip
        torch.testing.assert_close(stepped, want[-1], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(state, sums)
    torch.testing.assert_close(out, torch.stack(want, 2), rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="causal"):
        module.attend(q, k, v)


def test_multi_head_universal_is_universal_attention():
    one = luna.MultiHeadAttention(WIDTH, HEADS, "universal", M=4)
    two = luna.UniversalAttention(WIDTH, HEADS, M=4)
    two.load_state_dict(one.state_dict())
    x = torch.randn(BATCH, LENGTH, WIDTH)
    assert torch.equal(one(x), two(x))


def test_universal_attention_is_its_parts():
    layer = luna.UniversalAttention(WIDTH, HEADS)
    x, mask = padded()

    def heads(y):
        return y.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)

    q, k, v = (
        heads(project(x))
        for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    out = luna.universal_attention(q, k, v, layer.feature_map, key_mask=mask)
    phi_q = luna.feature_map(q, layer.feature_map)
    phi_k = luna.feature_map(k, layer.feature_map) * mask[:, None, :, None]
    scores = phi_q @ phi_k.mT
    total = scores.sum(-1, keepdim=True)
    seen = total.squeeze(-1) > 1e-4  # psi may hold all features of a row at 0
    assert seen.float().mean() > 0.5
    expected = scores / total.clamp_min(1e-6) @ v
    torch.testing.assert_close(out[seen], expected[seen], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        layer(x, key_mask=mask),
        layer.out_proj(out.transpose(1, 2).flatten(2)),
    )


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


def test_normalize_makes_phi_blind_to_length():
    feature_map = luna.FeatureMap(8, normalize=True)
    plain = luna.FeatureMap(8)
    plain.load_state_dict(feature_map.state_dict())
    q, k = torch.randn(2, 2, 3, 9, 8).unbind()
    v = torch.randn(2, 3, 9, 8)

    def unit(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    tolerance = dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        feature_map(100 * q), plain(unit(q)), **tolerance
    )
    expected, state = plain.attend(unit(q), unit(k), v)
    out, _ = feature_map.attend(3 * q, 0.5 * k, v)
    torch.testing.assert_close(out, expected, **tolerance)
    token = q[:, :, 0], k[:, :, 0], v[:, :, 0]
    with torch.no_grad():
        stepped = feature_map.step(7 * token[0], *token[1:], state.clone())
        wanted = plain.step(*map(unit, token[:2]), token[2], state.clone())
    torch.testing.assert_close(stepped, wanted, **tolerance)


def test_spread_widens_the_projections():
    wide = luna.FeatureMap(64, M=256, spread=3.0)
    assert wide.projection.std().item() == pytest.approx(3 / 8, rel=0.03)


def test_lift_starts_every_channel_alive():
    torch.manual_seed(7)
    assert luna.FeatureMap(64, L=64).dead_features() > 0.02
    lifted = luna.FeatureMap(64, L=64, lift=1.0)
    assert lifted.dead_features() == 0
    assert (lifted.output_bias - 1).abs().max() <= 0.125


def test_ch_rms_counts_valid_tokens_only():
    feature_map = luna.FeatureMap(8, ch_rms=True, L=6)
    x = 10 * torch.randn(2, 3, 9, 8)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    phi = feature_map(x, mask)
    plain = luna.FeatureMap(8, L=6)
    plain.load_state_dict(feature_map.state_dict())
    psi = plain(x).unflatten(-1, (8, 6)) * 8**0.5
    for channel in range(6):
        values = torch.cat(
            [
                psi[0, :, :9, :, channel].flatten(),
                psi[1, :, :4, :, channel].flatten(),
            ]
        )
        rms = values.square().mean().sqrt()
        expected = psi[..., channel] * min(1, 0.1 / (rms.item() + 1e-6))
        got = phi.unflatten(-1, (8, 6))[..., channel] * 8**0.5
        torch.testing.assert_close(got, expected)


def test_ch_rms_scales_queries_and_keys_apart_with_gradient():
    layer = luna.UniversalAttention(4, 2, ch_rms=True).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda a, b: layer(a, b).sum(-1), (x, context), atol=1e-4
    )
    with pytest.raises(ValueError, match="ch_rms"):
        layer(x, causal=True)


def test_dead_features_counts_zeros():
    feature_map = luna.FeatureMap(8, M=4, L=4)
    with torch.no_grad():
        feature_map.output_weight.fill_(1.0)
        feature_map.output_bias.fill_(0.1)
        assert feature_map.dead_features() == 0.0
        feature_map.output_weight[0] = -1.0
        feature_map.output_bias[0] = -0.1
    assert feature_map.dead_features() == 0.25


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


@pytest.mark.parametrize("name", ["nested_causal", "nested_causal_untied"])
def test_nested_stream_equals_whole(name):
    module = MODULES[name]()
    layer, memory = module.layer, module.memory
    x = torch.randn(BATCH, LENGTH, WIDTH)
    mask = torch.rand(BATCH, SLOTS) < 0.6
    mask[:, 0] = True
    whole = layer(x, memory, memory_mask=mask)
    with torch.no_grad():
        first, state = layer(
            x[:, :4], memory, memory_mask=mask, return_state=True
        )
        second, state = layer(x[:, 4:7], state=state, return_state=True)
        rest = [layer.step(x[:, t], state) for t in range(7, LENGTH)]
    got = torch.cat([first, second, torch.stack(rest, 1)], 1)
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-5)


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


def test_nested_attention_is_its_formula():
    layer = luna.NestedAttention(WIDTH, HEADS, tied=False, pack_heads=2)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    context = torch.randn(BATCH, 9, WIDTH)
    memory = torch.randn(BATCH, SLOTS, WIDTH)
    mask = torch.arange(9) < torch.tensor([[9], [3], [6]])
    out, packed = layer(x, memory, context, key_mask=mask)

    def attend(q, k, v, heads, allowed):
        q, k, v = (
            y.unflatten(-1, (heads, WIDTH // heads)).transpose(1, 2)
            for y in (q, k, v)
        )
        scores = q @ k.mT / (WIDTH // heads) ** 0.5
        scores = scores.masked_fill(~allowed[:, None, None], -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    expected_packed = attend(
        layer.pq_proj(memory),
        layer.pk_proj(context),
        layer.pv_proj(context),
        2,
        mask,
    )
    torch.testing.assert_close(packed, expected_packed)
    # Dynamic projection: the second sample has three tokens, so three rows.
    rows = torch.arange(SLOTS) < mask.sum(1, keepdim=True)
    assert rows.sum(1).tolist() == [5, 3, 5]
    expected = attend(
        layer.q_proj(x),
        layer.k_proj(expected_packed),
        layer.v_proj(expected_packed),
        HEADS,
        rows,
    )
    torch.testing.assert_close(out, layer.out_proj(expected))


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


@every_module
def test_state_dict_pickle_and_deepcopy(name):
    module = MODULES[name]()
    x, mask = padded()
    expected = module(x, key_mask=mask)
    other = MODULES[name]()
    assert not torch.equal(other(x, key_mask=mask), expected)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for copied in (
        other,
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module),
    ):
        assert torch.equal(copied(x, key_mask=mask), expected)
    expected.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@every_module
def test_compiles_whole(name):
    module = MODULES[name]()
    x, mask = padded()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    outputs, gradients = [], []
    for run, given in zip((module, compiled), inputs, strict=True):
        module.zero_grad()
        outputs.append(run(given, key_mask=mask))
        outputs[-1].square().sum().backward()
        gradients.append([given.grad] + [p.grad for p in module.parameters()])
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


def test_compiles_with_inductor():
    module = MODULES["gated"]()
    x, mask = padded()
    compiled = torch.compile(module, fullgraph=True)
    expected = module(x, key_mask=mask, causal=True)
    got = compiled(x, key_mask=mask, causal=True)
    torch.testing.assert_close(got, expected)
    module.zero_grad()
    expected.sum().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    got.sum().backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], gradients)


def test_streams_compile():
    layer = MODULES["gated"]()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    prompt = torch.compile(layer, fullgraph=True, backend="aot_eager")
    step = torch.compile(layer.step, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected = layer(x, causal=True)
        _, state = prompt(x[:, :5], causal=True, return_state=True)
        for t in range(5, LENGTH):
            torch.testing.assert_close(
                step(x[:, t], state), expected[:, t], rtol=1e-4, atol=1e-5
            )


@every_module
def test_exports(name):
    module = MODULES[name]().eval()
    x, mask = padded()
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {"x": {1: length}, "key_mask": {1: length}}
    program = torch.export.export(
        module, (x,), {"key_mask": mask}, dynamic_shapes=shapes
    )
    longer = torch.randn(BATCH, 40, WIDTH)
    mask = torch.arange(40) < torch.tensor([[40], [13], [2]])
    torch.testing.assert_close(
        program.module()(longer, key_mask=mask),
        module(longer, key_mask=mask),
    )


@pytest.mark.parametrize("reentrant", [False, True])
@every_module
def test_activation_checkpointing(name, reentrant):
    module = MODULES[name]()
    layer = getattr(module, "layer", module)
    if hasattr(layer, "dropout"):
        layer.dropout = 0.3  # the same mask must come again
    x, mask = padded()
    gradients = []
    for run in (
        lambda x: module(x, key_mask=mask),
        lambda x: checkpoint(
            lambda y: module(y, key_mask=mask), x, use_reentrant=reentrant
        ),
    ):
        torch.manual_seed(7)
        module.zero_grad()
        given = x.clone().requires_grad_()
        run(given).square().sum().backward()
        gradients.append([given.grad] + [p.grad for p in module.parameters()])
    torch.testing.assert_close(*gradients)


@every_module
def test_autocast(name):
    module = MODULES[name]()
    x, mask = padded()
    expected = module(x, key_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, key_mask=mask)
    assert out.dtype == torch.bfloat16
    # rff's denominator is signed: only its size is kept.
    error = (out.float() - expected).square().mean().sqrt()
    limit = 0.5 if name in ("rff", "shared") else 0.05
    assert error < limit * (1 + expected.square().mean().sqrt())
    out.float().square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def test_functions_follow_autocast():
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    feature_map = luna.FeatureMap(8)
    with torch.autocast("cpu", torch.bfloat16):
        for out in (
            luna.universal_attention(q, k.bfloat16(), v, feature_map),
            luna.linear_attention(q.exp(), k.exp().bfloat16(), v),
            luna.pack_attention(q, k.bfloat16(), v),
            luna.unpack_attention(q, k.bfloat16(), v),
            luna.nested_causal_attention(q, k.bfloat16(), k, v, q[:1]),
        ):
            assert out.dtype == torch.bfloat16
            assert out.isfinite().all()


@every_module
def test_trains_in_float64_and_bfloat16(name):
    for dtype in (torch.float64, torch.bfloat16):
        module = MODULES[name]().to(dtype)
        x, mask = padded()
        out = module(x.to(dtype), key_mask=mask)
        assert out.dtype == dtype
        out.sum().backward()
        assert all(p.grad.isfinite().all() for p in module.parameters())


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


@pytest.mark.parametrize("columns", [0, 4])
def test_a_local_sum_is_added_before_the_last_projection(columns):
    x, mask = torch.randn(2, 12, WIDTH), torch.arange(12) < 9
    mask = torch.stack([mask, torch.ones_like(mask)])
    layer = luna.UniversalAttention(
        WIDTH, HEADS, local=3, local_columns=columns
    )
    plain = luna.UniversalAttention(WIDTH, HEADS)
    plain.load_state_dict(layer.state_dict(), strict=False)
    plain.out_proj = torch.nn.Identity()
    values = layer.v_proj(x) * mask[..., None]
    picture = values.transpose(1, 2).reshape(2, WIDTH, -1, columns or 12)
    near = torch.nn.functional.conv2d(
        picture,
        layer.local.weight.unsqueeze(1),
        padding=(layer.local.weight.shape[1] // 2, 1),
        groups=WIDTH,
    )
    near = near.flatten(2).transpose(1, 2)
    torch.testing.assert_close(
        layer(x, key_mask=mask)[mask],
        layer.out_proj(plain(x, key_mask=mask) + near)[mask],
    )


@pytest.mark.parametrize(
    "given", [{"causal": True}, {"context": True}, {"return_state": True}]
)
def test_a_local_sum_is_neither_causal_nor_of_a_context(given):
    x = torch.randn(1, 5, WIDTH)
    layer = luna.UniversalAttention(WIDTH, HEADS, local=3)
    if "context" in given:
        given = {"context": x}
    with pytest.raises(ValueError, match="local"):
        layer(x, **given)
    with pytest.raises(ValueError, match="odd"):
        luna.UniversalAttention(WIDTH, HEADS, local=2)
