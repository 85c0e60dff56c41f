"""The engine processes that are slower by themselves: than another version of their service, or than they were."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import Process
from collector.causes.answer.request_times import of_causes
from collector.count.reader import Reader
from tokentrail.shared.formatting import named, significant

CAUSE: Final = "slower"
_MOST: Final = 20


class SlowerOut(Answer):
    """A process that takes longer for the same work than another law of step times."""

    service: str
    instance: str
    process_tenant: str
    than: Literal["version", "earlier", "sister"]
    """`version`: another variant of its service. `earlier`: itself in the last week. `sister`: another process of its
    service and variant, than which it always was slower."""
    name: str
    """That variant, the begin of that time, or that instance."""
    by: float | None
    """How many times as long its steps take."""
    low: float | None
    """In 95 of 100 cases it is between this and `high`."""
    high: float | None
    text: str
    """`× 2.6 (2.5 to 2.7) against build-771`."""


def read_slower(reader: Reader, window: Window, processes: Collection[int]) -> list[SlowerOut]:
    """The slower ones of some processes, which have numbers as in rows of `causes`; the slowest first.

    A caller of one tenant sees none: another tenant's processes would be named.
    """
    if reader.tenant or not processes:
        return []
    asked = {"filter": of_causes(window)}
    rows = reader.queries.rows("explain_slower", asked, **window.bounds, processes=sorted(processes), limit=_MOST)
    told = []
    for row in rows:
        than, name, by, low, high = row["newest"]
        process = Process(row["of_service"], row["of_instance"], row["of_tenant"])
        text = words(than, name, by, low, high)
        told.append(SlowerOut(**process._asdict(), than=than, name=name, by=by, low=low, high=high, text=text))
    return told


def words(than: str, name: str, by: float | None, low: float | None, high: float | None) -> str:
    """By how much, with the interval, and against what."""
    against = {"version": "against {}", "earlier": "than itself at {}", "sister": "than its sister {}"}[than]
    interval = "" if low is None or high is None else f" ({significant(low, 2)} to {significant(high, 2)})"
    times = "" if by is None else f"× {significant(by, 2)}{interval} "
    return f"{times}{against.format(named(name) or 'an unnamed version')}"
