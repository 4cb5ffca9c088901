"""Decoding steps on the performance page."""

from pathlib import Path

from page_parts import figure_rows, machine_line, number

# Times as fast as softmax with its cache, by position, at batch 64 on a GPU.
DECODE_GOALS = {512: 1, 2048: 2, 8192: 5}

# By device and dtype.
PEERS_LIMIT = {
    ("cuda", "float32"): " In float32 LibTorch's softmax does not split the "
    "keys of a single query over the GPU and reads its cache at a fraction of "
    "the memory's speed: a weak peer."
}


def decode_figures(data: dict, at: dict) -> list[dict]:
    """The slowest of the mechanisms beside softmax, and how flat it is."""
    figures = []
    batch = 64
    others = sorted({k[0] for k in at if k[0] != "softmax" and k[1] == batch})
    for position, goal in DECODE_GOALS.items():
        times = {
            name: at["softmax", batch, position]["seconds"]
            / at[name, batch, position]["seconds"]
            for name in others
            if (name, batch, position) in at
            and ("softmax", batch, position) in at
        }
        if times:
            worst = min(times, key=times.get)
            figures.append({
                "what": f"decoding, batch {batch}, position {position:,}: "
                f"speed beside softmax, the slowest ({worst})",
                "value": times[worst], "unit": "×", "goal": "at least",
                "target": goal, "met": times[worst] >= goal,
            })  # fmt: skip
    for name in others:
        seconds = [
            row["seconds"]
            for key, row in at.items()
            if key[:2] == (name, batch)
        ]
        figures.append({
            "what": f"decoding, batch {batch}, {name}: slowest position "
            "beside the fastest",
            "value": max(seconds) / min(seconds), "unit": "×",
        })  # fmt: skip
    return figures


def decode_section(path: Path, data: dict) -> list[str]:
    """A decoding step by position, softmax with a cache beside the others."""
    rows = [row for row in data["rows"] if "seconds" in row]
    at = {(r["attention"], r["batch"], r["position"]): r for r in rows}
    positions = sorted({row["position"] for row in rows})
    kind = (data["device"].split(":")[0], data["dtype"])
    lines = [
        f"## {path.stem}",
        "",
        f"`luna bench decode`: a token of every sentence of a batch; "
        f"{data['layers']} + {data['layers']} layers of width {data['width']}, "
        f"{data['dtype']}; {machine_line(data)}. µs a step (times as fast as "
        "softmax with its cache of keys and values), and the decoder's state "
        "of a sentence at the last position." + PEERS_LIMIT.get(kind, ""),
        "",
    ]
    if data["device"] != "cpu":
        lines += figure_rows(decode_figures(data, at))
    lines += [
        "| attention | batch | "
        + " | ".join(f"at {p:,}" for p in positions)
        + " | state, MiB |",
        "|---" * (len(positions) + 3) + "|",
    ]
    for name, batch in dict.fromkeys(key[:2] for key in at):
        cells, state = [], None
        for position in positions:
            row = at.get((name, batch, position))
            softmax = at.get(("softmax", batch, position))
            cell = "–" if row is None else f"{1e6 * row['seconds']:,.0f}"
            if row is not None and softmax is not None and row is not softmax:
                cell += f" ({softmax['seconds'] / row['seconds']:.2f}×)"
            cells.append(cell)
            state = row["state_bytes"] if row is not None else state
        lines.append(
            f"| {name} | {batch} | {' | '.join(cells)} "
            f"| {number(state / 2**20)} |"
        )
    return [*lines, ""]
