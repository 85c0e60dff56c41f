"""Moments, and the texts that stand for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.ask.times import rfc3339
from tokentrail.shared.moments import parse_moment

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


SATURDAY = parse_moment("2026-11-21T10:00:00Z").at(0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("09:58", "2026-11-21T09:58:00Z"),
        ("9:58:30", "2026-11-21T09:58:30Z"),
        ("09:58 UTC", "2026-11-21T09:58:00Z"),
        ("10:00", "2026-11-21T10:00:00Z"),
        ("10:01", "2026-11-20T10:01:00Z"),
        ("10:01+02:00", "2026-11-21T08:01:00Z"),
        ("10:01 Europe/Berlin", "2026-11-21T09:01:00Z"),
        ("2026-11-21", "2026-11-21T00:00:00Z"),
        ("2026-07-01 Europe/Berlin", "2026-06-30T22:00:00Z"),
        ("2026-11-21 09:58", "2026-11-21T09:58:00Z"),
        ("2026-11-21T09:58", "2026-11-21T09:58:00Z"),
        ("2026-11-21 09:58:07.5", "2026-11-21T09:58:07.500Z"),
        ("2026-11-21 09:58-01:00", "2026-11-21T10:58:00Z"),
        ("20 Nov 14:00 UTC", "2026-11-20T14:00:00Z"),
        ("21 Nov", "2026-11-21T00:00:00Z"),
        ("22 Nov 14:00", "2025-11-22T14:00:00Z"),
        ("3 Feb 2025 14:00 UTC", "2025-02-03T14:00:00Z"),
        ("29 Feb", "2024-02-29T00:00:00Z"),
    ],
)
def test_times_as_people_and_tables_write_them_are_the_newest_that_are_past(text, told):
    assert rfc3339(parse_moment(text).at(SATURDAY)) == told


@pytest.mark.parametrize(
    "text", ["24:00", "9:5", "2026-02-30", "31 Feb 2026", "10:00 Nowhere/At", "10:00 ../x", "UTC", "", "21 Nov 2026x"]
)
def test_what_is_no_time_is_refused_with_what_is_one(text):
    with pytest.raises(ValueError, match="is not a time: write RFC 3339"):
        parse_moment(text)


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
