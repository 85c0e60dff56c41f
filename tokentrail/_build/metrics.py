"""OpenTelemetry metrics of trails: their own books, and the GenAI server histograms.

Without a configured `MeterProvider` the API's instruments do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol
from weakref import ref

from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    Meter,
    MeterProvider,
    NoOpMeterProvider,
    Observation,
    get_meter,
)
from opentelemetry.trace import SpanKind

from tokentrail import semconv
from tokentrail._build.spans import Emitted
from tokentrail._encode.encode import text
from tokentrail._host.books import BUFFER_FULL, DISPLACED, EXPIRED, REFUSED, REJECTED, SHUTDOWN, TrailStats
from tokentrail._host.guard import logger
from tokentrail._record.arguments import RequestEnd
from tokentrail._record.request import RequestTrail
from tokentrail.semconv import Status
from tokentrail.version import __version__

_HISTOGRAMS: Final = (
    ("gen_ai.server.time_to_first_token", "Time to generate first token for successful responses.",
     (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)),
    ("gen_ai.server.time_per_output_token",
     "Time per output token generated after the first token for successful responses.",
     (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)),
    ("gen_ai.server.request.duration", "Generative AI server request duration.",
     (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)),
)  # fmt: skip
"""Names, descriptions and bucket boundaries (s) of OpenTelemetry's semantic conventions for GenAI metrics."""

MAX_SERIES: Final = 1_000
"""Attribute sets of the histograms. Clients choose the model's name, so that their number has no other limit."""
MAX_CHARACTERS: Final = 1_024
"""The longest text of a set of its own, since a client may ask for a model with a name of a megabyte."""
OVERFLOW: Final[Mapping[str, Any]] = {"otel.metric.overflow": True}
"""The attributes of all further sets, as OpenTelemetry's metrics SDK specification names them."""
READING_S: Final = 1.0
"""The books are read once for all instruments of a collection, so that they balance: a reading lasts so long."""

_SENT_REASONS: Final = (REFUSED, REJECTED, EXPIRED)
"""Reasons of drops after an export. The others happen before it."""
_ERROR_TYPES: Final = {BUFFER_FULL: "queue_full", DISPLACED: "queue_full", SHUTDOWN: "already_shutdown"}
"""Reasons of drops for which the semantic conventions of `otel.sdk.processor.span.processed` have names."""


class Watched(Protocol):
    """A trail's pipeline. `capacity` is the most spans that its queue takes."""

    capacity: int

    @property
    def stats(self) -> TrailStats:
        """Its counts."""


class _Book(NamedTuple):
    """An observable instrument. `values` gives its values by `error.type`, which is empty for a success."""

    name: str
    unit: str
    description: str
    rises: bool
    values: Callable[[TrailStats, int], Mapping[str, int]]


def _exported(stats: TrailStats) -> dict[str, int]:
    failed: dict[str, int] = {reason: stats.drops[reason] for reason in _SENT_REASONS if reason in stats.drops}
    return {"": stats.exported} | failed


def _processed(stats: TrailStats) -> dict[str, int]:
    processed = {"": sum(_exported(stats).values())}
    for reason, spans in stats.drops.items():
        if reason not in _SENT_REASONS:
            error_type = _ERROR_TYPES.get(reason, reason)
            processed[error_type] = processed.get(error_type, 0) + spans
    return processed


_BOOKS: Final = (
    _Book("otel.sdk.processor.span.processed", "{span}", "Spans that were sent, or lost before that.", True,
          lambda stats, _: _processed(stats)),
    _Book("otel.sdk.exporter.span.exported", "{span}", "Spans whose export has ended, well or not.", True,
          lambda stats, _: _exported(stats)),
    _Book("otel.sdk.processor.span.queue.size", "{span}", "Spans in the export queue.", False,
          lambda stats, _: {"": stats.queued}),
    _Book("otel.sdk.processor.span.queue.capacity", "{span}", "The most spans that the export queue takes.", False,
          lambda _, capacity: {"": capacity}),
    _Book("tokentrail.sdk.span.accepted", "{span}", "Spans that the trail was given.", True,
          lambda stats, _: {"": stats.accepted}),
    _Book("tokentrail.sdk.span.pending", "{span}", "Spans that are not built yet.", False,
          lambda stats, _: {"": stats.pending}),
    _Book("tokentrail.sdk.span.sampled_out", "{span}", "Spans that sampling left out.", True,
          lambda stats, _: {"": stats.sampled_out}),
    _Book("tokentrail.sdk.request.left_out", "{request}", "Requests that sampling left out.", True,
          lambda stats, _: {"": stats.left_out}),
    _Book("tokentrail.sdk.request.abandoned", "{request}", "Requests that nobody ended.", True,
          lambda stats, _: {"": stats.abandoned}),
    _Book("tokentrail.sdk.errors", "{error}", "Failures of the SDK itself and wrong calls of it.", True,
          lambda stats, _: {"": stats.errors}),
)  # fmt: skip


def _histogram(meter: Meter, name: str, description: str, buckets: Sequence[float]) -> Histogram:
    """An OpenTelemetry before 1.30 takes no boundaries: they are then those of its provider."""
    try:
        return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=buckets)
    except TypeError:
        return meter.create_histogram(name, "s", description)


