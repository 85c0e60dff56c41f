"""`tokentrail explain`: where the time of slow requests went, or that of one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from tokentrail.cli.api import list_of
from tokentrail.cli.explained import lines
from tokentrail.cli.explained_table import of_one
from tokentrail.cli.output import own_name, print_line
from tokentrail.cli.status import command


def show(console: Console, answer: Mapping[str, Any], filters: Mapping[str, Any]) -> None:
    """Print the answer as text, and the commands that show an example and the list.

    `filters` are those of the question, as the API takes them.
    """
    for line in lines(answer):
        print_line(console, line)
    examples = (part["exemplars"][0] for part in answer["parts"] if part["exemplars"])
    if example := next(examples, None):
        print_line(console, f"next: {own_name()} explain {example['trace_id']}")
    if listed := list_of(answer):
        print_line(console, f"all of them: {command({**filters, **listed})}")


def show_one(console: Console, detail: Mapping[str, Any]) -> None:
    """Print the causes of one request, those with most time beyond a typical request's first."""
    for line in of_one(detail):
        print_line(console, line)
    print_line(console, f"next: {own_name()} request {detail['request']['trace_id']}")
