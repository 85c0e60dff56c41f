"""Stacked bars of causes and the table of what each costs, as HTML: links, and titles that say each number."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.links import text
from dashboard.transform import Json
from tokentrail.shared.formatting import MINUS, UNDEFINED, count, duration, percent

UNEXPLAINED = "unexplained"
SHOWN = 0.004
"""Parts with a smaller share of every bar are not drawn."""
_NAMED = 0.07
"""From this share on, the number stands in the bar."""


@dataclass(frozen=True)
class Bar:
    """The time of some requests by group of causes, in seconds."""

    name: str
    note: str
    parts: Mapping[str, float]
    mean_of: float
    """Requests among which the time is shared, for the mean in a title."""


@dataclass(frozen=True)
class Palette:
    """Colours and groups of causes, as an answer of `/explain` has them."""

    colours: Mapping[str, str]
    of_cause: Mapping[str, str]

    @classmethod
    def of(cls, *answers: Json) -> Palette:
        """The groups of all these answers, in the order of the first one."""
        groups = [group for answer in answers for group in answer["groups"]]
        return cls(
            {group["group"]: group["colour"] for group in groups},
            {cause: group["group"] for group in groups for cause in group["causes"]},
        )

    def by_group(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Seconds by cause as seconds by group."""
        sums: dict[str, float] = {}
        for cause, seconds in parts.items():
            group = self.of_cause.get(cause, UNEXPLAINED)
            sums[group] = sums.get(group, 0.0) + seconds
        return {group: sums[group] for group in (*self.colours, UNEXPLAINED) if group in sums}

    def paint(self, group: str) -> str:
        """CSS of the background. What is not explained is hatched, so that it looks like no cause."""
        if group == UNEXPLAINED:
            return "background:repeating-linear-gradient(45deg,#cbd5e1 0 4px,#e8ecf2 4px 8px)"
        return f"background:{self.colours.get(group, '#94a3b8')}"


def stacked(bars: Sequence[Bar], palette: Palette) -> str:
    """One horizontal bar each, as shares of its own time, and what the colours mean."""
    rows, drawn = [], set()
    for bar in bars:
        whole = sum(bar.parts.values())
        spans = []
        for group, seconds in bar.parts.items():
            share = seconds / whole if whole else 0.0
            if share < SHOWN:
                continue
            drawn.add(group)
            title = f"{group}: {share:.0%}, {duration(seconds / bar.mean_of)} on average"
            number = f"{share:.0%}" if share >= _NAMED else ""
            spans.append(
                f'<span style="width:{share:.2%};{palette.paint(group)}" title="{text(title)}">{number}</span>'
            )
        said = ", ".join(f"{group} {seconds / whole:.0%}" for group, seconds in bar.parts.items()) if whole else ""
        rows.append(
            f'<div class="who">{text(bar.name)}<br><small>{text(bar.note)}</small></div>'
            f'<div class="tt-stack" role="img" aria-label="{text(bar.name)}: {html.escape(said)}">'
            f"{''.join(spans)}</div>"
        )
    return f'<div class="tt-bars">{"".join(rows)}</div>{legend(drawn, palette)}'


def legend(groups: set[str], palette: Palette) -> str:
    """The names of the colours."""
    order = [group for group in (*palette.colours, UNEXPLAINED) if group in groups]
    keys = (f"<span>{swatch(group, palette)}{text(group)}</span>" for group in dict.fromkeys(order))
    return f'<div class="tt-legend">{"".join(keys)}</div>'


def swatch(group: str, palette: Palette) -> str:
    """A small square of the colour of a group."""
    return f'<span class="tt-key" style="{palette.paint(group)}"></span>'


@dataclass(frozen=True)
class Column:
    """One request as an upright bar."""

    name: str
    href: str
    parts: Mapping[str, float]


