"""The number of threads, chosen from times that the test makes up."""

import pytest

from instrumented_engine.device import TRIAL_S, choose_threads
from instrumented_engine.startup import set_waiting


def chosen(most, seconds):
    """The choice when a step with n threads takes `seconds(n)`, and the numbers of threads that were tried."""
    now, tried = [0.0], []

    def step():
        now[0] += seconds(tried[-1])

    return choose_threads(step, most, use=tried.append, clock=lambda: now[0]), tried


@pytest.mark.parametrize(
    ("most", "seconds", "expected"),
    [
        (8, lambda n: 0.1 / n, 8),
        (8, lambda n: 0.1, 1),
        (8, lambda n: 0.1 if n >= 4 else 0.2, 4),
        (2, lambda n: 0.1 if n == 2 else 0.109, 1),
        (2, lambda n: 0.1 if n == 2 else 0.111, 2),
        (6, lambda n: abs(n - 3) + 0.1, 3),
        (1, lambda n: 0.1, 1),
    ],
)
def test_the_fewest_threads_that_are_nearly_the_fastest(most, seconds, expected):
    choice, tried = chosen(most, seconds)
    assert choice == expected
    assert tried[-1] == expected, "torch computes with the choice"


def test_slow_steps_are_tried_once_each():
    assert chosen(4, lambda n: 10 / n)[1] == [4, 2, 1, 4]
    assert chosen(1, lambda n: TRIAL_S / 100)[1] == [1, 1], "nothing to compare"


def test_one_slow_step_decides_nothing():
    times = iter([0.5, 0.02] + [0.01, 0.02] * 100)
    assert chosen(2, lambda n: next(times))[0] == 2


def test_threads_spin_for_a_while_unless_the_environment_says_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert set_waiting() == set_waiting() == "spin 10000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert set_waiting() == "spin 7"
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert set_waiting() == "passive"
