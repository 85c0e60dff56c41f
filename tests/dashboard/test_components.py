"""The rules behind the pages that need no browser."""

import pytest

from dashboard.components import _interval
from dashboard.views.events import worst_first


@pytest.mark.parametrize(
    ("every_s", "took_s", "interval_s"),
    [
        (5.0, 0.0, 5.0),
        (5.0, 1.6, 5.0),
        (5.0, 1.7, 10.0),
        (5.0, 4.0, 15.0),
        (2.0, 0.1, 2.0),
        (60.0, 0.1, 60.0),
        (5, 99, 120),
    ],
)
def test_a_slow_page_is_redrawn_less_often(every_s, took_s, interval_s):
    assert _interval(every_s, took_s) == interval_s


def test_the_worst_incident_is_first():
    given = [("info", 90), ("ticket", 5), ("page", None), ("ticket", 50), ("page", 2)]
    listed = worst_first([{"severity": severity, "requests_affected": n} for severity, n in given])
    assert [(i["severity"], i["requests_affected"]) for i in listed] == [
        ("page", 2),
        ("page", None),
        ("ticket", 50),
        ("ticket", 5),
        ("info", 90),
    ]
