"""`tokentrail spans`: the spans that no engine's mapping claims, from which a new mapping starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tokentrail.cli.output import cells, print_line, short


def names(answers: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each service, scope and name."""
    lines = Table("spans", "service", "scope", "name", "attributes", box=None, pad_edge=False, header_style="dim")
    lines.columns[0].justify = "right"
    for column in lines.columns:
        column.overflow = "fold"  # a name that is cut cannot be asked for
    for answer in answers:
        names_of_it = (short(answer[key]) for key in ("service", "scope", "name"))
        lines.add_row(*cells(str(answer["spans"]), *names_of_it, ", ".join(answer["attribute_keys"])))
    return lines


def show(console: Console, spans: Sequence[Mapping[str, Any]]) -> None:
    """Print each span with its attributes, its resource's, and its events."""
    for span in spans:
        head = f"{span['start']} {span['name']} {span['duration_s']:g} s, {span['kind']}, status {span['status']}"
        print_line(console, head)
        groups = [("", span["attributes"]), ("resource ", span["resource"])]
        groups += [(f"event {event['name']} ", event["attributes"]) for event in span["events"]]
        for group, attributes in groups:
            for key, value in attributes.items():
                print_line(console, f"  {group}{key} = {value}")
