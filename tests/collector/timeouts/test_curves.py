"""The share of waits longer than T, against brute force and textbooks, and which waits count as what."""

import numpy as np
import pytest

from collector.timeouts.survival import BINS, BLOCKS, Survival, bin_of, bins_of, upper_us, wilson
from collector.timeouts.waits import (
    ANSWERED,
    CENSORED,
    DEAD,
    ENDLESS,
    ERROR,
    FAILED,
    GIVEN_UP,
    LEFT_OUT,
    OK,
    OPEN,
    Requests,
    blocks_of,
    waits_of,
)

NAN = float("nan")


def survival(seconds, ended=None, block=None, weight=None):
    us = np.array(seconds, float) * 1e6
    n = len(us)
    ended = np.ones(n, bool) if ended is None else np.array(ended, bool)
    block = np.random.default_rng(2).integers(0, BLOCKS, n) if block is None else np.array(block)
    return Survival.of(bins_of(us), ended, block, np.ones(n) if weight is None else np.array(weight, float))


def share(curve, seconds):
    return curve.at(bin_of(seconds)).share


def test_a_bin_holds_its_values_and_is_no_wider_than_a_hundredth():
    us = np.array([1.0, 2.0, 999.0, 12_345.0, 60e6, 4e9])
    bins = bins_of(us)
    assert (us < upper_us(bins)).all()
    assert (us >= upper_us(bins - 1)).all()
    assert (upper_us(bins) <= us * 1.008 + 1).all()
    assert bins_of(np.array([0.0]))[0] == 0
    assert bins_of(np.array([1e12]))[0] == BINS - 1


def test_the_example_of_four_waits():
    curve = survival([1, 2, 3, 4], [True, True, False, True])
    assert [share(curve, seconds) for seconds in (0.5, 1, 2, 3)] == pytest.approx([1, 3 / 4, 1 / 2, 1 / 2])
    assert curve.longer[-1] == 0
    assert curve.last == bin_of(4)


def test_remission_times_of_leukemia_patients():
    """Freireich's 21 patients on 6-MP, as every textbook has them (Gehan, Biometrika 52, 1965)."""
    weeks = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    ended = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    curve = survival(weeks, ended)
    told = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {week: round(float(curve.longer[bin_of(week) - curve.first]), 3) for week in told} == told
    errors = {6: 0.0764, 10: 0.0963, 23: 0.1346}  # Greenwood's
    for week, error in errors.items():
        at = bin_of(week) - curve.first
        s, n = float(curve.longer[at]), float(curve.n[at])
        assert np.sqrt(s * (1 - s) / n) == pytest.approx(error, abs=2e-4)


def test_without_censoring_the_interval_is_that_of_a_share():
    curve = survival(np.linspace(1, 100, 1000), block=None)
    found, expected = curve.at(bin_of(50)), wilson(share(curve, 50), 1000)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (wilson(0, 100).low, round(wilson(0, 100).high, 4)) == (0, 0.037)
    assert wilson(0.5, 0).share is None


