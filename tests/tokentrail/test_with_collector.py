"""The SDK's bytes in the real collector: padded varints, derived span ids and sums survive ClickHouse."""

import itertools

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.collector import Collector
from tests.support.stores import open_new_store
from tests.tokentrail.support import MS, T0, start
from tokentrail import KvEvent, Phase, Trail, now_ns, semconv
from tokentrail._send.http import Endpoint
from tokentrail.config import Settings
from tokentrail.testing import MemoryTrail


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One process may own one chDB path at a time, so the tests of this module share it."""
    store = open_new_store(tmp_path_factory.mktemp("store") / "db")
    yield store
    store.close()


SEGMENTS = itertools.count()


def insert(store, trail):
    """Stores the spans that the trail has sent since the last time."""
    trail.flush(0)
    for body in trail.transport.bodies:
        insert_otlp(store, TRACES, body, f"segment-{next(SEGMENTS)}")
    trail.transport.bodies.clear()


@pytest.mark.parametrize(
    ("stamps", "output_tokens", "tpot_ns"), [((1, 3), 11, MS / 5), ((1, 3), None, None), ((3,), 11, None)]
)
def test_arrivals_have_a_tpot_only_with_a_number_of_tokens_and_time_between_them(store, stamps, output_tokens, tpot_ns):
    store.client().command("TRUNCATE TABLE requests")
    trail = MemoryTrail()
    request = start(trail)
    request.tokens([T0 + stamp * MS for stamp in stamps])
    request.end(T0 + 3 * MS, output_tokens=output_tokens, attributes={semconv.ARRIVALS: len(stamps)})
    insert(store, trail)
    (row,) = store.query("SELECT output_tokens, ttft_ns, tpot_ns FROM requests").result_rows
    assert row == (output_tokens, stamps[0] * MS, tpot_ns)


@pytest.mark.parametrize(
    ("output_tokens", "arrived", "tpot_ns"), [(11, 6, 2 * MS / 5), (11, 1, None), (11, 0, None), (None, 6, None)]
)
def test_tokens_that_never_arrived_have_no_part_in_the_tpot(store, output_tokens, arrived, tpot_ns):
    store.client().command("TRUNCATE TABLE requests")
    trail = MemoryTrail()
    request = start(trail)
    request.tokens([T0 + MS, T0 + 3 * MS])
    attributes = {semconv.ARRIVALS: 2, semconv.ARRIVED_TOKENS: arrived}
    request.end(T0 + 3 * MS, output_tokens=output_tokens, attributes=attributes)
    insert(store, trail)
    assert store.query("SELECT output_tokens, tpot_ns FROM requests").result_rows == [(output_tokens, tpot_ns)]


@pytest.mark.parametrize(("kind", "vantage"), [(SpanKind.SERVER, "server"), (SpanKind.CLIENT, "client")])
def test_a_trail_in_flight_has_the_vantage_of_its_end(store, kind, vantage):
    store.client().command("TRUNCATE TABLE open_requests")
    trail = MemoryTrail()
    fresh, begun = start(trail, kind=kind), start(trail, kind=kind, input_tokens=7)
    trail.step(0, T0, T0 + 2 * MS, [begun])
    insert(store, trail)
    columns = "lower(hex(span_id)) AS id, vantage, model, input_tokens, output_tokens, ttft_ns, ended"
    query = f"SELECT {columns} FROM open_requests ORDER BY id, ended"
    open_rows = [
        (f"{fresh.span_id:016x}", vantage, "m", None, 0, None, False),
        (f"{begun.span_id:016x}", vantage, "m", 7, 1, 2 * MS, False),
    ]
    assert store.query(query).result_rows == open_rows
    fresh.end(T0 + MS)
    insert(store, trail)
    ended = (f"{fresh.span_id:016x}", vantage, "m", None, 0, None, True)
    assert store.query(query).result_rows == [open_rows[0], ended, open_rows[1]]


@pytest.mark.e2e
def test_a_request_is_stored_as_it_was_recorded(tmp_path):
    with Collector(tmp_path / "data") as collector:
        endpoint = Endpoint(collector.urls["otlp-http"] + "/v1/traces", {"content-type": "application/x-protobuf"})
        provider = TracerProvider(resource=Resource({"service.name": "sdk"}), shutdown_on_exit=False)
        trail = Trail(Settings(endpoint, strict=True), provider)
        arrival = now_ns() - 100 * MS
        with trail.cold_start("m") as cold, cold.phase("load_weights"):
            pass
        request = start(trail, arrival_ns=arrival, request_id="r-1", tenant="acme", input_tokens=9)
        assert trail.flush(20)  # announced before it ends
        request.phase(Phase.PREFILL, arrival + 4 * MS)
        trail.step(2**28, arrival + 4 * MS, arrival + 10 * MS, [request], counts=[2], running=1, kv_used=3, kv_total=64)
        request.phase(Phase.DECODE, arrival + 10 * MS)
        trail.kv_event(
            KvEvent.EVICT, blocks=4, reason="preemption", step=2**28, start_ns=arrival + 5 * MS, request=request
        )
        trail.step(2**28 + 1, arrival + 10 * MS, arrival + 31 * MS, [request], running=1, kv_used=4, kv_total=64)
        request.end(arrival + 31 * MS, finish_reason="stop")
        assert trail.shutdown(20)
        assert trail.stats.dropped == 0

        path = f"/api/v1/requests/{request.trace_id:032x}"
        collector.wait_until(lambda: collector.get(path).json().get("request", {}).get("status") == "ok")
        seen = collector.get(path).json()
        starts = collector.get("/api/v1/cold_starts").json()["cold_starts"]

    row = seen["request"]
    assert (row["request_id"], row["tenant"], row["input_tokens"], row["output_tokens"]) == ("r-1", "acme", 9, 3)
    assert (row["ttft_s"], row["tpot_s"], row["e2e_s"], row["queue_s"]) == (0.010, 0.0105, 0.031, 0.004)
    assert [(t["index"], t["duration_s"], t["step"]) for t in seen["tokens"]] == [
        (0, 0.010, 2**28),
        (1, 0.0, 2**28),
        (2, 0.021, 2**28 + 1),
    ]
    assert [(p["name"], p["duration_s"]) for p in seen["phases"]] == [
        ("queued", 0.004),
        ("prefill", 0.006),
        ("decode", 0.021),
    ]
    assert [(s["step"], s["kv_blocks_used"]) for s in seen["steps"]] == [(2**28, 3), (2**28 + 1, 4)]
    assert [(e["kind"], e["reason"], e["blocks"], e["own"]) for e in seen["events"]] == [
        ("kv.evict", "preemption", 4, True)
    ]
    assert [(s["model"], [p["name"] for p in s["phases"]]) for s in starts] == [("m", ["load_weights"])]
