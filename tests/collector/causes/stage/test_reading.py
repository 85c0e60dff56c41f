"""Which processes are read together, and that who was queued while a process started waited for its cold start."""

from types import SimpleNamespace

import numpy as np
import pytest

from collector.causes.stage.reading import Process, happened, with_starts

MINUTE = 60 * 10**9


class Counted:
    """A store whose processes have so many rows each, and that notes which ones are asked about together."""

    def __init__(self, rows):
        self._rows, self.counts, self.batches = rows, 0, []

    def query(self, sql, parameters, settings):
        if "sum(n)" not in sql:
            return SimpleNamespace(result_rows=[], result_columns=[])
        self.counts += 1
        found = [(key, self._rows[key]) for key in parameters["processes"] if key in self._rows]
        return SimpleNamespace(result_rows=found, result_columns=[*zip(*found, strict=True)])

    def binary(self, sql, parameters, settings):
        if "FROM steps" in sql:
            self.batches.append(len(parameters["processes"]))
            assert all(
                high - low <= 60 * MINUTE
                for low, high in zip(parameters["lows_ns"], parameters["highs_ns"], strict=True)
            )
        return b""


@pytest.mark.parametrize(
    ("processes", "minutes", "rows", "batches", "counts"),
    [
        (3, 20, {}, [3], 0),
        (4, 20, {}, [4], 1),
        (700, 20, dict.fromkeys(range(700), 9), [300, 300, 100], 3),
        (4, 20, {0: 150_000, 1: 50_000, 2: 1, 3: 900_000}, [2, 1, 1], 1),
        (2, 600, {}, [2], 1),
    ],
)
def test_processes_are_read_together_while_they_have_few_rows(processes, minutes, rows, batches, counts):
    store = Counted(rows)
    asked = [Process(key, "chat", f"i-{key}", 0, minutes * MINUTE) for key in range(processes)]
    assert [process.key for process, _ in happened(store, asked)] == [*range(processes)]
    assert (store.batches, store.counts) == (batches, counts)


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
