"""What would have been without a cause: the recorded arrivals once more, through a simulation of the scheduler.

A slow step makes a queue, and the queue makes later requests slow. Taking the slow step's time from a request's
latency leaves the queue there; letting the requests come again without it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from collector.causes.split.columns import Bools, Columns, Floats, Requests, traffic
from collector.causes.split.judge import Judged, Laws, judged
from collector.causes.split.model import FEATURES, StepModel, cells_of
from collector.causes.split.simulate import Device, Scheduling, simulate
from collector.causes.split.steps import COMPONENTS, MEDIAN_ERROR, between

KV: Final = frozenset({"wait_kv", "preempted", "recompute"})
"""What too few blocks of the KV cache cause: it can be left out together only."""
LEAVABLE: Final = frozenset({"cold_start", "stall", "drift", "gap"}) | KV
"""The causes that can be left out by name. That of others are requests, which can be left out too."""
REPLAYS: Final = 20
_BLOCK: Final = 50
"""Steps that stay together when they are drawn anew, since slower and faster ones come in groups."""
_LEAST_OF_CELL: Final = 20
"""Steps of a cell by which the law is corrected, where they differ from it by more than chance."""
_T: Final = 2.093
"""95 % of Student's distribution with 19 degrees of freedom lie within ± this."""


@dataclass(frozen=True)
class Attainment:
    """A share of requests that is good, from 0 to 1."""

    attainment: float
    low: float
    """It would be between this and `high` in 95 of 100 cases, by the scatter of steps."""
    high: float
    requests: int
    """The wanted requests that were not left out."""
    unknown: int
    """Of these, those that could not be replayed; their recorded verdict stands."""


@dataclass(frozen=True)
class Replay:
    """Latencies in several replays: replays × requests, ns.

    The first has the ordinary steps as they scattered in fact, one behind the other; in the others they are drawn anew.
    NaN: the request is left out or cannot be replayed, or it has only one token and no TPOT.
    """

    ttft: Floats
    tpot: Floats
    e2e: Floats
    wanted: Bools
    """Requests that count: those that were wanted and not left out."""
    replayed: Bools
    """Requests with a known prompt and answer, which fit into the cache."""

    def attainment(
        self, good: ArrayLike, *, ttft: Floats | float = inf, tpot: Floats | float = inf, e2e: Floats | float = inf
    ) -> Attainment | None:
        """The share of wanted requests within all thresholds (ns), each for all requests or by request.

        `good` is the recorded verdict, which stands where a request cannot be replayed: one that was refused, failed
        before its first token, or does not say its tokens. A difference of one request says nothing, so the interval
        is not narrower. None: no request is wanted.
        """
        unknown = int((self.wanted & ~self.replayed).sum())
        return attainment_of(self.kept(good, ttft=ttft, tpot=tpot, e2e=e2e), unknown)

    def kept(
        self, good: ArrayLike, *, ttft: Floats | float = inf, tpot: Floats | float = inf, e2e: Floats | float = inf
    ) -> Bools:
        """Whether each wanted request is good: replays × wanted requests."""
        late = (self.ttft > ttft) | (self.tpot > tpot) | (self.e2e > e2e)
        is_good: Bools = np.where(self.replayed, ~late, np.asarray(good, np.bool_))[:, self.wanted]
        return is_good


def attainment_of(kept: Bools, unknown: int) -> Attainment | None:
    """The share of good requests by replays × requests, as `Replay.attainment` tells it. None: there is no request."""
    count = kept.shape[1]
    if not count:
        return None
    shares = kept.mean(1)
    middle = float(shares[0])
    scatter = shares[1:].std(ddof=1) if len(shares) > 2 else 1.0
    either = max(_T * float(scatter), 1 / count)
    return Attainment(middle, max(middle - either, 0.0), min(middle + either, 1.0), count, unknown)


def replay(
    requests: Columns,
    phases: Columns,
    steps: Columns,
    *,
    scheduling: Scheduling,
    kv_events: Columns | None = None,
    reference: StepModel | None = None,
    sister: StepModel | None = None,
    without: Collection[str] = (),
    left_out: ArrayLike | None = None,
    load: float = 1.0,
    replays: int = REPLAYS,
    seed: int = 0,
) -> Replay | None:
    """Let the recorded requests of one process come again, without some causes. None: no law holds for its steps.

    Columns as `explain_process` takes them; the engine is empty at the first arrival, so the requests of some minutes
    before the wanted ones should be there. `without` names causes of LEAVABLE: cold starts, steps that are much too
    long, pauses, a slow device, and all that too few KV blocks cause. `left_out` (bools by request) never arrive: a
    burst, or a culprit. What is not left out happens again at its recorded time. `load` divides the times between
    arrivals, and `scheduling` may have other limits than the recorded one had.

    After the first, `replays` more draw the ratios of ordinary steps to the law anew, in blocks of neighbours.

    Raises ValueError for a cause that cannot be left out, and for columns that differ in length.
    """
    if refused := sorted(set(without) - LEAVABLE):
        raise ValueError(
            f"a replay cannot leave out {', '.join(refused)}; it can leave out {', '.join(sorted(LEAVABLE))}"
        )
    if not load > 0:
        raise ValueError(f"load is {load}, and must be more than 0")
    recorded = traffic(requests, phases, steps, kv_events or {})
    case = judged(recorded, Laws(reference, sister))
    if case.model is None:
        return None
    if KV & set(without):
        scheduling = replace(scheduling, kv_blocks=None)
    rows = recorded.requests
    out = np.zeros(len(rows), np.bool_) if left_out is None else np.asarray(left_out, np.bool_)
    if len(out) != len(rows):
        raise ValueError(f"left_out has {len(out)} rows, and requests {len(rows)}")
    can = _can(rows, scheduling) & ~out
    order = np.flatnonzero(can)[np.argsort(rows.start[can], kind="stable")]
    arrival = rows.start[order] / load
    runs = [
        simulate(scheduling, device, arrival, rows.input[order], rows.output[order], rows.cached[order])
        for device in _devices(case, case.model, set(without), load, replays, np.random.default_rng(seed))
    ]
    first, end = (np.stack([getattr(run, name) for run in runs]) for name in ("first", "end"))
    more = rows.output[order] - 1
    shape = (len(runs), len(rows))
    ttft, tpot, e2e = (np.full(shape, np.nan) for _ in range(3))
    ttft[:, order], e2e[:, order] = first - arrival, end - arrival
    tpot[:, order] = np.where(more > 0, (end - first) / np.maximum(more, 1), np.nan)
    return Replay(ttft, tpot, e2e, rows.wanted & ~out, can)


