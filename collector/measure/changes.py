"""Moments from which a service has another model, variant or process, and from which an SLO has another definition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, Literal

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.reader import Reader
from collector.measure.slices import slices
from collector.measure.times import DAY_NS, parse_moment, rfc3339
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
    """A value that a service has for the first time, or another definition of an SLO."""

    at: str
    """When its first request began, or the collector took the SLO file."""
    service: str
    """Empty for an SLO."""
    dimension: Literal["model", "variant", "process", "slo"]
    slo: str | None
    """The name of the SLO."""
    value: str
    """Of an SLO its promise in words, with its hash; empty for one that is gone."""
    requests: Number | None
    """Requests with this value up to the end of the window; null for an SLO."""
    before: list[str]
    """The values of the service up to then; of processes none, since they come and go. Of an SLO the one before."""
    compare: str
    """Parameters of `/compare` for the hour before and the hour after it."""


class Changes(Answer):
    """`/changes`."""

    window: WindowOut
    changes: list[Change]
    """The earliest first."""


def changes(reader: Reader, window: Window) -> Changes:
    """The changes of a window. The first values of a service that had no request before are none.

    Filters are about requests, so they leave no SLO out.
    """
    began: dict[str, int] = {}
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    all_changes = []
    for first_ns, service, bits, value, n in _first_seen(reader, window):
        dimension = _DIMENSIONS[bits]
        before = seen[service, dimension]
        is_new = first_ns > began.setdefault(service, first_ns) and first_ns >= window.start_ns
        if value and is_new and (before or dimension == "process"):
            at = rfc3339(first_ns)
            all_changes.append(
                Change(
                    at=at,
                    service=service,
                    dimension=dimension,
                    slo=None,
                    value=value,
                    requests=n,
                    before=[] if dimension == "process" else before[-10:],
                    compare=f"at={at}&span=1h",
                )
            )
        if value:
            before.append(value)
    all_changes += _of_slos(reader, window)
    all_changes.sort(key=lambda one: parse_moment(one.at).ns)
    return Changes(window=WindowOut.of(window, reader.complete_ns), changes=all_changes)


def _of_slos(reader: Reader, window: Window) -> Iterator[Change]:
    for one in reader.slo_changes(window.start_ns, window.end_ns):
        at = rfc3339(one.at_ns)
        yield Change(
            at=at,
            service="",
            dimension="slo",
            slo=one.name,
            value=one.now,
            requests=None,
            before=[one.before] if one.before else [],
            compare=f"at={at}&span=1h",
        )


def _first_seen(reader: Reader, window: Window) -> list[tuple[int, str, int, str, int]]:
    """When each service first had each value, by time: with the dimension's bits and the number of requests."""
    seen: dict[tuple[str, int, str], tuple[int, int]] = {}
    for part in slices([window.end_ns, max(0, window.start_ns - LOOK_BACK_NS)]):
        rows = part.columns(reader.queries, "changes", {}, window.filter)
        names = ("service", "dimension", "value", "first_ns", "n")
        for service, bits, value, first_ns, n in zip(*(rows[name] for name in names), strict=True):
            before_ns, others = seen.get((service, bits, value), (first_ns, 0))
            seen[service, bits, value] = min(first_ns, before_ns), others + n
    return sorted((first_ns, *key, n) for key, (first_ns, n) in seen.items())
