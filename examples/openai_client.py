"""Asks an OpenAI-compatible server through the openai package, within the caller's own trace.

    .venv/bin/tokentrail demo                  # in another terminal; it prints the engine's address
    .venv/bin/python examples/openai_client.py http://127.0.0.1:8000

The headers name the tenant and the SLO class, and `traceparent` makes the request part of the caller's trace. The
server records the request; a client that recorded it too would count it twice.
"""

from __future__ import annotations

import sys
import time

from openai import OpenAI
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{base_url}/v1", api_key="unused")
model = client.models.list().data[0].id

trace.set_tracer_provider(TracerProvider())  # your application's own; add its exporter to see its spans too
with trace.get_tracer("openai-example").start_as_current_span("answer a customer") as span:
    headers = {"x-tokentrail-tenant": "acme", "x-tokentrail-slo-class": "chat"}
    propagate.inject(headers)
    sent, arrivals, output_tokens = time.monotonic(), [], 0
    for chunk in client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=headers,
    ):
        if chunk.usage:
            output_tokens = chunk.usage.completion_tokens
        if chunk.choices and chunk.choices[0].delta.content:
            arrivals.append(time.monotonic())
            print(chunk.choices[0].delta.content, end="", flush=True)

print(f"\n\n{output_tokens} tokens; TTFT {arrivals[0] - sent:.3f} s and E2E {arrivals[-1] - sent:.3f} s at this end")
print(f"the server's: http://127.0.0.1:8080/api/v1/requests/{span.get_span_context().trace_id:032x}")
