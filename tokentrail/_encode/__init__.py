"""Spans become OTLP bytes. It knows nothing of requests."""
