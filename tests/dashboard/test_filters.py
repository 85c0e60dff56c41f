"""Times, filters and links of the header, without a browser."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from dashboard.filters import RANGES, View, offers
from dashboard.times import span
from tokentrail.shared.durations import parse_duration

NOW = datetime(2026, 11, 21, 10, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", "2026-11-21T10:00:30Z"),
        ("-15m", "2026-11-21T09:45:30Z"),
        ("-1h30m", "2026-11-21T08:30:30Z"),
        ("-2d", "2026-11-19T10:00:30Z"),
        ("-500ms", "2026-11-21T10:00:29.500Z"),
        ("1763719230", "2025-11-21T10:00:30Z"),
        ("2026-11-21T10:00:00Z", "2026-11-21T10:00:00Z"),
        ("yesterday", "yesterday"),
        ("-5", "-5"),
    ],
)
def test_a_time_relative_to_now_becomes_absolute_and_what_is_no_time_stays_for_the_api_to_refuse(text, at):
    assert span(text, "now", NOW, UTC)[0] == span("-90d", text, NOW, UTC)[1] == at


CET = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("11:00", "2026-11-21T10:00:00Z"),
        ("11:00:30", "2026-11-21T10:00:30Z"),
        ("11:01", "2026-11-20T10:01:00Z"),  # of yesterday: a range has no future
        ("9:05", "2026-11-21T08:05:00Z"),
        ("2026-11-20 14:00", "2026-11-20T13:00:00Z"),
        ("2026-07-01T14:00", "2026-07-01T12:00:00Z"),
        ("2026-11-20", "2026-11-19T23:00:00Z"),
        ("2026-11-20 14:00Z", "2026-11-20T14:00:00Z"),
        ("2026-11-20T14:00:00.123456789Z", "2026-11-20T14:00:00.123456789Z"),
        ("25:00", "25:00"),
        ("2026-02-30 10:00", "2026-02-30 10:00"),
        ("", ""),
    ],
)
def test_a_time_without_a_zone_is_on_the_clock_of_the_page(text, at):
    assert span(text, "now", NOW, CET)[0] == at


def test_a_range_of_two_times_of_day_may_begin_on_the_day_before():
    assert span("10:00", "10:30", NOW, CET) == ("2026-11-21T09:00:00Z", "2026-11-21T09:30:00Z")
    assert span("23:00", "01:00", NOW, CET) == ("2026-11-20T22:00:00Z", "2026-11-21T00:00:00Z")
    assert span("10:00", "14:00", NOW, CET) == ("2026-11-20T09:00:00Z", "2026-11-20T13:00:00Z")
    assert span("10:00", "now", NOW, CET) == ("2026-11-21T09:00:00Z", "2026-11-21T10:00:30Z")
    assert span("-2h", "10:00", NOW, CET) == ("2026-11-21T07:00:00Z", "2026-11-21T09:00:00Z")  # as the API has it
    assert span("10:00", "noon", NOW, CET) == ("10:00", "noon")


def test_a_link_holds_the_minutes_that_are_seen_and_the_filters():
    view = View("-15m", "now", (("tenant", "a&b"), ("not.model", "llama")), "chat", 10.0, UTC)
    fixed = view.at(NOW)
    assert fixed.params[:2] == (("start", "2026-11-21T09:45:30Z"), ("end", "2026-11-21T10:00:30Z"))
    assert view.chosen == {"tenant": ["a&b"]}


def test_values_are_offered_with_their_counts_and_nothing_for_no_value():
    values = {
        "tenant": [{"value": "acme", "requests": 1204}, {"value": "", "requests": 3}],
        "label.region": [{"value": "eu", "requests": 7}, {"value": "", "requests": 3}],
        "label._cut": [{"value": "1", "requests": 7}],
        "operation": [{"value": "chat", "requests": 1}],
    }
    assert offers(values) == {
        "tenant: acme (1\u202f204)": ("tenant", "acme"),
        "label.region: eu (7)": ("label.region", "eu"),
    }


def test_each_range_is_as_long_as_its_name_says():
    assert {name: parse_duration(name) / 1e9 for name in RANGES} == RANGES
