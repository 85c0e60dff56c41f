"""Shares of requests below each latency (ECDFs) as an image, one curve for each side of a comparison."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Mapping, Sequence
from math import log

from dashboard.transform import Json
from tokentrail.shared.formatting import count, duration, one_line

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 420, 210, 34, 20, 8
TICKS_S = (1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
INK = "#808896"
"""Of axes: it is read on light and on dark."""
SHARES = (0.0, 0.5, 0.9, 1.0)


def shares(answer: Json) -> list[tuple[float, float]]:
    """Points of the curve from an answer of `/heatmap`: a latency in seconds and the share of requests below it."""
    counts = [0.0] * max(0, len(answer["edges_s"]) - 1)
    for cell in answer["cells"]:
        if cell["y"] is not None:
            counts[cell["y"]] += cell["requests"]
    total, below, points = sum(counts), 0.0, []
    if not total:
        return []
    for edge, more in zip(answer["edges_s"], [*counts, 0.0], strict=True):
        points.append((edge, below / total))
        below += more
    return points


def drawn(title: str, sides: Mapping[str, Sequence[tuple[float, float]]], colours: Sequence[str]) -> str:
    """The curves of some sides on one logarithmic axis; empty if no side has a latency. Names may be of others."""
    known = {name: points for name, points in sides.items() if points}
    if not known:
        return ""
    low = min(points[0][0] for points in known.values())
    high = max(max(points[-1][0] for points in known.values()), low * 2)

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (log(seconds) - log(low)) / (log(high) - log(low))

    def y(share: float) -> float:
        return ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - share)

    parts = []
    for share in SHARES:
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{WIDTH - 8}" stroke="{INK}" stroke-opacity=".25"/>')
        parts.append(f'<text x="0" y="{y(share) + 4:.1f}">{share:.0%}</text>')
    for tick in TICKS_S:
        if low <= tick <= high:
            parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - 4}" text-anchor="middle">{duration(tick)}</text>')
            parts.append(f'<path d="M{x(tick):.1f} {ABOVE}V{HEIGHT - BELOW}" stroke="{INK}" stroke-opacity=".25"/>')
    for points, colour in zip(sides.values(), colours, strict=False):
        line = " ".join(f"{x(seconds):.1f},{y(share):.1f}" for seconds, share in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    said = "; ".join(f"{name}: half below {duration(at(points, 0.5))}" for name, points in known.items())
    label = html.escape(one_line(f"{title}, share of requests below. {said}"), quote=True)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="11" fill="{INK}" '
        f'font-family="sans-serif">{"".join(parts)}</svg>'
    )
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    return f'<img alt="{label}" src="{source}" style="width:100%;max-width:30rem">'


def at(points: Sequence[tuple[float, float]], share: float) -> float:
    """The first latency below which at least this share lies."""
    return next((seconds for seconds, below in points if below >= share), points[-1][0])


def legend(names: Sequence[str], numbers: Sequence[float], colours: Sequence[str]) -> str:
    """The names of the sides with their colours and numbers of requests."""
    return " ".join(
        f'<span style="white-space:nowrap;margin-right:1rem"><b style="color:{colour}">━</b> '
        f"{html.escape(one_line(name))} ({count(n)})</span>"
        for name, n, colour in zip(names, numbers, colours, strict=True)
    )
