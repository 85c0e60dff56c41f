from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.count.evaluation import burns
from collector.slo.burn import InfeasibleSlo, Tally, budget_left, burn_rules, exhausted_in_s, fires, load_windows
from collector.slo.counts import Counts
from collector.slo.model import Slo

DAY = 86400 * 10**9
WINDOWS = load_windows()


def slo(objective, window="30d"):
    return Slo.model_validate({"name": "s", "objective": objective, "window": window, "thresholds": {"e2e": "1s"}})


def test_the_factors_are_the_workbooks():
    assert [(r.name, r.severity, r.threshold) for r in burn_rules(slo("0.999"), WINDOWS)] == [
        ("page-outage", "page", 500), ("page-outage-few", "page", 500), ("page-fast", "page", Decimal("14.4")),
        ("page-slow", "page", 6), ("ticket-fast", "ticket", 3), ("ticket-slow", "ticket", 1),
    ]  # fmt: skip
    assert burn_rules(slo("0.999", "28d"), WINDOWS)[2].threshold == Decimal("13.44")


def firing(rule, budget, short, long):
    return fires(rule, short.burn(budget), long.burn(budget), bad=long.bad)


@given(st.decimals("0.01", "0.99999", places=5), st.integers(3, 90))
def test_every_rule_can_fire_and_none_while_the_promise_is_kept(objective, days):
    promise = slo(str(objective), f"{days}d")
    for rule in burn_rules(promise, WINDOWS):
        everything_failed, kept = Tally(1000, 1000), Tally(100_000, int(100_000 * promise.budget))
        assert firing(rule, promise.budget, everything_failed, everything_failed)
        if rule.threshold >= 1:
            assert not firing(rule, promise.budget, kept, kept)


def test_a_threshold_is_clamped_to_what_can_burn():
    assert [r.threshold for r in burn_rules(slo("0.9"), WINDOWS)] == [5, 5, 8, 6, 3, 1]
    assert [float(r.threshold) for r in burn_rules(slo("0.5"), WINDOWS)] == [1.8, 1.8, 1.6, 1.6, 1.6, 1]


@pytest.mark.parametrize(
    ("objective", "share"), [("0.999", 0.5), ("0.9", 0.5), ("0.89", 0.55), ("0.82", 0.9), ("0.5", 0.9)]
)
def test_an_outage_is_five_budgets_bad_but_never_less_than_half_nor_more_than_nine_in_ten(objective, share):
    outages = burn_rules(slo(objective), WINDOWS)[:2]
    assert [outage.name for outage in outages] == ["page-outage", "page-outage-few"]
    for outage in outages:
        assert float(outage.threshold * slo(objective).budget) == pytest.approx(share)


def test_rules_that_would_fire_within_the_budget_are_left_out():
    names = [r.name for r in burn_rules(slo("0.99", "7d"), WINDOWS)]
    assert names == ["page-outage", "page-outage-few", "page-fast", "page-slow"]
    with pytest.raises(InfeasibleSlo, match=r"its window of 1d is too short to be watched.*Use 50h or more"):
        burn_rules(slo("0.99", "1d"), WINDOWS)
    assert len(burn_rules(slo("0.99", "50h"), WINDOWS)) == 3


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_burn_and_budget_are_exact(bad, more):
    tally = Tally(bad + more, bad)
    budget = Decimal("0.001")
    assert tally.burn(budget) == Fraction(bad * 1000, bad + more)
    assert budget_left(tally, budget) == pytest.approx(1 - bad * 1000 / (bad + more))


def test_both_windows_must_burn_and_the_long_one_holds_enough_bad_requests():
    rule = burn_rules(slo("0.99"), WINDOWS)[2]
    hot, cold, few = Tally(100, 20), Tally(100, 14), Tally(7, 7)
    budget = Decimal("0.01")
    assert firing(rule, budget, hot, hot)
    assert not firing(rule, budget, cold, hot)
    assert not firing(rule, budget, hot, cold)
    assert not firing(rule, budget, hot, few)
    assert not firing(rule, budget, hot, Tally(20, 7))
    assert firing(rule, budget, few, hot)
    assert firing(rule, budget, hot, Tally(8, 8))
    assert not firing(rule, budget, Tally(0, 0), hot)
    assert Tally(0, 0).burn(budget) is None
    assert budget_left(Tally(0, 0), budget) is None


def test_the_guard_is_on_the_long_window():
    promise = slo("0.99")
    rules = [rule for rule in burn_rules(promise, WINDOWS) if rule.name == "page-fast"]

    def counts(total, bad):
        others = dict.fromkeys(Counts.model_fields.keys() - {"total", "good"}, 0)
        return Counts(total=total, good=total - bad, **others)

    def fired(short, long):
        (burn,) = burns(promise, rules, {rules[0].short_ns: counts(*short), rules[0].long_ns: counts(*long)})
        return burn.firing, burn.short, burn.long

    assert fired((7, 7), (100, 20)) == (True, 100.0, 20.0)
    assert fired((100, 20), (7, 7)) == (False, 20.0, 100.0)


def test_exactly_at_the_factor_is_not_faster_than_it():
    rule = burn_rules(slo("0.99"), WINDOWS)[3]
    assert not firing(rule, Decimal("0.01"), Tally(1000, 60), Tally(1000, 60))
    assert firing(rule, Decimal("0.01"), Tally(1000, 61), Tally(1000, 61))


def test_a_budget_that_is_gone_is_exhausted_now_and_one_that_does_not_shrink_never():
    burns = Fraction(6)
    assert exhausted_in_s(0.5, burns, 60 * 10**9) == 5.0
    assert [exhausted_in_s(left, burns, 10**9) for left in (0.0, -0.5)] == [0.0, 0.0]
    assert [exhausted_in_s(left, None, 10**9) for left in (0.5, 0.0, -0.5, None)] == [None, 0.0, 0.0, None]
