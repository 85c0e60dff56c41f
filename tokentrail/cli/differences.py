"""`tokentrail differences`: what the bad requests have that the others have not, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tokentrail.cli.output import cells
from tokentrail.shared.formatting import UNDEFINED, count, percent, significant


def show(console: Console, answer: Mapping[str, Any]) -> None:
    """Print the sentence and the table."""
    console.print(answer["summary"], markup=False, highlight=False, soft_wrap=True)
    if left_out := answer["not_asked"]:
        names = ", ".join(left_out)
        console.print(f"too many requests or steps in this time, so not compared: {names}", style="dim", soft_wrap=True)
    if not answer["differences"]:
        return
    lines = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("", "selected", "others", "times", "by chance", "also"):
        lines.add_column(head, no_wrap=True)
    for one in answer["differences"]:
        where = " and ".join(f"{part['dimension']} {part['value'] or 'not given'}" for part in one["conditions"])
        sides = [f"{percent(one[side]['share'])} ({count(one[side]['requests'])})" for side in ("selected", "others")]
        lift = UNDEFINED if one["lift"] is None else significant(one["lift"], 2)
        chance = "< 0.001" if one["p"] < 0.001 else significant(one["p"], 1)
        lines.add_row(*cells(where, *sides, lift, chance, ", ".join(one["also"])))
    console.print(lines)
