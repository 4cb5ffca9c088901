"""Calls of every op, small and random: name -> arguments.

The tests of ops take each case in the dtype they need.
"""

from dataclasses import dataclass, field

import reference
import torch

B, H, N, D, DV, M, L, HIDDEN, PACKED = 2, 2, 7, 4, 3, 3, 2, 5, 4


@dataclass
class Case:
    op: str
    args: list
    kwargs: dict = field(default_factory=dict)

    def call(self, args=None, kwargs=None):
        """The op's outputs, always a tuple."""
        op = getattr(torch.ops.luna, self.op)
        args = self.args if args is None else args
        out = op(*args, **(self.kwargs if kwargs is None else kwargs))
        return out if isinstance(out, (tuple, list)) else (out,)

    def floats(self):
        """Where the differentiable inputs are: positions and names."""
        inputs = [*enumerate(self.args), *self.kwargs.items()]
        return [
            where
            for where, x in inputs
            if torch.is_tensor(x) and x.is_floating_point() and where != "table"
        ]

    def with_grad(self):
        """A copy whose differentiable inputs are leaves that require grad."""
        args, kwargs = list(self.args), dict(self.kwargs)
        leaves = []
        for where in self.floats():
            place = args if isinstance(where, int) else kwargs
            place[where] = place[where].detach().clone().requires_grad_()
            leaves.append(place[where])
        return Case(self.op, args, kwargs), leaves


def rows(length, width, dtype, batch=B):
    """[batch,H,length,width] as a layer makes it: a view with strides."""
    return torch.randn(batch, length, H, width, dtype=dtype).transpose(1, 2)


def feature_parameters(dtype, *, per_head=False, shared=False):
    heads = (H,) if per_head else ()
    trunks = 1 if shared else L
    return [
        torch.randn(*heads, M, D, dtype=dtype) / 2,
        torch.randn(*heads, M, dtype=dtype) / 2,
        torch.randn(trunks, HIDDEN, dtype=dtype),
        torch.randn(trunks, HIDDEN, dtype=dtype),
        torch.randn(L, HIDDEN, dtype=dtype),
        torch.rand(L, dtype=dtype) + 0.5,
    ]


def _mask(batch=B, length=N):
    mask = torch.rand(batch, length) < 0.7
    mask[:, 0] = True
    return mask


def _seed():
    return torch.tensor([11, 29])


def _starts(dtype=torch.int64):
    """Three sequences of N tokens in all, one of them empty."""
    return torch.tensor([0, 2, 2, N], dtype=dtype)


def _universal(dtype):
    def case(*, n=N, m=N, batch=B, per_head=False, shared=False, **kwargs):
        tensors = [
            rows(n, D, dtype, batch),
            rows(m, D, dtype, batch),
            rows(m, DV, dtype, batch),
            *feature_parameters(dtype, per_head=per_head, shared=shared),
        ]
        return Case("universal_attention", tensors, kwargs)

    def state(batch=B):
        return torch.rand(batch, H, M * L, DV + 1, dtype=dtype)

    yield "plain", case()
    yield "cross", case(m=5)
    yield "shared_signed", case(shared=True, nonneg=False)
    yield "per_head_mask", case(per_head=True, key_weight=_mask())
    yield (
        "weight_per_head",
        case(key_weight=torch.rand(B, H, N, dtype=dtype)),
    )
    yield "causal", case(causal=True)
    yield (
        "causal_weight_state",
        case(
            causal=True, key_weight=torch.rand(B, N, dtype=dtype), state=state()
        ),
    )
    yield "no_keys_state", case(m=0, state=state())
    with_table = case()
    with_table.kwargs["table"] = torch.ops.luna.universal_table(
        *with_table.args[5:]
    )
    yield "table", with_table
    packed = dict(cu_seqlens_q=_starts(), cu_seqlens_k=_starts(), batch=1)
    yield "packed", case(**packed)
    yield (
        "packed_causal",
        case(
            causal=True,
            key_weight=torch.rand(1, N, dtype=dtype),
            state=state(3),
            **packed,
        ),
    )


