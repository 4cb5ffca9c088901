"""How sharply attention can look at neighbours, by kernel.

Every pixel of a picture gets a query and a key of 32 numbers of its own. They
and the kernel learn, by Adam, one map: each pixel attends evenly to the square
of pixels around it. What a kernel does not reach here, with nothing else to
learn, it will hardly reach inside a model. Writes, for each kernel and seed,
the share of a row's weight that falls on the square, and the mean divergence
KL(wanted row | learned row) in nats.

Usage: PYTHONPATH=python .venv/bin/python benchmarks/neighbour_maps.py
           [--side 16] [--reach 1] [--steps 1500] [--seeds 2] [--out FILE.json]
"""

import argparse
import json
import math
import sys
from pathlib import Path

import luna
import torch

WIDTH = 32
RATE = 1e-2
# psi dies out at the queries' rate: see docs/attention.md.
FEATURE_MAP_RATE = 1e-3
# Of the mean product of features, added to each: a token whose features are all
# zero attends everywhere.
EVERYWHERE = 1e-4

SHAPES = ((8, 8), (16, 4), (32, 2), (64, 1), (16, 8), (32, 8))  # M, L
STARTS = {
    "lift 0": {},
    "lift 1": dict(lift=1),
    "start ramps": dict(start="ramps"),
}
KERNELS = {"softmax": None, "linear": "linear"} | {
    f"universal, M = {m}, L = {c}, {name}": dict(M=m, L=c) | start
    for name, start in STARTS.items()
    for m, c in SHAPES
}
KERNELS["universal, M = 64, L = 1, start softmax"] = dict(
    M=64, L=1, start="softmax"
)


def square_around_each(side, reach):
    """[n, n]: 1 where the column's pixel is in the square around the row's."""
    row, column = (
        torch.arange(side * side).div(side, rounding_mode="floor"),
        (torch.arange(side * side) % side),
    )
    near = [(x[:, None] - x).abs() <= reach for x in (row, column)]
    return (near[0] & near[1]).float()


def features_of(kernel):
    """A module from [n, d] to features, or None for softmax."""
    if kernel is None:
        return None
    if kernel == "linear":
        return torch.nn.Sequential(torch.nn.ELU(), AddOne())
    return luna.FeatureMap(WIDTH, **kernel)


class AddOne(torch.nn.Module):
    def forward(self, x):
        return x + 1


def log_map(query, key, features):
    """[n, n]: the logarithm of each row's weights."""
    if features is None:
        return (query @ key.T / math.sqrt(WIDTH)).log_softmax(1)
    weights = features(query) @ features(key).T
    weights = weights + EVERYWHERE * weights.detach().mean() + 1e-12
    return weights.log() - weights.sum(1, keepdim=True).log()


def learn(kernel, square, steps, seed):
    """The share on the square, and the divergence, after so many steps."""
    torch.manual_seed(seed)
    wanted = square / square.sum(1, keepdim=True)
    least = -torch.special.xlogy(wanted, wanted).sum(1).mean()
    query, key = (
        torch.nn.Parameter(torch.randn(square.size(0), WIDTH)) for _ in "qk"
    )
    features = features_of(kernel)
    groups = [{"params": [query, key], "lr": RATE}]
    learned = list(features.parameters()) if features is not None else []
    if learned:
        groups.append({"params": learned, "lr": FEATURE_MAP_RATE})
    adam = torch.optim.Adam(groups, betas=(0.9, 0.98))
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adam,
        lambda step: (
            min(1, (step + 1) / warm_up)
            * (0.525 + 0.475 * math.cos(math.pi * step / steps))
        ),
    )
    for _ in range(steps):
        logs = log_map(query, key, features)
        loss = -(wanted * logs).sum(1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
    with torch.no_grad():
        logs = log_map(query, key, features)
        share = (logs.exp() * square).sum(1).mean()
        divergence = -(wanted * logs).sum(1).mean() - least
    return share.item(), divergence.item()


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--side", type=int, default=16, help="of the picture")
    parser.add_argument("--reach", type=int, default=1, help="of the square")
    parser.add_argument("--steps", type=int, default=1500, help="of Adam")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser.parse_args()


def main():
    given = arguments()
    square = square_around_each(given.side, given.reach)
    print(f"even attention would have {square.mean():.1%} on the square")
    rows = []
    for name, kernel in KERNELS.items():
        row = {"kernel": name, "share": [], "divergence": []}
        for seed in range(1, given.seeds + 1):
            share, divergence = learn(kernel, square, given.steps, seed)
            row["share"].append(round(share, 4))
            row["divergence"].append(round(divergence, 4))
            print(f"{name}, seed {seed}: {divergence:.3f} nats, {share:.1%}")
            sys.stdout.flush()
        rows.append(row)
    if given.out:
        facts = {
            "side": given.side,
            "reach": given.reach,
            "steps": given.steps,
            "even": round(square.mean().item(), 4),
            "torch": torch.__version__,
            "luna": luna.__version__,
            "rows": rows,
        }
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
