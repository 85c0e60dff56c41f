"""The requests of a window, judged by thresholds that the caller gives."""

from __future__ import annotations

from collections.abc import Sequence

from collector.answer import Answer
from collector.measure.answers import Goodput, ThresholdsOut, WindowOut
from collector.measure.evaluation import Counted, count
from collector.measure.reader import Reader
from collector.measure.surface import GRID, Surface, surface
from collector.measure.window import Window
from collector.slo.cells import NO_GRID
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.model import Promise, Thresholds


class Violations(Answer):
    """Requests by the threshold that they missed; one request may be in several."""

    ttft: Number
    tpot: Number
    e2e: Number
    gap: Number
    first_visible: Number
    failed: Number
    """Failed, or lost."""


class GoodputAnswer(Answer):
    """`/goodput`."""

    window: WindowOut
    thresholds: ThresholdsOut
    requests: Counts
    goodput: Goodput
    attainment: float | None
    estimated: bool
    errors: Errors | None
    violations: Violations
    surface: Surface | None = None
    """With `surface=1`."""


def goodput(
    reader: Reader, window: Window, vantage: Sequence[str], thresholds: Thresholds, *, with_surface: bool
) -> GoodputAnswer:
    """Goodput and attainment of a window by these thresholds. `vantage`: those that are asked for."""
    grid = GRID if with_surface else NO_GRID
    counted = count(reader, window, vantage, [Promise.to_all(thresholds)], grid=grid)
    requests = counted.requests
    answer = GoodputAnswer(
        window=WindowOut.of(window, counted.complete_ns),
        thresholds=ThresholdsOut.of(thresholds),
        requests=requests,
        goodput=Goodput.of(counted.covered),
        attainment=requests.attainment,
        estimated=counted.errors is not None,
        errors=counted.errors,
        violations=_violations(counted),
    )
    if with_surface:
        answer.surface = surface(thresholds, counted)
    return answer


def _violations(counted: Counted) -> Violations:
    missed = {name: counted.sums.get(f"missed_{name}", 0) for name in Thresholds.model_fields}
    return Violations(**missed, failed=counted.requests.failed + counted.requests.lost)
