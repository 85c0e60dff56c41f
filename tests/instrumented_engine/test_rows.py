"""What the collector makes of the engine's own trace: two engines are one request, and a load is part of a wait."""

import httpx
import pytest

from tests.support.collector import Collector
from tokentrail import now_ns
from tokentrail.testing import MemoryTrail

from .server_support import MODEL, served, tiny_loader
from .support import request_span

PROMPT = "hello, world"


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    with Collector(tmp_path_factory.mktemp("rows") / "data") as running:
        yield running


def trail_of(service):
    return MemoryTrail(clock=now_ns, resource={"service.name": service, "service.instance.id": service})


def sent(collector, name, *servers):
    """The row and the details of a request, once the collector has all that the servers' trails recorded."""
    for server in servers:
        assert server.trail.spans()
        for body in server.trail.transport.bodies:
            assert collector.post(body).status_code == 200

    def rows():
        return collector.get(f"/api/v1/requests?start=-1h&request_id=cmpl-{name}").json()["requests"]

    collector.wait_until(lambda: rows() and rows()[0]["status"] != "in_flight")
    [row] = rows()
    return row, collector.get(f"/api/v1/requests/{row['trace_id']}").json()


def complete(server, name, **body):
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **body}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": name}, timeout=300)
    assert answer.status_code == 200, answer.text


def test_a_request_on_two_engines_is_one_row(collector):
    with served(tiny_loader(), trail_of("prefill"), kv_role="kv_producer") as prefill:
        prefill.until(lambda: prefill.service.ready)
        settings = {"kv_role": "kv_consumer", "swap_space": 1, "kv_port": prefill.kv_port, "kv_timeout_s": 120}
        load = tiny_loader(scheduling={"host_blocks": 64})
        with served(load, trail_of("decode"), **settings) as decode:
            decode.until(lambda: decode.service.ready)
            complete(decode, "apart", logprobs=1)
            row, detail = sent(collector, "apart", prefill, decode)

    assert (row["service"], row["engine"], row["status"]) == ("decode", "tokentrail", "ok")
    assert (row["input_tokens"], row["output_tokens"]) == (len(PROMPT), 6)
    names = [phase["name"] for phase in detail["phases"]]
    assert names == ["queued", "prefill", "kv_transfer", "queued", "kv_transfer", "prefill", "decode"]
    times = {name: sum(p["duration_s"] for p in detail["phases"] if p["name"] == name) for name in names}
    for name in ("prefill", "kv_transfer", "decode"):
        assert row[f"{name}_s"] == pytest.approx(times[name], abs=1e-9)
    assert row["queue_s"] == pytest.approx(times["queued"], abs=1e-9)
    assert sum(times.values()) == pytest.approx(row["e2e_s"], abs=1e-9)
    assert row["kv_transfer_s"] > 0
    received, resumed = (event for event in detail["events"] if event["kind"] == "kv.restore")
    assert [(event["reason"], event["own"]) for event in (received, resumed)] == [
        ("handed_over", True),
        ("resumed", True),
    ]
    assert received["bytes"] == -(-(len(PROMPT) - 1) // 4) * 32
    assert row["perplexity"] > 1
    assert row["mean_entropy"] > 0


def test_a_request_that_wakes_the_engine_waits_for_the_load(collector):
    load = tiny_loader()

    def with_a_cold_start(settings, observer):
        with observer.cold_start(MODEL) as cold, cold.phase("load_weights"):
            return load(settings, observer)

    with served(with_a_cold_start, trail_of("sleeper")) as server:
        server.until(lambda: server.service.ready)
        complete(server, "before")
        server.until(lambda: server.service._active == 0)
        assert httpx.post(f"{server.url}/sleep").json() == {"is_sleeping": True}
        server.until(lambda: server.service._loop.engine is None)
        complete(server, "waking")
        span = request_span(server.trail, "cmpl-waking")
        row, detail = sent(collector, "waking", server)
        before, _ = sent(collector, "before", server)

    assert [phase["name"] for phase in detail["phases"]][:2] == ["cold_start", "queued"]
    assert row["cold_start_s"] == detail["phases"][0]["duration_s"] > 0
    assert detail["phases"][0]["offset_s"] == 0
    assert row["cold_start_s"] <= row["ttft_s"]
    assert not before["cold_start_s"], "the model was loaded when it came"
    loads = [event for event in detail["events"] if event["kind"] == "cold_start"]
    assert len(loads) == 1
    assert loads[0]["offset_s"] + loads[0]["duration_s"] <= row["cold_start_s"], "it waited until the load was over"
    starts = collector.get("/api/v1/cold_starts?start=-1h").json()["cold_starts"]
    assert [start["service"] for start in starts].count("sleeper") == 2
    assert span.attributes["tokentrail.phase_time.cold_start"] == round(row["cold_start_s"] * 1e9)
