"""Requests by the bucket of time in which they ended, and those that did not end, judged by SLOs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from collector.measure.evaluation import open_requests
from collector.measure.population import Population, read_ended
from collector.measure.reader import Reader
from collector.measure.slices import slices
from collector.measure.summing import UNJUDGED, number_of
from collector.measure.times import HOUR_NS, MINUTE_NS
from collector.measure.window import Window
from collector.query.template import part
from collector.slo.cells import Cells
from collector.slo.counts import good_is_known, judged
from collector.slo.model import Slo
from collector.sql.fragment import Fragment

_SUMS: Final = {"output_tokens": "output_tokens"}
_COUNTED: Final = {"requests": "total", "failed": "failed", "cancelled": "cancelled"}
"""The counts of a bucket, with their names among the outcomes of cells."""


def ended_by_bucket(
    reader: Reader, covered: Window, step_ns: int, slos: Sequence[Slo]
) -> tuple[dict[int, dict[str, Any]], bool]:
    """Counts by the start of the bucket, the oldest first; and whether they are estimates.

    They are `requests`, `failed`, `cancelled`, and `output_tokens`, which is None when no request tells its tokens.
    `covered` is the part of the window that is complete.
    """
    population = _read(reader, covered, step_ns, slos)
    outcomes = population.judged.of_all_slos().items()
    return population.by_band({name: outcomes[of] for name, of in _COUNTED.items()}), population.sampled


def judged_by_bucket(
    reader: Reader, window: Window, covered: Window, step_ns: int, slos: Sequence[Slo]
) -> tuple[dict[int, dict[str, float | None]], bool]:
    """By the start of the bucket: `goodput`, the good requests, and `attainment`, each None where it is not known.

    A lost request is in the bucket in which it was given up. One in flight is in none (`late_in_flight`): all of them
    would be bad in the last one, whenever they came. Behind the part of the window that is complete there is no bucket:
    the ended requests are not known there.
    """
    population = _read(reader, covered, step_ns, slos)
    if covered.end_ns > window.start_ns:
        in_flight = open_requests(reader, window)
        bad = in_flight.judged(slos).of_all_slos().bad & in_flight.is_lost & (in_flight.lost_at_ns < covered.end_ns)
        lost = in_flight.where(bad)
        population = population.with_open(lost, lost.lost_at_ns // step_ns * step_ns)
    by_bucket = population.by_band(population.judged.of_all_slos().items())
    return {at_ns: _of(counts) for at_ns, counts in by_bucket.items()}, population.sampled


def spent_ns(reader: Reader, window: Window, slo: Slo) -> int | None:
    """From which minute on more requests of an SLO's window were bad than its objective allows of the whole window.

    The window ends when the one asked about does. None where the ended ones alone are not so many.
    """
    whole = replace(window, start_ns=max(0, window.end_ns - slo.window))
    hours = _bad_and_good(reader, whole, HOUR_NS, slo)
    allowed = float(slo.budget) * sum(counts["bad"] + counts["good"] for counts in hours.values())
    hour_ns, left = _passed(hours, allowed)
    if hour_ns is None:
        return None
    hour = replace(whole, start_ns=max(hour_ns, whole.start_ns), end_ns=min(hour_ns + HOUR_NS, whole.end_ns))
    minute_ns, _ = _passed(_bad_and_good(reader, hour, MINUTE_NS, slo), left)
    return max(hour_ns if minute_ns is None else minute_ns, whole.start_ns)


def _bad_and_good(reader: Reader, window: Window, step_ns: int, slo: Slo) -> dict[int, dict[str, Any]]:
    population = _read(reader, window, step_ns, [slo])
    outcomes = population.judged.outcomes(0)
    return population.by_band({"bad": outcomes.bad, "good": outcomes.good})


def _passed(buckets: Mapping[int, Mapping[str, Any]], allowed: float) -> tuple[int | None, float]:
    """The first bucket in which more were bad than are allowed, and what was left at its start."""
    for at_ns, counts in buckets.items():
        if allowed < counts["bad"]:
            return at_ns, allowed
        allowed -= counts["bad"]
    return None, allowed


def late_in_flight(reader: Reader, window: Window, slos: Sequence[Slo]) -> int:
    """The requests in flight at the window's end that one of these SLOs judges as bad by now."""
    judged = open_requests(reader, window).judged(slos).of_all_slos()
    return number_of(judged.in_flight_violations)


def _read(reader: Reader, covered: Window, step_ns: int, slos: Sequence[Slo]) -> Population:
    bucket = Fragment(part("bucket", {}).sql, {"step_ns": step_ns})
    parts = [replace(one, band=bucket) for one in slices([covered.end_ns, covered.start_ns])]
    return read_ended(reader.queries, covered.filter, Cells(slos), parts, sums=_SUMS)


def _of(counts: Mapping[str, Any]) -> dict[str, float | None]:
    n = judged(**{name: counts[name] for name in ("total", *UNJUDGED, "in_flight_violations", "lost")})
    is_known = good_is_known(n, unselected=counts["unselected"], undetermined=counts["undetermined"])
    return {"goodput": counts["good"] if is_known else None, "attainment": counts["good"] / n if n else None}
