"""Times of the command line: which zone they are in."""

import pytest

from tokentrail.cli.options import in_zone

BERLIN = "Europe/Berlin"


@pytest.mark.parametrize("text", ["14:00", "14:00:05", "2026-11-21", "2026-11-21 14:00", "21 Nov 14:00", "21 Nov 2026"])
def test_a_time_without_a_zone_is_in_that_of_the_option(text, monkeypatch):
    monkeypatch.delenv("TOKENTRAIL_TZ", raising=False)
    assert in_zone(text) == text
    monkeypatch.setenv("TOKENTRAIL_TZ", BERLIN)
    assert in_zone(text) == f"{text} {BERLIN}"


@pytest.mark.parametrize(
    "text", ["now", "-15m", "1795255200", "2026-11-21T10:00:00Z", "14:00 UTC", "14:00+01:00", "21 Nov 14:00 UTC", ""]
)
def test_a_time_with_a_zone_and_one_that_needs_none_stay(text, monkeypatch):
    monkeypatch.setenv("TOKENTRAIL_TZ", BERLIN)
    assert in_zone(text) == text
