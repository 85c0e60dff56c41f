"""Names that senders choose. Those that become columns of the store are cut at 1,024 characters, and counted.

A cut name ends in 16 digits of the SHA-256 of the whole name, so that two names that begin alike stay two:

    gpt-gpt-gpt-gpt-g…3f0a6b1c9d2e4f58

It is 1,024 characters long, so that it is not cut again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Set
from typing import Any, Final

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from collector.otlp.envelope import MEASURED
from collector.otlp.labels import bound
from tokentrail import semconv

LONGEST: Final = 1024
"""Most characters of a name. A message of as many bytes has no longer one."""
_DIGITS: Final = 16

COLUMNS: Final = frozenset(
    {
        "ai.model.id",
        "error.type",
        "finish_reason",
        "gen_ai.operation.name",
        "gen_ai.request.id",
        "gen_ai.request.model",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "langfuse.observation.metadata.finish_reason",
        "langfuse.observation.model.name",
        "litellm.model_group",
        "llm.finish_reason",
        "llm.model_name",
        "model",
        "request_id",
        "service.instance.id",
        "service.name",
        semconv.ENGINE,
        semconv.FINISH_REASON,
        semconv.KV_REASON,
        semconv.LIMIT_PREFIX + semconv.Limit.POLICY,
        semconv.PHASE_NAME,
        semconv.SLO_CLASS,
        semconv.TENANT,
        semconv.VARIANT,
    }
)
"""The attributes whose text becomes a column. A test compares them with the SQL."""


def cut(text: str) -> str:
    """Return the text, or as much of it as a name may have."""
    if len(text) <= LONGEST:
        return text
    digits = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{text[: LONGEST - _DIGITS - 1]}…{digits}"


class Cutter:
    """Cuts the names in messages of OTLP, and counts them."""

    def __init__(self, columns: Set[str] = COLUMNS) -> None:
        self._columns = columns
        self.count: Counter[str] = Counter()
        """Names that were cut, by the attribute's key or the kind of name."""

    def resource(self, resource: Resource) -> None:
        """Cut the names of a resource."""
        self._attributes(resource.attributes)

    def scope(self, scope: InstrumentationScope) -> None:
        """Cut the name of a scope. Its attributes are not stored."""
        self._text(scope, "name", "scope names")

    def span(self, span: Span) -> None:
        """Cut the names of a span and of its events."""
        self._text(span, "name", "span names")
        self._text(span.status, "message", "status messages")
        self._attributes(span.attributes)
        for event in span.events:
            self._text(event, "name", "event names")
            self._attributes(event.attributes)

    def _attributes(self, attributes: Iterable[KeyValue]) -> None:
        """Cut the keys, and the values of those that become columns."""
        for attribute in attributes:
            if attribute.key in self._columns:
                self._value(attribute.key, attribute.value)
            elif len(attribute.key) > LONGEST:
                self._text(attribute, "key", "attribute keys")

    def _text(self, message: Any, field: str, kind: str) -> None:
        text = getattr(message, field)
        if len(text) > LONGEST:
            setattr(message, field, cut(text))
            self.count[kind] += 1

    def _value(self, key: str, value: AnyValue) -> None:
        self._text(value, "string_value", key)
        for item in value.array_value.values:
            self._text(item, "string_value", key)


def cut_spans(request: Any, body: bytes, columns: Set[str]) -> Counter[str]:
    """Cut the names in a request of traces, and count them. `body` is its encoding; its sizes say where to look."""
    cutter = Cutter(columns)
    if len(body) <= LONGEST:
        return cutter.count
    measured = MEASURED.FromString(body)
    for resource_spans, of_resource in zip(request.resource_spans, measured.resource_spans, strict=True):
        if sum(map(len, of_resource.resource)) > LONGEST:
            cutter.resource(resource_spans.resource)
        for scope_spans, of_scope in zip(resource_spans.scope_spans, of_resource.scope_spans, strict=True):
            if sum(map(len, of_scope.scope)) > LONGEST:
                cutter.scope(scope_spans.scope)
            if max(map(len, of_scope.spans), default=0) > LONGEST:
                for span, encoded in zip(scope_spans.spans, of_scope.spans, strict=True):
                    if len(encoded) > LONGEST:
                        cutter.span(span)
    return cutter.count


def has_long(message: Message, columns: Set[str]) -> bool:
    """Tell whether a resource, a scope or a span has a name that is too long, or labels that break a bound. Such a
    message is changed.
    """
    cutter = Cutter(columns)
    if not isinstance(message, InstrumentationScope) and bound(message.attributes):
        return True
    match message:
        case Resource():
            cutter.resource(message)
        case InstrumentationScope():
            cutter.scope(message)
        case Span():
            cutter.span(message)
    return bool(cutter.count)
