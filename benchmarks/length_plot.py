"""Time against the length of a sequence, as SVG, with the crossover marked."""

import math


def series(data: dict, name: str, key: str) -> list[tuple[int, float]]:
    return sorted(
        (row["n"], row[key][1])
        for row in data["rows"]
        if row["name"] == name and key in row
    )


def crossover(ours, theirs) -> float | None:
    """Where two curves of (n, ms) meet, between points, on log scales."""
    both = sorted(set(dict(ours)) & set(dict(theirs)))
    a, b = dict(ours), dict(theirs)
    for low, high in zip(both, both[1:], strict=False):
        x, y = math.log(a[low] / b[low]), math.log(a[high] / b[high])
        if x > 0 >= y:
            share = x / (x - y)
            return math.exp(
                math.log(low) + share * (math.log(high) - math.log(low))
            )
    return None


def plot(data: dict, title: str, names: dict[str, str], key: str) -> str:
    """Milliseconds against n, both on log scales, as SVG."""
    curves = {
        name: points for name in names if (points := series(data, name, key))
    }
    if not curves:
        return ""
    all_points = [p for points in curves.values() for p in points]
    x0, x1 = (math.log2(f(p[0] for p in all_points)) for f in (min, max))
    y0 = math.floor(math.log10(min(p[1] for p in all_points)))
    y1 = math.ceil(math.log10(max(p[1] for p in all_points)))
    left, top, width, height = 62, 34, 420, 250

    def at(n: float, ms: float) -> tuple[float, float]:
        x = (math.log2(n) - x0) / max(x1 - x0, 1e-9)
        y = (math.log10(ms) - y0) / max(y1 - y0, 1e-9)
        return left + x * width, top + (1 - y) * height

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 340" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="680" height="340" fill="#ffffff"/>',
        f'<text x="{left}" y="20" font-size="14">{title}</text>',
    ]
    for power in range(y0, y1 + 1):
        _, y = at(2**x0, 10**power)
        out.append(
            f'<path d="M{left} {y:.1f}h{width}" stroke="#d0d7de"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{10.0**power:g}</text>"
        )
    for power in range(round(x0), round(x1) + 1):
        x, _ = at(2**power, 10**y0)
        label = f"{2**power // 1024}K" if power >= 10 else str(2**power)
        out.append(
            f'<path d="M{x:.1f} {top}v{height}" stroke="#eaeef2"/>'
            f'<text x="{x:.1f}" y="{top + height + 16}" '
            f'text-anchor="middle">{label}</text>'
        )
    out.append(
        f'<text x="{left + width / 2}" y="{top + height + 36}" '
        'text-anchor="middle">tokens in a sequence</text>'
        f'<text transform="translate(14 {top + height / 2}) rotate(-90)" '
        'text-anchor="middle">ms</text>'
    )
    for i, (name, points) in enumerate(curves.items()):
        color = names[name]
        path = "L".join("{:.1f} {:.1f}".format(*at(*p)) for p in points)
        y = top + 14 + 20 * i
        x = left + width + 16
        out.append(
            f'<path d="M{path}" fill="none" stroke="{color}" '
            'stroke-width="2"/>'
            + "".join(
                '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>'.format(
                    *at(*p), color
                )
                for p in points
            )
            + f'<path d="M{x} {y - 4}h18" stroke="{color}" stroke-width="2"/>'
            f'<text x="{x + 24}" y="{y}">{name}</text>'
        )
    ours = next(iter(curves))
    for name, points in list(curves.items())[1:]:
        if name.startswith(ours) or "causal" in name:
            continue
        meet = crossover(curves[ours], points)
        if meet is None:
            continue
        x, _ = at(meet, 10**y0)
        out.append(
            f'<path d="M{x:.1f} {top}v{height}" stroke="{names[name]}" '
            'stroke-dasharray="4 3"/>'
            f'<text x="{x + 4:.1f}" y="{top + 12}" fill="{names[name]}">'
            f"{meet:.0f}</text>"
        )
    return "\n".join(out + ["</svg>", ""])
