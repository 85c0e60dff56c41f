"""Requests by the bucket of time in which they ended, and those that did not end, judged by SLOs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from collector.measure.ended import read_ended
from collector.measure.evaluation import open_requests
from collector.measure.reader import Reader
from collector.measure.slices import slices
from collector.measure.summing import UNJUDGED, number_of
from collector.measure.window import Window
from collector.query.template import part
from collector.slo.cells import Cells
from collector.slo.counts import good_is_known, judged
from collector.slo.model import Slo
from collector.sql.fragment import Fragment

_SUMS: Final = {"output_tokens": "output_tokens"}
_COUNTED: Final = {"requests": "total", "failed": "failed", "cancelled": "cancelled", "good": "good"}
"""The counts of a bucket, with their names among the outcomes of cells."""


def ended_by_bucket(
    reader: Reader, covered: Window, step_ns: int, slos: Sequence[Slo]
) -> tuple[dict[int, dict[str, Any]], bool]:
    """Counts by the start of the bucket, the oldest first; and whether they are estimates.

    They are `requests`, `failed`, `cancelled`, `good`, those that are not judged, and `output_tokens`, which is None
    when no request tells its tokens. `covered` is the part of the window that is complete.
    """
    bucket = Fragment(part("bucket", {}).sql, {"step_ns": step_ns})
    parts = [replace(one, band=bucket) for one in slices([covered.end_ns, covered.start_ns])]
    found = read_ended(reader.queries, covered.filter, Cells(slos), parts, sums=_SUMS)
    outcomes = found.judged.of_all_slos().items()
    flags = {name: outcomes[of] for name, of in _COUNTED.items()} | {name: outcomes[name] for name in UNJUDGED}
    return found.by_band(flags), found.sampled


def judged_by_bucket(
    reader: Reader, window: Window, covered: Window, step_ns: int, slos: Sequence[Slo]
) -> tuple[dict[int, dict[str, float | None]], bool]:
    """By the start of the bucket: `goodput`, the good requests, and `attainment`, each None where it is not known.

    A lost request is in the bucket in which it was given up, a request in flight that is bad in the last bucket.
    """
    ended, sampled = ended_by_bucket(reader, covered, step_ns, slos)
    nothing = dict.fromkeys(("requests", "good", *UNJUDGED), 0)
    buckets = {at_ns: {**nothing, **counts} for at_ns, counts in ended.items()}
    for at_ns, counts in _not_ended(reader, window, covered.end_ns, step_ns, slos).items():
        buckets[at_ns] = {**buckets.get(at_ns, nothing), **counts}
    return {at_ns: _of(counts) for at_ns, counts in sorted(buckets.items())}, sampled


def _not_ended(
    reader: Reader, window: Window, covered_end_ns: int, step_ns: int, slos: Sequence[Slo]
) -> dict[int, dict[str, int]]:
    """Behind the part of the window that is complete there is no bucket: the ended requests are not known there."""
    if covered_end_ns <= window.start_ns:
        return {}
    in_flight = open_requests(reader, window)
    lost = in_flight.is_lost & in_flight.selected_by_any(slos)
    given_up = Counter((in_flight.lost_at_ns[lost] // step_ns * step_ns).tolist())
    found = {at_ns: {"lost": n} for at_ns, n in given_up.items() if at_ns < covered_end_ns}
    if bad := number_of(in_flight.bad_for_any(slos)):
        found.setdefault((covered_end_ns - 1) // step_ns * step_ns, {})["in_flight_violations"] = bad
    return found


def _of(counts: Mapping[str, Any]) -> dict[str, float | None]:
    unjudged = {name: counts[name] for name in UNJUDGED}
    n = judged(
        total=counts["requests"],
        **unjudged,
        in_flight_violations=counts.get("in_flight_violations", 0),
        lost=counts.get("lost", 0),
    )
    is_known = good_is_known(n, unselected=counts["unselected"], undetermined=counts["undetermined"])
    return {"goodput": counts["good"] if is_known else None, "attainment": counts["good"] / n if n else None}
