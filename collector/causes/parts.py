"""Divides each phase among the causes, by what the process did meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.causes.columns import Floats, Ints, Limits, Pieces, Traffic, added
from collector.causes.model import FEATURES, StepModel
from collector.causes.names import PARTS
from collector.causes.split import COMPONENTS
from collector.causes.timeline import RunningSums, Steps
from collector.causes.waits import waited
from collector.causes.work import Work

_PART: Final = {name: index for index, name in enumerate(PARTS)}
_COMPONENT: Final = {name: index for index, name in enumerate(COMPONENTS)}
_DECODE: Final = {"base": "alone", "batch": "batch", "prompt": "others_prompts"}
_BUSY: Final = {"base": "busy", "batch": "busy", "prompt": "others_prompts"}
_ALWAYS: Final = {"drift": "drift", "stall": "stall", "copy": "kv_transfer", "unknown": "unexplained", "gap": "gap"}


@dataclass(frozen=True)
class Parts:
    """What the parts are made of."""

    pieces: Pieces
    of_pieces: Floats
    """Pieces × PARTS, ns. What is missing to a piece's length is unexplained."""
    inflicted: Floats
    """By request, ns."""
    variance: Floats
    """By request, ns²: of its steps' durations around the law."""


def divide(
    found: Traffic, steps: Steps, done: Work, components: Floats, model: StepModel | None, limits: Limits
) -> Parts:
    """Divide the phases of the wanted requests."""
    pieces = found.pieces
    sums = RunningSums(steps, components, _between(steps))
    did = sums.between(pieces.start, pieces.end)
    out = np.zeros((len(pieces.phase), len(PARTS)))
    name = pieces.name
    for phase, part in (("cold_start", "cold_start"), ("kv_transfer", "kv_transfer"), ("stalled", "stall")):
        rows = np.flatnonzero(name == phase)
        out[rows, _PART[part]] = (pieces.end - pieces.start)[rows]
    _give(out, np.flatnonzero(name == "decode"), did, _DECODE | _ALWAYS)
    rows = np.flatnonzero(name == "preempted")
    for unusual in ("drift", "stall"):
        out[rows, _PART[unusual]] = did[rows, _COMPONENT[unusual]]
    out[rows, _PART["preempted"]] = (pieces.end - pieces.start)[rows] - out[rows].sum(1)
    shares = _shares(done, model)
    own = _own(found, done, components, shares)
    _prefill(out, found, pieces, did, own)
    _queued(out, found, pieces, steps, done, limits, sums)
    return Parts(
        pieces,
        out,
        _inflicted(found, done, components, shares),
        _variance(found, steps, components, model.sigma if model else 0.0),
    )


def _between(steps: Steps) -> Floats:
    """What is between a step and the one before: a gap, or unknown where steps are missing."""
    gap = np.zeros((len(steps), len(COMPONENTS)))
    length = steps.start[1:] - steps.end[:-1]
    gap[1:, _COMPONENT["gap"]] = np.where(steps.follows[1:], length, 0.0)
    gap[1:, _COMPONENT["unknown"]] = np.where(steps.follows[1:], 0.0, length)
    return gap


def _give(out: Floats, rows: Ints, did: Floats, to: dict[str, str]) -> None:
    for component, part in to.items():
        out[rows, _PART[part]] += did[rows, _COMPONENT[component]]


def _shares(done: Work, model: StepModel | None) -> Floats:
    """The share of each chunk in the prompt work of its step: by the law, or by tokens where it gives them no time."""
    chunks, law = done.chunks, np.array(model.coefficients if model else np.zeros(len(FEATURES)))
    some, tokens, attention = (FEATURES.index(name) for name in ("some_prompt", "prompt_tokens", "attention"))
    features = done.features[chunks.step]
    by_tokens = chunks.tokens / np.maximum(features[:, tokens], 1e-9)
    whole = features[:, [some, tokens, attention]] @ law[[some, tokens, attention]]
    own = law[some] * by_tokens + law[tokens] * chunks.tokens + law[attention] * chunks.attention
    return np.where(whole > 0, own / np.where(whole > 0, whole, 1.0), by_tokens)


