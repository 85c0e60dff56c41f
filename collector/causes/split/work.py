"""The work of each step: whose prompt tokens it computed, and how much context its sequences read.

Engines tell how many tokens a step computed, not whose. That follows from the phases: every decoding sequence is in
every step, and prompts are computed in the order of arrival.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np

from collector.causes.split.columns import Bools, Floats, Ints, Traffic, added
from collector.causes.split.model import FEATURES, LONG
from collector.causes.split.timeline import Steps


@dataclass(frozen=True)
class Chunks:
    """Parts of prompts, each computed in one step."""

    phase: Ints
    step: Ints
    tokens: Floats
    attention: Floats
    """Its tokens times the context that they attend to on average."""


@dataclass(frozen=True)
class Work:
    """The work of the steps, and who made it."""

    features: Floats
    """Steps × FEATURES; NaN where a step's work is not known."""
    chunks: Chunks
    unknown: Ints
    """Prefill phases of which is not known how many tokens they computed."""
    running: Floats
    """Sequences in each step; those that end in it count."""
    tokens_a_step: Floats
    """Tokens that the decoding sequences of each step get in one, on average; NaN where no step drafts any."""


def work(recorded: Traffic, steps: Steps) -> Work:
    """Reconstruct the work of each step."""
    phases = recorded.phases
    first, last = steps.within(phases.start, phases.end)
    decode, prefill = np.flatnonzero(phases.name == "decode"), np.flatnonzero(phases.name == "prefill")
    made, restored = _made(recorded, np.where(phases.name == "decode", last - first, 0))
    known_decoding, context = _context(recorded, decode, first, last, made, len(steps))
    prompt: Floats = steps.numbers["prefill_tokens"]
    told = 2 * np.isfinite(prompt).sum() >= len(steps)
    wanted = _own_tokens(recorded, prefill, made, restored)
    place = _in_order if told else _evenly
    chunks = place(recorded, prefill, first, last, wanted, np.nan_to_num(prompt))
    if not told:
        prompt = added(chunks.step, chunks.tokens, len(steps))
    sequences = _sequences(steps, known_decoding)
    missing = known_decoding < sequences
    mean = context / np.maximum(known_decoding, 1)
    told_context = known_decoding > 0
    mean[~told_context] = np.median(mean[told_context]) if told_context.any() else 0.0
    attention = added(chunks.step, chunks.attention, len(steps))
    prompts = np.bincount(chunks.step, minlength=len(steps))
    features = {
        "step": np.ones(len(steps)),
        "some_prompt": np.where(np.isnan(prompt), np.nan, prompt > 0),
        "prompts": prompts,
        "prompt_tokens": prompt,
        "long_prompt_tokens": np.maximum(prompt - LONG, 0),
        "sequences": sequences,
        "context": np.where(missing, mean * sequences, context),
        "attention": attention,
        "drafted_tokens": np.nan_to_num(steps.numbers["drafted_tokens"]),
    }
    running = steps.numbers["running"]
    return Work(
        np.stack([features[name] for name in FEATURES], 1),
        chunks,
        prefill[np.isnan(wanted)],
        np.where(np.isnan(running), sequences + prompts, running),
        _tokens_a_step(recorded, decode, first, last, features["drafted_tokens"]),
    )


def _tokens_a_step(recorded: Traffic, decode: Ints, first: Ints, last: Ints, drafted: Floats) -> Floats:
    """A request of 13 tokens that decodes in 4 steps gets 3 tokens in each of them."""
    if not drafted.any():
        return np.full(len(drafted), np.nan)
    request, low, high = recorded.phases.request[decode], first[decode], last[decode]
    steps = added(request, (high - low).astype(float), len(recorded.requests))
    each = ((recorded.requests.output - 1) / np.maximum(steps, 1))[request]
    known = np.isfinite(each) & (each > 0)

    def in_steps(value: Floats) -> Floats:
        sums = added(low[known], value, len(drafted) + 1) - added(high[known], value, len(drafted) + 1)
        return np.cumsum(sums)[: len(drafted)]

    count = np.round(in_steps(np.ones(known.sum())))
    return np.where(count > 0, in_steps(each[known]) / np.maximum(count, 1), np.nan)


def _sequences(steps: Steps, known: Floats) -> Floats:
    """Decoding sequences. Some engines count the tokens of accepted drafts too, but there are no more than run."""
    told = steps.numbers["decode_tokens"]
    running = steps.numbers["running"]
    return np.where(np.isnan(told), known, np.fmin(told, running))


