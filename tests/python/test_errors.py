"""Bad input: each a ValueError or TypeError that names what was expected."""

import cases
import luna
import pytest
import torch

ops = torch.ops.luna
FOUR = (
    "universal_attention",
    "linear_attention",
    "pack_attention",
    "unpack_attention",
)
every_op = pytest.mark.parametrize("op", [*FOUR, "nested_causal_attention"])
WEIGHTED = pytest.mark.parametrize("op", FOUR)


def good(op):
    """A case that runs: each test breaks one thing of it."""
    group = op.removesuffix("_attention")
    case = cases.differentiable(torch.float32)[f"{group}-plain"]
    assert case.op == op
    case.call()
    return case


def refused(case, error, *words):
    with pytest.raises(error) as caught:
        case.call()
    message = str(caught.value)
    assert message.startswith(f"{case.op}: expected"), message
    for word in words:
        assert word in message, message


@every_op
def test_wrong_rank(op):
    case = good(op)
    case.args[0] = case.args[0][0]
    refused(
        case,
        ValueError,
        "query",
        "[2, 7, 4]" if op != "pack_attention" else "[2, 4, 4]",
    )


@every_op
def test_wrong_width(op):
    case = good(op)
    at = 1 if op != "nested_causal_attention" else 2
    case.args[at] = torch.randn(*case.args[at].shape[:-1], 9)
    refused(case, ValueError, "key", "9")


@every_op
def test_fewer_key_heads_says_to_expand_them(op):
    case = good(op)
    at = (1, 2) if op != "nested_causal_attention" else (2, 3)
    for i in at:
        case.args[i] = case.args[i][:, :1]
    refused(case, ValueError, "key", "expand", "heads")


@every_op
def test_wrong_dtype(op):
    case = good(op)
    case.args[0] = case.args[0].int()
    refused(case, TypeError, "query", "Int")
    case = good(op)
    at = 1 if op != "nested_causal_attention" else 3
    case.args[at] = case.args[at].double()
    refused(case, TypeError, "Double")


@every_op
def test_wrong_device(op):
    case = good(op)
    case.args[1] = case.args[1].to("meta")
    with pytest.raises((ValueError, RuntimeError), match="meta|Meta"):
        case.call()


@every_op
def test_last_stride(op):
    case = good(op)
    case.args[0] = case.args[0].mT.contiguous().mT
    refused(case, ValueError, "query", "contiguous")


@every_op
def test_key_and_value_lengths(op):
    case = good(op)
    at = 2 if op != "nested_causal_attention" else 3
    case.args[at] = case.args[at][:, :, :-1]
    refused(case, ValueError, "value")


@every_op
def test_batches(op):
    case = good(op)
    at = (1, 2) if op != "nested_causal_attention" else (2, 3)
    for i in at:
        case.args[i] = case.args[i][:1].repeat(3, 1, 1, 1)
    refused(case, ValueError, "3")


@WEIGHTED
def test_key_weight(op):
    length = good(op).args[1].shape[2]
    for weight, error, word in (
        (torch.ones(2, length + 1), ValueError, str(length + 1)),
        (torch.ones(2, 5, length), ValueError, "5"),
        (torch.ones(length), ValueError, "key_weight"),
        (torch.ones(2, length, dtype=torch.int64), TypeError, "Long"),
        (-torch.ones(2, length), ValueError, "-1"),
        (torch.full((2, length), torch.nan), ValueError, "nan"),
        (torch.full((2, length), torch.inf), ValueError, "inf"),
    ):
        case = good(op)
        case.kwargs["key_weight"] = weight
        refused(case, error, "key_weight", word)


@every_op
def test_cu_seqlens(op):
    group = op.removesuffix("_attention")
    total = cases.N
    for starts, error in (
        ([0, 3, 2, total], ValueError),
        ([1, 3, 3, total], ValueError),
        ([0, 3, 3, total - 1], ValueError),
        ([0, 3, 3, total + 5], ValueError),
        ([-4, 3, 3, total], ValueError),
        ([0.0, 3.0, 3.0, float(total)], TypeError),
        ([[0, 3, 3, total]], ValueError),
    ):
        case = (
            cases.differentiable(torch.float32)[f"{group}-packed"]
            if (op != "linear_attention")
            else cases.differentiable(torch.float32)["linear-packed_causal"]
        )
        for name in case.kwargs:
            if name.startswith("cu_seqlens"):
                case.kwargs[name] = torch.tensor(starts)
        refused(case, error, "cu_seqlens")
    case = good(op)
    name = dict(
        pack_attention="cu_seqlens_k",
        unpack_attention="cu_seqlens_q",
        nested_causal_attention="cu_seqlens",
    ).get(op, "cu_seqlens_q")
    case.kwargs[name] = torch.tensor([0, 3, cases.N])
    refused(case, ValueError, "cu_seqlens")


