"""Conditions of alerts, causes of time and abilities of engines, from YAML files; faults, from a benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any, Final

from collector.causes.split.names import load_causes
from collector.engines.abilities import known
from collector.slo.burn import load_windows
from collector.slo.conditions import load_conditions
from collector.slo.severity import SEVERITIES
from tests.contract.reference.text import table
from tests.contract.rooms import ROOMS, said
from tokentrail.shared.durations import format_duration

_RESULTS: Final = Path(__file__).parents[3] / "benchmarks" / "results"
FAULTS: Final = _RESULTS / "explain.json"
SECOND: Final = _RESULTS / "explain_second.json"
COUNTS: Final = _RESULTS / "alerts_counts.json"
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


def rooms(_: str, __: str) -> str:
    """The rooms of the collector, from the lowest up, with what they import."""
    rows = ((f"`{room}`", said(room), ", ".join(names.split())) for room, names in ROOMS.items())
    return table(("room", "what it is", "imports"), rows)


def tickets(_: str, __: str) -> str:
    """False tickets of conditions that compare or count, of the last run of `python -m benchmarks.alerts_counts`."""
    numbers = json.loads(COUNTS.read_text())["numbers"]
    found = numbers["tickets in 30 days"]
    rows = (
        (f"`{name}`", healthy, *(f"{times:.1f}" for times in found[name].values()))
        for name, healthy in numbers["healthy"].items()
    )
    return table(("condition", "healthy", *next(iter(found.values()))), rows)


def causes(_: str, __: str) -> str:
    """The causes among which a request's time is divided."""
    rows = ((f"`{name}`", one.group, one.means, one.source) for name, one in load_causes().items())
    return table(("cause", "people call it", "the time in which", "found by"), rows)


def remedies(_: str, __: str) -> str:
    """What makes each cause less, in general and by the switches of engines."""
    engines = {"vllm": "vLLM", "sglang": "SGLang", "dynamo": "Dynamo", "tokentrail": "our engine"}
    rows = (
        (
            f"{one.group} (`{name}`)",
            one.advice["any"],
            *(_switches(one.advice.get(engine, "no switch")) for engine in engines),
        )
        for name, one in load_causes().items()
        if one.advice
    )
    return table(("largest cause", "what to do", *engines.values()), rows)


def _switches(advice: str) -> str:
    """With its options as code."""
    return re.sub(r"(--[a-z][\w-]*)", r"`\1`", advice)


def faults(_: str, __: str) -> str:
    """How well the time that faults added is found, of the last run of `python -m benchmarks.explain`."""
    numbers = json.loads(FAULTS.read_text())["numbers"]
    head = (
        "fault",
        "time that it added, s",
        "worst error",
        "largest of what it added",
        "culprit named",
        "stall and drift",
    )
    rows = ((name, *_found(one), f"{100 * one['blamed_most']:.2f} %") for name, one in numbers.items() if "runs" in one)
    return table(head, rows)


def _found(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    if "injected_s" not in one:
        return "", "", "", ""
    low, high = min(one["injected_s"]), max(one["injected_s"])
    return (
        f"{low:.1f} to {high:.1f}",
        f"{100 * one['error_worst']:+.1f} %",
        f"{' or '.join(one['tops'])}, right in {one['top_right']} of {one['runs']}",
        f"{one['named']} of {one['victims']}" if "victims" in one else "",
    )


def second_engine(_: str, __: str) -> str:
    """Faults of an engine of another shape, of the last run of `python -m benchmarks.explain_second`."""
    numbers = json.loads(SECOND.read_text())["numbers"]
    head = ("fault", "cause", "time that it added, s", "found, s", "culprit named", "blamed besides", "right")
    rows = (
        (
            name,
            load_causes()[cause].group if (cause := one["cause"][0]) else _fact(one),
            *(_range(one[column]) if cause else "" for column in ("injected_s", "found_s")),
            "; ".join(dict.fromkeys(filter(None, one["culprit_named"]))),
            f"{100 * max(one['false_share']):.2f} %",
            f"{sum(one['right'])} of {len(one['right'])}",
        )
        for name, one in numbers.items()
        if isinstance(one, dict)
    )
    return table(head, rows)


def _fact(one: Mapping[str, Any]) -> str:
    """What a healthy process is slower than."""
    return " ".join(f"× {ratio:.2f} against its {kind}" for kind, ratio, *_ in filter(None, one["slower"][:1]))


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def replays(_: str, __: str) -> str:
    """How well a replay tells the attainment without a fault, of the same benchmark."""
    numbers = json.loads(FAULTS.read_text())["numbers"]
    head = ("fault", "attainment with it", "without it", "by replay", "error, points", "covered")
    rows = (
        (
            name,
            *(_percent(found[column]) for column in ("with", "without", "foretold")),
            f"{found['points_median']:.1f}, worst {found['points_worst']:+.1f}",
            f"{found['covered']} of {found['replays']}",
        )
        for name, one in numbers.items()
        if isinstance(one, dict) and (found := one.get("replay"))
    )
    return table(head, rows)


def _percent(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


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
