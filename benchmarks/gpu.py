"""Times luna's ops on a GPU beside SDPA, in one run, and writes JSON.

    LUNA_LIBRARY=libluna.so python3 gpu.py --out gpu.json
        [--parts lengths,widths,others,trained,small,step,growth] [--only NAME]

Each call is one CUDA graph, timed by events with the L2 cache overwritten
before it. A row is {name, n, forward_ms, both_ms: [least, median, most],
..._peak_mib: beyond the inputs}. `figures` sets what issue and docs ask for
against its goal.
"""

# ruff: noqa: B023 (every function is called before its loop goes on)
import argparse
import json
import math
import os
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS, HEADS, WIDTH = 65536, 8, 64
LENGTHS = (128, 256, 512, 1024, 4096, 16384, 65536)
REACH_LENGTHS = (1024, 4096, 16384, 65536)  # where goals hold
attend = torch.nn.functional.scaled_dot_product_attention


def milliseconds(work, launches):
    """Least, median and most of `launches` runs after a few to warm up."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    for _ in range(3):
        work()
    times = []
    for _ in range(launches):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return [min(times), statistics.median(times), max(times)]


def graphed(work):
    """The work as one CUDA graph: what a captured training step pays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def peak_mib(work):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", dtype=dtype)


def parameters(width, projections=8, channels=8, hidden=64):
    """The six of a feature map as a new module has them."""

    def uniform(*shape, bound):
        return torch.empty(*shape, device="cuda").uniform_(-bound, bound)

    bound = 1 / math.sqrt(hidden)
    return [
        torch.randn(projections, width, device="cuda") / math.sqrt(width),
        torch.zeros(projections, device="cuda"),
        uniform(channels, hidden, bound=1),
        uniform(channels, hidden, bound=1),
        uniform(channels, hidden, bound=bound),
        uniform(channels, bound=bound),
    ]


class Bench:
    def __init__(self, options):
        self.launches, self.only = options.launches, options.only
        self.rows, self.figures = [], []

    def add(self, name, n, forward, leaves, backward=True):
        if self.only not in name:
            return
        row = {"name": name, "n": n}
        try:
            with torch.no_grad():
                row["forward_peak_mib"] = peak_mib(forward)
                row["forward_ms"] = milliseconds(
                    graphed(forward), self.launches
                )
            if backward:
                gradient = torch.randn_like(forward())
                for leaf in leaves:
                    leaf.requires_grad_()

                def both():
                    return torch.autograd.grad(forward(), leaves, gradient)

                row["both_peak_mib"] = peak_mib(both)
                row["both_ms"] = milliseconds(graphed(both), self.launches)
        except Exception as error:  # a peer may not support a shape
            row["error"] = str(error).splitlines()[0]
            torch.cuda.synchronize()
        for leaf in leaves:
            leaf.requires_grad_(False)
        self.rows.append(row)
        show = [
            "{:.4f} ({:.4f}-{:.4f})".format(*(row[k][i] for i in (1, 0, 2)))
            if k in row
            else "-"
            for k in ("forward_ms", "both_ms")
        ]
        memory = " / ".join(
            f"{row.get(k, 0):.0f}"
            for k in ("forward_peak_mib", "both_peak_mib")
        )
        print(
            f"{name:26} n={n:<8} forward {show[0]:26} both {show[1]:26} "
            f"{row.get('error', memory + ' MiB')}",
            flush=True,
        )

    def find(self, name, n, key):
        """The median, or None."""
        for row in self.rows:
            if row["name"] == name and row["n"] == n and key in row:
                return row[key][1] if isinstance(row[key], list) else row[key]
        return None

    def figure(self, what, value, unit, target=None, at_least=False):
        if value is None:
            return
        figure = {"what": what, "value": value, "unit": unit}
        if target is not None:
            figure["goal"] = "at least" if at_least else "at most"
            figure["target"] = target
            figure["met"] = value >= target if at_least else value <= target
        self.figures.append(figure)


