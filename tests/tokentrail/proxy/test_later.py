"""Chunks are read after they have passed, a few at a time, and all of them before the request ends."""

import asyncio

import pytest

from tests.tokentrail.proxy.support import DONE, delta
from tokentrail import now_ns
from tokentrail.answer import Recording
from tokentrail.proxy import tap as module
from tokentrail.proxy.later import AT_ONCE, FLUSH_S, Later
from tokentrail.proxy.tap import Tap
from tokentrail.testing import MemoryTrail


class Reader:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def read_next(self):
        self.log.append(self.name)

    def flush(self):
        self.log.append(f"flush {self.name}")


@pytest.fixture
def held():
    return []


@pytest.fixture
def tap(held):
    trail = MemoryTrail(clock=now_ns)
    request = trail.start_request(operation="chat", model="m")
    return Tap(Recording(request), "text/event-stream", "", lambda reason: None, held.append)


def test_what_is_ready_passes_before_anything_is_read():
    log = []

    async def pass_all():
        later = Later()

        def one(number):
            log.append(f"passes {number}")
            later.read(Reader(log, f"read {number}"))

        for number in range(3):
            asyncio.get_running_loop().call_soon(one, number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(pass_all())
    assert log == ["passes 0", "passes 1", "passes 2", "read 0", "read 1", "read 2"]


def test_reading_lets_others_pass_after_a_few_chunks():
    log = []

    async def read_all():
        later = Later()
        for _ in range(2 * AT_ONCE + 1):
            later.read(Reader(log, "read"))
        for _ in range(3):
            await asyncio.sleep(0)
            log.append("passes")
        await asyncio.sleep(0)

    asyncio.run(read_all())
    assert log == ["read"] * AT_ONCE + ["passes"] + ["read"] * AT_ONCE + ["passes", "read", "passes"]


class Loop:
    """Makes the calls that are due, without a clock. `timers` holds the later ones."""

    def __init__(self):
        self.soon, self.timers = [], []

    def call_soon(self, call):
        self.soon.append(call)

    def call_later(self, delay_s, call):
        self.timers.append((delay_s, call))

    def turn(self):
        due, self.soon = self.soon, []
        for call in due:
            call()


def test_arrivals_are_flushed_after_a_while_some_answers_at_a_time(monkeypatch):
    loop, log = Loop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    later = Later()
    readers = [Reader(log, number) for number in range(AT_ONCE + 1)]
    for reader in readers * 2:
        later.read(reader)
    for _ in range(3):
        loop.turn()
    assert log == [*range(AT_ONCE + 1)] * 2
    [(delay_s, flush)] = loop.timers
    assert delay_s == FLUSH_S
    del log[:], loop.timers[:]
    flush()
    assert len(log) == AT_ONCE
    later.read(readers[0])  # a chunk that comes meanwhile is flushed another time
    loop.soon.reverse()
    loop.turn()
    assert sorted(map(str, log)) == sorted(["0", *(f"flush {number}" for number in range(AT_ONCE + 1))])
    [(_, flush)] = loop.timers
    del log[:], loop.timers[:]
    flush()
    assert (log, loop.soon, loop.timers) == (["flush 0"], [], [])
    later.read(readers[1])
    loop.turn()
    assert len(loop.timers) == 1


def test_a_chunk_waits_for_its_turn(tap, held):
    tap.passed(delta("a"), 1_000, 3_000)
    assert (tap._recording.arrivals, held) == (0, [])
    tap.read_next()
    assert (tap._recording.arrivals, held) == (1, [2e-6])
    tap.read_next()
    assert tap._recording.arrivals == 1


def test_an_answer_is_complete_only_when_its_last_chunk_was_read(tap):
    tap.passed(delta("a"), 1, 2)
    assert not tap.complete
    tap.passed(DONE, 3, 4)
    assert tap.complete


def test_all_chunks_are_read_before_the_end_is_told(tap):
    told = []
    ended = tap.before(lambda *given, **named: told.append((tap._recording.arrivals, given, named)))
    tap.passed(delta("a"), 1, 2)
    tap.passed(delta("b"), 3, 4)
    ended(9, status="x")
    assert told == [(2, (9,), {"status": "x"})]


def test_no_more_than_some_chunks_of_an_answer_wait(tap, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    for at in range(5):
        tap.passed(delta("a"), at, at)
    assert tap._recording.arrivals == 2
