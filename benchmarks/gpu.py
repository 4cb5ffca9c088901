"""Times luna's ops on a GPU beside SDPA, in one run, and writes JSON.

Each call is timed by CUDA events with the L2 cache overwritten before it; the
table gives medians in milliseconds, the file all numbers.
"""

# ruff: noqa: B023 (every function is called before its loop goes on)
import argparse
import json
import math
import os
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS, HEADS, WIDTH = 65536, 8, 64


def milliseconds(work, launches):
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
    return times


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


def parameters(width, projections=8, channels=8, hidden=64):
    bound = 1 / math.sqrt(hidden)

    def uniform(*s, b):
        return torch.empty(*s, device="cuda").uniform_(-b, b)

    return [
        torch.randn(projections, width, device="cuda") / math.sqrt(width),
        torch.zeros(projections, device="cuda"),
        uniform(channels, hidden, b=1),
        uniform(channels, hidden, b=1),
        uniform(channels, hidden, b=bound),
        uniform(channels, b=bound),
    ]


class Bench:
    def __init__(self, launches):
        self.launches, self.rows = launches, []

    def add(self, name, n, forward, leaves, backward=True):
        row = {"name": name, "n": n}
        try:
            with torch.no_grad():
                row["forward_peak_mib"] = peak_mib(forward)
                row["forward_ms"] = milliseconds(forward, self.launches)
                row["forward_graph_ms"] = milliseconds(
                    graphed(forward), self.launches
                )
            if backward:
                gradient = torch.randn_like(forward())
                for leaf in leaves:
                    leaf.requires_grad_()

                def both():
                    return torch.autograd.grad(forward(), leaves, gradient)

                row["both_peak_mib"] = peak_mib(both)
                row["both_ms"] = milliseconds(both, self.launches)
                row["both_graph_ms"] = milliseconds(
                    graphed(both), self.launches
                )
        except Exception as error:  # a peer may not support a shape
            row["error"] = str(error).splitlines()[0]
            torch.cuda.synchronize()
        for leaf in leaves:
            leaf.requires_grad_(False)
        self.rows.append(row)

        def show(key):
            if key not in row:
                return "-"
            times = row[key]
            middle = statistics.median(times)
            return f"{middle:.4f} ({min(times):.4f}-{max(times):.4f})"

        memory = " / ".join(
            f"{row.get(key, 0):.0f}"
            for key in ("forward_peak_mib", "both_peak_mib")
        )
        print(
            f"{name:28} n={n:<6} fwd {show('forward_ms')} "
            f"graph {show('forward_graph_ms')} | both {show('both_ms')} "
            f"graph {show('both_graph_ms')} | "
            f"{row.get('error', memory + ' MiB')}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="gpu.json")
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--lengths", default="1024,4096,16384,65536")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.ops.load_library(os.environ["LUNA_LIBRARY"])
    luna = torch.ops.luna
    torch.manual_seed(0)
    bench = Bench(options.launches)

    def wanted(name):
        return options.only in name

    for n in map(int, options.lengths.split(",")):
        shape = (TOKENS // n, HEADS, n, WIDTH)
        q, k, v = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        psi = parameters(WIDTH)
        for causal in (False, True):
            name = "universal" + (" causal" if causal else "")
            if wanted(name):
                bench.add(
                    name,
                    n,
                    lambda: luna.universal_attention(
                        q, k, v, *psi, causal=causal
                    )[0],
                    [q, k, v, *psi],
                )
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            for causal in (False, True):
                name = "{}{}".format(
                    backend.name.lower(),
                    " causal" if causal else "",
                )
                if not wanted(name):
                    continue
                with sdpa_kernel(backend):
                    bench.add(
                        name,
                        n,
                        lambda: (
                            torch.nn.functional.scaled_dot_product_attention(
                                q, k, v, is_causal=causal
                            )
                        ),
                        [q, k, v],
                    )
        if wanted("linear elu"):

            def phi(x):
                return torch.nn.functional.elu(x) + 1

            bench.add(
                "linear elu+1",
                n,
                lambda: luna.linear_attention(phi(q), phi(k), v)[0],
                [q, k, v],
            )
        for slots in (16, 256):
            name = f"nested l={slots}"
            if not wanted(name):
                continue
            p = torch.randn(
                TOKENS // n,
                HEADS,
                slots,
                WIDTH,
                device="cuda",
                dtype=torch.bfloat16,
            )

            def nested():
                packed = luna.pack_attention(p, k, v)
                return luna.unpack_attention(q, packed, packed)

            bench.add(name, n, nested, [q, k, v, p])

            def twice():
                attend = torch.nn.functional.scaled_dot_product_attention
                packed = attend(p, k, v)
                return attend(q, packed, packed)

            bench.add(f"sdpa twice l={slots}", n, twice, [q, k, v, p])
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tokens": TOKENS,
        "heads": HEADS,
        "width": WIDTH,
        "dtype": "bfloat16",
        "rows": bench.rows,
    }
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