def lengths(bench, luna, options):
    """Everything at one number of tokens, over the lengths it is cut into."""
    for n in options.lengths:
        shape = (TOKENS // n, HEADS, n, WIDTH)
        q, k, v = (normal(*shape) for _ in range(3))
        psi = parameters(WIDTH)
        for causal in (False, True):
            tail = " causal" if causal else ""
            bench.add(
                "universal" + tail,
                n,
                lambda: luna.universal_attention(q, k, v, *psi, causal=causal)[
                    0
                ],
                [q, k, v, *psi],
            )
            for name, backend in (
                ("flash", SDPBackend.FLASH_ATTENTION),
                ("cudnn", SDPBackend.CUDNN_ATTENTION),
            ):
                with sdpa_kernel(backend):
                    bench.add(
                        name + tail,
                        n,
                        lambda: attend(q, k, v, is_causal=causal),
                        [q, k, v],
                    )
        for slots in (16, 256):
            p = normal(TOKENS // n, HEADS, slots, WIDTH)

            def nested():
                packed = luna.pack_attention(p, k, v)
                return luna.unpack_attention(q, packed, packed)

            def twice():
                packed = attend(p, k, v)
                return attend(q, packed, packed)

            bench.add(f"nested l={slots}", n, nested, [q, k, v, p])
            bench.add(f"sdpa twice l={slots}", n, twice, [q, k, v, p])
        for slots in (16, 128):
            p = normal(TOKENS // n, HEADS, slots, WIDTH)
            bench.add(
                f"nested causal l={slots}",
                n,
                lambda: luna.nested_causal_attention(q, k, k, v, p)[0],
                [q, k, v, p],
            )
    goals = {
        "universal": (0.100, 0.300),
        "universal causal": (0.160, 0.480),
        "nested l=16": (0.110, 0.330),
        "nested l=256": (0.200, 0.750),
        "nested causal l=16": (None, 0.600),
        "nested causal l=128": (None, 1.600),
    }
    for name, targets in goals.items():
        for key, target in zip(("forward_ms", "both_ms"), targets, strict=True):
            times = [
                bench.find(name, n, key)
                for n in options.lengths
                if n in REACH_LENGTHS
            ]
            if target is not None and times and None not in times:
                what = "forward" if key == "forward_ms" else "forward+backward"
                bench.figure(f"{name}, {what}", max(times), "ms", target)
    for key, what, target in (
        ("forward_ms", "forward", 256),
        ("both_ms", "forward+backward", 128),
    ):
        faster = [
            n
            for n in options.lengths
            if None
            not in (ours := bench.find("universal", n, key),
                    *(peers := [bench.find(p, n, key)
                                for p in ("flash", "cudnn")]))
            and ours < min(peers)
        ]  # fmt: skip
        if faster:
            bench.figure(
                f"universal {what}: faster than the best SDPA from n",
                min(faster),
                "",
                target,
            )
    for n in options.lengths:
        ours, flash = (
            bench.find(p, n, "both_peak_mib") for p in ("universal", "flash")
        )
        if n == 4096 and None not in (ours, flash):
            bench.figure(
                "universal forward+backward, n = 4096: peak beyond flash's",
                ours - flash,
                "MiB",
                32,
            )


def widths(bench, luna, options):
    """Other head widths and feature counts, against the rate of 64."""
    n = 4096
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

    mask = torch.arange(n, device="cuda") < torch.arange(
        n // 4, n, step=3 * n // 4 // batch, device="cuda"
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
        bench.figure(what, ours, "ms", 1)
        bench.figure(what + " beside linear elu+1", ours / peer, "×", 3)
    n = 4096
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
    n = 4096
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
    )


def step(bench, luna, options):
    psi = parameters(WIDTH)
    table = luna.universal_table(*psi[2:])
    for heads, name in ((4096, "step, 4,096 states"), (8, "step, 8 heads")):
        q, k, v = (normal(heads // 8, 8, WIDTH) for _ in range(3))
        state = torch.zeros(heads // 8, 8, 64, WIDTH + 1, device="cuda")
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
    state = torch.zeros(4096, 64, WIDTH + 1, device="cuda")
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
            )
    eight = bench.find("step, 8 heads", 1, "forward_ms")
    if eight is not None:
        bench.figure("step, 8 heads", 1000 * eight, "µs", 6)


def growth(bench, luna, options):
    """One sequence, longer and longer."""
    points = []
    for power in range(14, 21):
        n = 2**power
        q, k, v = (normal(1, HEADS, n, WIDTH) for _ in range(3))
        psi = parameters(WIDTH)
        bench.add(
            "universal, one sequence",
            n,
            lambda: luna.universal_attention(q, k, v, *psi)[0],
            [q, k, v, *psi],
        )
        times = bench.find("universal, one sequence", n, "both_ms")
        peak = bench.find("universal, one sequence", n, "both_peak_mib")
        if times is not None:
            points.append((math.log(n), math.log(times), math.log(peak)))
    if len(points) == 7:
        for i, what in ((1, "time"), (2, "memory")):
            xs, ys = [p[0] for p in points], [p[i] for p in points]
            slope = statistics.linear_regression(xs, ys).slope
            bench.figure(
                f"universal forward+backward, 2^14 to 2^20: slope of {what}",
                slope,
                "",
                1.02,
            )


PARTS = {
    "lengths": lengths,
    "widths": widths,
    "others": others,
    "trained": trained,
    "small": small,
    "step": step,
    "growth": growth,
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
    options = parser.parse_args()
    torch.ops.load_library(os.environ["LUNA_LIBRARY"])
    torch.manual_seed(0)
    bench = Bench(options)
    start = time.monotonic()
    for part in options.parts.split(","):
        PARTS[part](bench, torch.ops.luna, options)
    print()
    for f in bench.figures:
        met = "" if "met" not in f else ("met" if f["met"] else "MISSED")
        goal = f"{f['goal']} {f['target']:g}" if "goal" in f else ""
        print(f"{f['what']:66} {f['value']:9.4g} {f['unit']:4}{goal:14} {met}")
    result = {
        "format": "luna-gpu/1",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tokens": TOKENS,
        "heads": HEADS,
        "width": WIDTH,
        "dtype": "bfloat16",
        "launches": options.launches,
        "seconds": time.monotonic() - start,
        "figures": bench.figures,
        "rows": bench.rows,
    }
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
