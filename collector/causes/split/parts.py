"""Divides each phase among the causes, by what the process did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.causes.split.columns import Floats, Ints, Limits, Pieces, added
from collector.causes.split.judge import Judged
from collector.causes.split.names import PARTS
from collector.causes.split.steps import COMPONENTS, between
from collector.causes.split.timeline import RunningSums
from collector.causes.split.waits import reasons_of, waiting_for_tokens, waits_of

_PART: Final = {name: index for index, name in enumerate(PARTS)}
_COMPONENT: Final = {name: index for index, name in enumerate(COMPONENTS)}
_DECODE: Final = {"base": "alone", "batch": "batch", "prompt": "others_prompts", "drafts": "drafts"}
_BUSY: Final = {"base": "busy", "batch": "busy", "prompt": "others_prompts", "drafts": "busy"}
_UNUSUAL: Final = {"drift": "drift", "stall": "stall", "pause": "gap", "slower": "slower"}
_ALWAYS: Final = {**_UNUSUAL, "copy": "kv_transfer", "unknown": "unexplained", "gap": "gap"}


@dataclass(frozen=True)
class Parts:
    """What the parts are made of."""

    pieces: Pieces
    of_pieces: Floats
    """Pieces × PARTS, ns. What is missing to a piece's length is unexplained."""
    inflicted: Floats
    """By request, ns: what its prompt cost those that ran beside it, or waited for the tokens of its steps."""
    variance: Floats
    """By request, ns²: of its steps' durations around the law."""
    doubt: Floats
    """By request, ns: by how much its steps may be wrongly divided, where their work is beyond what the law knows."""


def divide(case: Judged, limits: Limits) -> Parts:
    """Divide the phases of the wanted requests."""
    recorded, steps = case.recorded, case.steps
    pieces = recorded.pieces
    sums = RunningSums(steps, case.components, between(steps, case.model))
    did = sums.between(pieces.start, pieces.end)
    out = np.zeros((len(pieces.phase), len(PARTS)))
    length, name = pieces.end - pieces.start, pieces.name
    for phase, part in (("cold_start", "cold_start"), ("kv_transfer", "kv_transfer"), ("stalled", "stall")):
        rows = np.flatnonzero(name == phase)
        out[rows, _PART[part]] = length[rows]
    _give(out, np.flatnonzero(name == "decode"), did, _DECODE | _ALWAYS)
    rows = np.flatnonzero(name == "preempted")
    _give(out, rows, did, _UNUSUAL)
    out[rows, _PART["preempted"]] = length[rows] - out[rows].sum(1)
    chunks = case.done.chunks
    shares = case.shares
    time = case.components[chunks.step, _COMPONENT["prompt"]] * shares
    _prefill(out, case, pieces, did, time)
    reasons = reasons_of(case, limits)
    _queued(out, case, pieces, reasons, sums)
    others = np.maximum(case.done.running - 1, 0) + waiting_for_tokens(case, reasons)
    lost = time if case.model else case.prompt_ns()[0][chunks.step] * shares
    inflicted = added(recorded.phases.request[chunks.phase], lost * others[chunks.step], len(recorded.requests))
    return Parts(pieces, out, inflicted, *_errors(case))


def _give(out: Floats, rows: Ints, did: Floats, to: dict[str, str]) -> None:
    for component, part in to.items():
        out[rows, _PART[part]] += did[rows, _COMPONENT[component]]


def _prefill(out: Floats, case: Judged, pieces: Pieces, did: Floats, time: Floats) -> None:
    """Own prompt with the base of its steps, the first time; recomputation, and the base as alone, after a token.

    `time` is that of each chunk. Where a phase's tokens are not known, the time of prompts has no owner.
    """
    rows = np.flatnonzero(pieces.name == "prefill")
    phase = pieces.phase[rows]
    again = case.recorded.phases.start[phase] >= case.recorded.requests.first[pieces.request[rows]]
    prompt, base = did[rows, _COMPONENT["prompt"]], did[rows, _COMPONENT["base"]]
    mine = np.minimum(added(case.done.chunks.phase, time, len(case.recorded.phases.start))[phase], prompt)
    known = ~np.isin(phase, case.done.unknown)
    out[rows, _PART["own_prompt"]] = np.where(again, 0.0, mine + base)
    out[rows, _PART["recompute"]] = np.where(again, mine, 0.0)
    out[rows, _PART["alone"]] = np.where(again, base, 0.0)
    out[rows, _PART["others_prompts"]] = np.where(known, prompt - mine, 0.0)
    _give(out, rows, did, {"batch": "batch", "drafts": "batch"} | _ALWAYS)


def _queued(out: Floats, case: Judged, pieces: Pieces, reasons: Floats, sums: RunningSums) -> None:
    """What was unusual first; then what the engine did until it knew the request; then the reasons to wait."""
    rows = np.flatnonzero(pieces.name == "queued")
    seen, waits = waits_of(case, pieces, reasons, rows)
    before, after = sums.between(pieces.start[rows], seen), sums.between(seen, pieces.end[rows])
    total = waits.sum(1)
    without_reason = 1 - total / np.maximum(pieces.end[rows] - seen, 1e-9)
    busy = before + after * np.clip(without_reason, 0, 1)[:, None]
    unusual = [_COMPONENT[name] for name in _UNUSUAL]
    busy[:, unusual] = before[:, unusual] + after[:, unusual]
    odd = np.minimum(after[:, unusual].sum(1) * np.clip(1 - without_reason, 0, 1), total)
    waits *= ((total - odd) / np.maximum(total, 1e-9))[:, None]
    did = np.zeros((len(out), len(COMPONENTS)))
    did[rows] = busy
    _give(out, rows, did, _BUSY | _ALWAYS)
    for index, part in enumerate(("wait_batch", "wait_kv", "wait_tokens", "wait_priority")):
        out[rows, _PART[part]] = waits[:, index]


def _errors(case: Judged) -> tuple[Floats, Floats]:
    """By request, the variance of its steps around the law, ns², and the doubt about their split, ns."""
    sigma = case.model.sigma if case.model else 0.0
    of_steps = np.stack([(sigma * case.usual) ** 2, case.doubt], 1)
    sums = RunningSums(case.steps, of_steps, np.zeros_like(of_steps))
    variance, doubt = sums.between(case.recorded.requests.start, case.recorded.requests.end).T
    return variance, doubt
