"""The OpenTelemetry context that a request arrives in: its trace, and the sampler's decision."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import get_current
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.trace import INVALID_SPAN, get_current_span

from tokentrail._record import propagation
from tokentrail._record.arguments import RequestStart, start_attributes


def sample(provider: TracerProvider, carrier: Mapping[str, str], started: RequestStart) -> tuple[int, int, bool]:
    """Trace id, span id and whether the request is sampled. Completes `started`."""
    context = propagation.extract(carrier, get_current()) if carrier else None  # None: the current one
    span = get_current_span(context)
    parent = None if span is INVALID_SPAN else span.get_span_context()
    ids, sampler = provider.id_generator, provider.sampler
    if parent is not None and not parent.is_valid:
        parent = None
    trace_id = parent.trace_id if parent else ids.generate_trace_id()
    span_id = ids.generate_span_id()
    started.parent = parent
    if sampler is DEFAULT_ON:  # it looks at the parent alone: nothing needs to be made for it
        started.trace_state = parent.trace_state if parent else None
        return trace_id, span_id, parent is None or parent.trace_flags.sampled
    asked = start_attributes(started)
    name = f"{started.operation} {started.model}"
    result = sampler.should_sample(context or get_current(), trace_id, name, started.kind, asked)
    added = {key: value for key, value in result.attributes.items() if asked.get(key) is not value}
    started.attributes = {**started.attributes, **added}  # a sampler may answer with all that it was asked
    started.trace_state = result.trace_state
    return trace_id, span_id, result.decision is Decision.RECORD_AND_SAMPLE
