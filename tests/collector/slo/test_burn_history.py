"""When a budget burned: examples, planted bursts, and a rule that is followed from minute to minute."""

import random
from decimal import Decimal

import numpy as np
import pytest

from collector.incidents.burn_history import days_back
from collector.slo.burn import BurnRule, burn_rules, load_windows
from collector.slo.burn_history import MINUTE_NS, Minutes, Watched, stretches
from collector.slo.model import Slo

HALF = Decimal("0.5")
SHORT, LONG = 3, 6


def rule_of(name="r", severity="page", short=SHORT, long=LONG, threshold=1, least_bad=2):
    return BurnRule(name, severity, short * MINUTE_NS, long * MINUTE_NS, Decimal(threshold), least_bad)


def minutes_of(counts, *, first=100, is_all=True):
    """`counts` has (judged, bad) by minute."""
    judged, bad = np.array(counts, float).reshape(-1, 2).T
    return Minutes(first, judged, bad, is_all)


EXAMPLE = [(1, 1), (0, 0), (9, 0), (9, 1), (9, 9), (9, 9), (9, 9), (9, 0), (9, 0), (9, 0)]


def told(found):
    return [(one.rule.name, one.first, one.last, one.lasts, round(one.peak, 2)) for one in found]


def test_the_example_of_the_docstring():
    found = stretches(minutes_of(EXAMPLE, first=1), [rule_of()], HALF)
    assert told(found) == [("r", 5, 7, False, 2.0)]


@pytest.mark.parametrize("length", [6, 7, 8])
def test_the_beginning_does_not_move_while_the_burn_lasts(length):
    minutes = minutes_of(EXAMPLE[:length], first=1)
    (one,) = stretches(minutes, [rule_of()], HALF)
    assert (one.first, one.lasts, Watched(minutes, rule_of(), HALF).began()) == (5, True, 5)


GOOD, BAD, NONE = (10, 0), (10, 10), (0, 0)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([GOOD] * 9, []),
        ([GOOD] * 3 + [BAD] * 3 + [GOOD] * 6, []),  # half of the long window is not more than half
        ([GOOD] * 4 + [BAD] * 4 + [GOOD] * 6, [(104, 107)]),
        ([GOOD] * 4 + [BAD] * 4 + [GOOD] * 6 + [BAD] * 4 + [GOOD] * 4, [(104, 107), (114, 117)]),
        ([GOOD] * 4 + [BAD] * 4 + [GOOD] + [BAD] * 4 + [GOOD] * 4, [(104, 112)]),  # never calm in between
        ([GOOD] * 4 + [BAD] * 4 + [GOOD] * 5 + [BAD] * 5 + [GOOD] * 4, [(104, 117)]),  # as near as the long window
        ([BAD] * 4 + [NONE] * 6 + [BAD] * 4, [(100, 113)]),  # a pause as long as the rule looks back
        ([BAD] * 4 + [NONE] * 7 + [BAD] * 4, [(100, 103), (111, 114)]),  # and a longer one
        ([GOOD] * 4 + [(10, 6)] * 9 + [GOOD] * 3, [(104, 112)]),  # a slow leak
        ([GOOD] * 4 + [(1, 1)] + [GOOD] * 4, []),  # too few
    ],
)
def test_bursts(counts, expected):
    found = stretches(minutes_of(counts), [rule_of()], HALF)
    assert [(one.first, one.last) for one in found] == expected


@pytest.mark.parametrize(("bad", "expected"), [(4, [(100, 107)]), (5, [(100, 107), (112, 112)])])
def test_a_few_bad_requests_while_the_long_window_remembers_a_burn_are_none_of_their_own(bad, expected):
    rules = [rule_of("fast", short=1, long=2, threshold=3), rule_of("slow", short=1, long=12, least_bad=5)]
    counts = [BAD] * 8 + [(1, 0)] * 4 + [(bad, bad)] + [(1, 0)] * 2
    assert [(one.first, one.last) for one in stretches(minutes_of(counts), rules, HALF)] == expected


def test_weights_that_no_float_has_exactly_leave_nothing_over():
    counts = [(0.1, 0.1)] * 30 + [NONE] * 20 + [(0.3, 0)] * 3
    found = stretches(minutes_of(counts), [rule_of(least_bad=1)], HALF)
    assert found == []
    (one,) = stretches(minutes_of([(n * 10, bad * 10) for n, bad in counts]), [rule_of(least_bad=1)], HALF)
    assert (one.first, one.last) == (100, 129)


