"""The exporter thread: payloads wait, and go to the collector over HTTP or gRPC."""
