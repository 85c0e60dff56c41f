"""Which property of requests tells slow ones from others, so that they need time-outs of their own.

A part of the requests is slow: it waited longer than 95 % of all did. Of 5 % slow ones among all:

    prompt of 16,000 tokens or more    31 % slow    their own time-out
    shorter prompts                     2 % slow
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.timeouts.survival import BLOCKS, Floats, Ints
from collector.timeouts.waits import ANSWERED, CENSORED, Requests, WaitName, Waits, blocks_of

NOT_TOLD: Final = -1
_LEAST: Final = 200
"""Requests of a value; those of rarer values are one."""
_MOST_VALUES: Final = 6
_SLOW: Final = 0.05
_TIMES: Final = 2.0
"""A split matters where one value has this many times the share of slow requests of another."""
_BEYOND_CHANCE: Final = 4.0
"""Standard deviations: of some ten values of five dimensions and four waits, one in a thousand by chance."""
_LENGTHS: Final = (1_000, 4_000, 16_000, 64_000)
LENGTHS: Final = ("below 1,000", "1,000 to 3,999", "4,000 to 15,999", "16,000 to 63,999", "64,000 or more")
_REASONING: Final = ("no", "yes")
OTHERS: Final = "others"


@dataclass(frozen=True)
class Split:
    """A dimension by which requests are divided. `codes` has each request's value by its place; -1: not told."""

    dimension: str
    values: Sequence[str]
    codes: Ints

    def parts(self, requests: Requests) -> Iterator[tuple[str, Requests]]:
        """The requests of each value.

        One whose value nobody tells, as of most that have not ended, counts in each part by the part's share.
        """
        told = np.bincount(self.codes[self.codes >= 0], minlength=len(self.values))
        for place, value in enumerate(self.values):
            chosen = (self.codes == place) | (self.codes == NOT_TOLD)
            part = requests.where(chosen)
            share = np.where(self.codes[chosen] == NOT_TOLD, told[place] / told.sum(), 1.0)
            kept = share > 0
            yield value, _weighted(part, share).where(kept)


def _weighted(requests: Requests, share: Floats) -> Requests:
    return Requests(**{**vars(requests), "weight": requests.weight * share})


def lengths_of(input_tokens: Floats) -> Ints:
    """The range of the prompt's length; -1: not known."""
    codes = np.searchsorted(_LENGTHS, np.nan_to_num(input_tokens), "right")
    return np.where(np.isnan(input_tokens), NOT_TOLD, codes)


def splits_of(requests: Requests, kinds: Mapping[str, Sequence[str]]) -> Iterator[Split]:
    """The ways to divide requests, without those that leave only one value with enough of them."""
    for name in ("slo_class", "vantage", "operation"):
        values, codes = np.unique(np.array(kinds[name], str), return_inverse=True)
        yield from _of_enough(name, [str(value) for value in values], codes[requests.kind])
    yield from _of_enough("reasoning", _REASONING, np.where(requests.reasons == 2, NOT_TOLD, requests.reasons))
    yield from _of_enough("input_tokens", LENGTHS, lengths_of(requests.input_tokens))


def _of_enough(dimension: str, values: Sequence[str], codes: Ints) -> Iterator[Split]:
    codes = codes.astype(np.int64)
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    most = np.argsort(-counts, kind="stable")[:_MOST_VALUES]
    kept = np.sort(most[counts[most] >= _LEAST])
    rest = np.setdiff1d(np.flatnonzero(counts), kept)
    if len(kept) + (counts[rest].sum() >= _LEAST) < 2:
        return
    if dimension == "input_tokens" and len(rest):  # a range that has few requests goes to its neighbour
        to = {old: int(np.argmin(abs(kept - old))) for old in rest}
        names = _ranges(kept)
    else:
        to = dict.fromkeys(rest, len(kept) if len(rest) else 0)
        names = [values[i] for i in kept] + ([OTHERS] if len(rest) else [])
    new = np.full(len(values), 0)
    new[kept] = np.arange(len(kept))
    for old, place in to.items():
        new[old] = place
    yield Split(dimension, names, np.where(codes < 0, NOT_TOLD, new[np.maximum(codes, 0)]))


def _ranges(kept: Ints) -> list[str]:
    """The names of ranges of which some were added to their neighbours."""
    names = []
    for i, place in enumerate(kept):
        low = 0 if i == 0 else _edge(int(kept[i - 1]), int(place))
        high = None if i == len(kept) - 1 else _edge(int(place), int(kept[i + 1])) - 1
        names.append(f"{low:,} or more" if high is None else f"{low:,} to {high:,}" if low else f"below {high + 1:,}")
    return names


def _edge(below: int, above: int) -> int:
    """Where the ranges meet of which those between two kept ones are added to the nearer, the lower first."""
    return _LENGTHS[(below + above) // 2]


def telling(requests: Requests, waits: Mapping[WaitName, Waits], splits: Iterator[Split]) -> Split | None:
    """The split that tells most about who is slow, if one does beyond chance and by twice; None: no split matters."""
    block = blocks_of(requests.began_ms, BLOCKS)
    best: tuple[float, Split] | None = None
    for split in splits:
        for wait in waits.values():
            told = _told(split, wait, block, requests.weight)
            if told > 0 and (best is None or told > best[0]):
                best = told, split
    return None if best is None else best[1]


def _told(split: Split, wait: Waits, block: Ints, weight: Floats) -> float:
    """The share of the variance of being slow that a split explains; 0 where chance or little may explain it."""
    answered = wait.us[wait.kind == ANSWERED]
    if len(answered) < _LEAST:
        return 0.0
    bound = np.quantile(answered, 1 - _SLOW)
    known = (split.codes >= 0) & ((wait.kind == ANSWERED) | ((wait.kind == CENSORED) & (wait.us > bound)))
    cell, cells = split.codes * BLOCKS + block, len(split.values) * BLOCKS
    slow, n = (
        np.bincount(cell[mask], weight[mask], cells).reshape(-1, BLOCKS) for mask in (known & (wait.us > bound), known)
    )
    of = n.sum(1)
    enough = of >= _LEAST
    if np.count_nonzero(enough) < 2:
        return 0.0
    share = slow.sum(1)[enough] / of[enough]
    least = max(float(share.min()), _SLOW / 10)
    if share.max() < _TIMES * least:
        return 0.0
    all_slow, all_n = slow[enough].sum(0), n[enough].sum(0)
    if not any(_apart(slow[i], n[i], all_slow - slow[i], all_n - n[i]) for i in np.flatnonzero(enough)):
        return 0.0
    mean = all_slow.sum() / all_n.sum()
    return float((of[enough] * (share - mean) ** 2).sum() / (all_n.sum() * mean * (1 - mean)))


def _apart(slow: Floats, n: Floats, others_slow: Floats, others_n: Floats) -> bool:
    """Whether two shares differ beyond chance, when requests of one block are slow together."""
    a, b = slow.sum() / n.sum(), others_slow.sum() / others_n.sum()
    moved = (slow - a * n) / n.sum() - (others_slow - b * others_n) / others_n.sum()
    alone = a * (1 - a) / n.sum() + b * (1 - b) / others_n.sum()
    variance = max(float((moved**2).sum()) * BLOCKS / (BLOCKS - 1), float(alone))
    return bool(abs(a - b) > _BEYOND_CHANCE * np.sqrt(variance)) if variance > 0 else False