def test_a_burn_older_than_the_minutes_has_no_beginning_unless_they_are_all():
    counts = [BAD] * 5 + [GOOD] * 5
    (one,) = stretches(minutes_of(counts, is_all=False), [rule_of()], HALF)
    assert (one.first, one.last) == (None, 104)
    (one,) = stretches(minutes_of(counts), [rule_of()], HALF)
    assert (one.first, one.last) == (100, 104)
    burning = minutes_of([GOOD, BAD, BAD, BAD, BAD], is_all=False)  # no whole window is known to be calm
    assert Watched(burning, rule_of(), HALF).began() is None
    assert Watched(minutes_of([GOOD, GOOD, GOOD, *[BAD] * 5], is_all=False), rule_of(), HALF).began() == 103


def test_without_a_bad_request_a_burn_that_others_know_of_begins_behind_the_minutes():
    assert Watched(minutes_of([GOOD] * 5), rule_of(), HALF).began() == 105
    assert Watched(minutes_of([GOOD, GOOD, GOOD, GOOD, (1, 1)]), rule_of(), HALF).began() == 104


def test_rules_of_one_severity_find_one_burn_and_it_has_the_name_of_the_most_urgent():
    fast, slow = rule_of("fast", short=1, long=2, threshold="1.8"), rule_of("slow", short=4, long=8)
    counts = [GOOD] * 8 + [(10, 7)] * 8 + [BAD] * 3 + [GOOD] * 9
    assert told(stretches(minutes_of(counts), [fast, slow], HALF)) == [("fast", 108, 118, False, 2.0)]
    assert told(stretches(minutes_of(counts), [slow], HALF)) == [("slow", 108, 118, False, 1.85)]


def test_two_bursts_that_are_one_burned_as_fast_as_the_worse_one():
    counts = [GOOD] * 4 + [(10, 7)] * 5 + [GOOD] * 5 + [BAD] * 5 + [GOOD] * 4
    for some in (counts, counts[::-1]):
        assert [one.peak for one in stretches(minutes_of(some), [rule_of()], HALF)] == [2.0]


def test_what_paged_is_no_ticket_too_and_what_leaks_besides_is_one():
    page = rule_of("page", short=1, long=2, threshold="1.8")
    ticket = rule_of("ticket", "ticket", short=4, long=12, threshold="0.6")
    burst = [GOOD] * 12 + [BAD] * 6 + [GOOD] * 20
    assert told(stretches(minutes_of(burst), [page, ticket], HALF)) == [("page", 112, 117, False, 2.0)]
    assert [one.rule.name for one in stretches(minutes_of(burst), [ticket], HALF)] == ["ticket"]
    leak = [GOOD] * 12 + [(10, 4)] * 14 + [BAD] * 6 + [(10, 4)] * 14 + [GOOD] * 12
    found = stretches(minutes_of(leak), [page, ticket], HALF)
    assert [(one.rule.name, one.first, one.last) for one in found] == [("page", 126, 131), ("ticket", 112, 145)]


def slowly(counts, rule, share):
    """The burns of one rule, found by going from minute to minute."""
    n, at, calm, found, excess = len(counts), 0, -1, [], lambda c: round(c[1] - share * c[0], 6)
    short, long = rule.short_ns // MINUTE_NS, rule.long_ns // MINUTE_NS
    newest = -1
    for at in range(n):
        newest = at if counts[at][0] else newest
        of_short, of_long = counts[max(0, at - short + 1) : at + 1], counts[max(0, at - long + 1) : at + 1]
        judged, bad = (sum(c[i] for c in of_short) for i in (0, 1))
        all_, all_bad = (sum(c[i] for c in of_long) for i in (0, 1))
        if (judged and bad <= share * judged) or at - newest > long:
            calm = at
        if judged and bad > share * judged and all_bad > share * all_ and all_bad >= rule.least_bad:
            if not found or found[-1][0] != calm:
                found.append([calm, at, at])
            found[-1][1] = at
    burns = []
    for calm, last, fired in found:
        end = next(e for e in range(calm + 1, n) if any(c[0] for c in counts[max(0, e - short + 1) : e + 1]))
        places = range(max(0, end - short + 1), end + 2)
        first = min(places, key=lambda p: (sum(excess(c) for c in counts[places[0] : p]), -p))
        places = range(max(first, last - short + 1), last + 1)
        ended = max(places, key=lambda p: (sum(excess(c) for c in counts[places[0] : p + 1]), -p))
        burns.append((first, ended, (fired, last)))
    return burns


def test_random_minutes_are_judged_as_one_by_one():
    chance, seen = random.Random(1), 0
    rule = rule_of(short=3, long=5)
    for _ in range(1500):
        rate, counts = 0.0, []
        for _ in range(chance.randrange(1, 40)):
            rate = chance.random() if chance.random() < 0.2 else rate
            judged = chance.randrange(5) if chance.random() < 0.7 else 0
            counts.append((judged, sum(chance.random() < rate for _ in range(judged))))
        found = Watched(minutes_of(counts, first=0), rule, HALF).stretches()
        assert [(one.first, one.last, one.fired) for one in found] == slowly(counts, rule, 0.5), counts
        seen += len(found)
    assert seen > 1000


