"""The ops torch.ops.luna.*: values, gradients, and what torch asks of an op."""

import cases
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

DIFFERENTIABLE = list(cases.differentiable(torch.float64))
STEPS = list(cases.steps(torch.float64))
every_case = pytest.mark.parametrize("name", DIFFERENTIABLE)
# For what takes long and depends on an op more than on its options.
a_case_of_each = pytest.mark.parametrize(
    "name",
    [
        "universal-causal_weight_state",
        "universal-packed_causal",
        "linear-cross_mask",
        "linear-packed_causal",
        "pack-weight",
        "pack-packed",
        "unpack-packed",
        "nested_causal-state",
        "nested_causal-packed",
        "feature_map-plain",
    ],
)
every_step = pytest.mark.parametrize("name", STEPS)


def objective(outputs):
    """A scalar in which every element of every output has its own weight."""
    return sum(
        (x.flatten() * torch.arange(1, x.numel() + 1).to(x).cos()).sum()
        for x in outputs
        if x.is_floating_point()
    )


def gradients(outputs, leaves):
    return torch.autograd.grad(
        objective(outputs), leaves, allow_unused=True, materialize_grads=True
    )


def test_every_op_has_a_case():
    names = torch._C._dispatch_get_all_op_names()
    ops = {name.split("::")[1] for name in names if name.startswith("luna::")}
    with_case = {
        case.op for case in cases.differentiable(torch.float32).values()
    }
    with_case |= {case.op for case in cases.steps(torch.float32).values()}
    with_case |= {"universal_table", "attentions"}
    assert with_case <= ops
    # What is left are parts of these: test_inner_ops_pass_opcheck.
    assert all(
        name.startswith("_") or "backward" in name for name in ops - with_case
    )


@every_case
def test_matches_the_formula(name):
    case, leaves = cases.differentiable(torch.float64)[name].with_grad()
    if case.kwargs.get("dropout_p"):
        case.kwargs["dropout_p"] = 0.0
    got = case.call()
    case.kwargs = {
        key: x
        for key, x in case.kwargs.items()
        if key not in ("dropout_p", "seed")
    }
    expected = cases.by_formula(case)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        gradients(got, leaves),
        gradients(expected, leaves),
        rtol=1e-8,
        atol=1e-10,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_case
def test_low_precision_stays_near(name, dtype):
    case = cases.differentiable(torch.float64)[name]

    def lower(x):
        if not (torch.is_tensor(x) and x.is_floating_point()):
            return x
        return x.to(dtype)

    args = [lower(x) for x in case.args]
    kwargs = {key: lower(x) for key, x in case.kwargs.items()}
    for key in ("state", "key_state", "value_state", "table"):
        if key in kwargs:
            kwargs[key] = kwargs[key].float()
    if "table" in kwargs:
        kwargs["table"] = torch.ops.luna.universal_table(*args[5:])
    low = cases.Case(case.op, args, kwargs)
    # The reference starts from the rounded inputs: only the op's error counts.
    exact = cases.Case(
        case.op,
        [x.double() for x in args],
        {
            key: x.double()
            if torch.is_tensor(x) and x.is_floating_point()
            else x
            for key, x in kwargs.items()
            if key != "table"
        },
    )
    got, expected = low.call()[0], exact.call()[0]
    assert got.dtype == dtype
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        got.double(), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    "name",
    [
        "universal-plain",
        "universal-shared_signed",
        "universal-per_head_mask",
        "universal-causal_weight_state",
        "universal-no_keys_state",
        "universal-table",
        "universal-packed_causal",
        "linear-cross_mask",
        "linear-sums",
        "linear-causal_weight_state",
        "linear-packed_state",
        "pack-shared_query",
        "pack-weight_per_head",
        "pack-dropout",
        "pack-packed",
        "unpack-mask",
        "unpack-weight_per_head",
        "unpack-dropout",
        "unpack-packed",
        "nested_causal-elu_mask",
        "nested_causal-state",
        "nested_causal-dropout",
        "nested_causal-packed_state",
        "feature_map-per_head_signed",
    ],
)
def test_passes_opcheck(name):
    case, _ = cases.differentiable(torch.float32)[name].with_grad()
    op = getattr(torch.ops.luna, case.op).default
    torch.library.opcheck(op, tuple(case.args), case.kwargs)


@every_step
def test_step_passes_opcheck(name):
    case = cases.steps(torch.float32)[name]
    op = getattr(torch.ops.luna, case.op).default
    torch.library.opcheck(op, tuple(case.args), case.kwargs)


def test_table_passes_opcheck():
    psi = cases.feature_parameters(torch.float32)[2:]
    torch.library.opcheck(torch.ops.luna.universal_table.default, tuple(psi))