def _linear(dtype):
    def case(*, m=N, batch=B, **kwargs):
        query = rows(N, D, dtype, batch).sigmoid()
        key = rows(m, D, dtype, batch).sigmoid()
        value = rows(m, DV, dtype, batch)
        return Case("linear_attention", [query, key, value], kwargs)

    def state(batch=B):
        return torch.rand(batch, H, D, DV + 1, dtype=dtype)

    yield "plain", case()
    yield "cross_mask", case(m=5, key_weight=_mask(length=5))
    yield "sums", case(normalize=False, key_weight=_mask())
    yield "causal", case(causal=True)
    yield (
        "causal_weight_state",
        case(
            causal=True,
            key_weight=torch.rand(B, H, N, dtype=dtype),
            state=state(),
        ),
    )
    yield "causal_sums", case(causal=True, normalize=False, state=state())
    starts = _starts(torch.int32)
    packed = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, batch=1)
    yield "packed_state", case(state=state(3), **packed)
    yield "packed_causal", case(causal=True, **packed)


def _pack(dtype):
    def case(*, batch=B, queries=None, **kwargs):
        query = rows(PACKED, D, dtype, batch if queries is None else queries)
        key, value = rows(N, D, dtype, batch), rows(N, DV, dtype, batch)
        return Case("pack_attention", [query, key, value], kwargs)

    yield "plain", case()
    yield "shared_query", case(queries=1, key_weight=_mask())
    yield "weight", case(key_weight=torch.rand(B, N, dtype=dtype))
    yield (
        "weight_per_head",
        case(key_weight=torch.rand(B, H, N, dtype=dtype), scale=0.7),
    )
    yield "dropout", case(dropout_p=0.4, seed=_seed())
    yield "packed", case(batch=1, queries=3, cu_seqlens_k=_starts())


def _unpack(dtype):
    def case(*, batch=B, keys=B, **kwargs):
        query = rows(N, D, dtype, batch)
        key, value = rows(PACKED, D, dtype, keys), rows(PACKED, DV, dtype, keys)
        return Case("unpack_attention", [query, key, value], kwargs)

    yield "plain", case()
    yield "mask", case(key_weight=_mask(length=PACKED))
    yield (
        "weight_per_head",
        case(key_weight=torch.rand(B, H, PACKED, dtype=dtype), scale=0.7),
    )
    yield "dropout", case(dropout_p=0.4, seed=_seed())
    yield "packed", case(batch=1, keys=3, cu_seqlens_q=_starts())


def _nested_causal(dtype):
    def case(*, batch=B, memories=1, **kwargs):
        widths = [D, D, D, DV]
        tensors = [rows(N, width, dtype, batch) for width in widths]
        tensors.append(rows(PACKED, D, dtype, memories))
        return Case("nested_causal_attention", tensors, kwargs)

    def state(batch=B):
        return dict(
            key_state=torch.randn(batch, H, D, PACKED, dtype=dtype),
            value_state=torch.randn(batch, H, PACKED, DV, dtype=dtype),
            count=torch.arange(3, 3 + batch),
        )

    yield "plain", case()
    yield "elu_mask", case(activation="elu", packed_mask=_mask(length=PACKED))
    yield "state", case(memories=B, scale=0.7, **state())
    yield "dropout", case(dropout_p=0.4, seed=_seed())
    yield "packed", case(batch=1, memories=3, cu_seqlens=_starts())
    yield "packed_state", case(batch=1, cu_seqlens=_starts(), **state(3))


def _feature_map(dtype):
    yield (
        "plain",
        Case("feature_map", [rows(N, D, dtype), *feature_parameters(dtype)]),
    )
    parameters = feature_parameters(dtype, per_head=True, shared=True)
    yield (
        "per_head_signed",
        Case(
            "feature_map", [rows(N, D, dtype), *parameters], {"nonneg": False}
        ),
    )


