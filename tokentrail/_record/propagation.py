"""Takes and gives the trace context of a request's headers, by the propagators of OTEL_PROPAGATORS.

OpenTelemetry cannot be imported when that names a propagator that is not installed, such as `b3`.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tokentrail._host.guard import logger

extract: Any
inject: Any
try:
    from opentelemetry.propagate import extract, inject
except Exception as error:
    logger.warning("OTEL_PROPAGATORS: %s Using tracecontext,baggage", error)
    _usual = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    extract, inject = _usual.extract, _usual.inject

__all__ = ["extract", "inject"]
