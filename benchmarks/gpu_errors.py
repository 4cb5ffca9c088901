"""Errors of the ops against float64, with the goals that docs and issue set."""

import plain_formulas
import torch
from gpu_bench import normal, parameters

HEADS, WIDTH = 2, 64
GOALS = {  # of the output and of the gradients
    torch.bfloat16: (3e-3, 1e-2),
    torch.float32: (1e-5, 1e-4),
}


def results_of(function, arguments, upstream):
    """The output and the gradients of all arguments."""
    leaves = [a.detach().clone().requires_grad_() for a in arguments]
    output = function(*leaves)
    gradients = torch.autograd.grad(output, leaves, upstream.to(output.dtype))
    return [output.detach(), *gradients]


def compare(bench, name, dtype, arguments, op, plain):
    """||x - reference|| / ||reference||, of the output and of the gradient
    that is furthest off."""
    upstream = normal(*arguments[0].shape, dtype=dtype)
    ours = results_of(op, arguments, upstream)
    wanted = results_of(plain, [a.double() for a in arguments], upstream)
    what = f"{name}, {str(dtype).removeprefix('torch.')}: error of "
    if name.startswith("universal"):
        # The output bias's gradient is a sum that cancels: judged by itself.
        error = (ours.pop().double() - wanted.pop()).norm().item()
        bench.figure(f"{what}the output bias's gradient, absolute", error, "")
    output, *gradients = (
        ((x.double() - y).norm() / y.norm()).item()
        for x, y in zip(ours, wanted, strict=True)
    )
    goals = GOALS[dtype]
    bench.figure(f"{what}the output", output, "", goals[0])
    bench.figure(f"{what}the gradients", max(gradients), "", goals[1])


def errors(bench, luna, options):
    def universal(q, k, v, *psi):
        return luna.universal_attention(q, k, v, *psi)[0]

    def universal_causal(q, k, v, *psi):
        return luna.universal_attention(q, k, v, *psi, causal=True)[0]

    def nested(q, k, v, memory):
        packed = luna.pack_attention(memory, k, v)
        return luna.unpack_attention(q, packed, packed)

    def nested_causal(q, k, v, memory):
        return luna.nested_causal_attention(q, k, k, v, memory)[0]

    n = options.error_tokens
    for dtype in GOALS:
        q, k, v = (normal(1, HEADS, n, WIDTH, dtype=dtype) for _ in range(3))
        psi = parameters(WIDTH)
        psi[-1] += 0.3  # else a first row of the causal map may be all zeros
        memory = normal(1, HEADS, 256, WIDTH, dtype=dtype)
        few = memory[:, :, :16].contiguous()
        short = [x[:, :, : n // 4].contiguous() for x in (q, k, v)]
        for name, arguments, op, plain in (
            ("universal", [q, k, v, *psi], universal, plain_formulas.by_rows),
            (
                "universal causal",
                [q, k, v, *psi],
                universal_causal,
                plain_formulas.by_causal_rows,
            ),
            ("nested l=16", [q, k, v, few], nested, plain_formulas.nested),
            ("nested l=256", [q, k, v, memory], nested, plain_formulas.nested),
            (  # whose reference keeps all prefix sums
                "nested causal l=16",
                [*short, few],
                nested_causal,
                plain_formulas.nested_causal,
            ),
        ):
            compare(bench, name, dtype, arguments, op, plain)
