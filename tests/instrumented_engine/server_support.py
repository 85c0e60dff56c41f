"""A served engine within the test process: real HTTP over a real socket."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import httpx
import uvicorn

from instrumented_engine.core.handover import KvLayout
from instrumented_engine.core.observer import Observer
from instrumented_engine.server.http import create_config
from instrumented_engine.server.service import Service
from instrumented_engine.settings import Settings
from instrumented_engine.startup import Loaded
from tokentrail import now_ns
from tokentrail.testing import MemoryTrail

from .support import byte_tokenizer, make_observed_engine

MODEL = "tiny"


class Served:
    """A running server: `url`, its `service`, and the `trail` it reports to."""

    def __init__(self, service, trail, url, kv_port=None):
        self.service = service
        self.trail = trail
        self.url = url
        self.kv_port = kv_port

    @property
    def engine(self):
        return self.service.loaded.engine

    def until(self, condition, timeout_s=120):
        """Wait for something that another thread does."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.005)


@contextlib.contextmanager
def served(load, trail=None, **settings):
    """Serve the engine that `load` builds until the block ends. A producer's consumers connect to `server.kv_port`.

    It reports to `trail`, or to one that keeps its spans in memory.
    """
    kv_listener = socket.create_server(("127.0.0.1", 0)) if settings.get("kv_role") == "kv_producer" else None
    trail = trail or MemoryTrail(clock=now_ns)
    service = Service(Settings(**{"served_model_name": MODEL, "port": 0, **settings}), Observer(trail), load)
    config = create_config(service, kv_listener)
    config.port, config.timeout_graceful_shutdown = 0, 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield Served(service, trail, url, kv_listener and kv_listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(120)
        service.close()
        assert not thread.is_alive()


def tiny_loader(*, max_tokens=120, strips_first_space=False, model="tiny", **engine):
    """Builds a byte-level engine over a CacheRunner. Engines of the same `model` understand each other's blocks."""
    layout = KvLayout(model, 4, 32)

    def load(settings, observer):
        tokenizer = byte_tokenizer(strips_first_space=strips_first_space)
        return Loaded(make_observed_engine(observer, **engine), tokenizer, 257, max_tokens, {"threads": 3}, layout)

    return load


def script(**answers):
    """Answers by prompt, as the CacheRunner takes them."""
    tokenizer = byte_tokenizer()
    return {tuple(tokenizer.encode(prompt)): tokenizer.encode(text) for prompt, text in answers.items()}


def post(server, name, **body):
    """Ask for a completion of three tokens. `name` becomes a part of its id."""
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3, "temperature": 0, **body}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": name}, timeout=120)
