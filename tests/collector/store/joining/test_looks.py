"""When it looks, and that it stops and pauses."""

import threading
import time
from queue import SimpleQueue

import pytest

from collector.base.status import IngestStatus
from collector.base.store_errors import StoreError
from collector.store.joiner import Joiner
from tests.collector.store.joining.spans import found, insert, parts, root


def test_a_segment_whose_insert_ends_after_a_look_is_found_by_the_next_one(store, joiner):
    """Its rows have the time at which the insert began."""
    ahead = Joiner(store, IngestStatus(), after_s=0, clock=lambda: time.time() + 300)
    assert ahead.run_once()
    insert(store, root(), "long")
    assert ahead.run_once()
    assert len(found(store)[0]) == 1


def test_a_segment_is_joined_under_the_lock_that_a_pause_takes(store, joiner, monkeypatch):
    insert(store, root(), "locked")
    locked = []

    def join(*_):
        locked.append(joiner._working.locked())
        return True

    monkeypatch.setattr(joiner, "_join_if_the_store_takes_it", join)
    assert joiner.run_once()
    assert locked == [True]


def test_a_look_that_failed_is_repeated(store, joiner, monkeypatch):
    looks, again = iter((True, False)), threading.Event()

    def look():
        if next(looks):
            joiner._looks_s.clear()
            raise StoreError("away")
        again.set()
        return True

    monkeypatch.setattr(joiner, "run_once", look)
    joiner.start()
    try:
        assert again.wait(60)
    finally:
        assert joiner.stop(10)


def test_it_stops_and_pauses(store, joiner):
    with joiner.paused(0.1), pytest.raises(TimeoutError), joiner.paused(0.01):
        pass
    joiner.start()
    assert joiner.stop(10)
    assert joiner.stop(10)


def test_it_stops_behind_the_segment_that_is_being_joined(store, joiner, monkeypatch):
    for n in (1, 2):
        insert(store, root(trace=n), f"stops-{n}")
    joined = []

    def join(segment, *_):
        joined.append(segment)
        joiner._stopping.set()
        return True

    monkeypatch.setattr(joiner, "_join_if_the_store_takes_it", join)
    assert not joiner.run_once()
    assert joined == ["stops-1"]


def test_the_running_joiner_joins_by_itself(store, joiner):
    insert(store, parts(root()), "runs")
    joiner.on_segment("runs")
    done = threading.Event()
    joiner.on_joined(lambda _: done.set())
    joiner.start()
    try:
        assert done.wait(60)
    finally:
        assert joiner.stop(10)
    assert len(found(store)[0]) == 1


def test_a_segment_plans_a_look_and_a_look_that_found_something_another(store, joiner, monkeypatch):
    """One answer names 100 segments at most, and without a plan the store is not asked at all."""
    insert(store, parts(root()), "due")
    joiner._looks_s.clear()
    assert joiner.run_once()
    assert len(joiner._looks_s) == 1
    assert joiner.run_once()
    assert len(joiner._looks_s) == 1, "nothing was due"
    joiner._looks_s.clear()
    looks = SimpleQueue()
    monkeypatch.setattr(joiner, "run_once", lambda: looks.put("look") or True)
    joiner.on_segment("later")
    joiner.start()
    try:
        assert looks.get(timeout=60) == "look"
    finally:
        assert joiner.stop(10)
    assert not joiner._looks_s


def test_it_looks_at_its_start_and_when_a_segment_of_a_process_before_it_or_of_now_has_waited(store):
    joiner = Joiner(store, IngestStatus(), after_s=60)
    now = time.monotonic()
    joiner.on_segment("later")
    first, second, third = joiner._looks_s
    assert first <= now
    assert second - first >= 61
    assert third - now >= 61