def differentiable(dtype):
    """Every op with a gradient, in each of its forms."""
    groups = dict(
        universal=_universal,
        linear=_linear,
        pack=_pack,
        unpack=_unpack,
        nested_causal=_nested_causal,
        feature_map=_feature_map,
    )
    return {
        f"{group}-{name}": case
        for group, make in groups.items()
        for name, case in make(dtype)
    }


def steps(dtype):
    """The ops that advance a state in place."""

    def token(width):
        return torch.randn(B, H, width, dtype=dtype)

    parameters = feature_parameters(dtype)
    return {
        "universal_step": Case(
            "universal_attention_step",
            [
                token(D),
                token(D),
                token(DV),
                torch.rand(B, H, M * L, DV + 1, dtype=dtype),
                *parameters,
            ],
            {"key_weight": torch.rand(B, dtype=dtype)},
        ),
        "linear_step": Case(
            "linear_attention_step",
            [
                token(D).sigmoid(),
                token(D).sigmoid(),
                token(DV),
                torch.rand(B, H, D, DV + 1, dtype=dtype),
            ],
            {"key_weight": torch.rand(B, H) < 0.5},
        ),
        "nested_causal_step": Case(
            "nested_causal_attention_step",
            [
                token(D),
                token(D),
                token(D),
                token(DV),
                rows(PACKED, D, dtype, 1),
                torch.randn(B, H, D, PACKED, dtype=dtype),
                torch.randn(B, H, PACKED, DV, dtype=dtype),
                torch.tensor([0, 5]),
            ],
            {"activation": "elu"},
        ),
    }


_REFERENCES = dict(
    feature_map=reference.feature_map,
    universal_attention=reference.universal_attention,
    linear_attention=reference.linear_attention,
    pack_attention=reference.softmax_attention,
    unpack_attention=reference.softmax_attention,
    nested_causal_attention=reference.nested_causal_attention,
)


def by_formula(case):
    """What the case must give; packed sequences are done one by one."""
    run = _REFERENCES[case.op]
    kwargs = dict(case.kwargs)
    starts = [
        kwargs.pop(name).tolist()
        for name in list(kwargs)
        if name.startswith("cu_seqlens")
    ]
    if not starts:
        out = run(*case.args, **kwargs)
        return out if isinstance(out, tuple) else (out,)
    pieces = [
        _one_sequence(run, case.op, case.args, kwargs, i, starts[0])
        for i in range(len(starts[0]) - 1)
    ]
    # The first output of all but pack lies along the packed tokens.
    along = 0 if case.op == "pack_attention" else 2
    first, *others = zip(*pieces, strict=True)
    return (torch.cat(first, along), *(torch.cat(x) for x in others))


def _one_sequence(run, op, args, kwargs, i, starts):
    tokens = slice(starts[i], starts[i + 1])
    # Which arguments lie along the packed tokens; the others have a row for
    # each sequence, or one for all.
    along = dict(
        universal_attention=[0, 1, 2],
        linear_attention=[0, 1, 2],
        pack_attention=[1, 2],
        unpack_attention=[0],
        nested_causal_attention=[0, 1, 2, 3],
    )[op]
    parameters = range(3, 9) if op == "universal_attention" else ()
    cut = []
    for j, x in enumerate(args):
        if j in along:
            x = x[:, :, tokens]
        elif j not in parameters and x.shape[0] > 1:
            x = x[i : i + 1]
        cut.append(x)
    options = {}
    for name, x in kwargs.items():
        if name == "key_weight" and op != "unpack_attention":
            x = x[..., tokens]
        elif torch.is_tensor(x):
            x = x[i : i + 1]
        options[name] = x
    out = run(*cut, **options)
    return out if isinstance(out, tuple) else (out,)
