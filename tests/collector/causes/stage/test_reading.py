"""Requests that were queued while their engine process started waited for its cold start."""

import numpy as np
import pytest

from collector.causes.stage.reading import with_starts


@pytest.mark.parametrize(
    ("starts", "steps", "found"),
    [
        ([], [], [("queued", 10, 90), ("prefill", 90, 95)]),
        ([(0, 60)], [80], [("cold_start", 10, 60), ("queued", 60, 90), ("prefill", 90, 95)]),
        ([(20, 60)], [], [("queued", 10, 20), ("cold_start", 20, 60), ("queued", 60, 90), ("prefill", 90, 95)]),
        ([(20, 99)], [], [("queued", 10, 20), ("cold_start", 20, 90), ("prefill", 90, 95)]),
        ([(0, 99)], [], [("cold_start", 10, 90), ("prefill", 90, 95)]),
        ([(0, 5), (70, 80)], [], [("queued", 10, 70), ("cold_start", 70, 80), ("queued", 80, 90), ("prefill", 90, 95)]),
        ([(95, 99)], [], [("queued", 10, 90), ("prefill", 90, 95)]),
        # a model that is loaded beside one that serves makes nobody wait
        ([(20, 60)], [1, 30], [("queued", 10, 20), ("cold_start", 20, 30), ("queued", 30, 90), ("prefill", 90, 95)]),
        ([(20, 60)], [20], [("queued", 10, 90), ("prefill", 90, 95)]),
    ],
)
def test_the_queue_of_a_cold_start(starts, steps, found):
    """Times are unix ns; those of now are too large for a float."""
    now = 1_780_000_000_123_456_789
    phases = {
        "key": np.array([1, 1], np.uint64),
        "start": np.array([10, 90]) + now,
        "duration_ns": np.array([80, 5]),
        "name": np.array(["queued", "prefill"]),
        "tokens": np.array([np.nan, 4.0]),
    }
    shifted = [(begin + now, end + now) for begin, end in starts]
    cut = with_starts(phases, shifted, np.array(steps, np.int64) + now)
    rows = zip(*(np.asarray(cut[name]).tolist() for name in ("name", "start", "duration_ns")), strict=True)
    told = sorted(((name, start - now, start - now + length) for name, start, length in rows), key=lambda row: row[1])
    assert told == found
    assert {name: len(column) for name, column in cut.items()} == dict.fromkeys(phases, len(found))
    assert np.asarray(cut["tokens"])[np.asarray(cut["name"]) == "prefill"].tolist() == [4.0]
