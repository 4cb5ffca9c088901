"""The feature map: how it starts, its options, and attention by it."""

import luna
import pytest
import torch
from modules import BATCH, HEADS, LENGTH, WIDTH, padded


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


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_psi_started_as_ramps_rises_behind_thresholds(shared, spread):
    ramps = luna.FeatureMap(
        1, M=1, start="ramps", spread=spread, shared_channels=shared
    )
    u = torch.linspace(-8, 8, 101)
    with torch.no_grad():
        ramps.projection.fill_(1)
        psi = ramps(u.view(1, 1, -1, 1))[0, 0]
    thresholds = torch.tensor([0, 0, 0.5, 0.5, 1, 1, 1.5, 1.5]) * spread
    ways = torch.tensor([1.0, -1.0]).repeat(4)
    want = torch.relu(u.unsqueeze(1) * ways - thresholds) / spread
    torch.testing.assert_close(psi, want, atol=1e-5, rtol=1e-5)
    assert luna.FeatureMap(64, start="ramps").dead_features() == 0


def test_ramps_refuse_what_has_none():
    with pytest.raises(ValueError, match="hidden >= L.*got 7 and 8"):
        luna.FeatureMap(4, hidden=7, shared_channels=True, start="ramps")
    with pytest.raises(ValueError, match="spread > 0"):
        luna.FeatureMap(4, spread=0.0, start="ramps")


def test_spread_widens_the_projections():
    wide = luna.FeatureMap(64, M=256, spread=3.0)
    assert wide.projection.std().item() == pytest.approx(3 / 8, rel=0.03)


def test_lift_starts_every_channel_alive():
    torch.manual_seed(7)
    assert luna.FeatureMap(64, L=64).dead_features() > 0.02
    lifted = luna.FeatureMap(64, L=64, lift=1.0)
    assert lifted.dead_features() == 0
    assert (lifted.output_bias - 1).abs().max() <= 0.125


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
