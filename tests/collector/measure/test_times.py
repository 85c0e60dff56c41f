"""Moments, and the texts that stand for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.measure.times import parse_moment, rfc3339

SECOND = 1_000_000_000


@given(st.integers(0, 9_000_000_000 * SECOND))
def test_a_formatted_time_is_read_back_to_the_nanosecond(ns):
    assert parse_moment(rfc3339(ns)).at(0) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-21T10:00:00Z", 1_795_255_200 * SECOND),
        ("2026-11-21T11:00:00.5+01:00", 1_795_255_200 * SECOND + SECOND // 2),
        ("2026-11-21t10:00:00z", 1_795_255_200 * SECOND),
        ("2026-11-21T10:00:00.12345678999Z", 1_795_255_200 * SECOND + 123_456_789),
        ("1795255200", 1_795_255_200 * SECOND),
        ("1795255200.000000001", 1_795_255_200 * SECOND + 1),
        ("now", 1000 * SECOND),
        ("-15m", 100 * SECOND),
        ("-1h30m", 0),
    ],
)
def test_moments(text, ns):
    assert parse_moment(text).at(1000 * SECOND) == ns


@pytest.mark.parametrize("text", ["9000000000", "2255-03-14T16:00:00Z"])
def test_the_last_moment_is_in_the_year_2255(text):
    assert parse_moment(text).at(0) == 9_000_000_000 * SECOND


@pytest.mark.parametrize("text", ["9000000000.000000001", "2255-03-14T16:00:01Z", "1969-12-31T23:59:59Z"])
def test_a_moment_that_64_bits_of_nanoseconds_do_not_hold_is_told_so(text):
    with pytest.raises(ValueError, match=r"is not between the years 1970 and 2255$"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "00Z"), (1, "00.000000001Z"), (1000, "00.000001Z"), (10**6, "00.001Z"), (1_500_000_000, "01.500Z")],
)
def test_a_time_has_as_many_digits_as_lose_nothing(ns, text):
    assert rfc3339(ns) == f"1970-01-01T00:00:{text}"
