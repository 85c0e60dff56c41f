"""Receivers of OTLP over HTTP and gRPC: they check a request and acknowledge it when the write-ahead log has it."""
