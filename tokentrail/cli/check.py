"""`tokentrail check`: a gate for releases, with a table, JSON or JUnit's XML, and an exit status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from httpx import HTTPError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokentrail.cli.output import cells
from tokentrail.cli.requests import passes
from tokentrail.shared.connection import in_words
from tokentrail.shared.formatting import UNDEFINED, duration, percent, significant

EXIT: Final = {"good": 0, "worse": 1, "not decided": 2}
NOTHING: Final = 3
"""The status where a side has no request that was judged."""
_STYLES: Final = {"good": "green", "worse": "red", "not decided": "yellow"}
_POLL_S: Final = 15.0


def until_decided(
    ask: Callable[[str | None], Mapping[str, Any]],
    wait_s: float,
    *,
    keep: Callable[[Mapping[str, Any]], None] = lambda _: None,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Mapping[str, Any]:
    """Ask until the verdict is good or worse, for so many seconds at most. `ask` takes the start of the window.

    The window begins for each question where it began for the first. A collector that restarts or is busy meanwhile is
    asked again. Raises httpx.HTTPError when it does not answer in the end. `keep` gets each answer.
    """
    ends = clock() + wait_s
    answer: Mapping[str, Any] = {}
    while True:
        left = ends - clock()
        try:
            answer = ask(answer["window"]["start"] if answer else None)
            why = answer["reason"]
            keep(answer)
        except HTTPError as error:
            if left <= 0 or not passes(error):
                raise
            why = f"the collector does not answer ({in_words(error)})"
        else:
            if left <= 0 or answer["verdict"] != "not decided":
                return answer
        tell(f"{why}: asked again")
        sleep(min(_POLL_S, left))


def no_answer(slo: str, reason: str) -> Mapping[str, Any]:
    """What stands in place of an answer that did not come: not decided, with the reason."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "verdict": "not decided", "value": 0, "reason": reason, "slo": slo, "window": {"start": now, "end": now},
        "empty": None, "warnings": [], "numbers": [],
    }  # fmt: skip


def status(answer: Mapping[str, Any]) -> int:
    """The exit status of an answer."""
    return NOTHING if answer["verdict"] == "not decided" and answer["empty"] else EXIT[answer["verdict"]]


def seconds(text: str) -> float:
    """Seconds of `90s`, `15m` or `1h`. Raises ValueError that shows how to write one."""
    match = re.fullmatch(r"(\d{1,6})(s|m|h)", text)
    if match is None:
        msg = f"write a number and a unit, such as 90s, 15m or 1h, not {text!r}"
        raise ValueError(msg)
    return int(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def show(console: Console, answer: Mapping[str, Any]) -> None:
    """Print the verdict and a line for each number."""
    console.print(
        Text(f"{answer['verdict']}: ", style=_STYLES[answer["verdict"]]).append(answer["reason"], style="default"),
        soft_wrap=True,
    )
    for warning in answer["warnings"]:
        console.print(f"note: {warning}", markup=False, highlight=False, soft_wrap=True)
    if not answer["numbers"]:
        return
    lines = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("number", "beside", "checked", "verdict", "times likelier if worse", "if good"):
        lines.add_column(head, no_wrap=True)
    for number in answer["numbers"]:
        values = [_value(number["name"], number[side]) for side in ("a", "b")]
        odds = [_times(number[f"evidence_of_{word}"]) for word in ("worse", "good")]
        verdict = Text(number["verdict"], style=_STYLES[number["verdict"]])
        lines.add_row(*cells(number["name"], *values, verdict, *odds))
    console.print(lines)


def _value(name: str, value: float | None) -> str:
    return percent(value) if name == "bad share" else duration(value)


def _times(evidence: float) -> str:
    return UNDEFINED if evidence <= 1 else "> 1 million" if evidence > 1e6 else significant(evidence)


def write_junit(path: Path, answer: Mapping[str, Any]) -> None:
    """Write the numbers as test cases: worse is a failure, not decided is skipped. Raises OSError."""
    numbers = answer["numbers"] or [
        {"name": "answer", "verdict": answer["verdict"], "a": None, "b": None}  # nothing was judged, and a tool sees it
    ]
    count = {verdict: sum(number["verdict"] == verdict for number in numbers) for verdict in EXIT}
    suite = ElementTree.Element(
        "testsuite",
        name=f"tokentrail check {answer['slo']}",
        tests=str(len(numbers)),
        failures=str(count["worse"]),
        skipped=str(count["not decided"]),
        timestamp=answer["window"]["end"].rstrip("Z"),
    )
    for number in numbers:
        case = ElementTree.SubElement(suite, "testcase", classname=f"slo.{answer['slo']}", name=number["name"])
        beside, checked = (_value(number["name"], number[side]) for side in ("a", "b"))
        if number["verdict"] == "worse":
            ElementTree.SubElement(case, "failure", message=f"{checked}, not {beside}").text = answer["reason"]
        elif number["verdict"] == "not decided":
            ElementTree.SubElement(case, "skipped", message=answer["reason"])
    ElementTree.indent(suite)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
