"""The parts of each request of one process: the entry of this room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collector.causes.split.columns import Columns, Floats, Limits, Pieces, Requests, added, traffic
from collector.causes.split.estimate import Estimate, estimate
from collector.causes.split.judge import Judged, Laws, judged
from collector.causes.split.model import StepModel
from collector.causes.split.names import PARTS
from collector.causes.split.parts import divide
from collector.causes.split.reasons import REASONS, Reason
from collector.causes.split.slower import Slower

UNKNOWN_US: Final = 4_294_967_295
"""In `inflicted_us` and `error_us` of `Explained`: not known, as in the narrow columns of `requests`."""
MOST_US: Final = 4_294_967_294
"""This or more, as in `requests.e2e_us`."""
_INSIDE: Final = 0.9
LEVELS: Final = ("none", "phases", "estimated", "steps")
"""How far a request is explained, from not at all to step by step."""


@dataclass(frozen=True)
class Explained:
    """The parts of requests, in the order in which they were given; the second axis is that of `PARTS`. uint32, µs.

    Rows of `ttft_us` add up to `requests.ttft_us`, or to `requests.e2e_us` where no first token is known; rows of both
    arrays add up to `requests.e2e_us`.
    """

    ttft_us: NDArray[np.uint32]
    rest_us: NDArray[np.uint32]
    inflicted_us: NDArray[np.uint32]
    """How long others waited for its prompts, summed over the others; UNKNOWN_US where nobody can tell.

    Below the level `steps`, it is what steps with prompts took beyond the median of those without, shared by tokens.
    """
    error_us: NDArray[np.uint32]
    """One standard deviation of its parts by the scatter of the model; UNKNOWN_US below the level `estimated`."""
    level: NDArray[np.str_]
    """One of LEVELS."""
    reason: NDArray[np.int64]
    """Why its level is not `steps`: a place in REASONS."""
    reason_share: Floats
    """The number that fell short; NaN where the reason has none, as the next."""
    reason_steps: Floats
    """Steps that there were."""
    model: StepModel | None
    """By which the steps were judged: the reference, or the fit of these steps where there is none.
    None: no step was judged, because there are too few or no law holds for them."""
    estimate: Estimate | None
    """How well a law over requests tells their decoding; None unless some have the level `estimated`."""
    slower: Slower | None = None
    """What the process is slower than; None: than nothing that is known."""


def explain_process(
    requests: Columns,
    phases: Columns,
    steps: Columns,
    *,
    kv_events: Columns | None = None,
    limits: Limits | None = None,
    reference: StepModel | None = None,
    sister: StepModel | None = None,
    version: StepModel | None = None,
) -> Explained:
    """Divide the time of each request of one process (service, instance) into causes.

    Columns are arrays, or lists with None; all of a table have one length, and names and units are those of the tables
    of the store. A column in brackets may be absent, which means unknown, as NULL, None and NaN do.

    requests   key, start, end (unix ns); [ttft_ns, input_tokens, output_tokens, cached_tokens, wait_batch_ns,
               wait_kv_ns, wait_tokens_ns, wait_priority_ns, wanted]. `key` is any number that names the request in
               both tables. `wanted` (bool) picks the rows to be explained; the others are context: all that overlap
               the wanted ones and have ended should be there. Their parts are 0 and their level is `none`.
    phases     key, start (unix ns), duration_ns, name; [tokens], computed by a prefill phase for its own request
    steps      start (unix ns), duration_ns; [step, prefill_tokens, decode_tokens, running, waiting, kv_blocks_used,
               drafted_tokens, waiting_for_batch, waiting_for_kv, waiting_for_tokens, waiting_for_priority], in any
               order: all from the earliest start of a wanted request to the latest end
    kv_events  start (unix ns), duration_ns: of copies between device and host

    Steps are judged by `reference`, the model of earlier traffic of the process, else by that of a `sister`: another
    process of its service, variant and model, unless these steps never ran at its speed. Without one they are judged by
    themselves, and a fault that lasts is then taken for what is usual. `version` is the model of another variant: what
    this one takes longer for the same work is a cause of its own.

    Raises ValueError when columns of a table differ in length.
    """
    recorded = traffic(requests, phases, steps, kv_events or {})
    case = judged(recorded, Laws(reference, sister, version))
    parts = divide(case, limits or Limits())
    level, why = _levels(case)
    of_pieces, level, quality = estimate(recorded, parts, level)
    ttft, rest = (_by_request(parts.pieces, of_pieces, len(recorded.requests), after=after) for after in (False, True))
    ttft_us, rest_us = whole_us(ttft, rest, recorded.requests)
    by_steps = level == "steps"
    knows = by_steps | ((case.model is None) & case.knows_prompts & (level != "none"))
    decoding = quality.sigma * (recorded.requests.end - recorded.requests.first) if quality else np.zeros(len(level))
    error = np.where(by_steps, np.sqrt(parts.variance) + parts.doubt, decoding)
    return Explained(
        ttft_us,
        rest_us,
        np.where(knows, np.minimum(parts.inflicted / 1000, MOST_US), UNKNOWN_US).astype(np.uint32),
        np.where(np.isin(level, ("phases", "none")), UNKNOWN_US, np.minimum(error / 1000, MOST_US)).astype(np.uint32),
        level,
        *why,
        case.model,
        quality,
        case.slower,
    )


def _levels(case: Judged) -> tuple[NDArray[np.str_], tuple[NDArray[np.int64], Floats, Floats]]:
    """The level of each request, and why it is no higher: the reason, its share and its steps.

    `steps` where nearly all of a request lies within steps of a law that holds; else `phases` if it has some.
    """
    requests, phases, steps = case.recorded.requests, case.recorded.phases, case.steps
    has_phases = np.bincount(phases.request, minlength=len(requests)) > 0
    level = np.where(has_phases & requests.wanted, "phases", "none").astype("<U9")
    share, count = (np.full(len(requests), number, float) for number in (case.reason.share, case.reason.steps))
    reason = np.full(len(requests), REASONS.index(case.reason.name))
    if case.model is not None:
        start, end = (np.clip(time, steps.start[0], steps.end[-1]) for time in (requests.start, requests.end))
        cold = added(phases.request, (phases.end - phases.start) * (phases.name == "cold_start"), len(requests))
        length = np.maximum(requests.end - requests.start, 1)
        inside = (end - start + cold) / length
        short = (level == "phases") & (inside < _INSIDE)
        late = requests.end - steps.end[-1] > steps.start[0] - requests.start
        reason[short] = np.where(late, REASONS.index("steps_late"), REASONS.index("steps_missing"))[short]
        share[short], count[short] = inside[short], len(steps)
        level[(level == "phases") & ~short] = "steps"
    for rows, why in ((~has_phases, Reason("no_phases")), (~requests.wanted, Reason())):
        reason[rows], share[rows], count[rows] = REASONS.index(why.name), why.share, why.steps
    return level, (reason, share, count)


def _by_request(pieces: Pieces, of_pieces: Floats, count: int, *, after: bool) -> Floats:
    chosen = pieces.after == after
    row, values = pieces.request[chosen], of_pieces[chosen]
    sums = np.zeros((count, len(PARTS)))
    for index in np.flatnonzero(values.any(0)):
        sums[:, index] = added(row, values[:, index], count)
    return sums


def whole_us(ttft: Floats, rest: Floats, requests: Requests) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Parts in ns as whole µs that add up to the latencies, rounded up as the store does.

    What no part has is unexplained; parts that are too long together shrink. All but the largest are rounded down, and
    the largest takes the rest.

        parts 2.7 and 1.6 µs of 4.4 µs     1 µs and, the largest, 5 − 1 = 4 µs
    """
    whole, first = (np.minimum(np.ceil(ns / 1000), MOST_US) for ns in (requests.e2e, requests.ttft))
    wanted = requests.wanted[:, None]
    return _add_up(ttft, first, wanted), _add_up(rest, whole - first, wanted)


def _add_up(parts_ns: Floats, total_us: Floats, wanted: NDArray[np.bool_]) -> NDArray[np.uint32]:
    parts = np.maximum(parts_ns, 0) / 1000
    sums = parts.sum(1)
    parts *= np.where(sums > total_us, total_us / np.maximum(sums, 1e-9), 1.0)[:, None]
    parts[:, -1] += np.maximum(total_us - parts.sum(1), 0)
    whole = np.floor(parts)
    rows = np.arange(len(parts))
    largest = parts.argmax(1)
    whole[rows, largest] += total_us - whole.sum(1)
    return np.where(wanted, whole, 0).astype(np.uint32)
