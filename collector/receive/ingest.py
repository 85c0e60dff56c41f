"""The way of one signal's requests into the log, shared by both receivers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from google.protobuf.message import Message

from collector.receive.checked import Checked, ItemLimits
from collector.signals import Signal
from collector.status import IngestStatus
from collector.wal.commit import GroupCommit


@dataclass(frozen=True)
class Ingest:
    """Checks the requests of one signal and gives them to its log."""

    signal: Signal
    commit: GroupCommit
    status: IngestStatus
    limits: ItemLimits

    def accept(self, body: bytes) -> Future[Message]:
        """Take a Protobuf request. The future resolves to its answer when the payload is durable, and not before.

        Raises `MalformedError`, and `LogUnavailableError` here or in the future.
        """
        checked = self.signal.check(body, self.limits)
        payload = checked.payload
        durable = self.commit.submit(payload, checked.days) if payload else _resolved(False)
        return _then(durable, lambda duplicate: self._acknowledge(checked, len(body), duplicate))

    def _acknowledge(self, checked: Checked, size: int, duplicate: bool) -> Message:
        signal, rejected = self.signal, checked.rejected
        self.status.received(signal.items, count=checked.items, size=size, duplicate=duplicate, rejected={**rejected})
        answer: Message = signal.response()
        if rejected:
            partial = {f"rejected_{signal.items}": rejected.total(), "error_message": checked.message}
            answer = signal.response(partial_success=partial)
        return answer


def _resolved(value: bool) -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(value)
    return future


def _then(source: Future[bool], transform: Callable[[bool], Message]) -> Future[Message]:
    """Return a future of the transformed result. A client that goes away cannot cancel the write behind it."""
    target: Future[Message] = Future()
    target.set_running_or_notify_cancel()

    def settle(done: Future[bool]) -> None:
        if error := done.exception():
            target.set_exception(error)
        else:
            target.set_result(transform(done.result()))

    source.add_done_callback(settle)
    return target