def upright(columns: Sequence[Column], palette: Palette, limit_s: float | None) -> str:
    """One upright bar each, as long as its time; a click opens the request. Dashed: the SLO's threshold."""
    top = max((sum(column.parts.values()) for column in columns), default=0.0) or 1.0
    bars = []
    for column in columns:
        whole = sum(column.parts.values())
        parts = sorted(column.parts.items(), key=lambda item: -item[1])
        said = ", ".join(f"{duration(seconds)} {group}" for group, seconds in parts if seconds >= SHOWN * whole)
        spans = "".join(
            f'<span style="height:{seconds / top:.2%};{palette.paint(group)}"></span>'
            for group, seconds in column.parts.items()
        )
        title = f"{text(column.name)}: {html.escape(f'{duration(whole)}; {said}')}"
        bars.append(
            f'<a href="{html.escape(column.href)}" target="_self" title="{title}" aria-label="{title}">{spans}</a>'
        )
    marks = "".join(
        f'<i style="bottom:{share:.0%}"></i><b style="bottom:{share:.0%}">{duration(top * share)}</b>'
        for share in (0.5, 1.0)
    )
    if limit_s is not None and limit_s <= top:
        marks += f'<i class="limit" style="bottom:{limit_s / top:.2%}" title="{duration(limit_s)} promised"></i>'
    return f'<div class="tt-many">{marks}{"".join(bars)}</div>'


@dataclass(frozen=True)
class Cost:
    """A row of the table of causes: a group of an answer of `/explain`, with who, where, when, and what to do."""

    group: Json
    where: str
    """HTML."""
    advice: str


def costs(rows: Sequence[Cost], palette: Palette) -> str:
    """The table of causes."""
    most = max((points(row.group) or 0.0 for row in rows), default=0.0)
    time_s = sum(row.group["time_s"] for row in rows) or 1.0
    lines = []
    for row in rows:
        group, without = row.group, row.group["without"]
        attained = percent(without["attainment"]) if without else UNDEFINED
        name = f"{swatch(group['group'], palette)}{text(group['group'])}"
        todo = f"<details><summary>what to do</summary>{html.escape(row.advice)}</details>" if row.advice else ""
        lines.append(
            f'<tr><td>{name}</td><td class="n">{duration(group["time_s"])}<br>'
            f'<small>{percent(group["time_s"] / time_s)}</small></td><td class="n">{attained}</td>'
            f'<td style="width:8.5rem">{_worth(group, most, palette)}</td><td class="n">{count(group["requests"])}</td>'
            f"<td>{row.where}{todo}</td></tr>"
        )
    head = (
        '<tr><th>cause</th><th class="n">time</th><th class="n">attainment<br>without it</th><th>worth</th>'
        '<th class="n" title="of which it is the largest cause">requests</th><th>who, where, when</th></tr>'
    )
    return scrolled("What each cause costs", f'<table class="tt-causes">{head}{"".join(lines)}</table>')


def scrolled(name: str, table: str) -> str:
    """A table that is wider than a phone: the keyboard can scroll it."""
    return f'<div class="tt-rows" role="region" tabindex="0" aria-label="{name}">{table}</div>'


def points(group: Json) -> float | None:
    """The hundredths of attainment that a group of causes is worth; None where nothing is said about it."""
    known: float | None = group["without"] and group["without"]["points"]
    return known


def _worth(group: Json, most: float, palette: Palette) -> str:
    worth = points(group)
    if worth is None:
        return UNDEFINED
    without, now = group["without"], group["without"]["attainment"] - worth / 100
    bounds = [signed(100 * (without[name] - now)) for name in ("low", "high") if without[name] is not None]
    between = (
        f"<br><small>{bounds[0]} to {bounds[1]}</small>" if len(bounds) == 2 and {*bounds} != {signed(worth)} else ""
    )
    share = max(0.0, worth) / most if most > 0 else 0.0
    return (
        f'<div class="worth" style="width:{share:.0%};{palette.paint(group["group"])}"></div>'
        f"{signed(worth)} points{between}"
    )


def signed(value: float) -> str:
    """Points with their sign and two digits behind the point: `+5.99`, `−0.20`, `0`."""
    rounded = f"{abs(value):.2f}"
    return "0" if float(rounded) == 0 else f"{'+' if value > 0 else MINUS}{rounded}"