@pytest.mark.parametrize("op", ["universal_attention", "linear_attention"])
def test_causal_needs_equal_sequences(op):
    group = op.removesuffix("_attention")
    case = cases.differentiable(torch.float32)[f"{group}-packed_causal"]
    case.kwargs["cu_seqlens_k"] = torch.tensor([0, 3, 3, cases.N]).to(
        case.kwargs["cu_seqlens_q"]
    )
    refused(case, ValueError, "causal")
    case = good(op)
    case.kwargs["causal"] = True
    case.args[0] = case.args[0][:, :, :-1]
    refused(case, ValueError, "causal")


@pytest.mark.parametrize("op", ["universal_attention", "linear_attention"])
def test_states(op):
    group = op.removesuffix("_attention")
    name = f"{group}-causal_weight_state"
    state = cases.differentiable(torch.float32)[name].kwargs["state"]
    for bad, error in (
        (state[:1], ValueError),
        (state[..., 1:], ValueError),
        (state.double(), TypeError),
    ):
        case = cases.differentiable(torch.float32)[name]
        case.kwargs["state"] = bad
        refused(case, error, "state")
    case = good(op)
    case.kwargs["eps"] = 0.0
    refused(case, ValueError, "eps", "0")


@pytest.mark.parametrize(
    "op", ["pack_attention", "unpack_attention", "nested_causal_attention"]
)
def test_dropout(op):
    seed = torch.tensor([1, 2])
    for options, error, word in (
        (dict(dropout_p=0.5), ValueError, "seed"),
        (dict(dropout_p=1.0, seed=seed), ValueError, "dropout_p"),
        (dict(dropout_p=-0.1, seed=seed), ValueError, "dropout_p"),
        (dict(dropout_p=0.5, seed=seed.int()), TypeError, "seed"),
        (dict(dropout_p=0.5, seed=seed[:1]), ValueError, "seed"),
    ):
        case = good(op)
        case.kwargs.update(options)
        refused(case, error, word)


def test_feature_parameters():
    for at, shape, word in (
        (3, (cases.M, 9), "projection"),
        (3, (3, cases.M, cases.D), "projection"),
        (4, (cases.M + 1,), "projection_bias"),
        (5, (cases.L, cases.HIDDEN + 1), "hidden_weight"),
        (6, (cases.L + 1, cases.HIDDEN), "hidden_bias"),
        (7, (cases.L + 1, cases.HIDDEN), "output_bias"),
        (8, (cases.L + 1,), "output_bias"),
    ):
        case = good("universal_attention")
        case.args[at] = torch.randn(shape)
        refused(case, ValueError, word)
    case = good("universal_attention")
    case.args[3] = case.args[3].half()
    refused(case, TypeError, "projection", "Half")


def test_nested_causal_options():
    for options, error, word in (
        (dict(activation="relu"), ValueError, "relu"),
        (dict(packed_mask=torch.ones(2, 3) > 0), ValueError, "packed_mask"),
        (dict(packed_mask=torch.ones(2, 4)), TypeError, "packed_mask"),
        (dict(count=torch.tensor([1, 2])), ValueError, "state"),
    ):
        case = good("nested_causal_attention")
        case.kwargs.update(options)
        refused(case, error, word)


def test_steps():
    for name, at, bad, error in (
        ("universal_step", 0, torch.randn(2, 2, 9), ValueError),
        ("universal_step", 3, torch.zeros(1, 2, 6, 4), ValueError),
        ("linear_step", 3, torch.zeros(2, 2, 4, 3), ValueError),
        ("linear_step", 2, torch.randn(2, 2, 1, 3), ValueError),
        ("linear_step", 1, torch.randn(2, 2, 4).double(), TypeError),
        ("nested_causal_step", 5, torch.zeros(2, 2, 3, 4), ValueError),
        (
            "nested_causal_step",
            7,
            torch.zeros(3, dtype=torch.int64),
            ValueError,
        ),
        ("nested_causal_step", 7, torch.zeros(2), TypeError),
    ):
        case = cases.steps(torch.float32)[name]
        case.args[at] = bad
        refused(case, error)


# --- Functions and modules --------------------------------------------------

X = torch.randn(2, 6, 32)
MEMORY = torch.randn(4, 32)
Q = torch.randn(2, 4, 6, 8)


