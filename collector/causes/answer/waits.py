"""Why one request waited: for the engine's steps, for each of its tokens, and for the prompts of others.

Pure functions over the rows of one request, whose times are nanoseconds since it arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from collector.ask.times import SECOND_NS
from collector.base.answer import Answer
from collector.count.answers import seconds
from tokentrail.semconv import Phase, Wait

Rows = Sequence[Mapping[str, Any]]
LONGEST: Final = 5
"""The longest waits that are listed."""
_COUNTS: Final = ("prefill_tokens", "decode_tokens", "running", "kv_blocks_evicted")


class WaitOut(Answer):
    """One reason why a request waited for the engine's steps, and for how long."""

    reason: Literal["batch", "tokens", "kv", "priority", "step"]
    """The batch was full, the steps had no tokens left to compute, too few KV blocks were free, a later request with a
    higher priority went first, or a step was under way."""
    time_s: float


class Interference(Answer):
    """The listed steps that prefilled prompts of other requests while this one waited for its next token."""

    steps: int
    time_s: float
    prefill_tokens: int


class LongWait(Answer):
    """One of the longest waits after the first token. The counts are those of the step that made the token."""

    index: int
    offset_s: float | None
    duration_s: float
    phase: str | None
    step: int | None
    prefill_tokens: int | None
    decode_tokens: int | None
    running: int | None
    kv_blocks_evicted: int | None


def waits(request: Mapping[str, Any]) -> list[WaitOut]:
    """Why a request waited for the engine's steps, longest first; empty when the engine does not tell it.

    With 1 s in the queue and 0.7 s of a full batch, 0.3 s are left that no step counts: one was under way.
    """
    told = {lack.value: ns for lack in Wait if (ns := request.get(f"wait_{lack}_ns"))}
    waited_ns = (request.get("queue_ns") or 0) + (request.get("preempted_ns") or 0)
    if told and waited_ns > sum(told.values()):
        told["step"] = waited_ns - sum(told.values())
    longest_first = sorted(told.items(), key=lambda one: -one[1])
    return [WaitOut.model_validate({"reason": reason, "time_s": ns / SECOND_NS}) for reason, ns in longest_first]


def waiting_phases(tokens: Rows, phases: Rows) -> list[str | None]:
    """For each token, the phase that took most of the wait for it; None when no phase did, or its time is not known.

    A token that ends at 1.0 s after a wait of 0.5 s has waited from 0.5 to 1.0. With the phases decode 0.3–0.6 and
    preempted 0.6–1.0 the overlaps are 0.1 and 0.4 s, so its phase is preempted. Tokens of one step share its end, so
    all but the first have a wait of 0. Such a token gets the phase of its end.
    """
    of_tokens: list[str | None] = [None] * len(tokens)
    known = sorted((t["offset_ns"], t["duration_ns"], i) for i, t in enumerate(tokens) if t["offset_ns"] is not None)
    end, wait = (np.array([one[column] for one in known], np.int64) for column in (0, 1))
    start = end - wait
    earliest = np.minimum.accumulate(start[::-1])[::-1]  # of this token and of all that were emitted later
    most, place = np.zeros(len(known), np.int64), np.full(len(known), -1)
    for number, phase in enumerate(phases):
        begin, until = _stretch(phase)
        near = slice(np.searchsorted(end, begin, "right"), np.searchsorted(earliest, until, "right"))
        overlap = np.minimum(end[near], until) - np.maximum(start[near], begin)
        score = 2 * np.maximum(overlap, 0) + (end[near] <= until)
        better = score > most[near]
        most[near][better], place[near][better] = score[better], number
    for (_, _, i), number in zip(known, place.tolist(), strict=True):
        of_tokens[i] = None if number < 0 else str(phases[number]["name"])
    return of_tokens


def interfering(steps: Rows, tokens: Rows, phases: Rows) -> npt.NDArray[np.bool_]:
    """Which steps prefilled prompts of other requests while this request waited for its next token.

    A step that lies in a prefill of this request, by more than half of its time, prefilled this one's prompt.
    """
    begin, length = (np.array([step[name] for step in steps], np.int64) for name in ("offset_ns", "duration_ns"))
    known = [token["offset_ns"] for token in tokens if token["offset_ns"] is not None]
    if not known:
        return np.zeros(len(steps), bool)

    def overlap(first: int, last: int) -> npt.NDArray[np.int64]:
        shared: npt.NDArray[np.int64] = np.minimum(begin + length, last) - np.maximum(begin, first)
        return shared

    interferes = np.array([bool(step["prefill_tokens"]) for step in steps], bool)
    interferes &= overlap(min(known), max(known)) > 0
    for phase in phases:
        if phase["name"] == Phase.PREFILL:
            interferes &= 2 * overlap(*_stretch(phase)) <= length
    return interferes


def interference(steps: Rows, is_interfering: npt.NDArray[np.bool_], tokens: Rows) -> Interference | None:
    """The sums over the interfering steps. None: no step tells its prefills, or no token's time is known."""
    if all(step["prefill_tokens"] is None for step in steps) or all(token["offset_ns"] is None for token in tokens):
        return None
    chosen = [steps[i] for i in np.flatnonzero(is_interfering).tolist()]
    return Interference(
        steps=len(chosen),
        time_s=sum(step["duration_ns"] for step in chosen) / SECOND_NS,
        prefill_tokens=sum(step["prefill_tokens"] for step in chosen),
    )


def longest_waits(tokens: Rows, phases: Sequence[str | None], steps: Rows) -> list[LongWait]:
    """The longest waits after the first token, longest first, each with the counts of the step that made the token.

    The first token of each choice has waited for its TTFT. `phases` has the phase of each token's wait.
    """
    later = [(token, phase) for token, phase in zip(tokens, phases, strict=True) if token["token_index"]]
    by_number = {step["step"]: step for step in steps if step["step"] is not None}
    return [
        LongWait(
            index=token["token_index"],
            offset_s=seconds(token["offset_ns"]),
            duration_s=token["duration_ns"] / SECOND_NS,
            phase=phase,
            step=token["step"],
            **{name: by_number.get(token["step"], {}).get(name) for name in _COUNTS},
        )
        for token, phase in sorted(later, key=lambda one: -one[0]["duration_ns"])[:LONGEST]
    ]


def _stretch(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["offset_ns"], row["offset_ns"] + row["duration_ns"]
