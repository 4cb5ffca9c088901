"""Times over the length of a sequence, beside the peers."""

# ruff: noqa: B023 (every function is called before its loop goes on)
import math
import statistics

import plain_formulas
import torch
from gpu_bench import HEADS, TOKENS, WIDTH, normal, parameters
from torch.nn.attention import SDPBackend, sdpa_kernel

LENGTHS = (128, 256, 512, 1024, 4096, 16384, 65536)
REACH_LENGTHS = (1024, 4096, 16384, 65536)  # where goals hold
attend = torch.nn.functional.scaled_dot_product_attention


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
    goals = {  # to reach, and beyond: forward, forward+backward
        "universal": ((0.100, 0.082), (0.300, 0.250)),
        "universal causal": ((0.160, 0.125), (0.480, 0.400)),
        "nested l=16": ((0.110, 0.085), (0.330, 0.260)),
        "nested l=256": ((0.200, 0.170), (0.750, 0.600)),
        "nested causal l=16": (None, (0.600, None)),
        "nested causal l=128": (None, (1.600, None)),
    }
    at = [n for n in options.lengths if n in REACH_LENGTHS]
    for name, targets in goals.items():
        for key, target in zip(("forward_ms", "both_ms"), targets, strict=True):
            times = {n: bench.find(name, n, key) for n in at}
            if target is None or not times or None in times.values():
                continue
            what = "forward" if key == "forward_ms" else "forward+backward"
            slowest = max(times, key=times.get)
            bench.figure(
                f"{name}, {what}",
                times[slowest],
                "ms",
                target[0],
                spread=bench.spread(name, slowest, key),
                beyond=target[1],
            )
    for key, what, target in (
        ("forward_ms", "forward", 256),
        ("both_ms", "forward+backward", 128),
    ):
        bench.figure(
            f"universal {what}: faster than the best SDPA from n",
            faster_from(bench, options.lengths, key),
            "",
            target,
        )
    for name, target in (("universal", 32), ("universal causal", None)):
        beyond = [peak_beyond_sdpa(bench, name, n) for n in at]
        if beyond and None not in beyond:
            bench.figure(
                f"{name} forward+backward: peak beyond the best SDPA's",
                max(beyond),
                "MiB",
                target,
            )


def peak_beyond_sdpa(bench, name, n):
    tail = name.removeprefix("universal")
    peaks = [
        bench.find(peer, n, "both_peak_mib")
        for peer in (name, "flash" + tail, "cudnn" + tail)
    ]
    ours, *peers = peaks
    peers = [peer for peer in peers if peer is not None]
    return None if ours is None or not peers else ours - min(peers)


def faster_from(bench, lengths, key):
    """The least n from which on universal is faster than any SDPA; None if the
    longest is not."""
    first = None
    for n in sorted(lengths, reverse=True):
        ours = bench.find("universal", n, key)
        peers = [bench.find(p, n, key) for p in ("flash", "cudnn")]
        peers = [peer for peer in peers if peer is not None]
        if ours is None or not peers or ours >= min(peers):
            return first
        first = n
    return first


def listing(bench, luna, options):
    """Peers of plain tensor operations, far slower: at one length alone."""
    n = min(4096, TOKENS)
    q, k, v = (normal(TOKENS // n, HEADS, n, WIDTH) for _ in range(3))
    psi = parameters(WIDTH)

    def universal(q, k, v, *psi):
        return plain_formulas.universal(q.float(), k.float(), v.float(), psi)

    forms = [("listing", universal)]
    if options.compile:
        forms.append(("listing, torch.compile", torch.compile(universal)))
    for name, form in forms:
        bench.add(name, n, lambda: form(q, k, v, *psi), [q, k, v, *psi])
    p = normal(TOKENS // n, HEADS, 16, WIDTH)
    bench.add(
        "nested causal l=16, as published",
        n,
        lambda: plain_formulas.nested_causal(q, k, v, p),
        [q, k, v, p],
    )
    ours, public = (
        bench.find(name, n, "both_peak_mib")
        for name in ("nested causal l=16", "nested causal l=16, as published")
    )
    if None not in (ours, public):
        bench.figure(
            "nested causal l=16, forward+backward: memory of the public form "
            "beside ours",
            public / ours,
            "×",
        )


def growth(bench, luna, options):
    """One sequence, longer and longer."""
    powers = options.growth_powers
    points = {}
    for power in powers:
        n = 2**power
        q, k, v = (normal(1, HEADS, n, WIDTH) for _ in range(3))
        p = normal(1, HEADS, 16, WIDTH)
        psi = parameters(WIDTH)

        def nested():
            packed = luna.pack_attention(p, k, v)
            return luna.unpack_attention(q, packed, packed)

        for label, leaves, work in (
            (
                "universal",
                [q, k, v, *psi],
                lambda: luna.universal_attention(q, k, v, *psi)[0],
            ),
            (
                "universal causal",
                [q, k, v, *psi],
                lambda: luna.universal_attention(q, k, v, *psi, causal=True)[0],
            ),
            ("nested l=16", [q, k, v, p], nested),
            (
                "nested causal l=16",
                [q, k, v, p],
                lambda: luna.nested_causal_attention(q, k, k, v, p)[0],
            ),
        ):
            name = label + ", one sequence"
            bench.add(name, n, work, leaves)
            times = bench.find(name, n, "both_ms")
            peak = bench.find(name, n, "both_peak_mib")
            if None not in (times, peak):
                points.setdefault(label, []).append(
                    (math.log(n), math.log(times), math.log(peak))
                )
    for label, found in points.items():
        if len(found) != len(powers):
            continue
        for i, what in ((1, "time"), (2, "memory")):
            xs, ys = [p[0] for p in found], [p[i] for p in found]
            bench.figure(
                f"{label} forward+backward, 2^{powers[0]} to 2^{powers[-1]}: "
                f"slope of {what}",
                statistics.linear_regression(xs, ys).slope,
                "",
                1.02,
            )