def of_last(values, n):
    """The sum of the last `n` values at each place."""
    sums = np.concatenate([[0.0], values.cumsum()])
    return sums[1:] - sums[np.maximum(np.arange(len(values)) + 1 - n, 0)]


def fired(minutes, rule, budget):
    """The minutes at whose ends a rule fires, and the burn rate of its short window in each."""
    short, long = rule.short_ns // MINUTE_NS, rule.long_ns // MINUTE_NS
    judged, bad, all_judged, all_bad = (of_last(v, n) for n in (short, long) for v in (minutes.judged, minutes.bad))
    share = float(rule.threshold * budget)
    over = (bad > share * judged + 1e-9) & (all_bad > share * all_judged + 1e-9) & (all_bad >= rule.least_bad)
    return np.flatnonzero(over) + minutes.first, bad / np.maximum(judged, 1) / float(budget)


def test_whoever_was_paged_finds_the_incident_with_the_most_urgent_rule_and_the_worst_of_it():
    """A rule of pages fires in a minute if and only if a burn has it between its first and its last such minute."""
    rng, slo = np.random.default_rng(8), Slo.model_validate(
        {"name": "s", "objective": "0.95", "window": "30d", "thresholds": {"e2e": "1s"}}
    )  # fmt: skip
    rules = burn_rules(slo, load_windows())
    pages = [rule for rule in rules if rule.severity == "page"]
    seen = small = 0
    for _ in range(60):
        length = int(rng.integers(20, 300))
        share = np.where(rng.random(length) < 0.1, 1, 0).cumsum()
        share = rng.choice([0, 0, 0.02, 0.5, 0.9, 1], share[-1] + 1)[share]
        judged = rng.poisson(rng.choice([0.3, 2, 6, 30]) * (rng.random(length) < 0.8), length)
        minutes = Minutes(1000, judged * 1.0, rng.binomial(judged, share) * 1.0, True)
        found = [one for one in stretches(minutes, rules, slo.budget) if one.rule.severity == "page"]
        by_rule = {rule: fired(minutes, rule, slo.budget) for rule in pages}
        for place, (rule, (at, burn)) in enumerate(by_rule.items()):
            for minute in at:
                inside = [one for one in found if one.fired[0] <= minute <= one.fired[1]]
                assert any(
                    pages.index(one.rule) < place
                    or (one.rule == rule and one.peak >= burn[minute - minutes.first] - 1e-9)
                    for one in inside
                ), "whoever was paged"
        all_at = {*np.concatenate([at for at, _ in by_rule.values()]).tolist()}
        for one in found:
            at, burn = by_rule[one.rule]
            during = at[(at >= one.fired[0]) & (at <= one.fired[1])]
            assert {*one.fired} <= all_at
            assert round(one.peak, 9) in burn[during - minutes.first].round(9)
            small += minutes.bad[one.first - 1000 : one.last + 1 - 1000].sum() < one.rule.least_bad
        seen += len(found)
    assert seen > 50


def test_planted_bursts_of_a_busy_day_are_found_to_the_minute_by_the_shipped_rules():
    """95 % are promised, one request of a hundred is bad, and then a burst, a leak of five budgets, a burst."""
    slo = Slo.model_validate({"name": "s", "objective": "0.95", "window": "30d", "thresholds": {"e2e": "1s"}})
    random_ = np.random.default_rng(3)
    for _ in range(20):
        share = np.full(720, 0.01)
        share[60:90], share[240:480], share[600:640] = 0.9, 0.25, 0.8
        bad, good = random_.poisson(60 * share), random_.poisson(60 * (1 - share))
        found = stretches(Minutes(0, bad + good * 1.0, bad * 1.0, True), burn_rules(slo, load_windows()), slo.budget)
        assert [one.rule.severity for one in found] == ["page", "page", "ticket"]
        edges = [(one.first, one.last) for one in sorted(found, key=lambda one: one.first)]
        for (first, last), (begin, end) in zip(edges, [(60, 89), (240, 479), (600, 639)], strict=True):
            assert abs(first - begin) <= 1
            assert abs(last - end) <= 1


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (20, 22, [(20, 22)]),
        (0, 22, [(0, 22)]),
        (-1, 22, [(0, 22), (-24, 0)]),
        (-24, 22, [(0, 22), (-24, 0)]),
        (-24 * 3 - 1, 22, [(0, 22), (-24, 0), (-72, -24), (-96, -72)]),
        (-24 * 9, 0, [(0, 0), (-24, 0), (-72, -24), (-168, -72), (-216, -168)]),
    ],
)
def test_the_history_is_read_by_the_present_day_and_by_more_and_more_days_before(start, end, expected):
    hour, midnight = 3600 * 10**9, 20_000 * 24
    found = days_back((midnight + start) * hour, (midnight + end) * hour)
    assert [(a // hour - midnight, b // hour - midnight) for a, b in found] == expected