def _made(recorded: Traffic, decoded: Ints) -> tuple[Floats, Bools]:
    """The output tokens that a request had before each phase, and whether its blocks were copied back right before it.

    prefill, decode over 5 steps, preempted, prefill, decode     0, 1, 6, 6, 7
    """
    request, name = recorded.phases.request, recorded.phases.name
    order = np.argsort(request, kind="stable")
    row, name = request[order], name[order]
    same = row[1:] == row[:-1]
    first_token = np.append((name[:-1] == "prefill") & (name[1:] == "decode") & same, False)
    gained = decoded[order] + first_token
    total = np.cumsum(gained) - gained
    begins = np.flatnonzero(np.append(True, ~same)[: len(row)])
    base = np.repeat(total[begins], np.diff(np.append(begins, len(row))))
    made, restored = np.zeros(len(row)), np.zeros(len(row), np.bool_)
    made[order] = total - base
    restored[order[1:]] = (name[:-1] == "kv_transfer") & same
    return made, restored


def _context(
    recorded: Traffic, decode: Ints, first: Ints, last: Ints, made: Floats, count: int
) -> tuple[Floats, Floats]:
    """For each step the known sequences that decode, and the sum of their contexts.

    A sequence with a context of 10 that decodes in steps 2 to 4 adds 10, 11, 12: a level and a slope that begin at
    step 2 and end behind step 4.
    """
    begin = recorded.requests.input[recorded.phases.request[decode]] + made[decode]
    known = np.isfinite(begin)
    begin, low, high = begin[known], first[decode][known], last[decode][known]

    def steps_of(value: Floats) -> Floats:
        sums = added(low, value, count + 1) - added(high, value, count + 1)
        return np.cumsum(sums)[:count]

    context = steps_of(begin - low) + steps_of(np.ones(len(low))) * np.arange(count)
    return np.round(steps_of(np.ones(len(low)))), np.maximum(context, 0)


def _own_tokens(recorded: Traffic, prefill: Ints, made: Floats, restored: Bools) -> Floats:
    """The tokens of its own request that each prefill phase has to compute; NaN: not known.

    A sequence whose blocks came back computes its newest token only.
    """
    requests, row = recorded.requests, recorded.phases.request[prefill]
    again = made[prefill] > 0
    derived = requests.input[row] + np.where(again, made[prefill], -requests.cached[row])
    told = recorded.phases.tokens[prefill]
    derived = np.where(again & restored[prefill], 1.0, np.maximum(derived, 1))
    return np.where(np.isnan(told), derived, told)


def _in_order(recorded: Traffic, prefill: Ints, first: Ints, last: Ints, wanted: Floats, prompt: Floats) -> Chunks:
    """Give each step's prompt tokens to the prompts under way, in the order of their requests' arrival.

    A step of 8 tokens, prompts of 5 and 6 under way: 5 tokens of the first, 3 of the second, whose other 3 follow.
    """
    begins, ends = first[prefill].tolist(), last[prefill].tolist()
    arrival = recorded.requests.start[recorded.phases.request[prefill]].tolist()
    left = np.nan_to_num(wanted).astype(np.int64).tolist()
    total = list(left)
    waiting = sorted((begin, index) for index, begin in enumerate(begins))
    under_way: list[tuple[float, int]] = []
    rows: list[tuple[int, int, int, int]] = []
    upcoming = 0
    for step in np.flatnonzero(prompt > 0).tolist():
        while upcoming < len(waiting) and waiting[upcoming][0] <= step:
            index = waiting[upcoming][1]
            insort(under_way, (arrival[index], index))
            upcoming += 1
        room, still = int(prompt[step]), []
        for entry in under_way:
            index = entry[1]
            if ends[index] <= step:
                continue
            if taken := min(left[index], room):
                rows.append((index, step, taken, total[index] - left[index]))
                left[index] -= taken
                room -= taken
            if left[index]:
                still.append(entry)
        under_way = still
    found_rows = np.array(rows, np.int64).reshape(-1, 4).T
    return _chunks(recorded, prefill[found_rows[0]], found_rows[1], *found_rows[2:].astype(float))


def _evenly(recorded: Traffic, prefill: Ints, first: Ints, last: Ints, wanted: Floats, _: Floats) -> Chunks:
    """Spread the tokens of each prompt over its steps, where the engine does not say how many a step computed."""
    begins = first[prefill]
    count = np.where(np.isnan(wanted), 0, np.maximum(last[prefill] - begins, 0))
    index = np.repeat(np.arange(len(prefill)), count)
    place = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    each = (wanted / np.maximum(count, 1))[index]
    return _chunks(recorded, prefill[index], begins[index] + place, each, each * place)


def _chunks(recorded: Traffic, phase: Ints, step: Ints, tokens: Floats, computed: Floats) -> Chunks:
    """`computed`: tokens of the same phase before the chunk."""
    before = computed + recorded.requests.cached[recorded.phases.request[phase]]
    return Chunks(phase, step, tokens, tokens * (before + tokens / 2))
