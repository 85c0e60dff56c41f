"""The way of one signal's requests into the log, shared by both receivers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from google.protobuf.message import Message

from collector.access.limits import Limiter
from collector.access.stamp import stamped
from collector.base.once_a_minute import OnceAMinute
from collector.base.status import IngestStatus
from collector.otlp.checked import Checked, ItemLimits
from collector.otlp.names import LONGEST
from collector.otlp.parse_bombs import turn_to_parse
from collector.otlp.signals import Signal
from collector.wal.commit import GroupCommit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ingest:
    """Checks the requests of one signal and gives them to its log."""

    signal: Signal
    commit: GroupCommit
    status: IngestStatus
    limits: ItemLimits
    limiter: Limiter = field(default_factory=Limiter)
    line_due: OnceAMinute = field(default_factory=OnceAMinute)

    def check_rate(self, tenant: str) -> None:
        """Raise `LimitedError` while the tenant may not send; a receiver asks before it reads a body."""
        self.limiter.check_rate(tenant)

    def accept(self, body: bytes, tenant: str = "") -> Future[Message]:
        """Take a Protobuf request. The future resolves to its answer when the payload is durable, and not before.

        `tenant` is that of the sender's key and replaces the tenants in the request; empty: they stay. Raises
        `MalformedError`, `BusyError`, `LimitedError`, and `LogUnavailableError` here or in the future.
        """
        with turn_to_parse(len(body)):
            checked = self.signal.check(body, self.limits)
        payload = checked.payload
        if payload and tenant:
            payload = stamped(payload, tenant, self.signal.request)
        if payload:
            self.limiter.check_names(tenant, payload, self.signal.request)
        self.limiter.spend(tenant, spans=checked.items, size=len(body))
        durable: Future[bool] = self.commit.submit(payload, checked.days) if payload else _resolved(False)
        return _then(durable, lambda duplicate: self._acknowledge(checked, len(body), duplicate))

    def _acknowledge(self, checked: Checked, size: int, duplicate: bool) -> Message:
        signal, rejected = self.signal, checked.rejected
        left_out = {**rejected, **checked.unwanted}
        self.status.received(signal.items, count=checked.items, size=size, duplicate=duplicate, rejected=left_out)
        if checked.cut:
            self._tell_cut(checked.cut)
        answer: Message = signal.response()
        if rejected:
            partial = {f"rejected_{signal.items}": rejected.total(), "error_message": checked.message}
            answer = signal.response(partial_success=partial)
        return answer

    def _tell_cut(self, cut: Counter[str]) -> None:
        """Count names that were cut, and name them once a minute."""
        self.status.names_cut(cut.total())
        if self.line_due.allows("cut"):
            logger.warning(
                "a payload of %s has names of more than %d characters, which are cut: %s",
                self.signal.name, LONGEST, ", ".join(f"{count} x {what}" for what, count in sorted(cut.items())),
            )  # fmt: skip


def _resolved(value: bool) -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(value)
    return future


def _then(source: Future[bool], transform: Callable[[bool], Message]) -> Future[Message]:
    """Return a future of the transformed result. A client that goes away cannot cancel the write behind it."""
    target: Future[Message] = Future()
    target.set_running_or_notify_cancel()

    def settle(done: Future[bool]) -> None:
        try:
            target.set_result(transform(done.result()))
        except Exception as error:  # of any kind: a client without an answer waits until its time is up
            target.set_exception(error)

    source.add_done_callback(settle)
    return target
