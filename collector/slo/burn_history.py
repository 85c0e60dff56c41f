"""When an error budget burned, from counts of the minutes in which requests arrived.

The rules are evaluated at the end of each minute. After it, a rule's short window is over its share of bad requests, or
it is calm. Without a calm minute in between, all minutes in which a rule fires are of one burn. A burn has two change
points: the lowest sum of (bad - share · judged) in the first short window after the calm, and the highest in the last
one in which the rule fires. With a short window of 3 minutes, a long one of 6, and more than half of 2 or more requests
bad as a burn:

    minute                   1      2      3      4      5      6      7      8      9      10
    bad of all requests      1/1           0/9    1/9    9/9    9/9    9/9    0/9    0/9    0/9
    of the last 3 minutes    1/1    1/1    1/10   1/18   10/27  19/27  27/27  18/27  9/27   0/27
    of the last 6 minutes    1/1    1/1    1/10   2/19   11/28  20/37  28/45  28/54  28/54  27/54
    the rule                                                    fires  fires  fires
    the short window         over   over   calm   calm   calm   over   over   over   calm   calm

What fires between the ends of minutes alone is found by `collector.slo.burn_between`.

The first window that is over after the calm has the minutes 4 to 6, with sums of -3.5, 1 and 5.5. So the burn began
with minute 5. The last window in which the rule fires has the minutes 6 to 8, with sums of 4.5, 9 and 4.5: it ended
with minute 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.slo.burn import BurnRule

MINUTE_NS: Final = 60_000_000_000
_DIGITS: Final = 6
"""Sums of weights are rounded to so many digits, so that none is almost 0."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Minutes:
    """The requests that an SLO judges by the minute in which they arrived, one value for each minute."""

    first: int
    """The first minute, counted since 1970."""
    judged: Floats
    bad: Floats
    is_all: bool
    """Nobody asks what was before the first minute."""

    def without(self, stretches: Iterable[Stretch]) -> Minutes:
        """These counts without those of some burns."""
        judged, bad = self.judged.copy(), self.bad.copy()
        for one in stretches:
            burned = slice(0 if one.first is None else one.first - self.first, one.last + 1 - self.first)
            judged[burned] = bad[burned] = 0
        return replace(self, judged=judged, bad=bad)


@dataclass(frozen=True)
class Stretch:
    """A burn: the most urgent rule that fired, the minutes in which too many requests were bad, and the worst of it."""

    rule: BurnRule
    first: int | None
    """None: it began before the minutes that were counted."""
    last: int
    lasts: bool
    """The rule fires in the last minute that was counted."""
    peak: float
    """The highest burn rate of the rule's short window while the rule fired."""
    fired: tuple[int, int]
    """The first and the last minute at whose end a rule of this severity fired. The last one may come after `last`: the
    windows remember the bad requests for a while."""
    is_small: bool = False
    """Its minutes hold fewer bad requests than the rule's least number: the long window remembers others."""


def stretches(
    minutes: Minutes,
    rules: Sequence[BurnRule],
    budget: Decimal,
    between: Mapping[BurnRule, Mapping[int, float]] = MappingProxyType({}),
) -> list[Stretch]:
    """The burns by these rules, which stand in the order of urgency. `between`: what fires between the ends of minutes.

    Each minute in which a rule of the most urgent severity fires is between the `fired` minutes of a burn. The rules of
    one severity find one burn together, and burns that are no farther apart than the shortest long window are one. The
    long window remembers a burn for hours, in which a single bad request may make the rule fire again: such a request
    belongs to the burn that is remembered. What a more urgent severity has found does not count for the others: a
    ticket is about what burns besides.
    """
    apart = min(rule.long_ns for rule in rules) // MINUTE_NS
    urgency = {rule: place for place, rule in enumerate(rules)}
    burns: list[Stretch] = []
    for _, of_severity in groupby(rules, key=lambda rule: rule.severity):
        found = [
            one for rule in of_severity for one in Watched(minutes, rule, budget, between.get(rule, {})).stretches()
        ]
        joined = _joined([one for one in found if not one.is_small or one.lasts], apart, urgency)
        alone = []
        for one in (one for one in found if one.is_small and not one.lasts):
            remembered = one.fired[0] - one.rule.long_ns // MINUTE_NS
            reasons = [i for i, burn in enumerate(joined) if remembered < burn.last and _before(burn, one)]
            if reasons:
                joined[reasons[-1]] = _with(joined[reasons[-1]], one, urgency)
            else:
                alone.append(one)
        joined = _joined([*joined, *alone], apart, urgency)
        minutes = minutes.without(joined)
        burns += joined
    return burns


def _before(burn: Stretch, one: Stretch) -> bool:
    """Whether a burn began when another one did, or before."""
    return burn.first is None or (one.first is not None and burn.first <= one.last)


