"""Intervals against many draws of known distributions, with fixed seeds."""

import math
from dataclasses import replace

import numpy as np
import pytest

from collector.measure.alike import alike, mix_differs
from collector.measure.chance import Interval, Ratios, Sample, difference, share


def _sample(values, *, weights=None, blocks=None):
    n = len(values)
    return Sample(
        np.asarray(values, float),
        np.ones(n) if weights is None else weights,
        np.ones((1, n)),
        np.zeros(n, int) if blocks is None else blocks,
    )


def ratio(a, b, level):
    return Ratios(a, b, [level]).interval(level)


def test_percentiles_are_numpys_and_weights_repeat_a_value():
    values = np.random.default_rng(1).lognormal(size=101)
    for level in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert _sample(values).quantile(level) == pytest.approx(np.percentile(values, 100 * level))
    weighed = _sample([1.0, 2.0, 9.0], weights=np.array([50.0, 49.0, 1.0]))
    assert weighed.quantile(0.25) < 2 < weighed.quantile(0.9)
    assert weighed.quantile(1.0) == 9


@pytest.mark.parametrize("kind", ["plain", "weighted", "bursts", "ties"])
@pytest.mark.parametrize("n", [150, 1000])
def test_two_samples_of_one_distribution_have_intervals_that_hold_1(kind, n):
    rng = np.random.default_rng(7)
    held = {0.5: 0, 0.9: 0, 0.99: 0}
    draws = 150
    for _ in range(draws):
        a, b = (_drawn(rng, n, kind) for _ in "ab")
        for level in held:
            interval = ratio(a, b, level)
            held[level] += interval.low <= 1 <= interval.high
    for level, times in held.items():
        assert times / draws > 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / draws), level


def test_the_intervals_are_not_wider_than_they_need_be():
    rng = np.random.default_rng(8)
    outside = 0
    for _ in range(400):
        interval = ratio(_drawn(rng, 2000, "plain"), _drawn(rng, 2000, "plain"), 0.9)
        outside += not interval.low <= 1 <= interval.high
    assert outside / 400 > 0.05 - 3.5 * math.sqrt(0.05 * 0.95 / 400)


def _drawn(rng, n, kind):
    values, weights, blocks = rng.lognormal(0, 1, n), np.ones(n), rng.integers(0, 40, n)
    if kind == "weighted":
        kept = (values > 2) | (rng.random(n) < 0.5)
        values, weights, blocks = values[kept], np.where(values > 2, 1.0, 2.0)[kept], blocks[kept]
    if kind == "bursts":
        values = values * np.where(np.isin(blocks, rng.choice(40, 5, replace=False)), 3, 1)
    if kind == "ties":
        values = np.ceil(values * 4) / 4
    return _sample(values, weights=weights, blocks=blocks)


