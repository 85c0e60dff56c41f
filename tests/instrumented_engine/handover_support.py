"""Two engines, of which one computes prompts: servers, questions and frames for the tests of it."""

import contextlib
import struct

import httpx

from .server_support import MODEL, served, tiny_loader

PROMPT = "hello, world"


@contextlib.contextmanager
def consumer_of(port, *, host_blocks=64, timeout_s=120, scheduling=None, **engine):
    scheduling = {"host_blocks": host_blocks, "prefix_caching": True} | (scheduling or {})
    load = tiny_loader(scheduling=scheduling, **engine)
    with served(load, kv_role="kv_consumer", swap_space=1, kv_port=port, kv_timeout_s=timeout_s) as server:
        server.until(lambda: server.service.ready)
        yield server


@contextlib.contextmanager
def producer_of(**engine):
    with served(tiny_loader(**engine), kv_role="kv_producer") as server:
        server.until(lambda: server.service.ready)
        yield server


def complete(server, name, **body):
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **body}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": name}, timeout=300)
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]], answer.json()["usage"]


def phases(trail, request):
    """The names of a request's phases, in order."""
    spans = trail.spans("tokentrail.phase", parent=request)
    assert sum(span.duration_ns for span in spans) == request.duration_ns
    return [s.attributes["tokentrail.phase.name"] for s in sorted(spans, key=lambda span: (span.start_ns, span.end_ns))]


def events(trail, kind):
    return [(s.attributes["tokentrail.kv.reason"], s) for s in trail.spans(f"tokentrail.kv.{kind}")]


def scraped(server, name):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sorted(
        line.removeprefix(f"tokentrail_engine_{name}") for line in lines if line.startswith(f"tokentrail_engine_{name}")
    )


def frame(header=b"{}", payload=b"", *, magic=b"TTKV", version=1, size=None):
    return struct.pack("!4sHIQ", magic, version, len(header), len(payload) if size is None else size) + header + payload
