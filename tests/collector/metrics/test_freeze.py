"""Streams that stand still are bad at the first refresh after their SLO's gap threshold, by the SDK's own spans."""

import pytest

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.metrics.scraped import MS, slo
from tests.collector.rows import NOW, SECOND
from tokentrail.testing import MemoryTrail

STREAMS = 14
SLOS = """
slos:
  - {name: chat, objective: "0.95", window: 7d, select: {slo_class: [chat]}, thresholds: {tpot: 100ms, gap: 2s}}
  - {name: all, objective: "0.95", window: 7d, thresholds: {tpot: 100ms}}
"""


@pytest.fixture
def slos_file(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text(SLOS)
    return path


def test_a_freeze_of_three_seconds_with_an_unchanged_tpot(rows, scrape, live, api, clock):
    trail = MemoryTrail(clock=clock, resource={"service.name": "engine", "service.instance.id": "i"})
    streams = [
        trail.start_request(operation="chat", model="m", slo_class="chat", arrival_ns=NOW) for _ in range(STREAMS)
    ]

    def second(*, tokens=20, end=False):
        """One second with so many steps, and what the counters say then: judged and good requests."""
        for i in range(tokens):
            trail.step(0, clock.now, clock.now + (i + 1) * SECOND // tokens, streams)
        clock.now += SECOND
        for stream in streams if end else ():
            stream.end(clock.now)
        trail.flush(0)
        for number, body in enumerate(trail.transport.bodies):
            name = f"{clock.now:020}-{number}"
            insert_otlp(rows.store, TRACES, body, name)
            live.counters.on_segment(name)
        trail.transport.bodies.clear()
        return slo(scrape())

    assert {second() for _ in range(4)} == {(0, 0)}
    assert [second(tokens=0) for _ in range(3)] == [(0, 0), (0, 0), (STREAMS, 0)]  # silent for 1, 2 and 3 seconds
    assert scrape()["tokentrail_slo_in_flight_violations", "slo=chat"] == STREAMS
    assert {second() for _ in range(5)} == {(STREAMS, 0)}  # it goes on, and what it missed stays missed
    assert second(end=True) == (STREAMS, 0)
    assert slo(scrape(), "all") == (STREAMS, STREAMS)
    clock.now += SECOND
    rows_ = api("requests", missed="gap", start="-5m")["requests"]
    assert {(row["gap_s"], row["gap_index"], row["verdict"]) for row in rows_} == {(3.05, 80, "bad")}
    assert max(row["tpot_s"] for row in rows_) < 0.07
    assert len(rows_) == STREAMS


def test_an_engine_that_is_slow_all_the_time_announces_that_once(clock):
    trail = MemoryTrail(clock=clock)
    stream = trail.start_request(operation="chat", model="m", arrival_ns=NOW)
    for second in range(1, 61):
        clock.now = NOW + second * SECOND
        if second % 3 == 0:
            stream.tokens([clock.now - 10 * MS])
        trail.flush(0)
    announced = [round(span.duration_ns / SECOND) for span in trail.spans("tokentrail.request.open")]
    assert announced == [1, 4, 5, 6, 16, 36, 56]  # silent for a second, then for 2 and 3; the others are due
