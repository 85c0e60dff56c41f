"""Imports, exit and fork, each in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.tokentrail.support import run
from tokentrail.testing import parse_spans

FOREIGN = (
    "torch", "clickhouse_connect", "chdb", "fastapi", "starlette", "uvicorn", "streamlit", "pandas", "grpc", "typer",
    "httpx", "transformers", "collector", "instrumented_engine", "dashboard", "alerts",
)  # fmt: skip


def test_importing_tokentrail_loads_nothing_of_the_rest():
    loaded = run("import sys, tokentrail; print(*sorted({name.partition('.')[0] for name in sys.modules}))").split()
    assert "tokentrail" in loaded
    assert not set(FOREIGN) & set(loaded)


def test_what_was_recorded_is_sent_at_exit(server):
    run("from tokentrail import *; t = Trail.from_env(); t.step(0, now_ns(), now_ns(), [])", server.url)
    assert [span.name for _, body in server.posts for span in parse_spans(body)] == ["tokentrail.step"]


FORK = """
import os
parents = trail.start_request(operation="chat", model="parent")
trail.step(0, now_ns(), now_ns(), [parents])
if os.fork() == 0:
    assert trail.stats.accepted == trail.stats.pending == 0
    trail.step(1, now_ns(), now_ns(), [parents])
    request = trail.start_request(operation="chat", model="child")
    trail.step(2, now_ns(), now_ns(), [request])
    request.end(now_ns())
    assert trail.shutdown(120), trail.stats
    os._exit(0)
_, status = os.wait()
assert status == 0
parents.end(now_ns())
assert trail.shutdown(120)
"""


FORK_WITHOUT_HOOKS = """
import ctypes, logging, os, sys, threading, time
from tokentrail import *
logging.basicConfig(stream=sys.stdout, format="%(message)s")
trail, held, free = Trail.from_env(), threading.Event(), threading.Event()

def export():
    with trail._exporter.changed:  # at the moment of the fork
        held.set()
        free.wait()

threading.Thread(target=export).start()
held.wait()
if ctypes.PyDLL(None).fork() == 0:  # as uWSGI does
    for _ in range(2):
        with trail.request(operation="chat", model="child") as request:
            request.token()
    began = time.monotonic()
    assert not trail.flush(60) and not trail.shutdown(60)
    assert time.monotonic() - began < 30
    sys.stdout.flush()
    os._exit(0)
assert os.wait()[1] == 0
free.set()
with trail.request(operation="chat", model="parent"):
    pass
assert trail.shutdown(120)
"""


def test_a_child_that_was_forked_without_pythons_hooks_says_so_and_keeps_nothing(server):
    """No thread of the trail runs there, so that its records would pile up."""
    said = run(FORK_WITHOUT_HOOKS, server.url)
    assert said.count("--py-call-osafterfork") == 1
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    assert [span.name for span in spans if span.name.startswith("chat")] == ["chat parent"]


OLD_OPENTELEMETRY = """
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from tokentrail import *
trail = Trail(Settings.from_env(), TracerProvider(resource=Resource({})))
"""
"""Before 1.45, a resource has no `service.instance.id`."""


@pytest.mark.parametrize("make", ["from tokentrail import *; trail = Trail.from_env()", OLD_OPENTELEMETRY])
def test_a_forked_child_sends_its_own_spans_under_its_own_name(server, make):
    run(make + FORK, server.url)
    by_instance = {}
    for _, body in server.posts:
        for span in parse_spans(body):
            by_instance.setdefault(span.resource["service.instance.id"], []).append(span.name)
    child, parent = sorted(by_instance.values(), key=lambda names: "chat parent" in names)
    assert (child.count("chat child"), child.count("tokentrail.token"), child.count("tokentrail.step")) == (1, 1, 2)
    assert (parent.count("chat parent"), parent.count("tokentrail.token"), parent.count("tokentrail.step")) == (1, 1, 1)


def test_a_request_open_at_exit_is_sent_as_abandoned(server):
    run("from tokentrail import *; t = Trail.from_env(); r = t.start_request(operation='chat', model='m')", server.url)
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    assert [span.attributes["error.type"] for span in spans if span.name == "chat m"] == ["abandoned"]


AFTER_MAIN = """
import threading
from tokentrail import observe

def work():
    threading.main_thread().join()
    assert list(observe(iter("ab"), model="late")) == ["a", "b"]

threading.Thread(target=work).start()
"""


def test_a_thread_records_after_the_main_thread_has_ended(server):
    run(AFTER_MAIN, server.url)
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    (late,) = [span for span in spans if span.name == "chat late"]
    assert late.resource["service.name"] == "tokentrail-client"


CHILDREN = """
import multiprocessing, sys
from tokentrail import *

inherited = Trail.from_env()

def inherit():
    inherited.step(1, now_ns(), now_ns(), [])

def make():
    Trail.from_env().step(2, now_ns(), now_ns(), [])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=target) for target in (inherit, make)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_multiprocessing_send_what_they_recorded(server, tmp_path, method):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    env = os.environ | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": server.url}
    done = subprocess.run(
        [sys.executable, script, method], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    spans = [span for _, body in server.posts for span in parse_spans(body)]
    assert sorted(span.attributes["tokentrail.step"] for span in spans) == [1, 2]


SIGNAL = """
import os, signal, threading
from tokentrail import *

trail = Trail.from_env()
signal.signal(signal.SIGTERM, lambda *_: print(trail.shutdown(120)))
trail._pipeline._compress = lambda body: os.kill(os.getpid(), signal.SIGTERM) or body
trail.step(0, now_ns(), now_ns(), [])
trail.flush(20)
print(trail.stats.exported)
"""


def test_a_signal_handler_shuts_down_during_a_flush(server):
    assert run(SIGNAL, server.url).split()[-2:] == ["True", "1"]


FORK_DURING_A_BUILD = """
import os, threading
from tokentrail import *

trail, building, forked = Trail.from_env(), threading.Event(), threading.Event()
batches = []

def compress(body):
    batches.append(forked.is_set())
    building.set()
    return body

trail._pipeline._compress = compress
stamp = now_ns()
for _ in range(60_000):
    trail.step(0, stamp, stamp, [])
thread = threading.Thread(target=trail.flush, args=(60,))
thread.start()
building.wait()
if os.fork() == 0:
    os._exit(0)
forked.set()
thread.join()
os.wait()
print(trail.shutdown(120), any(batches), trail.stats.exported)
"""


def test_a_fork_waits_for_one_batch_of_a_build(server):
    sent, built_after_the_fork, exported = run(FORK_DURING_A_BUILD, server.url).split()
    assert (sent, built_after_the_fork, exported) == ("True", "True", "60000")