class Watched:
    """Minutes as a rule sees them."""

    def __init__(
        self,
        minutes: Minutes,
        rule: BurnRule,
        budget: Decimal,
        between: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """`between`: minutes in which the rule fires, but not at their end, with the share of its short window."""
        self._between = {minute - minutes.first: share for minute, share in between.items()}
        self._minutes, self._rule, self._budget = minutes, rule, float(budget)
        self._share = float(rule.threshold * budget)
        self._short, self._long = (-(-ns // MINUTE_NS) for ns in (rule.short_ns, rule.long_ns))
        self._judged, self._bad = (sums_of(one, self._short) for one in (minutes.judged, minutes.bad))

    @cached_property
    def _last_calm(self) -> Ints:
        """The place of the last calm minute up to each; -1 for none. A pause longer than the long window is calm."""
        place = np.arange(len(self._judged))
        newest = np.maximum.accumulate(np.where(self._minutes.judged > 0, place, -1))
        is_whole = (place >= self._short - 1) | self._minutes.is_all
        is_low = (self._judged > 0) & (self._bad <= self._share * self._judged)
        calm: Ints = np.maximum.accumulate(np.where((is_low & is_whole) | (place - newest > self._long), place, -1))
        return calm

    def stretches(self) -> list[Stretch]:
        """The burns that the rule finds, which together have all minutes in which it fires."""
        fires, begins = self._fires
        return [*(self._stretch(some) for some in np.split(fires, begins[1:]) if len(some)), *self._brief()]

    @cached_property
    def _fires(self) -> tuple[Ints, Ints]:
        """The minutes in which the rule fires, and where among them a burn begins."""
        judged, bad = (sums_of(one, self._long) for one in (self._minutes.judged, self._minutes.bad))
        over = (self._bad > self._share * self._judged) & (bad > self._share * judged)
        fires = np.flatnonzero(over & (bad >= self._rule.least_bad))
        return fires, np.unique(self._last_calm[fires], return_index=True)[1]

    def _brief(self) -> Iterator[Stretch]:
        """The burns that are over before a minute ends, in the minutes of the short window that have bad requests."""
        for at, share in self._between.items():
            first = max(0, at - self._short)
            bad = first + np.flatnonzero(self._minutes.bad[first : at + 1])
            began, ended = (int(place) + self._minutes.first for place in bad[[0, -1]])
            fired = at + self._minutes.first
            is_small = bool(self._minutes.bad[bad].sum() < self._rule.least_bad)
            yield Stretch(self._rule, began, ended, False, share / self._budget, (fired, fired), is_small)

    def _stretch(self, fires: Ints) -> Stretch:
        """The burn whose rule fires in these minutes."""
        last = int(fires[-1])
        began = self._began(last)
        ended = self._ended(began or 0, last)
        return Stretch(
            rule=self._rule,
            first=None if began is None else began + self._minutes.first,
            last=ended + self._minutes.first,
            lasts=last == len(self._judged) - 1,
            peak=float((self._bad[fires] / self._judged[fires]).max()) / self._budget,
            fired=(int(fires[0]) + self._minutes.first, last + self._minutes.first),
            is_small=began is not None and bool(self._minutes.bad[began : ended + 1].sum() < self._rule.least_bad),
        )

    def began(self) -> int | None:
        """The minute in which the burn began that lasts in the last minute; the next one if none of them has a part.

        None: it is older than these minutes, and they are not all.
        """
        place = self._began(len(self._judged) - 1)
        return None if place is None else place + self._minutes.first

    def _began(self, at: int) -> int | None:
        calm = int(self._last_calm[at])
        if calm < 0 and not self._minutes.is_all:
            return None
        not_empty = np.flatnonzero(self._judged[calm + 1 : at + 1] > 0)
        end = calm + 1 + int(not_empty[0]) if len(not_empty) else at
        first = max(0, end - self._short + 1)
        sums = np.concatenate([[0.0], self._excess(first, end)])
        return first + len(sums) - 1 - int(np.argmin(sums[::-1]))  # the last of equal ones

    def _ended(self, began: int, at: int) -> int:
        first = max(began, at - self._short + 1)
        return first + int(np.argmax(self._excess(first, at)))

    def _excess(self, first: int, last: int) -> Floats:
        """The running sums of the bad requests above the rule's share."""
        some = slice(first, last + 1)
        excess: Floats = np.cumsum(self._minutes.bad[some] - self._share * self._minutes.judged[some]).round(_DIGITS)
        return excess


def _joined(burns: Iterable[Stretch], apart: int, urgency: dict[BurnRule, int]) -> list[Stretch]:
    """Burns that are not farther apart than so many minutes as one."""
    joined: list[Stretch] = []
    for one in sorted(burns, key=lambda one: -1 if one.first is None else one.first):
        before = joined[-1] if joined else None
        if before is None or (one.first or 0) - before.last > apart:
            joined.append(one)
            continue
        joined[-1] = replace(_with(before, one, urgency), last=max(before.last, one.last))
    return joined


def _with(burn: Stretch, other: Stretch, urgency: dict[BurnRule, int]) -> Stretch:
    """A burn, and the firing of another one, of which it has the more urgent rule and the worst that this rule saw."""
    first, second = sorted((burn, other), key=lambda each: urgency[each.rule])
    peak = max(first.peak, second.peak) if first.rule == second.rule else first.peak
    fired = min(burn.fired[0], other.fired[0]), max(burn.fired[1], other.fired[1])
    return replace(burn, rule=first.rule, peak=peak, lasts=burn.lasts or other.lasts, fired=fired)


def sums_of(values: Floats, n: int) -> Floats:
    """For each place, the sum of the last `n` values up to it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    until = np.arange(1, len(sums))
    sums_of_n: Floats = np.round(sums[until] - sums[np.maximum(until - n, 0)], _DIGITS)
    return sums_of_n
