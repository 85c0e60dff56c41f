"""Why requests waited for their first step: by the scheduler's word, else by elimination."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from collector.causes.split.columns import WAITS, Floats, Ints, Limits, Pieces, Requests, added
from collector.causes.split.judge import Judged
from collector.causes.split.model import FEATURES
from collector.causes.split.timeline import RunningSums, Steps

_FULL: Final = 0.95
"""A step that computes this share of its token budget has no room for a chunk of another prompt."""
_BATCH, _KV, _TOKENS, _PRIORITY = range(len(WAITS))


class Waits(NamedTuple):
    """How queued pieces of time are divided: first the engine computed a step, then the scheduler let them wait."""

    known: Floats
    """When the scheduler knew the request, ns. Before that, the step ran that was running when the request came."""
    by_reason: Floats
    """Pieces × WAITS, ns: the time from then on, by its reasons."""


def waits_of(case: Judged, pieces: Pieces, reasons: Floats, queued: Ints) -> Waits:
    """The waits of queued pieces (indices): as the scheduler told them, else by the `reasons` of steps."""
    if np.isfinite(case.recorded.requests.waited).any():
        return _as_told(case.recorded.requests, pieces, queued)
    steps, start, end = case.steps, pieces.start[queued], pieces.end[queued]
    if not len(steps):
        return Waits(end, np.zeros((len(queued), len(WAITS))))
    known = np.minimum(step_end(steps, start), end)
    sums = RunningSums(steps, reasons * steps.duration[:, None], reasons * _gaps(steps)[:, None])
    return Waits(known, sums.between(known, end))


def _as_told(requests: Requests, pieces: Pieces, queued: Ints) -> Waits:
    """The scheduler names the waits of a request, which end as a step begins; without any, the request did not wait.

    Several pieces of one request share its waits by their lengths, and no piece has more than it is long.
    """
    end, row = pieces.end[queued], pieces.request[queued]
    length = end - pieces.start[queued]
    of_request = added(row, length, len(requests))[row]
    waits = _before_preemptions(requests, pieces)[row] * (length / np.maximum(of_request, 1))[:, None]
    total = waits.sum(1)
    waits *= np.where(total > length, length / np.maximum(total, 1), 1.0)[:, None]
    return Waits(end - waits.sum(1), waits)


def waiting_for_tokens(case: Judged, reasons: Floats) -> Floats:
    """By step, the requests that wait in it since other prompts have its tokens.

    Where the engine does not count those that wait, they are the recorded ones that do as the step begins.
    """
    steps, pieces = case.steps, case.recorded.pieces
    told = steps.numbers["waiting"]
    if not np.isnan(told).any():
        return told * reasons[:, _TOKENS]
    queued = pieces.name == "queued"
    begun = np.searchsorted(np.sort(pieces.start[queued]), steps.start, "right")
    over = np.searchsorted(np.sort(pieces.end[queued]), steps.start, "right")
    waiting: Floats = np.where(np.isnan(told), begun - over, told)
    return waiting * reasons[:, _TOKENS]


def _before_preemptions(requests: Requests, pieces: Pieces) -> Floats:
    """Requests × WAITS, ns: the waits without those of preempted requests for their next step, first those for KV.

    told 300 ms for KV and 20 ms for tokens, preempted for 280 ms     20 ms for KV, 20 ms for tokens
    """
    waits = np.nan_to_num(requests.waited)
    lost = pieces.name == "preempted"
    again = added(pieces.request[lost], (pieces.end - pieces.start)[lost], len(requests))
    for reason in (_KV, _BATCH, _TOKENS, _PRIORITY):
        taken = np.minimum(waits[:, reason], again)
        waits[:, reason] -= taken
        again -= taken
    return waits


def step_end(steps: Steps, time: Floats) -> Floats:
    """The end of the step that runs at a time; the time itself between steps."""
    step = np.searchsorted(steps.start, time, "right") - 1
    end = steps.end[np.maximum(step, 0)]
    later: Floats = np.where((step >= 0) & (end > time), end, time)
    return later


def _gaps(steps: Steps) -> Floats:
    gaps = np.zeros(len(steps))
    gaps[1:] = np.where(steps.follows[1:], steps.start[1:] - steps.end[:-1], 0.0)
    return gaps


def reasons_of(case: Judged, limits: Limits) -> Floats:
    """Steps × WAITS: the share of the waiting requests that wait for each reason in it; zeros where none waits.

    Where the engine counts them by reason, by these counts. Else as many sequences as may run: the batch. Else as many
    tokens as a step may have: tokens. Else only blocks of the KV cache can be missing. Without the engine's limits, the
    largest step that was seen tells them, here or by the law.
    """
    steps, done, model = case.steps, case.done, case.model
    counts = np.nan_to_num(np.stack([steps.numbers[f"waiting_for_{reason}"] for reason in WAITS], 1))
    if counts.any():
        total = counts.sum(1, keepdims=True)
        shares: Floats = counts / np.maximum(total, 1)
        return shares
    running = done.running
    tokens = done.features[:, [FEATURES.index("prompt_tokens"), FEATURES.index("sequences")]].sum(1)
    most = limits.max_seqs or np.nanmax(running, initial=model.most_of("sequences") if model else 1)
    budget = limits.max_batched_tokens or np.nanmax(tokens, initial=model.most_of("prompt_tokens") if model else 1)
    known = np.isfinite(running) & np.isfinite(tokens) & ~(steps.numbers["waiting"] == 0)
    full, spent = running >= most, tokens >= _FULL * budget
    reasons = np.zeros((len(steps), len(WAITS)))
    reasons[:, _BATCH] = known & full
    reasons[:, _TOKENS] = known & ~full & spent
    reasons[:, _KV] = known & ~full & ~spent
    return reasons
