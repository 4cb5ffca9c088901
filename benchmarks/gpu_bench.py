"""How the GPU's figures are measured and kept."""

import math
import statistics

import torch

DEVICE = "cuda"
TOKENS, HEADS, WIDTH = 65536, 8, 64


def milliseconds(work, launches):
    """Least, median and most of `launches` runs after a few to warm up."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device=DEVICE)
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
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def parameters(width, projections=8, channels=8, hidden=64):
    """The six of a feature map as a new module has them."""

    def uniform(*shape, bound):
        return torch.empty(*shape, device=DEVICE).uniform_(-bound, bound)

    bound = 1 / math.sqrt(hidden)
    return [
        torch.randn(projections, width, device=DEVICE) / math.sqrt(width),
        torch.zeros(projections, device=DEVICE),
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

    def spread(self, name, n, key):
        for row in self.rows:
            if row["name"] == name and row["n"] == n and key in row:
                least, median, most = row[key]
                return (most - least) / 2 / median
        return None

    def figure(
        self,
        what,
        value,
        unit,
        target=None,
        at_least=False,
        spread=None,
        beyond=None,
    ):
        if value is None:
            return
        figure = {"what": what, "value": value, "unit": unit}
        if spread is not None:
            figure["spread"] = spread
        if target is not None:
            figure["goal"] = "at least" if at_least else "at most"
            figure["target"] = target
            figure["met"] = value >= target if at_least else value <= target
        if beyond is not None:
            figure["beyond"] = beyond
        self.figures.append(figure)
