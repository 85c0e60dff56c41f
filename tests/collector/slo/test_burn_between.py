"""Whoever was paged finds the incident, also of what fired between the ends of two minutes."""

from decimal import Decimal

import numpy as np
import pytest

from collector.slo.burn import BurnRule, burn_rules, load_windows
from collector.slo.burn_between import STEP_NS, between
from collector.slo.burn_history import MINUTE_NS, Minutes, stretches
from collector.slo.model import Slo

STEP_S = STEP_NS // 10**9
FIRST = 1000
"""The minute in which the histories here begin."""
SLO = Slo.model_validate({"name": "s", "objective": "0.95", "window": "30d", "thresholds": {"e2e": "1s"}})


class History:
    """Requests at some seconds, of which some are bad."""

    def __init__(self, at_s, bad, minutes):
        self._at_s, self._bad, self.reads = np.asarray(at_s), np.asarray(bad, float), []
        counts = self._by(60, FIRST, minutes)
        self.minutes = Minutes(FIRST, *counts, is_all=True)

    def _by(self, each_s, first, minutes):
        place = (self._at_s // each_s).astype(int) - (first - FIRST) * 60 // each_s
        n = minutes * 60 // each_s
        inside = (place >= 0) & (place < n)
        return tuple(np.bincount(place[inside], w[inside], n) for w in (np.ones(len(place)), self._bad))

    def read(self, first, last):
        self.reads.append((first, last))
        return self._by(STEP_S, first, last + 1 - first)

    def burns(self, rules, budget):
        found = stretches(self.minutes, rules, budget)
        return stretches(self.minutes, rules, budget, between(self.minutes, rules, budget, found, self.read))

    def fires(self, rule, budget):
        """The seconds at which the rule fires, each judged by the requests of its own windows."""
        share = float(rule.threshold * budget)
        now = np.arange(STEP_S, 60 * len(self.minutes.judged) + 1, STEP_S)
        until, is_over = np.concatenate([[0.0], self._bad.cumsum()]), np.ones(len(now), bool)
        for ns in (rule.short_ns, rule.long_ns):
            first, last = (np.searchsorted(self._at_s, at) for at in (now - ns / 1e9, now))
            bad = until[last] - until[first]
            is_over &= bad > share * (last - first) + 1e-9
        return now[is_over & (bad >= rule.least_bad)].tolist()


def toy(short=1, long=2, least_bad=10, severity="page"):
    return BurnRule(severity, severity, short * MINUTE_NS, long * MINUTE_NS, Decimal(1), least_bad)


def test_the_example_of_the_docstring():
    at_s = np.arange(0, 180, 3)
    history = History(at_s, (at_s >= 30) & (at_s < 90), 4)
    assert stretches(history.minutes, [toy()], Decimal("0.5")) == []
    (one,) = history.burns([toy()], Decimal("0.5"))
    assert (one.first, one.last, one.fired, one.lasts) == (FIRST, FIRST + 1, (FIRST + 1, FIRST + 1), False)
    assert one.peak == 2.0
    assert history.reads == [(FIRST - 2, FIRST + 2)], "three minutes may have fired, and the long window looks back"


@pytest.mark.parametrize(
    ("bad_s", "rule", "burns"),
    [
        ((30, 90), toy(least_bad=20), 1),
        ((30, 90), toy(least_bad=21), 0),
        ((45, 75), toy(), 0),  # half of a minute is not more than half
        ((30, 90), toy(severity="ticket"), 1),  # it is the most urgent here
        ((30, 90), toy(short=2, long=2), 1),
        ((30, 90), toy(short=2, long=3), 1),
        ((90, 150), toy(), 0),  # the long window has half of the requests before
    ],
)
def test_a_rule_fires_between_by_both_windows_and_enough_bad_requests(bad_s, rule, burns):
    at_s = np.arange(0, 240, 3)
    history = History(at_s, (at_s >= bad_s[0]) & (at_s < bad_s[1]), 5)
    assert len(history.burns([rule], Decimal("0.5"))) == burns == bool(history.fires(rule, Decimal("0.5")))


def test_a_burn_that_minutes_tell_is_not_looked_at_again():
    at_s = np.arange(0, 720, 3)
    history = History(at_s, (at_s >= 240) & (at_s < 480), 14)
    assert [(one.first, one.last) for one in history.burns([toy()], Decimal("0.5"))] == [(FIRST + 4, FIRST + 7)]
    assert history.reads == []


def test_less_urgent_rules_have_time_until_a_minute_ends():
    at_s = np.arange(0, 180, 3)
    never = BurnRule("page", "page", MINUTE_NS, 2 * MINUTE_NS, Decimal(1), 99)
    history = History(at_s, (at_s >= 30) & (at_s < 90), 4)
    assert history.burns([never, toy(severity="ticket")], Decimal("0.5")) == []
    assert history.reads == []


def test_whoever_was_paged_at_any_evaluation_finds_the_incident():
    """An outage of some seconds or minutes; a rule of pages fires at a moment if and only if a burn has its minute."""
    rules, brief = burn_rules(SLO, load_windows()), 0
    pages = [rule for rule in rules if rule.severity == "page"]
    for seed in range(150):
        rng = np.random.default_rng(seed)
        minutes, rate = 45, rng.choice([0.1, 0.3, 1.0])
        at_s = np.sort(rng.uniform(0, 60 * minutes, rng.poisson(60 * minutes * rate)))
        began, seconds = rng.uniform(900, 1200), rng.choice([40, 90, 150, 200, 300])
        outage = (at_s >= began) & (at_s < began + seconds) & (rng.random(len(at_s)) < rng.choice([0.6, 0.9, 1.0]))
        history = History(at_s, outage, minutes)
        burns = [one for one in history.burns(rules, SLO.budget) if one.rule.severity == "page"]
        fired = {now for rule in pages for now in history.fires(rule, SLO.budget)}
        for now in fired:
            minute = FIRST + (now - 1) // 60
            assert any(one.fired[0] - 1 <= minute <= one.fired[1] + 1 for one in burns), (seed, now)
        for one in burns:
            of_burn = {FIRST + (now - 1) // 60 for now in fired}
            assert {*one.fired} <= of_burn, seed
        brief += bool(burns) and not [
            one for one in stretches(history.minutes, rules, SLO.budget) if one.rule.severity == "page"
        ]
    assert brief >= 3, "some pages were over before a minute ended"
