"""What time-outs do to one wait of some requests: those that are asked for, are set, or cut few healthy requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from collector.slo.counts import Number, as_number
from collector.timeouts import evident
from collector.timeouts.answer import EvidentTimeout, ShareOut, TimeoutPoint, WaitOut
from collector.timeouts.evident import Pile
from collector.timeouts.survival import BLOCKS, Floats, Ints, Survival, bin_of, bins_of, upper_us, wilson
from collector.timeouts.told import told
from collector.timeouts.waits import (
    ANSWERED,
    CENSORED,
    ENDLESS,
    FAILED,
    WAITS,
    Requests,
    WaitName,
    Waits,
    blocks_of,
    waits_of,
)

_SHARES: Final = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)
"""Without `at`, the curve has the time-outs that cut so many healthy requests."""
_LARGER: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Where too few requests decide for `kill`, the smallest of these shares for which they do is told too."""
_WITH_TOKEN: Final = 0.2
"""A time-out that cut so many requests that had a token bounds the whole request."""


class Curve:
    """What any time-out does to one wait of some requests."""

    def __init__(self, waits: Waits, weight: Floats, block: Ints) -> None:
        alive = (waits.kind == ANSWERED) | (waits.kind == CENSORED)
        answered = waits.kind[alive] == ANSWERED
        self.survival = Survival.of(bins_of(waits.us[alive]), answered, block[alive], weight[alive])
        middle = self.survival.least(0.5)
        late = 0.0 if middle is None else float(upper_us(middle))
        dead = (waits.kind == ENDLESS) | ((waits.kind == FAILED) & (waits.us > late))
        self._waited = waits.us[dead]
        self._endless = waits.kind[dead] == ENDLESS
        self._weight = weight[dead]
        of_blocks = np.bincount(block[dead], self._weight, BLOCKS)
        self.dead = float(self._weight.sum())
        # Those of one block die of one thing: they count as one.
        self._n = self.dead**2 / float((of_blocks**2).sum()) if self.dead else 0.0

    def point(self, index: int, seconds: float | None = None) -> TimeoutPoint:
        """The time-out at the end of a bin, or at a time in it."""
        us = float(upper_us(index)) if seconds is None else seconds * 1e6
        caught = self._endless | (self._waited > us)
        weight = float(self._weight[caught].sum())
        saved = float((self._weight[caught] * np.maximum(self._waited[caught] - us, 0)).sum())
        return TimeoutPoint(
            timeout_s=_digits(us / 1e6) if seconds is None else seconds,
            healthy_cut=ShareOut.of(self.survival.at(index)),
            dead_caught=ShareOut.of(wilson(weight / self.dead, self._n)) if self.dead else None,
            saved_s=saved / weight / 1e6 if weight else None,
            beyond_observed=index > self.survival.last,
        )

    def at(self, seconds: float) -> TimeoutPoint:
        """The time-out of so many seconds."""
        return self.point(bin_of(seconds), seconds)

    def suggested(self, kill: float) -> TimeoutPoint | None:
        """The shortest time-out that cuts at most this share; None: it is not decided."""
        index = self.survival.least(kill) if self.survival.decided(kill) else None
        return None if index is None else self.point(index)

    def nearest(self, kill: float) -> tuple[float, TimeoutPoint] | None:
        """The smallest share above `kill` for which a time-out is decided, and that one."""
        found = ((share, self.suggested(share)) for share in _LARGER if share > kill)
        return next(((share, point) for share, point in found if point is not None), None)


def _digits(seconds: float) -> float:
    """Three digits, rounded up: the bins are 0.8 % wide."""
    shown = float(f"{seconds:.3g}")
    return shown if shown >= seconds else float(f"{seconds * 1.005:.3g}")


def number(value: float) -> Number:
    """A sum of weights, of which some are shares."""
    return as_number(round(float(value), 1))


def waits_out(requests: Requests, kill: float, at_s: Sequence[float]) -> Iterator[WaitOut]:
    """The waits that some requests had. Where each token is visible, that for the first visible one is left out."""
    waits = waits_of(requests)
    block = blocks_of(requests.began_ms, BLOCKS)
    piles = _at_their_wait({name: [*evident.piles(requests, waits[name])] for name in WAITS}, waits)
    for name in WAITS:
        same = name == "first_visible" and np.array_equal(waits[name].us, waits["first_token"].us, equal_nan=True)
        if not same and (waits[name].kind == ANSWERED).any():
            yield _wait_out(name, waits[name], requests.weight, block, kill, at_s, piles[name])


def _at_their_wait(
    by_wait: Mapping[WaitName, list[Pile]], waits: Mapping[WaitName, Waits]
) -> Mapping[WaitName, list[Pile]]:
    """Each evident time-out at the wait that it bounds.

    Who is given up after 60 s without a token is in the piles of `first_token` and `e2e`. Where others of that pile had
    a token, the time-out bounds the whole request, and else the wait for the first token.
    """
    has_token = waits["first_token"].kind == ANSWERED
    whole = [pile for pile in by_wait["e2e"] if has_token[pile.of].mean() >= _WITH_TOKEN]
    placed = {pile.timeout_s for pile in whole}
    found: dict[WaitName, list[Pile]] = {"e2e": whole}
    for name in ("first_token", "first_visible", "gap"):
        found[name] = [pile for pile in by_wait[name] if pile.timeout_s not in placed]
        placed |= {pile.timeout_s for pile in found[name]}
    found["e2e"] = whole + [pile for pile in by_wait["e2e"] if pile.timeout_s not in placed]
    return found


def _wait_out(
    name: WaitName,
    waits: Waits,
    weight: Floats,
    block: Ints,
    kill: float,
    at_s: Sequence[float],
    piles: Sequence[Pile],
) -> WaitOut:
    curve = Curve(waits, weight, block)
    survival = curve.survival
    of_shares = {index for share in _SHARES if (index := survival.least(share)) is not None}
    if at_s:
        points = [curve.at(seconds) for seconds in at_s]
    else:
        points = [curve.point(index) for index in of_shares] + [curve.at(pile.timeout_s) for pile in piles]
    is_set = [
        EvidentTimeout(
            timeout_s=pile.timeout_s,
            requests=number(weight[pile.of].sum()),
            would_have=None if pile.answered is None else ShareOut.of(pile.answered),
            within_s=pile.within_s,
        )
        for pile in piles
    ]
    suggested = curve.suggested(kill)
    hidden = survival.hides(kill)
    out = WaitOut(
        wait=name,
        answered=number(weight[waits.kind == ANSWERED].sum()),
        censored=number(weight[waits.kind == CENSORED].sum()),
        dead=number(curve.dead),
        longest_s=waits.longest_us / 1e6 or None,
        curve=points if at_s else sorted(points, key=lambda point: point.timeout_s),
        suggested=suggested,
        more_requests=None if suggested is not None or hidden else max(survival.needed(kill), 1),
        evident=is_set,
        summary="",
    )
    nearest = curve.nearest(kill) if suggested is None else None
    present = [curve.at(one.timeout_s) for one in is_set]
    return out.model_copy(update={"summary": told(out, kill, nearest, present)})
