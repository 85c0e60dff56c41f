"""A forest plot of Compare: the ratio of each percentile with its interval, beside the band of "the same"."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from dashboard import bars
from tokentrail.shared.formatting import significant

TICKS: Final = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
LOOKS: Final[Mapping[str, str]] = {"B is slower": "bad", "B is faster": "good", "not decided": "open"}
"""By what a row says; of others a plain one."""


@dataclass(frozen=True)
class Row:
    """One percentile."""

    name: str
    a: str
    b: str
    ratio: Mapping[str, float | None] | None
    """B ÷ A with its bounds; None: nothing to compare. A bound that is None: so few requests give none."""
    interval: str
    says: str


def drawn(rows: Sequence[Row], relevant: float) -> str:
    """The plot as an HTML table: each row is read as it is by who does not see the lines."""
    low, high = span(rows)

    def x(value: float) -> float:
        return 100 * (log(min(max(value, low), high)) - log(low)) / (log(high) - log(low))

    band = f"left:{x(1 / (1 + relevant)):.1f}%;width:{x(1 + relevant) - x(1 / (1 + relevant)):.1f}%"
    ground = f'<u style="{band}"></u><s style="left:{x(1.0):.1f}%"></s>'
    ticks = "".join(f'<em style="left:{x(at):.1f}%">×{at:.2g}</em>' for at in TICKS if low <= at <= high)
    lines = "".join(
        f'<tr class="{LOOKS.get(row.says, "same")}"><th scope="row">{html.escape(row.name)}</th>'
        f"<td>{html.escape(row.a)}</td><td>{html.escape(row.b)}</td>"
        f'<td class="plot" aria-hidden="true">{ground}{_marks(row, low, high, x)}</td>'
        f"<td>{_ratio(row)}</td><td>{html.escape(row.interval)}</td><td>{html.escape(row.says)}</td></tr>"
        for row in rows
    )
    heads = "".join(f"<th>{name}</th>" for name in ("", "A", "B"))
    scale = f'<th class="plot" aria-hidden="true">{ticks}</th>'
    tail = "".join(f"<th>{name}</th>" for name in ("B ÷ A", "95 %", "says"))
    return bars.scrolled("B ÷ A", f'<table class="tt-forest"><tr>{heads}{scale}{tail}</tr>{lines}</table>')


def span(rows: Sequence[Row]) -> tuple[float, float]:
    """The ends of the axis: half and twice, or the ticks beyond all estimates and the bounds that are not far off."""
    known = [value for row in rows if row.ratio for value in _inside(row.ratio)]
    low, high = min([0.5, *known]), max([2.0, *known])
    return max((at for at in TICKS if at <= low), default=TICKS[0]), min(
        (at for at in TICKS if at >= high), default=TICKS[-1]
    )


def _inside(ratio: Mapping[str, float | None]) -> list[float]:
    """The estimate and its bounds within four times of it: a bound that is farther off is an arrow. None where no
    interval says how good the estimate is."""
    estimate = ratio["estimate"] or 0.0
    if ratio["low"] is None and ratio["high"] is None:
        return []
    bounds = [bound for bound in (ratio["low"], ratio["high"]) if bound]
    return [value for value in (estimate, *bounds) if value > 0 and 1 / 4 <= value / estimate <= 4]


def _marks(row: Row, low: float, high: float, x: Callable[[float], float]) -> str:
    """The line of an interval, with an arrow where it goes on beyond the axis or without an end, and the estimate."""
    if row.ratio is None or not row.ratio["estimate"]:
        return ""
    first, last = row.ratio["low"], row.ratio["high"]
    point = f'<i class="at" style="left:{x(row.ratio["estimate"]):.1f}%"></i>'
    if first is None and last is None:
        return point if low <= row.ratio["estimate"] <= high else ""
    left, right = (x(first) if first else 0.0), (100.0 if last is None else x(last))
    arrows = ("" if first and first >= low else '<i class="from"></i>') + (
        "" if last is not None and last <= high else '<i class="to"></i>'
    )
    return f'<b style="left:{left:.1f}%;width:{right - left:.1f}%"></b>{arrows}{point}'


def _ratio(row: Row) -> str:
    estimate = row.ratio["estimate"] if row.ratio else None
    return f"× {significant(estimate)}" if estimate is not None else "–"
