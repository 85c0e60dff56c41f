"""Arrivals reach the trail a while after they were read, some answers at a time."""

import asyncio

import pytest

from tests.tokentrail.proxy.support import DONE, delta
from tokentrail import now_ns
from tokentrail.clients.recording import Recording
from tokentrail.proxy.flushes import AT_ONCE, FLUSH_S, Flushes
from tokentrail.proxy.tap import Tap
from tokentrail.testing import MemoryTrail


class Answer:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def flush(self):
        self.log.append(self.name)


@pytest.fixture
def held():
    return []


@pytest.fixture
def tap(held):
    trail = MemoryTrail(clock=now_ns)
    request = trail.start_request(operation="chat", model="m")
    return Tap(Recording(request), "text/event-stream", "", lambda reason: None, held.append)


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
    flushes = Flushes()
    answers = [Answer(log, number) for number in range(AT_ONCE + 1)]
    for answer in answers * 2:
        flushes.add(answer)
    [(delay_s, flush)] = loop.timers
    assert (delay_s, log) == (FLUSH_S, [])
    loop.timers.clear()
    flush()
    assert len(log) == AT_ONCE
    flushes.add(answers[0])  # a chunk that comes meanwhile is flushed another time
    loop.turn()
    assert sorted(log) == [*range(AT_ONCE + 1)]
    [(_, flush)] = loop.timers
    del log[:], loop.timers[:]
    flush()
    assert (log, loop.soon, loop.timers) == ([0], [], [])
    flushes.add(answers[1])
    assert len(loop.timers) == 1


def test_a_chunk_is_read_with_the_time_that_it_was_held(tap, held):
    tap.read(delta("a"), 1_000, 3_000)
    assert (tap._recording.arrivals, held) == (1, [2e-6])
    assert not tap.over
    tap.read(DONE, 3, 4)
    assert tap.over
