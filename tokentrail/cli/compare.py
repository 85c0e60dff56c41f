"""`tokentrail compare`: two sets of requests, a line for each number that both have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tokentrail.cli.output import cells
from tokentrail.shared.formatting import LATENCIES, MINUS, UNDEFINED, count, duration, percent, rate, significant

_LEVELS: Final = {"p50": "P50", "p95": "P95", "p99": "P99"}


def show(console: Console, answer: Mapping[str, Any]) -> None:
    """Print the verdict, the warnings and the table."""
    console.print(answer["verdict"], markup=False, highlight=False, soft_wrap=True)
    for warning in answer["warnings"]:
        console.print(f"note: {warning}", markup=False, highlight=False, soft_wrap=True)
    console.print(table(answer))


def table(answer: Mapping[str, Any]) -> Table:
    """The numbers of A and of B, and B ÷ A of requests that are alike, with its 95 % interval."""
    a, b = answer["a"], answer["b"]
    lines = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in cells("", a["name"], b["name"], "B ÷ A, like for like"):
        lines.add_column(head, no_wrap=True)
    for name, word in LATENCIES.items():
        for level, title in _LEVELS.items():
            values = [duration(side[f"{name}_s"][level]) for side in (a, b)]
            lines.add_row(*cells(f"{title} {word}", *values, _ratio(answer["ratios"].get(name, {}).get(level))))
    lines.add_row(
        *cells("attainment", *(percent(side["attainment"]) for side in (a, b)), _points(answer["attainment"]))
    )
    lines.add_row(*cells("requests", *(count(side["requests"]["total"]) for side in (a, b)), ""))
    lines.add_row(*cells("time in which it ran", *(duration(side["ran_s"]) for side in (a, b)), ""))
    for name, unit in (("requests_per_s", "/s"), ("goodput_per_s", "good/s"), ("output_tokens_per_s", "tokens/s")):
        lines.add_row(*cells(name.removesuffix("_per_s").replace("_", " "), *(rate(s[name], unit) for s in (a, b)), ""))
    lines.add_row(*cells("running at a time", *(_plain(side["running"]) for side in (a, b)), ""))
    return lines


def _ratio(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return UNDEFINED
    return f"× {significant(interval['estimate'])} ({_bound(interval['low'], '0')} to {_bound(interval['high'], '∞')})"


def _bound(value: float | None, without: str) -> str:
    return without if value is None else significant(value)


def _points(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return UNDEFINED
    estimate, low, high = (_signed(interval[key] or 0.0) for key in ("estimate", "low", "high"))
    return f"{estimate} points ({low} to {high})"


def _signed(share: float) -> str:
    return f"{MINUS if share < 0 else '+'}{abs(share) * 100:.2f}"


def _plain(value: float | None) -> str:
    return UNDEFINED if value is None else significant(value)
