"""Lets the day happen, and sends it as OTLP."""

from __future__ import annotations

from typing import Final

from tokentrail import Trail
from tokentrail._send.http import Endpoint, transport_to
from tokentrail._send.transport import SendResult, SendStatus, Transport
from tokentrail.cli.day.engine import SimulatedEngine
from tokentrail.cli.day.plan import Day
from tokentrail.cli.day.process import S
from tokentrail.config import Settings

_CHUNK_NS: Final = 1800 * S
"""Each process sends so much time at once."""
_NOWHERE: Final = Settings(Endpoint.to("http://collector.invalid"))
"""The trails send by a transport of their own."""


class Outlet:
    """A transport whose target may change: from the making of a store to the collector that shows it."""

    def __init__(self, target: Transport = lambda _: SendResult(SendStatus.DELIVERED)) -> None:
        """Without a target, everything is dropped."""
        self.target = target

    def __call__(self, body: bytes) -> SendResult:
        """Send one request body."""
        return self.target(body)

    def to_collector(self, endpoint: str) -> None:
        """From now on, send to an address of OTLP/HTTP."""
        self.target = transport_to(Endpoint.to(endpoint))


def play(day: Day, send: Transport, *, all_processes: bool = True) -> list[Trail]:
    """Let the day happen in all processes, or in those alone that hang at its end, in the order of time.

    Returns the trails of the processes that hang: each `flush` announces their requests anew, by the real clock.
    """
    engines = [
        SimulatedEngine(process, requests, _NOWHERE, send, seed=day.seed)
        for process, requests in day.processes()
        if all_processes or process.hangs
    ]
    for until in range(day.start, day.end + _CHUNK_NS, _CHUNK_NS):
        for engine in engines:
            engine.run(min(until, day.end))
    return [engine.goes_on() for engine in engines if engine.process.hangs]