class RecordOps(TorchDispatchMode):
    """Keeps the calls of luna's ops, those inside others too."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "luna":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def opcheck_inner(case, leaves):
    """Checks what the op calls on the way there and back; its names."""
    with RecordOps() as record:
        torch.autograd.grad(objective(case.call()), leaves, allow_unused=True)
    for func, args, kwargs in record.calls:
        # They work below autograd.
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, torch.Tensor.detach, (args, kwargs)
        )
        torch.library.opcheck(func, args, kwargs)
    return [func.name() for func, _, _ in record.calls]


@a_case_of_each
def test_inner_ops_pass_opcheck(name):
    """Backward is an op of its own, and so may be a part of forward."""
    names = opcheck_inner(
        *cases.differentiable(torch.float32)[name].with_grad()
    )
    assert any("backward" in name for name in names)


def local_sum(form, dtype):
    """Two lines, two pictures of 2 x 3, or three packed lines, one empty."""
    batch, rows, columns, starts = dict(
        line=(2, 1, 0, None),
        square=(2, 3, 3, None),
        packed=(1, 1, 0, torch.tensor([0, 2, 2, 6])),
    )[form]
    x = torch.randn(batch, 6, 5, dtype=dtype)
    weight = torch.randn(5, rows, 3, dtype=dtype)
    case = cases.Case("_local_sum", [x, weight, columns, starts])
    return case.with_grad()


every_local_sum = pytest.mark.parametrize("form", ["line", "square", "packed"])


@every_local_sum
def test_local_sum_passes_opcheck(form):
    case, leaves = local_sum(form, torch.float32)
    torch.library.opcheck(torch.ops.luna._local_sum.default, tuple(case.args))
    opcheck_inner(case, leaves)


@every_local_sum
def test_local_sum_matches_finite_differences(form):
    case, leaves = local_sum(form, torch.float64)

    def run(x, weight):
        return torch.ops.luna._local_sum(x, weight, *case.args[2:])

    assert torch.autograd.gradcheck(run, leaves)


@every_case
def test_gradients_match_finite_differences(name):
    case, leaves = cases.differentiable(torch.float64)[name].with_grad()
    places = case.floats()
    case.kwargs.pop("table", None)  # it would not follow the parameters

    def run(*tensors):
        args, kwargs = list(case.args), dict(case.kwargs)
        for where, x in zip(places, tensors, strict=True):
            (args if isinstance(where, int) else kwargs)[where] = x
        outputs = case.call(args, kwargs)
        return tuple(x for x in outputs if x.is_floating_point())

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@a_case_of_each
def test_compiles_whole_forward_and_backward(name):
    case, leaves = cases.differentiable(torch.float32)[name].with_grad()

    def run(args, kwargs):
        return case.call(args, kwargs)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    expected = case.call()
    got = compiled(case.args, case.kwargs)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        gradients(got, leaves), gradients(expected, leaves)
    )


def test_compiled_once_serves_all_lengths():
    parameters = cases.feature_parameters(torch.float32)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(q, k, v):
        return torch.ops.luna.universal_attention(
            q, k, v, *parameters, causal=True
        )[0]

    with torch._dynamo.config.patch(error_on_recompile=True):
        # Lengths unlike any other size: torch takes equal sizes for one.
        for length in (11, 17, 130):
            q, k, v = (
                torch.randn(2, 2, length, cases.D, requires_grad=True)
                for _ in range(3)
            )
            out = run(q, k, v)
            expected = torch.ops.luna.universal_attention(
                q, k, v, *parameters, causal=True
            )[0]
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(
                gradients([out], [q, k, v]), gradients([expected], [q, k, v])
            )


@every_step
def test_step_equals_one_more_token(name):
    case = cases.steps(torch.float64)[name]
    whole = cases.Case(case.op.removesuffix("_step"), list(case.args))
    kwargs = dict(case.kwargs)
    if "key_weight" in kwargs:
        kwargs["key_weight"] = kwargs["key_weight"][..., None]
    if name == "nested_causal_step":
        kwargs["key_state"], kwargs["value_state"], kwargs["count"] = (
            x.clone() for x in case.args[5:8]
        )
        whole.args = [x[:, :, None] for x in case.args[:4]] + [case.args[4]]
        states = case.args[5:8]
    else:
        kwargs["state"] = case.args[3].clone()
        kwargs["causal"] = True
        whole.args = [x[:, :, None] for x in case.args[:3]] + case.args[4:]
        states = case.args[3:4]
    expected, *ends = whole.call(kwargs=kwargs)
    versions = [x._version for x in states]
    (got,) = case.call()
    torch.testing.assert_close(got, expected[:, :, 0])
    torch.testing.assert_close(tuple(states), tuple(ends))
    # Autograd must learn that the states were written.
    assert all(
        x._version > version
        for x, version in zip(states, versions, strict=True)
    )
    assert got.untyped_storage().data_ptr() not in {
        x.untyped_storage().data_ptr() for x in case.args
    }


@every_step
def test_step_refuses_gradients(name):
    case, _ = cases.steps(torch.float32)[name].with_grad()
    with pytest.raises(RuntimeError, match="no_grad"):
        case.call()
    with torch.no_grad():
        case.call()


@a_case_of_each
def test_no_double_backward(name):
    case, leaves = cases.differentiable(torch.float32)[name].with_grad()
    with pytest.raises(RuntimeError, match="double backward"):
        first = torch.autograd.grad(
            objective(case.call()), leaves, create_graph=True, allow_unused=True
        )
        sum(g.square().sum() for g in first if g is not None).backward()


def test_dropout_is_a_function_of_its_seed():
    for name in ("pack-dropout", "unpack-dropout", "nested_causal-dropout"):
        case = cases.differentiable(torch.float32)[name]
        once, again = case.call()[0], case.call()[0]
        assert torch.equal(once, again)
        case.kwargs["seed"] = torch.tensor([12, 29])
        assert not torch.equal(once, case.call()[0])


def test_table_is_a_cache_only():
    case, leaves = cases.differentiable(torch.float64)[
        "universal-table"
    ].with_grad()
    got = case.call()
    del case.kwargs["table"]
    expected = case.call()
    assert torch.equal(got[0], expected[0])
    torch.testing.assert_close(
        gradients(got, leaves), gradients(expected, leaves), rtol=0, atol=0
    )


def test_parameters_stay_float32_under_bfloat16_inputs():
    case = cases.differentiable(torch.float32)["universal-causal"]
    case.args[:3] = [x.bfloat16() for x in case.args[:3]]
    case, leaves = case.with_grad()
    out, state = case.call()
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    for leaf, gradient in zip(leaves, gradients([out], leaves), strict=True):
        assert gradient.dtype == leaf.dtype
        assert gradient.isfinite().all() and gradient.any()
