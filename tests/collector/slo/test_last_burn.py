"""When a burn began: examples, and windows that slide over the same cells one by one."""

import random

import numpy as np
import pytest

from collector.measure.burn_start import days_back
from collector.slo import last_burn
from collector.slo.burn import load_windows
from collector.slo.last_burn import Cells, burn_began


@pytest.fixture(autouse=True)
def windows_of_three_cells(monkeypatch):
    monkeypatch.setattr(last_burn, "PER_WINDOW", 3)


def began(counts, last, *, first=0, share=0.5, most_apart=5, is_all=True):
    """`counts` has (judged, bad) by cell. The result is a cell, "none", or None for a burn that is older."""
    numbers = sorted(counts)
    judged, bad = (np.array([counts[n][i] for n in numbers], float) for i in (0, 1))
    cells = Cells(first, last, np.array(numbers, np.int64), judged, bad)
    place = burn_began(cells, share=share, most_apart=most_apart, is_all=is_all)
    return None if place is None else "none" if place == len(numbers) else numbers[place]


EXAMPLE = {1: (1, 1), 3: (9, 0), 4: (9, 5), 5: (9, 9), 6: (9, 9)}


@pytest.mark.parametrize("last", [5, 6, 7, 9])
def test_it_began_with_the_first_bad_request_of_the_first_window_that_burned(last):
    assert began({n: c for n, c in EXAMPLE.items() if n <= last}, last) == 4


@pytest.mark.parametrize(
    ("counts", "last", "expected"),
    [
        ({0: (2, 1), 2: (1, 1)}, 2, 0),
        ({0: (2, 1), 3: (2, 1), 4: (1, 1)}, 4, 3),  # half is not more than half
        ({2: (2, 1), 3: (1, 1)}, 3, 2),
        ({0: (1, 1), 5: (1, 1)}, 5, 0),  # a pause as long as the rule looks back
        ({0: (1, 1), 6: (1, 1)}, 6, 6),  # and a longer one
        ({1: (1, 1)}, 6, 1),
        ({1: (1, 1)}, 7, "none"),  # the pause lasts
        ({0: (5, 0), 1: (1, 1)}, 2, 1),  # the caller knows that it burns, so that began with the newest window
        ({0: (5, 0), 1: (1, 0)}, 2, "none"),
        ({0: (5, 0), 1: (1, 1)}, 3, 1),
        ({}, 3, "none"),
    ],
)
def test_edges(counts, last, expected):
    assert began(counts, last) == expected


def test_a_burn_that_is_older_than_the_cells_is_looked_for_farther_back():
    assert began({10: (1, 1), 11: (1, 1)}, 12, first=10, is_all=False) is None
    assert began({10: (1, 1), 11: (1, 1)}, 12, first=10) == 10
    # The window that ends with cell 11 has cells that were not counted: it is not known to be calm.
    assert began({11: (1, 0), 12: (3, 3), 13: (3, 3)}, 13, first=10, is_all=False) is None
    assert began({12: (1, 0), 13: (3, 3), 14: (3, 3)}, 14, first=10, is_all=False) == 13
    # Cells 10 to 13 are a pause as long as the rule looks back, and 10 to 14 are a longer one.
    assert began({14: (1, 1), 15: (1, 1)}, 15, first=10, is_all=False) is None
    assert began({15: (1, 1), 16: (1, 1)}, 16, first=10, is_all=False) == 15


def slowly(counts, last, *, share, most_apart):
    """The cell in which the burn began, found by going from cell to cell."""
    state, seen = None, None
    for cell in range(last + 1):
        if cell in counts:
            if seen is None or cell - seen > most_apart:
                state = None
            seen = cell
        of_window = [counts[n] for n in range(cell - 2, cell + 1) if n in counts]
        if of_window:
            if sum(bad for _, bad in of_window) <= share * sum(judged for judged, _ in of_window):
                state = None
            elif state is None:
                state = next(n for n in range(cell - 2, cell + 1) if n in counts and counts[n][1])
    if seen is None or last - seen > most_apart:
        return "none"
    if state is None:
        return next((n for n in range(last - 2, last + 1) if n in counts and counts[n][1]), "none")
    return state


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (20, 22, [(20, 22)]),
        (0, 22, [(0, 22)]),
        (-1, 22, [(0, 22), (-24, 0)]),
        (-24, 22, [(0, 22), (-24, 0)]),
        (-24 * 3 - 1, 22, [(0, 22), (-24, 0), (-72, -24), (-96, -72)]),
        (-24 * 9, 0, [(0, 0), (-24, 0), (-72, -24), (-168, -72), (-216, -168)]),
    ],
)
def test_a_burn_is_looked_for_in_the_present_day_and_in_more_and_more_days_before(start, end, expected):
    hour, midnight = 3600 * 10**9, 20_000 * 24
    found = days_back((midnight + start) * hour, (midnight + end) * hour)
    assert [(a // hour - midnight, b // hour - midnight) for a, b in found] == expected


def test_a_cell_lies_in_one_hour():
    windows = load_windows()
    for ns in (*(rule.short for rule in windows.rules), windows.outage.short):
        assert 3600 * 10**9 % (ns // 60) == 0
        assert ns % 60 == 0


def test_random_cells_are_judged_as_one_by_one():
    chance, found = random.Random(1), set()
    for _ in range(2000):
        last = chance.randrange(1, 40)
        counts = {}
        for cell in range(last + 1):
            if chance.random() < 0.4:
                judged = chance.randrange(1, 5)
                counts[cell] = judged, chance.randrange(judged + 1)
        expected = slowly(counts, last, share=0.5, most_apart=4)
        assert began(counts, last, most_apart=4) == expected, (counts, last)
        found.add(expected)
        far = began(counts, last, first=0, most_apart=4, is_all=False)
        assert far in {None, expected}
    assert len(found) > 30


def test_the_beginning_does_not_move_while_the_burn_lasts():
    chance = random.Random(2)
    counts = {cell: (4, 4 if cell >= 20 else chance.randrange(2)) for cell in range(400)}
    assert {began({n: c for n, c in counts.items() if n <= last}, last) for last in range(21, 400)} == {
        began(counts, 399)
    }
