"""Times luna's ops on a GPU beside SDPA, in one run, and writes JSON.

    LUNA_LIBRARY=libluna.so python3 gpu.py --out gpu.json
        [--parts lengths,widths,others,...] [--only NAME]

Each call is one CUDA graph, timed by events with the L2 cache overwritten
before it. A row is {name, n, forward_ms, both_ms: [least, median, most],
..._peak_mib: beyond the inputs}. `figures` sets what issue and docs ask for
against its goal; `spread` of one is half of (most - least) / median.
"""

# ruff: noqa: B023 (every function is called before its loop goes on)
import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from gpu_bench import HEADS, TOKENS, WIDTH, Bench, normal, parameters
from gpu_errors import errors
from gpu_lengths import LENGTHS, growth, lengths, listing

attend = torch.nn.functional.scaled_dot_product_attention


def widths(bench, luna, options):
    """Other head widths and feature counts, against the rate of 64."""
    n = min(4096, TOKENS)
    base = {}
    cases = (
        ("d=64", 64, 8),
        ("d=128", 128, 8),
        ("d=32", 32, 8),
        ("F=128", 64, 16),
    )
    limits = {"d=128": (1.15, 1.3), "d=32": (1.3, 1.7), "F=128": (1.3, 1.7)}
    for label, width, projections in cases:
        q, k, v = (normal(TOKENS // n, HEADS, n, width) for _ in range(3))
        psi = parameters(width, projections)
        name = f"universal {label}"
        bench.add(
            name,
            n,
            lambda: luna.universal_attention(q, k, v, *psi)[0],
            [q, k, v, *psi],
        )
        for i, key in enumerate(("forward_ms", "both_ms")):
            time_of = bench.find(name, n, key)
            if time_of is None:
                continue
            rate = time_of / width
            base.setdefault(key, rate)
            if label in limits:
                what = "forward" if i == 0 else "forward+backward"
                bench.figure(
                    f"{name}, {what}: time a byte beside d = 64",
                    rate / base[key],
                    "×",
                    limits[label][i],
                    spread=bench.spread(name, n, key),
                )


def others(bench, luna, options):
    """What the fused kernels leave over."""
    batch, heads, n, width = 32, 12, 128, 32  # a converted MiniLM's layer
    q, k, v = (normal(batch, heads, n, width) for _ in range(3))
    psi = parameters(width, 128, 1)
    for i in range(2):  # of each head's own
        psi[i] = torch.stack([psi[i]] * heads)
    bench.add(
        "universal M=128 L=1",
        n,
        lambda: luna.universal_attention(q, k, v, *psi)[0],
        [q, k, v, *psi],
    )

    mask = torch.arange(n, device=q.device) < torch.arange(
        n // 4, n, step=3 * n // 4 // batch, device=q.device
    ).unsqueeze(1)
    bench.add(
        "universal M=128 L=1 mask",
        n,
        lambda: luna.universal_attention(q, k, v, *psi, key_weight=mask)[0],
        [q, k, v, *psi],
    )

    def linear():
        a, b = (torch.nn.functional.elu(x) + 1 for x in (q, k))
        return luna.linear_attention(a, b, v)[0]

    bench.add("linear elu+1", n, linear, [q, k, v])
    ours, peer = (
        bench.find(name, n, "both_ms")
        for name in ("universal M=128 L=1", "linear elu+1")
    )
    if None not in (ours, peer):
        what = "universal M = 128, L = 1, forward+backward"
        bench.figure(
            what,
            ours,
            "ms",
            1,
            spread=bench.spread("universal M=128 L=1", n, "both_ms"),
        )
        bench.figure(what + " beside linear elu+1", ours / peer, "×", 3)
    n = min(4096, TOKENS)
    cases = (
        ("fp16", torch.float16, 64, 8, 8, False),
        ("fp32", torch.float32, 64, 8, 8, False),
        ("L=16", torch.bfloat16, 64, 8, 16, False),
        ("d=128 M=16", torch.bfloat16, 128, 16, 8, False),
        ("d=32 causal", torch.bfloat16, 32, 8, 8, True),
    )
    for label, dtype, width, projections, channels, causal in cases:
        q, k, v = (
            normal(TOKENS // n, HEADS, n, width, dtype=dtype) for _ in range(3)
        )
        psi = parameters(width, projections, channels)
        bench.add(
            f"universal {label}",
            n,
            lambda: luna.universal_attention(q, k, v, *psi, causal=causal)[0],
            [q, k, v, *psi],
        )
    for key, what, target in (
        ("forward_ms", "forward", 0.6),
        ("both_ms", "forward+backward", 2),
    ):
        bench.figure(
            f"universal fp16, {what}",
            bench.find("universal fp16", n, key),
            "ms",
            target,
            spread=bench.spread("universal fp16", n, key),
        )


def trained(bench, luna, options):
    """Weights that have learnt something: knots and live features move."""
    shape = (4, HEADS, 128)
    psi = [p.requires_grad_() for p in parameters(WIDTH)]
    with torch.no_grad():
        psi[-1] += 1  # as FeatureMap's lift: no channel starts dead
    optimizer = torch.optim.Adam(psi, lr=1e-2)
    losses = []
    # To do what softmax does with tokens that differ in two directions: few
    # enough for eight projections.
    plane = normal(2, WIDTH) / math.sqrt(8)
    for _ in range(400):
        q, k = (normal(*shape, 2) @ plane for _ in range(2))
        v = normal(*shape, WIDTH)
        ours = luna.universal_attention(q, k, v, *psi)[0]
        wanted = attend(q, k, v).float()
        loss = (ours.float() - wanted).square().mean() / wanted.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    psi = [p.detach() for p in psi]
    n = min(4096, TOKENS)
    q, k, v = (normal(TOKENS // n, HEADS, n, WIDTH) for _ in range(3))
    for causal in (False, True):
        bench.add(
            "universal trained" + (" causal" if causal else ""),
            n,
            lambda: luna.universal_attention(q, k, v, *psi, causal=causal)[0],
            [q, k, v, *psi],
        )
    for i, what in ((0, "before"), (-1, "after")):
        bench.figure(
            f"trained weights: error of imitating softmax {what} training",
            losses[i].item(),
            "",
        )


def local(bench, luna, options):
    """Sums over neighbours beside torch's depthwise convolution."""
    n, side, width = 1024, 32, 64
    x = normal(max(1, TOKENS // n), n, width)
    for rows, columns in ((1, 0), (5, side)):
        weight = torch.randn(width, rows, 5, device=x.device)

        def convolved():
            pictures = x.transpose(1, 2).unflatten(2, (-1, columns or n))
            near = torch.nn.functional.conv2d(
                pictures,
                weight.to(x.dtype).unsqueeze(1),
                padding=(rows // 2, 2),
                groups=width,
            )
            return near.flatten(2).transpose(1, 2)

        label = f"{rows} x 5 taps"
        bench.add(
            f"local {label}",
            n,
            lambda: luna._local_sum(x, weight, columns, None),
            [x, weight],
        )
        bench.add(f"convolution {label}", n, convolved, [x, weight])
        for key, what in (
            ("forward_ms", "forward"),
            ("both_ms", "forward+backward"),
        ):
            ours, peer = (
                bench.find(f"{name} {label}", n, key)
                for name in ("local", "convolution")
            )
            if None in (ours, peer):
                continue
            spread = bench.spread(f"local {label}", n, key)
            tokens = f"{x.shape[0] * n:,} tokens of {width}"
            name = f"local sum, {label}, {tokens}, {what}"
            bench.figure(name, ours, "ms", spread=spread)
            bench.figure(
                f"{name}: beside torch's convolution", peer / ours, "×"
            )


def small(bench, luna, options):
    q, k, v = (normal(1, HEADS, 1024, WIDTH) for _ in range(3))
    psi = parameters(WIDTH)
    bench.add(
        "universal batch 1",
        1024,
        lambda: luna.universal_attention(q, k, v, *psi)[0],
        [q, k, v, *psi],
    )
    bench.add("sdpa batch 1", 1024, lambda: attend(q, k, v), [q, k, v])
    bench.figure(
        "universal forward, batch 1 × 8 heads, n = 1,024",
        bench.find("universal batch 1", 1024, "forward_ms"),
        "ms",
        0.030,
        spread=bench.spread("universal batch 1", 1024, "forward_ms"),
    )


def launches(bench, luna, options):
    q, k, v = (normal(1, HEADS, 1024, WIDTH) for _ in range(3))
    psi = parameters(WIDTH)
    bench.figure(
        "universal forward, batch 1 × 8 heads, n = 1,024: launches",
        launches_of(lambda: luna.universal_attention(q, k, v, *psi)),
        "",
        beyond=1,
    )


def launches_of(work):
    """How many kernels a call launches; None where they cannot be counted."""
    with torch.no_grad():
        work()
        try:
            activities = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profile:
                work()
                torch.cuda.synchronize()
        except Exception as error:
            print(f"launches are not counted: {error}")
            return None
    cuda = torch.autograd.DeviceType.CUDA
    return (
        sum(
            event.device_type == cuda and not event.name.startswith("Mem")
            for event in profile.events()
        )
        or None
    )


def step(bench, luna, options):
    psi = parameters(WIDTH)
    table = luna.universal_table(*psi[2:])
    for heads, name in ((4096, "step, 4,096 states"), (8, "step, 8 heads")):
        q, k, v = (normal(heads // 8, 8, WIDTH) for _ in range(3))
        state = torch.zeros(heads // 8, 8, 64, WIDTH + 1, device=q.device)
        bench.add(
            name,
            1,
            lambda: luna.universal_attention_step(
                q, k, v, state, *psi, table=table
            ),
            [],
            backward=False,
        )
        bench.add(
            "linear " + name,
            1,
            lambda: luna.linear_attention_step(q, k, v, state),
            [],
            backward=False,
        )
    state = torch.zeros(4096, 64, WIDTH + 1, device=q.device)
    other = torch.empty_like(state)
    bench.add("copy of 4,096 states", 1, lambda: other.copy_(state), [], False)
    copy = bench.find("copy of 4,096 states", 1, "forward_ms")
    for name in ("step, 4,096 states", "linear step, 4,096 states"):
        ours = bench.find(name, 1, "forward_ms")
        if None not in (ours, copy):
            bench.figure(
                f"{name}: share of copy bandwidth",
                100 * copy / ours,
                "%",
                70,
                at_least=True,
                spread=bench.spread(name, 1, "forward_ms"),
                beyond=80,
            )
    eight = bench.find("step, 8 heads", 1, "forward_ms")
    if eight is not None:
        bench.figure(
            "step, 8 heads",
            1000 * eight,
            "µs",
            6,
            spread=bench.spread("step, 8 heads", 1, "forward_ms"),
        )


PARTS = {  # those that could harm the others come last
    "lengths": lengths,
    "widths": widths,
    "others": others,
    "trained": trained,
    "local": local,
    "small": small,
    "step": step,
    "growth": growth,
    "errors": errors,
    "listing": listing,
    "launches": launches,
}


def output_of(*command):
    """What a program prints; "" where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def versions():
    """Of luna, from the program beside its library, and of the driver."""
    program = Path(os.environ["LUNA_LIBRARY"]).resolve().parent / "luna"
    info = json.loads(output_of(program, "info", "--json") or "{}")
    driver = output_of(
        "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
    )
    return {
        "luna": info.get("luna", ""),
        "commit": info.get("commit", ""),
        "driver": driver.splitlines()[0] if driver else "",
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", default="gpu.json")
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument(
        "--lengths",
        type=lambda x: [int(n) for n in x.split(",")],
        default=list(LENGTHS),
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="the listing by torch.compile, too: a minute more",
    )
    options = parser.parse_args()
    options.growth_powers = range(14, 21)
    options.error_tokens = 4096
    torch.ops.load_library(os.environ["LUNA_LIBRARY"])
    torch.manual_seed(0)
    bench = Bench(options)
    start = time.monotonic()
    failed = {}
    for part in options.parts.split(","):
        try:
            PARTS[part](bench, torch.ops.luna, options)
        except Exception as error:  # what the others measured is kept
            failed[part] = str(error).splitlines()[0]
            print(f"{part} failed: {error}")
    print()
    for f in bench.figures:
        met = "" if "met" not in f else ("met" if f["met"] else "MISSED")
        goal = f"{f['goal']} {f['target']:g}" if "goal" in f else ""
        print(f"{f['what']:66} {f['value']:9.4g} {f['unit']:4}{goal:14} {met}")
    result = {
        "format": "luna-gpu/1",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(),
        **versions(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tokens": TOKENS,
        "heads": HEADS,
        "width": WIDTH,
        "dtype": "bfloat16",
        "launches": options.launches,
        "seconds": time.monotonic() - start,
        "failed": failed,
        "figures": bench.figures,
        "rows": bench.rows,
    }
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
