"""Numbers that several answers have: rates of a window, and distributions without values."""

import pytest

from collector.count.answers import Covered, Distribution, per_s
from collector.slo.counts import Counts

COUNTS = Counts(**dict.fromkeys(Counts.model_fields, 0))


@pytest.mark.parametrize(
    ("tokens", "requests", "seconds", "rate"),
    [
        (30, 3, 10.0, 3.0),
        (30, 0, 10.0, 3.0),
        (0, 3, 10.0, 0.0),
        (None, 3, 10.0, None),
        (None, 0, 10.0, 0.0),
        (30, 3, 0.0, None),
        (None, 0, 0.0, None),
    ],
)
def test_tokens_are_unknown_only_where_requests_say_none(tokens, requests, seconds, rate):
    assert Covered(seconds, COUNTS, {"tokens": tokens}).tokens_per_s("tokens", requests) == rate
    if tokens is None:
        assert Covered(seconds, COUNTS, {}).tokens_per_s("tokens", requests) == rate


@pytest.mark.parametrize(("n", "seconds", "rate"), [(5, 10.0, 0.5), (0, 10.0, 0.0), (None, 10.0, None), (5, 0.0, None)])
def test_a_rate_is_unknown_without_a_count_or_without_time(n, seconds, rate):
    assert per_s(n, seconds) == rate


def test_no_values_have_no_percentiles_and_others_are_in_seconds():
    row = {"e2e_count": 0, "e2e_mean": 0, "e2e_quantiles": [0] * 5, "e2e_max": 0}
    assert Distribution.of(row, "e2e") == Distribution.empty()
    assert {*Distribution.empty().model_dump(exclude={"count"}).values()} == {None}
    row = {"e2e_count": 2, "e2e_mean": 15 * 10**8, "e2e_quantiles": [n * 10**9 for n in range(1, 6)], "e2e_max": 10**10}
    assert Distribution.of(row, "e2e").model_dump() == {
        "count": 2, "mean": 1.5, "p50": 1.0, "p90": 2.0, "p95": 3.0, "p99": 4.0, "p999": 5.0, "max": 10.0,
    }  # fmt: skip