def universal(**options):
    return luna.UniversalAttention(32, 4, **options)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: luna.universal_attention(Q, Q, Q, None),
            TypeError,
            "feature_map to be a luna.FeatureMap, got NoneType",
        ),
        (
            lambda: luna.universal_attention(Q, Q, [1], luna.FeatureMap(8)),
            TypeError,
            "value to be a Tensor, got list",
        ),
        (
            lambda: luna.universal_attention(
                Q,
                Q,
                Q,
                luna.FeatureMap(8, gated=True),
                key_mask=torch.ones(2, 5),
            ),
            ValueError,
            r"key_mask of shape \[2, 6\] or \[2, 4, 6\], got \[2, 5\]",
        ),
        (
            lambda: luna.universal_attention(Q, Q, Q, luna.FeatureMap(9)),
            ValueError,
            "9",
        ),
        (lambda: luna.FeatureMap(8, M=0), ValueError, "M >= 1, got 0"),
        (
            lambda: luna.FeatureMap(8, ch_rms=True).attend(
                Q, Q, Q, causal=True
            ),
            ValueError,
            "ch_rms",
        ),
        (lambda: luna.UniversalAttention(32, 5), ValueError, "32 and 5 heads"),
        (lambda: universal(m=3), ValueError, "got m; it reads M, L"),
        (
            lambda: luna.MultiHeadAttention(32, 4, "univresal"),
            ValueError,
            r"nearest: universal\), got 'univresal'",
        ),
        (
            lambda: luna.MultiHeadAttention(32, 4, "nested"),
            ValueError,
            "'nested', which is a whole layer",
        ),
        (
            lambda: luna.MultiHeadAttention(32, 4, "linear", M=3),
            ValueError,
            "an option that linear reads, got M; it reads none",
        ),
        (
            lambda: luna.MultiHeadAttention(32, 4, "rff", features=7),
            ValueError,
            "even number >= 2, got 7",
        ),
        (lambda: universal()(X[0]), ValueError, r"32\], got \[6, 32\]"),
        (lambda: universal()(X[..., :8]), ValueError, r"got \[2, 6, 8\]"),
        (lambda: universal()(X.tolist()), TypeError, "x to be a Tensor"),
        (
            lambda: universal()(X, key_mask=torch.ones(2, 5) > 0),
            ValueError,
            r"key_mask of shape \[2, 6\], got \[2, 5\]",
        ),
        (
            lambda: universal()(X, key_mask=torch.ones(2, 6).long()),
            TypeError,
            "bool",
        ),
        (lambda: universal()(X, X[:1]), ValueError, "batch 2"),
        (lambda: universal()(X, X, causal=True), ValueError, "no context"),
        (
            lambda: universal(ch_rms=True)(X, causal=True),
            ValueError,
            "ch_rms",
        ),
        (
            lambda: luna.MultiHeadAttention(32, 4, "softmax")(
                X, causal=True, return_state=True
            ),
            ValueError,
            "got softmax",
        ),
        (
            lambda: universal().step(X, luna.StreamState((Q,))),
            ValueError,
            r"\[batch, 32\], got \[2, 6, 32\]",
        ),
        (lambda: universal().step(X[:, 0], Q), TypeError, "StreamState"),
        (
            lambda: luna.NestedAttention(32, 4)(X, MEMORY[:, :8]),
            ValueError,
            r"memory of shape .* got \[4, 8\]",
        ),
        (
            lambda: luna.NestedAttention(32, 4)(
                X, MEMORY, memory_mask=torch.ones(2, 3) > 0
            ),
            ValueError,
            "memory_mask",
        ),
        (
            lambda: luna.NestedAttention(32, 4, pack_heads=3),
            ValueError,
            "3 heads",
        ),
        (
            lambda: luna.NestedAttention(32, 4, dropout=1.0),
            ValueError,
            "dropout",
        ),
        (
            lambda: luna.NestedCausalAttention(32, 4, activation="relu"),
            ValueError,
            "softplus, elu.* got 'relu'",
        ),
        (
            lambda: luna.NestedCausalAttention(32, 4)(X),
            ValueError,
            "either a memory or a state, got neither",
        ),
        (
            lambda: luna.NestedCausalAttention(32, 4)(
                X, MEMORY, key_mask=torch.arange(6) >= torch.tensor([[0], [2]])
            ),
            ValueError,
            "right only .* row 1",
        ),
        (
            lambda: luna.NestedCausalAttention(32, 4)(
                X, MEMORY, key_mask=torch.ones(2, 6)
            ),
            TypeError,
            "bool",
        ),
    ],
)
def test_functions_and_modules(call, error, words):
    with pytest.raises(error, match=words):
        call()
