"""Imports, exit and fork, each in a process of its own."""

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
from tokentrail import *
trail = Trail.from_env()
parents = trail.start_request(operation="chat", model="parent")
trail.step(0, now_ns(), now_ns(), [parents])
if os.fork() == 0:
    assert trail.stats.accepted == trail.stats.pending == 0
    trail.step(1, now_ns(), now_ns(), [parents])
    request = trail.start_request(operation="chat", model="child")
    trail.step(2, now_ns(), now_ns(), [request])
    request.end(now_ns())
    assert trail.shutdown(20), trail.stats
    os._exit(0)
_, status = os.wait()
assert status == 0
parents.end(now_ns())
assert trail.shutdown(20)
"""


def test_a_forked_child_sends_its_own_spans_under_its_own_name(server):
    run(FORK, server.url)
    by_instance = {}
    for _, body in server.posts:
        for span in parse_spans(body):
            by_instance.setdefault(span.resource["service.instance.id"], []).append(span.name)
    child, parent = sorted(by_instance.values(), key=lambda names: "chat parent" in names)
    assert (child.count("chat child"), child.count("tokentrail.token"), child.count("tokentrail.step")) == (1, 1, 2)
    assert (parent.count("chat parent"), parent.count("tokentrail.token"), parent.count("tokentrail.step")) == (1, 1, 1)