def test_requests_that_are_slow_together_make_the_interval_wider():
    slow = np.zeros(3000, bool)
    slow[600:900] = True
    seconds = np.where(slow, 30.0, 1.0)
    together = survival(seconds, block=np.arange(3000) * BLOCKS // 3000).at(bin_of(10))
    alone = survival(seconds, block=np.arange(3000) % BLOCKS).at(bin_of(10))
    assert together.share == alone.share == pytest.approx(0.1)
    assert together.high - together.low > 3 * (alone.high - alone.low)


def test_slowness_that_lasts_for_several_blocks_counts():
    """Three blocks in a row are slow: as one they vary more than three times as much as each."""
    block = np.arange(6000) * BLOCKS // 6000
    seconds = np.where(np.isin(block // 3, (2, 9, 15)), 30.0, 1.0)
    curve = survival(seconds, block=block)
    at = bin_of(10) - curve.first
    assert curve.effect[3][at] > 2.5 * curve.effect[1][at] > 100


def test_weights_count_as_so_many_requests_and_as_less_evidence():
    seconds = [1.0] * 90 + [9.0] * 10
    plain, weighted = survival(seconds), survival(seconds, weight=[1] * 90 + [9] * 10)
    assert (share(plain, 5), share(weighted, 5)) == pytest.approx((0.1, 0.5))
    assert weighted.n[bin_of(5) - weighted.first] < 100


def test_what_was_broken_off_before_tells_no_share_but_a_bound():
    """All clients give up at 10 s: nobody knows how much longer it would have taken."""
    curve = survival(np.linspace(1, 9, 900).tolist() + [10.0] * 100, [True] * 900 + [False] * 100)
    beyond = curve.at(bin_of(60))
    assert beyond.share is None
    assert (beyond.low, round(beyond.high, 2)) == (0, 0.12)
    assert curve.hides(0.01)
    assert curve.least(0.01) is None
    assert not curve.decided(0.01)
    assert share(curve, 5) == pytest.approx(0.55, abs=0.01)


def test_of_waits_of_which_nearly_all_were_broken_off_the_rest_tells_nothing():
    few = np.linspace(20, 30, 5).tolist()
    curve = survival([1.0] * 500 + [10.0] * 495 + few, [True] * 500 + [False] * 495 + [True] * 5)
    assert curve.at(bin_of(10)).share == pytest.approx(0.5)
    assert curve.told < bin_of(20)
    assert curve.last == bin_of(30)
    assert curve.at(bin_of(25)).share is None
    uncensored = survival([1.0] * 995 + few)
    assert uncensored.told == uncensored.last, "few long waits that all ended are the truth"


def test_how_many_more_requests_decide():
    hundred, many = survival(np.linspace(1, 2, 100)), survival(np.linspace(1, 2, 4000))
    assert not hundred.decided(0.001)
    assert 3600 < hundred.needed(0.001) < 3800
    assert many.decided(0.001)
    assert many.needed(0.001) <= 0
    assert hundred.decided(0.1)
    nobody = survival([])
    assert (nobody.last, nobody.least(0.1), nobody.at(5).share) == (-1, None, None)


def test_below_the_shortest_wait_all_are_longer():
    assert share(survival(np.linspace(1, 2, 100)), 0.01) == 1
    assert survival([1.0, 2.0]).longer_than(np.array([0, bin_of(1), BINS - 1])).tolist() == [1, 0.5, 0]


def requests(*rows):
    """Requests of ended, TTFT, first visible, gap and E2E in seconds, each beside 100 of which all is known."""
    known = [(OK, 1 + i / 100, 1 + i / 100, 0.5, 10) for i in range(100)]
    ended, *waits = (np.array(column) for column in zip(*rows, *known, strict=True))
    n = len(ended)
    us = [wait * 1e6 for wait in waits]
    return Requests(
        began_ms=np.arange(n, dtype=np.uint32) * 1000, kind=np.zeros(n, np.uint16), ended=ended.astype(np.uint8),
        ttft_us=us[0], first_visible_us=us[1], gap_us=us[2], e2e_us=us[3], input_tokens=np.full(n, NAN),
        reasons=np.full(n, 2, np.uint8), weight=np.ones(n),
    )  # fmt: skip


A, C, F, E, L = ANSWERED, CENSORED, FAILED, ENDLESS, LEFT_OUT
CASES = {
    "all came": ((OK, 1, 1, 0.2, 9), (A, A, A, A)),
    "no token, and well": ((OK, 0, 0, 0, 9), (L, L, L, A)),
    "TTFT not known": ((OK, NAN, NAN, NAN, 9), (L, L, L, A)),
    "an error before the first token": ((ERROR, 0, 0, 0, 9), (F, F, L, F)),
    "an error after it": ((ERROR, 1, 1, 0.3, 9), (A, A, F, F)),
    "given up before the first token": ((GIVEN_UP, 0, 0, 0, 3), (C, C, L, C)),
    "given up while tokens came": ((GIVEN_UP, 1, 1, 0.3, 9), (A, A, C, C)),
    "given up while it thinks": ((GIVEN_UP, 1, NAN, 0.3, 9), (A, C, C, C)),
    "given up after a long silence": ((GIVEN_UP, 0, 0, 0, 30), (E, E, L, E)),
    "given up in a long gap": ((GIVEN_UP, 1, 1, 20, 30), (A, A, E, E)),
    "in flight": ((OPEN, 0, 0, 0, 2), (C, C, L, C)),
    "in flight, silent for long": ((OPEN, 0, 0, 0, 60), (E, E, L, E)),
    "hangs": ((DEAD, 0, 0, 0, 2), (E, E, L, E)),
    "hangs after tokens": ((DEAD, 1, NAN, 1, 2), (A, C, E, E)),
}


@pytest.mark.parametrize(("row", "kinds"), CASES.values(), ids=CASES)
def test_what_became_of_each_wait(row, kinds):
    found = waits_of(requests(row))
    assert tuple(int(wait.kind[0]) for wait in found.values()) == kinds
    if kinds[0] in (C, E, F):
        assert found["first_token"].us[0] == row[4] * 1e6, "it waited until its end"
    if row[2] is NAN and row[1] == 1 and row[0] != OK:
        assert found["first_visible"].us[0] == 1e6, "no visible token came before the first one"


def test_of_few_answers_no_silence_is_long():
    one = requests((GIVEN_UP, 0, 0, 0, 300)).where(np.arange(50))
    assert waits_of(one)["first_token"].kind[0] == CENSORED


def test_blocks_divide_the_time_of_the_requests():
    assert blocks_of(np.array([1000, 1001, 60_000, 61_000], np.uint32), 60).tolist() == [0, 0, 58, 59]
    assert blocks_of(np.array([7, 7], np.uint32), 60).tolist() == [0, 0]
    assert len(blocks_of(np.zeros(0, np.uint32), 60)) == 0
