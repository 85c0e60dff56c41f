"""`tokentrail timeouts`: what time-outs cut and catch, a line for each, and the chosen ones as settings of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tokentrail.cli.output import cells
from tokentrail.shared.formatting import UNDEFINED, count, duration, kind_of_group, timeout_cells

_WAITS = {"first_token": "first token", "first_visible": "first visible", "gap": "gap", "e2e": "whole request"}


def show(console: Console, answer: Mapping[str, Any], asked: bool) -> None:
    """Print what is suggested for each kind of requests, or with `asked` what the given time-outs would do."""
    console.print(answer["summary"], markup=False, highlight=False, soft_wrap=True)
    if (one_in := answer["read_one_in"]) > 1:
        console.print(f"more than 400,000 requests: one of {one_in} was read", style="dim")
    if left_out := answer["left_out"]:
        console.print(f"{count(left_out)} requests of rarer models are left out", style="dim")
    for group in answer["groups"]:
        console.print()
        told = f"{kind_of_group(group)}: {count(group['requests'])} requests"
        console.print(told, markup=False, highlight=False, style="bold", soft_wrap=True)
        if asked:
            console.print(_table(group))
        sentences = [one["summary"] for one in (*group["waits"], *group["hedging"])]
        for text in sentences:
            console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)
        if not sentences:
            console.print("  nobody tells how long these requests waited", style="dim")


def _table(group: Mapping[str, Any]) -> Table:
    lines = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
    for head in ("wait", "time-out", "healthy cut", "dead caught", "saved for each", ""):
        lines.add_column(head, no_wrap=True)
    for wait in group["waits"]:
        for point in wait["curve"]:
            longest = UNDEFINED if wait["longest_s"] is None else duration(wait["longest_s"])
            note = f"longer than any wait that was answered ({longest})" if point["beyond_observed"] else ""
            lines.add_row(*cells(_WAITS[wait["wait"]], *timeout_cells(point), note))
    return lines


def chosen(answer: Mapping[str, Any], model: str) -> dict[str, float]:
    """The suggested time-out of each wait for a model, in seconds: the longest of its groups.

    A wait of which one group has no decided time-out has none: it would cut the requests of that group. Where no token
    of a group is told, as its answers come as a whole, its first byte is the end.
    """
    groups = [{wait["wait"]: wait for wait in group["waits"]} for group in answer["groups"] if group["model"] == model]
    found = {}
    for name in _WAITS:
        waits = [group[name] for group in groups if name in group]
        if name == "first_token" and waits:
            waits += [group["e2e"] for group in groups if name not in group and "e2e" in group]
        if waits and all(wait["suggested"] for wait in waits):
            found[name] = max(wait["suggested"]["timeout_s"] for wait in waits)
    return found


def undecided(answer: Mapping[str, Any], model: str) -> Iterator[str]:
    """Why waits of a model have no time-out, a sentence each."""
    for group in answer["groups"]:
        if group["model"] == model:
            yield from (wait["summary"] for wait in group["waits"] if not wait["suggested"])
