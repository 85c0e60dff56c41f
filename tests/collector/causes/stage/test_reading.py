"""Which processes are read together: by what they have, and not by the length of their windows."""

from types import SimpleNamespace

import pytest

from collector.causes.stage.reading import Process, happened

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
