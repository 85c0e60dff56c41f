"""A cold start: an engine records the phases of its start as they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

from tokentrail._record.arguments import AttributeValue
from tokentrail._record.records import Kind, Record
from tokentrail.semconv import LIMIT_PREFIX, Limit


class ColdStartSpan(NamedTuple):
    """A cold start (`phase` empty) or one sub-phase of it."""

    model: str
    phase: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int
    error_type: str
    limits: Mapping[str, AttributeValue] = {}


class ColdStart:
    """Context manager around an engine's start, until it can serve. Each `phase` is sent when it ends, so that a start
    that hangs shows how far it came. Exceptions pass through and mark the span as failed.
    """

    def __init__(
        self,
        model: str,
        record: Callable[[Record], object],
        trace_id: int,
        new_span_id: Callable[[], int],
        clock: Callable[[], int],
        start_ns: int | None = None,
    ) -> None:
        self._model = model
        self._record = record
        self._trace_id = trace_id
        self._span_id = new_span_id()
        self._new_span_id = new_span_id
        self._clock = clock
        self._start = start_ns
        self._limits: dict[str, AttributeValue] = {}

    def __enter__(self) -> ColdStart:
        if self._start is None:
            self._start = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._emit("", self._span_id, 0, self._start or 0, self._clock(), _error_type(error), self._limits)

    def limits(self, limits: Mapping[Limit, int | bool | str | None]) -> None:
        """The limits that the engine starts with, of which the collector tells why requests wait; None is not known."""
        self._limits |= {
            f"{LIMIT_PREFIX}{name}": value
            for name, value in limits.items()
            if isinstance(value, bool | str) or (isinstance(value, int) and 0 <= value < 2**63)
        }

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One sub-phase, e.g. `load_weights`; its span is named `tokentrail.cold_start.<name>`."""
        start = self._clock()
        try:
            yield
        except BaseException as error:
            self._emit(name, self._new_span_id(), self._span_id, start, self._clock(), _error_type(error))
            raise
        self.passed(name, start, self._clock())

    def passed(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record a sub-phase that is over, with the times at which it began and ended (unix ns)."""
        self._emit(name, self._new_span_id(), self._span_id, start_ns, end_ns, "")

    def _emit(
        self,
        phase: str,
        span_id: int,
        parent_id: int,
        start: int,
        end: int,
        error_type: str,
        limits: Mapping[str, AttributeValue] = {},
    ) -> None:
        span = ColdStartSpan(self._model, phase, self._trace_id, span_id, parent_id, start, end, error_type, limits)
        self._record((Kind.COLD, span))


def _error_type(error: BaseException | None) -> str:
    return type(error).__qualname__ if error is not None else ""