def _own(found: Traffic, done: Work, components: Floats, shares: Floats) -> Floats:
    """By phase: the time that its steps spent on its own request's prompt, ns; NaN where its tokens are not known."""
    chunks = done.chunks
    prompt = components[chunks.step, _COMPONENT["prompt"]]
    own = added(chunks.phase, prompt * shares, len(found.phases.start))
    own[done.unknown] = np.nan
    return own


def _prefill(out: Floats, found: Traffic, pieces: Pieces, did: Floats, own: Floats) -> None:
    """Own prompt with the base of its steps, the first time; recomputation, and the base as alone, after a token.

    A phase that is cut at the first token has its own prompt before it.
    """
    rows = np.flatnonzero(pieces.name == "prefill")
    phase = pieces.phase[rows]
    again = found.phases.start[phase] >= found.requests.first[pieces.request[rows]]
    prompt = did[rows, _COMPONENT["prompt"]]
    mine = np.minimum(np.where(np.isnan(own[phase]), 0.0, own[phase]), prompt)
    rest = prompt - mine
    known = np.isfinite(own[phase])
    base = did[rows, _COMPONENT["base"]]
    out[rows, _PART["own_prompt"]] = np.where(again, 0.0, mine + base)
    out[rows, _PART["recompute"]] = np.where(again, mine, 0.0)
    out[rows, _PART["alone"]] = np.where(again, base, 0.0)
    out[rows, _PART["others_prompts"]] = np.where(known, rest, 0.0)
    _give(out, rows, did, {"batch": "batch"} | _ALWAYS)


def _queued(
    out: Floats, found: Traffic, pieces: Pieces, steps: Steps, done: Work, limits: Limits, sums: RunningSums
) -> None:
    """What was unusual first; then what the engine did until it knew the request; then the reasons to wait."""
    rows = np.flatnonzero(pieces.name == "queued")
    seen, waits = waited(found.requests, pieces, steps, done, limits, rows)
    before, after = sums.between(pieces.start[rows], seen), sums.between(seen, pieces.end[rows])
    total = waits.sum(1)
    without_reason = 1 - total / np.maximum(pieces.end[rows] - seen, 1e-9)
    busy = before + after * np.clip(without_reason, 0, 1)[:, None]
    unusual = [_COMPONENT["drift"], _COMPONENT["stall"]]
    busy[:, unusual] = before[:, unusual] + after[:, unusual]
    odd = np.minimum(after[:, unusual].sum(1) * np.clip(1 - without_reason, 0, 1), total)
    waits *= ((total - odd) / np.maximum(total, 1e-9))[:, None]
    did = np.zeros((len(out), len(COMPONENTS)))
    did[rows] = busy
    _give(out, rows, did, _BUSY | _ALWAYS)
    for index, part in enumerate(("wait_batch", "wait_kv", "wait_tokens", "wait_priority")):
        out[rows, _PART[part]] = waits[:, index]


def _inflicted(found: Traffic, done: Work, components: Floats, shares: Floats) -> Floats:
    """For each request, its prompts' time in each step times the other sequences in that step."""
    chunks = done.chunks
    time = components[chunks.step, _COMPONENT["prompt"]] * shares
    others = np.maximum(done.running[chunks.step] - 1, 0)
    return added(found.phases.request[chunks.phase], time * others, len(found.requests))


def _variance(found: Traffic, steps: Steps, components: Floats, sigma: float) -> Floats:
    usual = components[:, [_COMPONENT[name] for name in ("base", "batch", "prompt")]].sum(1)
    sums = RunningSums(steps, ((sigma * usual) ** 2)[:, None], np.zeros((len(steps), 1)))
    return sums.between(found.requests.start, found.requests.end)[:, 0]
