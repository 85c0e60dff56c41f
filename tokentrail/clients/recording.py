"""Records one answer of a model as it arrives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tokentrail._record.recipient import Recipient
from tokentrail._record.request import RequestTrail
from tokentrail.clients.answer import Answer
from tokentrail.clients.arrivals import Arrivals
from tokentrail.semconv import (
    ARRIVALS,
    ARRIVED_TOKENS,
    LATER_ARRIVALS,
    OTHER_ERROR,
    REQUEST_STREAM,
    SERVER_ADDRESS,
    TIME_TO_FIRST_VISIBLE_TOKEN,
    Status,
)
from tokentrail.shared.finish_reasons import End, worst

_LONG_NS: Final = 500_000_000
"""An arrival after such a wait goes to the trail at once: it may have told of the wait."""


class Recording:
    """Records one answer as it arrives: each event with output is an arrival, and the counts are those that it tells.

    `several`: the request asked for more than one choice. `batched`: the times of arrivals wait for `flush`, since one
    call of the trail for all of them costs a third. Those of several choices never wait.
    """

    def __init__(self, request: RequestTrail, *, several: bool = False, batched: bool = False) -> None:
        self.request = request
        self.answer = Answer()
        started = request.started
        self.answer.usage.made_by(started.model, started.provider, str((started.attributes or {}).get(SERVER_ADDRESS)))
        self._arrivals = Arrivals()
        self._several = several
        self._batched = batched and not several
        self._stamps: list[int] = []
        self._latest_ns = 0
        self.streamed: bool | None = None
        """Whether the answer came as a stream; None: not known here, or told at the start."""

    @property
    def arrivals(self) -> int:
        """How many arrivals of output there were."""
        return self._arrivals.total

    def event(self, event: Any, at_ns: int | None = None) -> None:
        """An event arrived at `at_ns` (unix ns; by default now)."""
        for choice, said, thought in self.answer.read(event):
            self.arrived(choice, said, thought, at_ns)

    def arrived(self, choice: int, said: int, thought: int, at_ns: int | None) -> None:
        """Output of a choice arrived, with so many bytes of text and of reasoning."""
        if at_ns is None:
            at_ns = self.request._now_ns()
        self._arrivals.add(choice, said, thought, at_ns)
        if self._batched:
            self._stamps.append(at_ns)
            if at_ns - self._latest_ns >= _LONG_NS:
                self.flush()
            self._latest_ns = at_ns
            return
        recipient: Recipient = self.request.choice(choice) if self._several else self.request
        recipient.token(1, at_ns)

    def flush(self) -> None:
        """The arrivals that wait go to the trail."""
        if self._stamps:
            stamps, self._stamps = self._stamps, []
            self.request.tokens(stamps)

    @property
    def is_whole(self) -> bool:
        """An answer came to an end that its API knows, or brought output. The rule for streams and others."""
        return self.answer.complete or self.arrivals > 0

    def end(self, at_ns: int | None = None, *, status: Status = Status.OK, error_type: str = "") -> Status:
        """Ends the request; only the first call counts. An error that the answer told goes before a success, and so
        does a finish reason that is none. Returns the status.
        """
        self.flush()
        answer = self.answer
        if status is Status.OK:
            error_type = error_type or answer.error_type
        if status is Status.OK and not error_type:
            status, error_type = _told(answer.reasons.values())
        counts = answer.usage.counts(beside_output=self.arrivals > 0)
        self.request.end(
            at_ns,
            status=status,
            error_type=error_type,
            finish_reasons=[answer.reasons[index] for index in sorted(answer.reasons)],
            response_model=answer.model,
            response_id=answer.response_id,
            attributes={
                ARRIVALS: self.arrivals,
                **self._came(**counts),
                **self._seen(),
                **answer.usage.modalities(),
                **self._form(),
            },
            **counts,
        )
        return Status.ERROR if error_type and status is Status.OK else status

    def _form(self) -> dict[str, bool]:
        return {} if self.streamed is None else {REQUEST_STREAM: self.streamed}

    def _seen(self) -> dict[str, float]:
        """When the first output came that is no reasoning; nothing, if none did."""
        at_ns = self._arrivals.visible_ns
        return {} if at_ns is None else {TIME_TO_FIRST_VISIBLE_TOKEN: (at_ns - self.request.started.arrival_ns) / 1e9}

    def _came(
        self, *, output_tokens: int | None = None, reasoning_tokens: int | None = None, **_: int
    ) -> dict[str, int]:
        """What arrived of the output tokens, unless it is all of them.

        1,000 reasoning tokens among 1,006 output tokens, without any reasoning in the stream, give 6
        """
        answer, arrivals = self.answer, self._arrivals
        if answer.left_out or (arrivals.choices > 1 and not self._several):
            return {ARRIVED_TOKENS: 0}  # answers whose times nobody took apart
        is_whole = not answer.summarised
        if output_tokens is not None:
            came = output_tokens - answer.usage.rejected - (0 if arrivals.thought else reasoning_tokens or 0)
            told = arrivals.thought or reasoning_tokens is not None or not answer.thinks
            if is_whole and told and arrivals.are_tokens(came, reasoning_tokens):
                return {} if came == output_tokens else {ARRIVED_TOKENS: max(came, 0)}
            is_whole = is_whole and arrivals.hold(came, reasoning_tokens)
        later = arrivals.later(with_thoughts=is_whole)
        return ({} if output_tokens is None else {ARRIVED_TOKENS: 0}) | ({LATER_ARRIVALS: later} if later else {})


def _told(reasons: Iterable[str]) -> tuple[Status, str]:
    """The status that finish reasons tell, and the type of an error. A refusal is an answer."""
    end, word = worst(reasons)
    if end is End.ERROR:
        return Status.ERROR, OTHER_ERROR if word == "error" else word
    return {End.CANCELLED: Status.CANCELLED, End.UNKNOWN: Status.UNKNOWN}.get(end or End.OK, Status.OK), ""
