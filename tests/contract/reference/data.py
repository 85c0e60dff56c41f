"""Conditions of alerts, causes of time and abilities of engines, from their YAML files."""

from __future__ import annotations

from os.path import relpath
from typing import Final

from collector.causes.names import load_causes
from collector.measure.abilities import known
from collector.slo.burn import load_windows
from collector.slo.conditions import load_conditions
from collector.slo.durations import format_duration
from collector.slo.severity import SEVERITIES
from tests.contract.reference.text import table

MARKS: Final = {"full": "●", "partly": "◐", "none": "○"}


def severities(condition: str) -> list[str]:
    """A condition's severities, the most urgent first; a burn has those of its windows."""
    if condition != "slo_burn":
        return [load_conditions()[condition].severity]
    return sorted({rule.severity for rule in load_windows().rules}, key=SEVERITIES.index)


def conditions(_: str, __: str) -> str:
    """The conditions, with links to their sections."""
    head = ("condition", "alert", "severity", "incident", "for", "shown", "silenced by")
    rows = (
        (
            f"`{name}`",
            f"[{condition.alert}](#{condition.alert.lower()})",
            " or ".join(severities(name)),
            "yes" if condition.incident else "",
            format_duration(condition.lasting) if condition.lasting else "",
            format_duration(condition.shown) if condition.shown else "",
            ", ".join(f"`{other}`" for other in condition.silenced_by),
        )
        for name, condition in load_conditions().items()
    )
    return table(head, rows)


def causes(_: str, __: str) -> str:
    """The causes among which a request's time is divided."""
    rows = ((f"`{name}`", one.group, one.means, one.source) for name, one in load_causes().items())
    return table(("cause", "people call it", "the time in which", "found by"), rows)


def engines(_: str, __: str) -> str:
    """What each way to connect an engine tells."""
    abilities = known().abilities
    rows = (
        (
            f"[{one.name}]({relpath(one.page, 'docs/engines')})",
            *(MARKS[one.tells[what]] for what in abilities),
        )
        for one in known().connections
    )
    return table(("", *abilities.values()), rows, middle=True)
