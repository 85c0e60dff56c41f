"""`tokentrail explain`: where the time of slow requests went, or that of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tokentrail.cli.api import list_of
from tokentrail.cli.output import cells, own_name, print_line
from tokentrail.cli.status import command
from tokentrail.shared.formatting import UNDEFINED, count, duration, percent

_KINDS: Final = {"tenant": "tenant ", "variant": "variant ", "process": "", "request": ""}
"""The kinds of culprits that a line has, and the word before a name of each."""


def show(console: Console, answer: Mapping[str, Any], filters: Mapping[str, Any]) -> None:
    """Print the sentence, a line for each cause, what is missing, and the commands that show an example and the list.

    `filters` are those of the question, as the API takes them.
    """
    print_line(console, answer["sentence"])
    if answer["parts"]:
        console.print(_table(answer["parts"]))
    if typical := answer["typical"]:
        ttft = f"TTFT {duration(typical['ttft_from_s'])} to {duration(typical['ttft_to_s'])}"
        print_line(console, f"typical: {typical['text']}, {ttft}")
    for without in answer["without"]:
        print_line(console, f"without {', '.join(without['causes'])}: {_good(without)} good ({without['kind']})")
    if replay := answer["replay"]:
        told = f"{count(replay['requests'])} requests, of which {percent(replay['attainment'])} were good"
        print_line(console, f"replayed: {told}{'; ' + replay['note'] if replay['note'] else ''}")
        culprits = {f"{one['by']} {one['name']}": one for part in answer["parts"] for one in part["culprits"]}
        for name, one in culprits.items():
            if without := one["without"]:
                print_line(
                    console, f"had the requests of {name} never come: {_good(without)} of the others good (replay)"
                )
    for waiting in answer["not_ended"]:
        print_line(console, f"not ended: {waiting['text']}")
    for note in (answer["note"], answer["without_hidden"] and f"without a cause: {answer['without_hidden']}"):
        if note:
            print_line(console, f"note: {note}")
    for level in answer["levels"]:
        if level["more"]:
            print_line(console, f"{count(level['requests'])} explained by {level['level']}: {level['more']}")
    if advised := next((part for part in answer["parts"] if part["advice"] and part["share"]), None):
        print_line(console, f"against {advised['cause']}: {advised['advice']}")
    if example := next((part["exemplars"][0] for part in answer["parts"] if part["exemplars"]), None):
        print_line(console, f"next: {own_name()} explain {example['trace_id']}")
    if listed := list_of(answer):
        print_line(console, f"all of them: {command({**filters, **listed})}")


def show_one(console: Console, detail: Mapping[str, Any]) -> None:
    """Print the causes of one request, the largest first."""
    row, explained = detail["request"], detail["explained"]
    head = (
        f"{row['model'] or UNDEFINED} · {row['status']} · TTFT {duration(row['ttft_s'])} · E2E {duration(row['e2e_s'])}"
    )
    print_line(console, f"{head} · trace {row['trace_id']}")
    if explained is None:
        print_line(console, "it has not ended: its causes are told after its end")
    elif explained["level"] is None:
        print_line(console, "it is not explained yet: that takes up to two minutes after its end")
    else:
        table = _columns("cause", "of", "time", "beyond typical", "culprits")
        for cause in explained["causes"]:
            of = "TTFT" if cause["of"] == "ttft" else "the rest"
            excess = duration(cause["excess_s"])
            table.add_row(*cells(cause["cause"], of, duration(cause["time_s"]), excess, _culprits(cause["culprits"])))
        console.print(table)
        print_line(console, f"explained by {explained['level']}")
    print_line(console, f"next: {own_name()} request {row['trace_id']}")


def _good(without: Mapping[str, Any]) -> str:
    """The attainment, of a replay with its interval."""
    told = percent(without["attainment"])
    if without["kind"] == "first order":
        return told
    return f"{told} ({percent(without['low'])} to {percent(without['high'])})"


def _table(parts: Sequence[Mapping[str, Any]]) -> Table:
    table = _columns("cause", "group", "share", "beyond typical", "time", "requests", "good without", "culprits")
    for part in parts:
        without = part["without"]
        table.add_row(
            *cells(
                part["cause"],
                part["group"],
                percent(part["share"]),
                duration(part["excess_s"]),
                duration(part["time_s"]),
                count(part["requests"]),
                UNDEFINED if without is None else _good(without),
                _culprits(part["culprits"]),
            )
        )
    return table


def _culprits(culprits: Sequence[Mapping[str, Any]]) -> str:
    """The worst of each kind, tenants first: a name says more than an id."""
    worst = {one["by"]: one for one in reversed(culprits) if one["by"] in _KINDS}
    shown = [worst[kind] for kind in _KINDS if kind in worst]
    return ", ".join(f"{_KINDS[one['by']]}{one['name']} {duration(one['time_s'])}" for one in shown) or UNDEFINED


def _columns(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head)
    return table
