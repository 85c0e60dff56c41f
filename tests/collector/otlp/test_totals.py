"""Series that another one of their metric contains."""

import pytest

from collector.otlp.totals import parts_of_totals

RANK = ("rank", "0")
ALL, NONE, LOW, HIGH = ("priority", ""), None, ("priority", "-1"), ("priority", "0")


def series(*pairs):
    return tuple(sorted(pair for pair in pairs if pair))


@pytest.mark.parametrize("total", [ALL, NONE])
def test_a_total_contains_its_parts(total):
    whole, low, high = (series(RANK, one) for one in (total, LOW, HIGH))
    assert parts_of_totals([whole, low, high]) == {low, high}
    assert parts_of_totals([low, high]) == set()
    assert parts_of_totals([whole]) == set()


def test_a_total_of_others_contains_nothing():
    other = series(("rank", "1"), ALL)
    assert parts_of_totals([other, series(RANK, LOW)]) == set()
    assert parts_of_totals([series(("pod", "")), series(("pod", "a"))]) == {series(("pod", "a"))}
    assert parts_of_totals([series(RANK), series(RANK, ("pod", "a"))]) == set(), "no label that is known to divide"