def test_numbers_of_one_request_are_one_piece_of_evidence():
    rng = np.random.default_rng(10)
    held = apart = 0
    for _ in range(200):
        pair, alone = [], []
        for _ in "ab":
            request = np.repeat(np.arange(200), rng.integers(1, 40, 200))
            values = rng.lognormal(0, 0.5, 200)[request] * rng.lognormal(0, 0.2, len(request))
            alone.append(_sample(values))
            pair.append(replace(alone[-1], requests=request))
        for found, count in ((pair, "held"), (alone, "apart")):
            interval = ratio(*found, 0.9)
            held += count == "held" and interval.low <= 1 <= interval.high
            apart += count == "apart" and interval.low <= 1 <= interval.high
    assert held / 200 > 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / 200)
    assert apart < 150
    few = replace(_sample(np.arange(400.0)), requests=np.arange(400) // 100)
    assert few.n == 4


def test_few_requests_with_many_numbers_widen_an_interval_more_than_as_many_numbers():
    """Twenty requests have the squares of few behind their variance, and more of them lie above a lower bound."""
    steps = np.exp(np.arange(20) / 20)
    alone = ratio(_sample(steps), _sample(steps), 0.7)
    tokens = _sample(np.repeat(steps, 50) * np.tile(np.linspace(0.99, 1.01, 50), 20))
    found = ratio(*[replace(tokens, requests=np.arange(1000) // 50)] * 2, 0.7)
    wider = math.log(found.low) / math.log(alone.low)
    assert wider == pytest.approx(1.095, abs=0.004)


def test_bursts_make_an_interval_wider_and_common_bursts_do_not():
    rng = np.random.default_rng(9)
    own, common = [], []
    for _ in range(30):
        blocks = rng.integers(0, 40, 4000)
        a, b = rng.lognormal(0, 0.3, 4000), rng.lognormal(0, 0.3, 4000)
        burst = np.where(blocks < 5, 2, 1)
        elsewhere = np.where(blocks >= 35, 2, 1)
        together = ratio(_sample(a * burst, blocks=blocks), _sample(b * burst, blocks=blocks), 0.5)
        apart = ratio(_sample(a * burst, blocks=blocks), _sample(b * elsewhere, blocks=blocks), 0.5)
        common.append(math.log(together.high / together.low))
        own.append(math.log(apart.high / apart.low))
    alone = ratio(_sample(a * burst), _sample(b * elsewhere), 0.5)
    assert np.mean(own) > 2 * np.mean(common)
    assert np.mean(own) > 2 * math.log(alone.high / alone.low)


def test_too_few_requests_leave_a_percentile_without_a_bound():
    rng = np.random.default_rng(3)
    few = ratio(_drawn(rng, 150, "plain"), _drawn(rng, 150, "plain"), 0.99)
    assert (few.low, few.high) == (0.0, math.inf)
    assert 0.05 < few.estimate < 20
    enough = ratio(_drawn(rng, 600, "plain"), _drawn(rng, 600, "plain"), 0.99)
    assert 0 < enough.low < enough.estimate < enough.high < math.inf


def test_a_percentile_of_zero_has_no_ratio_and_equal_values_have_one():
    assert ratio(_sample([0.0] * 9), _sample([1.0] * 9), 0.5) is None
    assert ratio(_sample([1.0] * 9), _sample([0.0] * 9), 0.5) is None
    same = ratio(_sample([2.0] * 500), _sample([3.0] * 500), 0.5)
    assert (same.low, same.estimate, same.high) == pytest.approx((1.5, 1.5, 1.5))


def test_a_longer_mix_alone_is_no_ratio_but_a_slower_server_is():
    rng = np.random.default_rng(5)
    outside, found = 0, 0
    for _ in range(60):
        prompts = [rng.lognormal(6, 1, 1500), rng.lognormal(6.7, 1, 1500)]
        times = [(20 + 0.2 * p) * rng.lognormal(0, 0.3, 1500) for p in prompts]
        plain = ratio(_sample(times[0]), _sample(times[1]), 0.9)
        assert plain.low > 1.2
        for slower in (1.0, 1.3):
            like = alike([prompts[0]], [prompts[1]], (np.ones(1500), np.ones(1500)))
            pair = [
                Sample(t * f, factors, features, np.zeros(1500, int))
                for t, f, factors, features in zip(times, (1.0, slower), like.factors, like.features, strict=True)
            ]
            interval = ratio(*pair, 0.9)
            if slower == 1.0:
                outside += not interval.low <= 1 <= interval.high
            else:
                found += interval.low > 1
    assert outside <= 8
    assert found == 60


def test_lengths_that_one_side_lacks_or_does_not_tell_leave_weights_that_are_known():
    nan = np.full(400, np.nan)
    rng = np.random.default_rng(6)
    a, b = rng.lognormal(4, 0.2, 400), rng.lognormal(9, 0.2, 400)
    ones = np.ones(400), np.ones(400)
    apart = alike([a], [b], ones)
    assert max(factor.max() for factor in apart.factors) < 0.3
    for one, other in ((nan, nan), (a, nan), (np.full(400, 7.0), np.full(400, 7.0)), (np.zeros(400), a)):
        found = alike([one], [other], ones)
        for factors in found.factors:
            assert np.isfinite(factors).all()
            assert factors.min() >= 0
    equal = alike([nan], [nan], ones)
    assert np.ptp(np.concatenate(equal.factors)) == 0


def test_a_mix_differs_by_more_than_chance_and_more_than_a_little():
    rng = np.random.default_rng(6)
    assert not mix_differs(rng.normal(size=5000), rng.normal(size=5000))
    assert not mix_differs(rng.normal(size=50_000), rng.normal(0.1, size=50_000))
    assert not mix_differs(rng.normal(size=10), rng.normal(0.5, size=10))
    assert mix_differs(rng.normal(size=5000), rng.normal(1, size=5000))
    assert not mix_differs(np.array([np.nan]), np.array([1.0]))


def test_shares_and_their_difference_are_newcombes():
    """The example of Newcombe's paper: 56 of 70 and 48 of 80, method 10."""
    found = difference(share(48, 80), share(56, 70))
    assert (found.estimate, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    none = difference(share(0, 10), share(0, 20))
    assert (none.low, none.estimate, none.high) == pytest.approx((-0.2775, 0, 0.1611), abs=1e-4)
    assert difference(Interval(1, 0.2, 1), Interval(0, 0, 0.8)).low == -1
