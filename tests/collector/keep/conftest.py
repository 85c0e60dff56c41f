"""A store with tokens of three days, and a backup of it."""

from contextlib import contextmanager

import pytest

from collector.keep.cut import Backups
from tests.collector.rows import NOW, SECOND


@pytest.fixture
def store(rows):
    rows.store.client().command(
        "INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step)"
        " SELECT toDateTime('2026-11-20 10:00:00', 'UTC') + number * 86400, unhex(repeat('ab', 16)),"
        " 'abcdefgh', number, 7, number FROM numbers(3)"
    )
    return rows.store


class Chain:
    """A chain whose writer notes when it pauses."""

    def __init__(self, waiting_since_ns=None):
        self.log = self.writer = self
        self.waiting_since_ns = waiting_since_ns
        self.pauses = []

    @contextmanager
    def paused(self, timeout_s):
        self.pauses.append(timeout_s)
        yield


@pytest.fixture
def backups(store, clock, tmp_path):
    (tmp_path / "slos.yaml").write_text("slos: []")
    return Backups(store, [Chain(), Chain(NOW - 5 * SECOND)], [tmp_path / "slos.yaml"], [Chain()], clock=clock)


@pytest.fixture
def archive(backups, tmp_path):
    path = tmp_path / "b.tar"
    path.write_bytes(b"".join(backups.make()))
    return path
