"""Modules as a part of torch: saved, compiled, exported, under autocast."""

import copy
import io
import pickle

import luna
import pytest
import torch
from modules import BATCH, LENGTH, MODULES, WIDTH, every_module, padded
from torch.utils.checkpoint import checkpoint


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
