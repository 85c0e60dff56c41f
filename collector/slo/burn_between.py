"""Burns that are over before a minute ends.

`burn_history` evaluates the rules at the end of each minute, and alerts do so every few seconds. With a short window of
1 minute, a long one of 2, and more than half of 10 or more requests bad as a burn, 20 requests a minute from 0:00 on,
of which all from 0:30 to 1:30 are bad:

    at                       1:00    1:30    2:00
    bad of the last minute   10/20   20/20   10/20
    of the last 2 minutes    10/20   20/30   20/40
    the rule                         fires

Counts by minute tell in which minutes a rule may have fired: where the bad requests of the minutes at the edges of a
window were all in it, and their good ones were not. Only of these, the counts of shorter steps are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final

import numpy as np

from collector.slo.burn import BurnRule
from collector.slo.burn_history import MINUTE_NS, Floats, Ints, Minutes, Stretch, sums_of

STEP_NS: Final = 5_000_000_000
"""Prometheus evaluates the rules so often (alerts/prometheus.yml)."""
_STEPS: Final = MINUTE_NS // STEP_NS
_ROUNDING: Final = 1e-6
_ONE_READ: Final = 60
"""Minutes that are not farther apart are read together."""

Read = Callable[[int, int], tuple[Floats, Floats]]
"""The judged and the bad requests of each step from one minute to another one, both counted since 1970."""
Between = Mapping[BurnRule, Mapping[int, float]]
"""The minutes in which a rule fires, though not at their ends, with the largest share of bad requests of its short
window."""


def between(
    minutes: Minutes, rules: Sequence[BurnRule], budget: Decimal, found: Sequence[Stretch], read: Read
) -> Between:
    """When rules of the most urgent severity fire between the ends of minutes, and beside the burns that are `found`.

    Tickets wait for ten minutes, so a minute ends meanwhile.
    """
    pages = [rule for rule in rules if rule.severity == rules[0].severity]
    known = np.zeros(len(minutes.judged) + 2, bool)
    for one in (one for one in found if one.rule in pages):
        known[max(0, one.fired[0] - minutes.first - 1) : one.fired[1] - minutes.first + 2] = True
    bad, good = (np.concatenate([[0.0], one.cumsum()]) for one in (minutes.bad, minutes.judged - minutes.bad))
    told: dict[BurnRule, dict[int, float]] = {}
    for rule in pages:
        share = float(rule.threshold * budget)
        may = _may_fire(bad, good, rule, share)
        may = may[~known[may]]
        for places in np.split(may, np.flatnonzero(np.diff(may) > _ONE_READ) + 1) if len(may) else ():
            shares = _fired(rule, share, int(places[0]) + minutes.first, int(places[-1]) + minutes.first, read)
            told.setdefault(rule, {}).update(shares)
    return {rule: of for rule, of in told.items() if of}


def _may_fire(bad_until: Floats, good_until: Floats, rule: BurnRule, share: float) -> Ints:
    """The minutes in which the rule may fire. Sums are of what was bad, or good, before each minute."""
    place = np.arange(len(bad_until) - 1)
    for ns in (rule.short_ns, rule.long_ns):
        first = place - -(-ns // MINUTE_NS)
        bad = bad_until[place + 1] - bad_until[np.maximum(first, 0)]
        good = good_until[place] - good_until[np.maximum(first + 1, 0)]  # without those of the minutes at the edges
        likely = (bad > _ROUNDING) & (bad * (1 - share) > share * good - _ROUNDING)
        place = place[likely & (bad > rule.least_bad - 1) if ns == rule.long_ns else likely]
    return place


def _fired(rule: BurnRule, share: float, first: int, last: int, read: Read) -> dict[int, float]:
    """The minutes from the first to the last in which the rule fires, with the largest share of its short window."""
    before = -(-rule.long_ns // MINUTE_NS)
    judged, bad = read(first - before, last)
    short, long = (-(-ns // STEP_NS) for ns in (rule.short_ns, rule.long_ns))
    (n, hits), (all_n, all_hits) = ([sums_of(one, steps) for one in (judged, bad)] for steps in (short, long))
    fires = np.flatnonzero((hits > share * n) & (all_hits > share * all_n) & (all_hits >= rule.least_bad))
    told: dict[int, float] = {}
    for at in fires[fires >= before * _STEPS].tolist():
        minute = first - before + at // _STEPS
        told[minute] = max(told.get(minute, 0.0), float(hits[at] / n[at]))
    return told
