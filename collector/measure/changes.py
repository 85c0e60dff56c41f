"""Moments from which a service has another model, another variant or another process."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, Literal

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.reader import Reader
from collector.measure.slices import slices
from collector.measure.times import DAY_NS, rfc3339
from collector.measure.window import Window
from collector.slo.counts import Number

LOOK_BACK_NS: Final = 7 * DAY_NS
"""What a service had in so many days before the window is not new."""
_DIMENSIONS: Final[dict[int, Literal["model", "variant", "process"]]] = {
    0b011: "model",
    0b101: "variant",
    0b110: "process",
}


class Change(Answer):
    """A value that a service has for the first time."""

    at: str
    """When its first request began."""
    service: str
    dimension: Literal["model", "variant", "process"]
    value: str
    requests: Number
    """Requests with this value up to the end of the window."""
    before: list[str]
    """The values of the service up to then; of processes none, since they come and go."""
    compare: str
    """Parameters of `/compare` for the hour before and the hour after it."""


class Changes(Answer):
    """`/changes`."""

    window: WindowOut
    changes: list[Change]
    """The earliest first."""


def changes(reader: Reader, window: Window) -> Changes:
    """The changes of a window. The first values of a service that had no request before are none."""
    began: dict[str, int] = {}
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    found = []
    for first_ns, service, bits, value, n in _first_seen(reader, window):
        dimension = _DIMENSIONS[bits]
        before = seen[service, dimension]
        is_new = first_ns > began.setdefault(service, first_ns) and first_ns >= window.start_ns
        if value and is_new and (before or dimension == "process"):
            at = rfc3339(first_ns)
            found.append(
                Change(
                    at=at,
                    service=service,
                    dimension=dimension,
                    value=value,
                    requests=n,
                    before=[] if dimension == "process" else before[-10:],
                    compare=f"at={at}&span=1h",
                )
            )
        if value:
            before.append(value)
    return Changes(window=WindowOut.of(window, reader.complete_ns), changes=found)


def _first_seen(reader: Reader, window: Window) -> list[tuple[int, str, int, str, int]]:
    """When each service first had each value, by time: with the dimension's bits and the number of requests."""
    found: dict[tuple[str, int, str], tuple[int, int]] = {}
    for part in slices([window.end_ns, max(0, window.start_ns - LOOK_BACK_NS)]):
        rows = part.columns(reader.queries, "changes", {}, window.filter)
        names = ("service", "dimension", "value", "first_ns", "n")
        for service, bits, value, first_ns, n in zip(*(rows[name] for name in names), strict=True):
            before_ns, others = found.get((service, bits, value), (first_ns, 0))
            found[service, bits, value] = min(first_ns, before_ns), others + n
    return sorted((first_ns, *key, n) for key, (first_ns, n) in found.items())
