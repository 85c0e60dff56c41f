"""The simulation of false pages judges as the collector does, and the shipped guards hold in one month of it."""

from decimal import Decimal
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks import alerts_counts
from benchmarks.alerts_kv_waits import tickets
from benchmarks.alerts_simulation import STEP_S, false_alarms, month
from collector.slo.burn import Tally, burn_rules, fires, load_windows
from collector.slo.model import Slo


def promise(objective):
    return Slo.model_validate({"name": "s", "objective": objective, "window": "30d", "thresholds": {"e2e": "1s"}})


def test_it_fires_when_the_collector_would():
    slo, random = promise("0.99"), np.random.default_rng(2)
    bad = np.cumsum(random.poisson(np.repeat([0.05, 11, 0.05, 0.6], 400), 1600))
    sums = bad + np.cumsum(random.poisson(10, 1600)), bad

    def tally(step, ns):
        before = step - ns // (STEP_S * 10**9)
        return Tally(*(int(c[step]) - (int(c[before]) if before >= 0 else 0) for c in sums))

    def firing(rule, step):
        short, long = tally(step, rule.short_ns), tally(step, rule.long_ns)
        return fires(rule, short.burn(slo.budget), long.burn(slo.budget), bad=long.bad)

    for rule in burn_rules(slo, load_windows()):
        on = [firing(rule, step) for step in range(1600)]
        began = sum(now and not before for before, now in zip([False, *on], on, strict=False))
        assert false_alarms((rule,), slo.budget, sums)[f"least_bad {rule.name}"] == began > 0


def test_a_kept_promise_pages_nobody_in_a_month_where_ten_requests_would():
    for objective, rate in (("0.9", 3), ("0.99", 5), ("0.999", 2)):
        slo = promise(objective)
        fired = false_alarms(
            burn_rules(slo, load_windows()), slo.budget, month(np.random.default_rng(3), slo.budget, rate)
        )
        assert fired["least_bad any page"] == 0
    assert fired["ten_requests any page"] >= 3
    assert fired["no_guard any page"] >= fired["ten_requests any page"]


def test_requests_are_bad_at_the_rate_of_the_budget():
    all_, bad = month(np.random.default_rng(4), Decimal("0.05"), 60)
    assert abs(bad[-1] / all_[-1] - 0.05) < 0.001
    assert abs(all_[-1] / (30 * 1440) - 60) < 0.5


@pytest.mark.parametrize(("blocks", "is_any"), [(90, True), (800, False)])
def test_waits_for_blocks_are_a_ticket_where_blocks_are_few(blocks, is_any):
    found = tickets(np.random.default_rng(4), 2.0, blocks, 1 / 24)
    assert (found["share"] > 0.25, found["tickets_per_30_days"] > 0) == (is_any, is_any)


def test_healthy_traffic_makes_a_ticket_a_month_at_most_and_a_storm_makes_one():
    random = np.random.default_rng(3)
    found = alerts_counts.month(random, 12, 1.2)
    assert {name for name, on in found.items() if alerts_counts.begins(name, on) > 1} == set()
    with patch.object(alerts_counts, "PREEMPTED", 0.5):
        assert alerts_counts.begins("kv_eviction", alerts_counts.month(random, 12, 1.2)["kv_eviction"]) > 0
    waits = np.zeros(100, bool)
    waits[10:30] = waits[40:65] = True  # 10 and 12.5 minutes
    assert alerts_counts.begins("kv_full", waits) == 1
