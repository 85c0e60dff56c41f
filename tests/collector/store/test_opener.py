"""The opener of a store: what it says is open is open, and nothing else is left open."""

import itertools
import threading

import pytest

from collector.base.status import IngestStatus
from collector.store.opener import StoreOpener

WAIT_S = 120


def test_a_store_is_open_when_the_collector_says_that_it_is_ready(monkeypatch):
    status, closed, told, done = IngestStatus(), [], [], threading.Event()
    opener = StoreOpener("http://127.0.0.1:1/x", status, retry_s=0.01)
    assert "the store http://127.0.0.1:1/x is not open yet: " in status.snapshot().reason

    class Opened:
        def close(self):
            closed.append(self)

    def set_ready(name):
        told.append((name, opener.store.is_open, len(closed)))
        done.set()

    monkeypatch.setattr(opener, "_open", Opened)
    monkeypatch.setattr(status, "set_ready", set_ready)
    opener.start()
    assert done.wait(WAIT_S)
    assert opener.stop(WAIT_S)
    assert told == [("store", True, 1)]


def test_an_open_store_is_asked_at_once_and_then_every_ten_seconds(monkeypatch):
    """Each look costs an entry of the server's log of queries."""
    looks, asked, done = itertools.count(), [], threading.Event()

    class Opened:
        is_open, embedded = True, False

        @property
        def missed_a_table(self):
            if next(looks) == 5:
                done.set()
            return False

        def leave_old_addresses(self, patience_s):
            return 0

        def query(self, sql, settings):
            asked.append(sql)

    monkeypatch.setattr(StoreOpener, "_open", lambda _: Opened())
    opener = StoreOpener("http://127.0.0.1:1/x", IngestStatus(), retry_s=0.001)
    opener.start()
    assert done.wait(WAIT_S)
    assert opener.stop(WAIT_S)
    assert len(asked) == 1


def test_an_embedded_store_that_cannot_be_opened_ends_the_start(monkeypatch):
    """Nobody tries again to open it."""

    def full(_):
        raise OSError("No space left on device")

    monkeypatch.setattr(StoreOpener, "_open", full)
    with pytest.raises(OSError, match="No space left"):
        StoreOpener("chdb:///nowhere", IngestStatus())
