"""Numbers, goals and machines as the performance page writes them."""


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def figure_rows(figures: list[dict]) -> list[str]:
    lines = ["| figure | value | ± | goal | |", "|---|---|---|---|---|"]
    for figure in figures:
        value, goal, met = figure["value"], [], ""
        at_least = figure.get("goal") == "at least"
        sign = "≥" if at_least else "≤"
        if "goal" in figure:
            goal.append(f"{sign} {figure['target']:g}")
            met = "met" if figure["met"] else "**missed**"
        if "beyond" in figure:
            beyond = figure["beyond"]
            goal.append(f"beyond {sign} {beyond:g}")
            if value >= beyond if at_least else value <= beyond:
                met = "beyond"
        spread = figure.get("spread")
        shown = number(value)
        if met == "**missed**" and shown == number(figure["target"]):
            shown = f"{value:.4g}"  # by how little
        lines.append(
            f"| {figure['what']} | {shown}{figure['unit']} "
            f"| {percent(spread)} | {', '.join(goal)} | {met} |"
        )
    return [*lines, ""]


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def spread_of(times: list[float]) -> float:
    """Of [least, median, most]."""
    return (times[2] - times[0]) / 2 / times[1]


def machine_line(data: dict) -> str:
    machine = data["machine"]
    device = ""
    if data.get("device", "cpu") != "cpu" and machine["cuda_devices"]:
        device = machine["cuda_devices"][0] + ", "
    return (
        f"{device}{machine['cpu']}, {machine['threads']} threads, "
        f"{machine['isa']}; {versions_line(data)}"
    )


def versions_line(data: dict) -> str:
    """luna 0.1.0 (commit), torch 2.11.0, CUDA 13.0, driver 580."""
    commit = data.get("commit")
    words = []
    for key, name in (
        ("luna", "luna"),
        ("torch", "torch"),
        ("cuda", "CUDA"),
        ("driver", "driver"),
    ):
        if data.get(key):
            words.append(f"{name} {data[key]}")
            if key == "luna" and commit:
                words[-1] += f" ({commit})"
    return ", ".join(words)
