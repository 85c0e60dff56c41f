"""Metrics of engines: scraped from their Prometheus endpoints or sent as OTLP, stored under common names."""