class Metrics:
    """The instruments of one meter provider; None is the global one. All trails of a provider share them, since a
    provider ignores the callback of a second instrument of the same name. Make one with `metrics_of`.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = _meter(provider)
        self._ttft, self._tpot, self._duration = (
            _histogram(meter, name, description, buckets) for name, description, buckets in _HISTOGRAMS
        )
        self._known: dict[tuple[object, ...], Mapping[str, Any]] = {}
        self._watched: list[_Watch] = []
        for book in _BOOKS:
            create = meter.create_observable_counter if book.rises else meter.create_observable_up_down_counter
            create(book.name, [self._observer(book)], book.unit, book.description)

    def watch(self, trail: Watched) -> None:
        """Observes the books of a trail as long as it lives."""
        self._watched = [*(watch for watch in self._watched if watch.lives), _Watch(trail, next(_NUMBERS))]

    def record(self, request: RequestTrail, ended: RequestEnd, end: int, emitted: Emitted) -> None:
        """Adds a request that ended at `end` (unix ns) to the histograms, unless a client recorded it. TTFT and TPOT
        are those of successes. A cancelled request has the `error.type` `cancelled`.
        """
        started = request.started
        if started.kind is not _SERVER or self._is_idle():
            return
        arrival = started.arrival_ns
        if ended.status is _OK:
            attributes = self._attributes_of(request, ended, "")
            if emitted.tokens:
                self._ttft.record((emitted.first - arrival) / 1e9, attributes)
            if (tpot_ns := emitted.tpot_of(ended)) is not None:
                self._tpot.record(tpot_ns / 1e9, attributes)
        else:
            attributes = self._attributes_of(request, ended, ended.error_type or str(ended.status))
        self._duration.record((end - arrival) / 1e9, attributes)

    def _is_idle(self) -> bool:
        """Whether the global provider is not set yet: OpenTelemetry's API then gives out instruments that stand in."""
        return getattr(self._duration, "_real_instrument", self) is None

    def _attributes_of(self, request: RequestTrail, ended: RequestEnd, error_type: str) -> Mapping[str, Any]:
        started = request.started
        model, address, port = started.model, None, None
        if given := started.attributes:
            address, port = given.get(semconv.SERVER_ADDRESS), given.get(semconv.SERVER_PORT)
        key = (started.operation, started.provider, model, ended.response_model or model, address, port, error_type)
        try:
            return self._known[key]
        except (KeyError, TypeError):  # a new set, or a value that cannot be hashed
            return self._add(key)

    def _add(self, key: tuple[object, ...]) -> Mapping[str, Any]:
        plain = tuple(value if isinstance(value, str | int | None) else text(value) for value in key)
        if plain not in self._known and (len(self._known) >= MAX_SERIES or _has_long(plain)):
            return OVERFLOW
        pairs = zip(_ATTRIBUTES, plain, strict=True)
        return self._known.setdefault(plain, {name: value for name, value in pairs if value not in ("", None)})

    def _observer(self, book: _Book) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for watch in self._watched:
                stats = watch.stats
                for error_type, value in book.values(stats, watch.capacity).items() if stats else ():
                    error = {semconv.ERROR_TYPE: error_type} if error_type else {}
                    yield Observation(value, {**watch.component, **error})

        return observe


def _meter(provider: MeterProvider | None) -> Meter:
    """The meter of a provider. OpenTelemetry raises when its variable names a global provider that is not installed."""
    try:
        return get_meter(semconv.SCOPE_NAME, __version__, provider, semconv.SCHEMA_URL)
    except Exception as error:
        logger.warning("OTEL_PYTHON_METER_PROVIDER is not usable: %r; tokentrail's own metrics are off", error)
        return NoOpMeterProvider().get_meter(semconv.SCOPE_NAME)


def _has_long(plain: tuple[str | int | None, ...]) -> bool:
    return any(isinstance(value, str) and len(value) > MAX_CHARACTERS for value in plain)


class _Watch:
    """A trail that is observed, and its name as a component of this process."""

    def __init__(self, trail: Watched, number: int) -> None:
        self.component = {"otel.component.type": "tokentrail", "otel.component.name": f"tokentrail/{number}"}
        self.capacity = trail.capacity
        self._trail = ref(trail)
        self._stats = TrailStats()
        self._until = 0.0

    @property
    def lives(self) -> bool:
        """Whether anybody still has the trail."""
        return self._trail() is not None

    @property
    def stats(self) -> TrailStats | None:
        """The counts of now, or of the last reading for `READING_S` after it; None for a trail that is gone."""
        trail = self._trail()
        if trail is None:
            return None
        if time.monotonic() >= self._until:
            self._stats, self._until = trail.stats, time.monotonic() + READING_S
        return self._stats


_ATTRIBUTES: Final = (
    semconv.OPERATION_NAME,
    semconv.PROVIDER_NAME,
    semconv.REQUEST_MODEL,
    semconv.RESPONSE_MODEL,
    semconv.SERVER_ADDRESS,
    semconv.SERVER_PORT,
    semconv.ERROR_TYPE,
)
_SERVER, _OK = SpanKind.SERVER, Status.OK  # a member takes long to look up
_NUMBERS: Final = count()
_MAKING: Final = Lock()


def metrics_of(provider: MeterProvider | None) -> Metrics:
    """The instruments of a provider, made once."""
    with _MAKING:
        return _made(provider)


@lru_cache(maxsize=16)
def _made(provider: MeterProvider | None) -> Metrics:
    return Metrics(provider)
