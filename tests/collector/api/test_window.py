"""The window of time of an answer, by the times that were asked for."""

import pytest

NINE = "2026-11-21T09:00:00Z"


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ({}, "2026-11-21T09:45:00Z", "2026-11-21T10:00:00Z"),
        ({"end": NINE}, "2026-11-21T08:45:00Z", NINE),
        ({"end": "09:00"}, "2026-11-21T08:45:00Z", NINE),
        ({"end": "-1h"}, "2026-11-21T08:45:00Z", NINE),
        ({"start": "-1h", "end": NINE}, "2026-11-21T08:00:00Z", NINE),
        ({"start": "-1h", "end": "-15m"}, NINE, "2026-11-21T09:45:00Z"),
        ({"start": "08:30", "end": "09:00"}, "2026-11-21T08:30:00Z", NINE),
    ],
)
def test_an_end_alone_ends_a_window_of_the_usual_length(api, asked, start, end):
    window = api("summary", **asked)["window"]
    assert (window["start"], window["end"]) == (start, end)
