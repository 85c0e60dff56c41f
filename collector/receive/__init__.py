"""Receivers: OTLP over HTTP and gRPC, checked and handed to the write-ahead log before they are acknowledged."""
