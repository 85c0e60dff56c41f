"""A chart of growth as SVG text: both axes logarithmic, one line per series, the peer's dashed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 860, 460
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 20, 230, 50
_COLOURS = ("#6366f1", "#0d9488", "#d97706", "#db2777", "#64748b", "#7c2d12", "#84cc16", "#0ea5e9", "#111827")

Points = Sequence[tuple[float, float]]


def growth_chart(lines: Mapping[str, Points], *, x: str, y: str) -> str:
    """The SVG. A label that ends in "(peer)" is dashed, in the colour of the line before it."""
    xs = [at for points in lines.values() for at, _ in points]
    ys = [value for points in lines.values() for _, value in points]
    across, up = _scale(xs, _LEFT, _WIDTH - _RIGHT), _scale(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *(
            _grid_line(f"{10**i:,}", x1=across(10**i), x2=across(10**i), y1=_TOP, y2=_HEIGHT - _BOTTOM)
            for i in _decades(xs)
        ),
        *(_grid_line(f"{10**i:,}", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=up(10**i), y2=up(10**i)) for i in _decades(ys)),
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x)}</text>',
        f'<text transform="translate(16 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>',
    ]
    colour = -1
    for row, (label, points) in enumerate(lines.items()):
        peer = label.endswith("(peer)")
        colour += not peer
        style = f'stroke="{_COLOURS[colour % len(_COLOURS)]}" stroke-width="2"' + (
            ' stroke-dasharray="5 4"' if peer else ""
        )
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in points)
        key, left = _TOP + 12 + 20 * row, _WIDTH - _RIGHT + 14
        parts += [
            f'<polyline fill="none" {style} points="{path}"/>',
            f'<line x1="{left}" x2="{left + 26}" y1="{key - 4}" y2="{key - 4}" {style}/>',
            f'<text x="{left + 32}" y="{key}">{escape(label)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _decades(values: Sequence[float]) -> range:
    return range(floor(log10(min(values))), ceil(log10(max(values))) + 1)


def _scale(values: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    decades = _decades(values)
    low, high = decades[0], decades[-1]
    return lambda value: first + (last - first) * (log10(value) - low) / max(high - low, 1)


def _grid_line(label: str, *, x1: float, x2: float, y1: float, y2: float) -> str:
    vertical = x1 == x2
    at = f'x="{x1}" y="{y2 + 16}" text-anchor="middle"' if vertical else f'x="{x1 - 6}" y="{y1 + 4}" text-anchor="end"'
    return f'<line x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}" stroke="#e2e8f0"/><text {at} fill="#64748b">{label}</text>'