def _can(rows: Requests, scheduling: Scheduling) -> Bools:
    """Requests whose tokens are known, and that the engine can run."""
    can: Bools = (rows.input >= 1) & (rows.output >= 1) & scheduling.fits(rows.input + rows.output - 1)
    return can


def _devices(
    case: Judged, model: StepModel, without: set[str], load: float, replays: int, random: np.random.Generator
) -> Iterator[Device]:
    """The device without the causes: with its ordinary steps and gaps as they were, then with others drawn of them."""
    ratios, gaps = _ordinary(case, model)
    device = Device(
        model.coefficients,
        _factors(model),
        closed=_closed(case, model, without, load),
        slow=[] if "drift" in without else _slow(case, load),
    )
    count = len(ratios)
    yield replace(device, ratios=ratios.tolist(), gaps=gaps.tolist())
    for _ in range(replays):
        begins = random.integers(0, count, -(-count // _BLOCK))
        drawn = ((begins[:, None] + np.arange(_BLOCK)) % count).ravel()
        yield replace(device, ratios=ratios[drawn].tolist(), gaps=gaps[drawn].tolist())


def _ordinary(case: Judged, model: StepModel) -> tuple[Floats, Floats]:
    """The ratios of the steps to the law without what is unusual, and the gaps of a busy engine; in recorded order."""
    usual = case.usual
    known = usual > 0
    features, factors = case.done.features[known], _factors(model)
    factor = [factors.get(cell, 1.0) for cell in cells_of(features).tolist()]
    return usual[known] / (features @ np.array(model.coefficients) * factor), _gaps(case, model)[known]


def _gaps(case: Judged, model: StepModel) -> Floats:
    """The ordinary gap behind each step, ns; where the engine may have been idle, the usual one."""
    gaps = between(case.steps, model)[:, COMPONENTS.index("gap")]
    busy = np.nan_to_num(case.done.features[:, FEATURES.index("sequences")]) > 0
    busy &= case.steps.follows
    busy[:1] = False
    return np.roll(np.where(busy, gaps, np.median(gaps[busy]) if busy.any() else 0.0), -1)


def _factors(model: StepModel) -> dict[int, float]:
    """What the law misses by cell, where it is more than chance."""
    return {
        cell: factor
        for cell, factor in model.cells.items()
        for steps in [model.cell_steps.get(cell, 0.0)]
        if steps >= _LEAST_OF_CELL and abs(factor - 1) > 3 * MEDIAN_ERROR * model.sigma / np.sqrt(steps)
    }


def _closed(case: Judged, model: StepModel, without: set[str], load: float) -> list[tuple[float, float]]:
    """When the device computed nothing: until it was loaded, at the end of stalled steps, in long gaps."""
    phases, steps = case.recorded.phases, case.steps
    cold = phases.name == "cold_start"
    stall = case.components[:, COMPONENTS.index("stall")]
    pause = between(steps, model)[:, COMPONENTS.index("pause")]
    stretches = {
        "cold_start": (phases.start[cold], phases.end[cold] - phases.start[cold]),
        "stall": ((steps.end - stall)[stall > 0], stall[stall > 0]),
        "gap": ((steps.start - pause)[pause > 0], pause[pause > 0]),
    }
    times = [
        (start / load, start / load + length)
        for cause, (starts, lengths) in stretches.items()
        if cause not in without
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    apart: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((start, end))
    return apart


def _slow(case: Judged, load: float) -> list[tuple[float, float, float]]:
    """From the start of each slow step to that of the next one, how many times as long steps took."""
    drift, usual = case.components[:, COMPONENTS.index("drift")], case.usual
    until = np.append(case.steps.start[1:], case.steps.end[-1:])
    slow = (drift > 0) & (usual > 0)
    factor = 1 + drift[slow] / usual[slow]
    return [
        *zip(*((time / load).tolist() for time in (case.steps.start[slow], until[slow])), factor.tolist(), strict=True)
    ]
