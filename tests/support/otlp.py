"""OTLP requests for tests, built with OpenTelemetry's own protobuf classes."""

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tokentrail import semconv

T0 = 1_795_000_000_000_000_000
"""A fixed time in November 2026, unix ns."""
MS = 1_000_000


def set_attributes(holder, attributes):
    for key, value in attributes.items():
        item = holder.attributes.add(key=key).value
        match value:
            case bool():
                item.bool_value = value
            case int():
                item.int_value = value
            case float():
                item.double_value = value
            case bytes():
                item.bytes_value = value
            case list():
                for element in value:
                    item.array_value.values.add(string_value=element)
            case _:
                item.string_value = value


class Request:
    """One resource and one scope that spans are added to."""

    def __init__(self, *, scope=semconv.SCOPE_NAME, **resource):
        self.message = ExportTraceServiceRequest()
        resource_spans = self.message.resource_spans.add()
        set_attributes(resource_spans.resource, {"service.name": "chat", "service.instance.id": "i-1"} | resource)
        self.scope_spans = resource_spans.scope_spans.add()
        self.scope_spans.scope.name = scope

    def span(self, name, *, trace=1, span=1, parent=None, start=T0, ns=MS, kind=1, attributes=None, **fields):
        added = self.scope_spans.spans.add(
            name=name,
            trace_id=trace.to_bytes(16, "big"),
            span_id=span.to_bytes(8, "big"),
            parent_span_id=b"" if parent is None else parent.to_bytes(8, "big"),
            start_time_unix_nano=start,
            end_time_unix_nano=start + ns,
            kind=kind,
        )
        set_attributes(added, attributes or {})
        for key, value in fields.items():
            getattr(added, key).CopyFrom(value) if hasattr(value, "CopyFrom") else setattr(added, key, value)
        return added

    def tokens(self, *, trace=1, parent=1, count=3, first_step=0, start=T0, ns=20 * MS, index_key=""):
        """Tokens as the SDK sends them, or with their index under `index_key`."""
        for index in range(count):
            self.span(
                semconv.TOKEN_SPAN,
                trace=trace,
                span=(parent + (index + 1) * semconv.TOKEN_ID_STRIDE) % 2**64,
                parent=parent,
                start=start + index * ns,
                ns=ns,
                attributes=({index_key: index} if index_key else {}) | {semconv.STEP: first_step + index},
            )
        return self

    def body(self):
        return self.message.SerializeToString()


def token_body(trace=1, count=3, **kwargs):
    """One request's token spans as bytes."""
    return Request().tokens(trace=trace, count=count, **kwargs).body()
