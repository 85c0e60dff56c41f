"""`tokentrail status`, `slos` and `incidents` as text: how the promises stand, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokentrail.cli.output import cells, own_name, print_line, short
from tokentrail.shared import query
from tokentrail.shared.formatting import UNDEFINED, clock, count, duration, of_tenant, one_line, percent, significant

EXIT: Final = {"kept": 0, "broken": 3, "spent": 3, "danger": 3, "quiet": 4, "not_judged": 4}
NOT_IN_USE: Final = "The newest SLO file is not in use"
_STYLES: Final = {"kept": "green", "broken": "bold red", "spent": "red", "danger": "yellow"}
_SEVERITIES: Final = {"page": "bold red", "ticket": "yellow", "info": "cyan"}
_MOST_BOXES: Final = 10
_MOST_TENANTS: Final = 5
_OPTIONS: Final = ("start", "end", "status", "slo", "verdict", "sort", "cause", "metric", "at_least", "at_most")
"""Parameters of `/requests`, beside filters, that `tokentrail requests` has options for."""
_IMPLIED: Final = ("process_tenant", "cause_start", "cause_end")
"""These narrow a list that service, instance, cause and times give already, in all but rare cases."""


def show(console: Console, verdict: Mapping[str, Any]) -> None:
    """Print the sentences, what is behind them, the SLOs, and the next command."""
    console.print(Text(one_line(verdict["sentence"]), style=_STYLES.get(verdict["state"], "")), soft_wrap=True)
    for name in ("who", "why", "without"):
        if verdict[name]:
            print_line(console, f"  {verdict[name]}")
    if problem := verdict["slo_file_problem"]:
        print_line(console, f"{NOT_IN_USE}: {problem}")
    boxes = verdict["boxes"]
    if boxes:
        console.print()
    for box in boxes[:_MOST_BOXES]:
        _box(console, box, "")
        for one in box["inside"]:
            _box(console, one, "  ")
    if len(boxes) > _MOST_BOXES:
        print_line(console, f"{len(boxes) - _MOST_BOXES} more: {own_name()} status --json")
    if verdict["odd"]:
        console.print()
    for one in verdict["odd"]:
        print_line(console, f"odd    {one['sentence']} {one['who'] or ''}".rstrip())
    if verdict["slos"]:
        console.print()
        console.print(slos(verdict["slos"]))
    if following := _next(verdict):
        console.print()
        print_line(console, f"next: {following}")


def _box(console: Console, box: Mapping[str, Any], indent: str) -> None:
    told = box["severity"] if box["firing"] and box["severity"] else "over" if box["until_ns"] else "new"
    text = Text(f"{indent}{told:<6} ", style=_SEVERITIES.get(told, "dim"))
    text.append(one_line(box["title"]), style="default")
    console.print(text, soft_wrap=True)
    print_line(console, f"{indent}       {box['sentence']}")


def _next(verdict: Mapping[str, Any]) -> str:
    """The command that shows most of what the verdict is about."""
    links = [*verdict["links"], *(link for box in verdict["boxes"][:1] for link in box["links"])]
    links += [link for one in verdict["odd"] for link in one["links"]]
    listed = next((link["params"] for link in links if link["page"] == "explore"), None)
    if listed is not None:
        return command(listed)
    if verdict["state"] == "not_judged":
        return f"{own_name()} slos"
    return f"{own_name()} requests --start -1d" if verdict["state"] == "quiet" and verdict["last_request_ns"] else ""


def command(params: Mapping[str, Any]) -> str:
    """`tokentrail requests` with the parameters of a list, to be pasted into a shell."""
    try:
        line = query.written({name: value for name, value in params.items() if name not in _IMPLIED})
        query.parse(line, _OPTIONS)
    except query.WrongWord:
        return f"{own_name()} incidents --json"
    return f"{own_name()} requests {shlex.quote(line)}"


def slos(answers: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each SLO, and below it one for each of its worst tenants."""
    lines = _columns(
        "SLO", "objective", "attainment", "judged", "bad", "budget left", "gone in", "burn", "window", "fires"
    )
    for slo in answers:
        lines.add_row(*_numbers(slo["name"], slo, slo["objective"], slo["window_s"]))
        worst = sorted(slo["groups"], key=lambda one: 2.0 if one["attainment"] is None else one["attainment"])
        for group in worst[:_MOST_TENANTS]:
            lines.add_row(*_numbers(f"  {short(group['tenant'])}", group, slo["objective"], None))
        if (more := slo["groups_total"] - _MOST_TENANTS) > 0:
            lines.add_row(*cells(f"  {count(more)} more tenants", *[""] * 9))
    return lines


def _numbers(name: str, numbers: Mapping[str, Any], objective: float, window_s: float | None) -> list[Text]:
    counts = numbers["requests"]
    judged = counts["total"] - counts["excused"] - counts["undetermined"] + counts["in_flight_violations"]
    judged += counts["lost"]
    attainment = Text(percent(numbers["attainment"]))
    if numbers["attainment"] is not None:
        attainment.stylize("red" if numbers["attainment"] < objective else "green")
    return cells(
        name,
        percent(objective),
        attainment,
        count(judged),
        count(judged - counts["good"]),
        percent(numbers["budget_left"]),
        duration(numbers["exhausted_in_s"]),
        _burn(numbers["burn"]),
        "" if window_s is None else duration(window_s),
        Text(numbers["firing"] or UNDEFINED, style=_SEVERITIES.get(numbers["firing"] or "", "dim")),
    )


def _burn(rules: Sequence[Mapping[str, Any]]) -> str:
    """The most urgent rule that fires, else the fastest burn: how many times as fast as allowed, over its window."""
    known = [rule for rule in rules if rule["long_burn"] is not None]
    rule = next(
        (rule for rule in known if rule["firing"]), max(known, key=lambda rule: float(rule["long_burn"]), default=None)
    )
    return UNDEFINED if rule is None else f"{significant(rule['long_burn'], 2)}× {duration(rule['long_s'])}"


def show_incidents(console: Console, incidents: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each incident, and for the first ones that have requests the command that lists them."""
    lines = _columns("", "cause", "since (UTC)", "until (UTC)", "requests", "where", "what")
    for one in incidents:
        severity = Text(one["severity"] if one["firing"] else "over")
        severity.stylize(_SEVERITIES.get(severity.plain, "dim"))
        times = (clock(one[name]).removesuffix(" UTC") for name in ("start", "end"))
        where = one["slo"] or of_tenant(" ".join(filter(None, [one["service"], one["instance"]])), one)
        tenant = "" if one["tenant"] is None else f" for {one['tenant'] or 'no tenant'}"
        lines.add_row(*cells(severity, one["cause"], *times, count(one["requests_affected"]), f"{where}{tenant}",
                             one["title"]))  # fmt: skip
    console.print(lines)
    for text in dict.fromkeys(_lists(incidents)):
        print_line(console, f"next: {text}")


def _lists(incidents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in [one for one in incidents if one["requests"]][:3]:
        yield command(one["requests"][0]["parameters"])


def _columns(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table
