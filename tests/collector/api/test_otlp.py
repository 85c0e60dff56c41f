"""From the SDK's spans to the SLO: a request that hangs is bad while it hangs, and counted once when it ends."""

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.collector import ROOT, Collector
from tokentrail import Phase, Trail, now_ns
from tokentrail._send.http import Endpoint
from tokentrail.config import Settings

pytestmark = pytest.mark.e2e
SECOND = 1_000_000_000
STEADY = """
  - {name: steady, objective: 0.95, window: 7d, select: {slo_class: [steady]}, thresholds: {tpot: 100ms, gap: 2s}}
"""


@pytest.fixture
def collector(tmp_path):
    slos = tmp_path / "slos.yaml"
    slos.write_text((ROOT / "alerts" / "slos.yaml").read_text() + STEADY)
    with Collector(tmp_path / "data", "--slos", str(slos)) as collector:
        yield collector


@pytest.fixture
def trail(collector):
    endpoint = Endpoint(collector.urls["otlp-http"] + "/v1/traces", {"content-type": "application/x-protobuf"})
    resource = Resource({"service.name": "sdk", "service.instance.id": "i-1"})
    trail = Trail(Settings(endpoint, strict=True), TracerProvider(resource=resource, shutdown_on_exit=False))
    yield trail
    assert trail.shutdown(20)


def counted(collector, name="chat"):
    text = collector.http.get(
        collector.urls["api"] + "/metrics", headers={"accept": "application/openmetrics-text"}
    ).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    chat = {s.name: s.value for s in samples if s.labels.get("slo") == name}
    kinds = ("slo_requests_total", "slo_good_requests_total", "slo_in_flight_violations")
    return tuple(chat.get(f"tokentrail_{kind}") for kind in kinds)


def test_a_hung_request_burns_the_budget_while_it_hangs(collector, trail):
    collector.wait_until(lambda: counted(collector) == (0, 0, 0))
    arrival = now_ns() - 3 * SECOND
    hung = trail.start_request(operation="chat", model="m", slo_class="chat", request_id="hung", arrival_ns=arrival)
    assert trail.flush(20)
    collector.wait_until(lambda: counted(collector) == (1, 0, 1))

    def requests():
        return collector.get("/api/v1/slos/chat").json()["requests"]

    assert (requests()["in_flight"], requests()["in_flight_violations"]) == (1, 1)
    shown = collector.get(f"/api/v1/requests/{hung.trace_id:032x}").json()["request"]
    assert (shown["status"], shown["request_id"]) == ("in_flight", "hung")

    quick = trail.start_request(operation="chat", model="m", slo_class="chat", arrival_ns=arrival)
    for request, first_token in ((quick, arrival + SECOND // 10), (hung, now_ns())):
        request.phase(Phase.PREFILL, arrival)
        trail.step(1, arrival, first_token, [request], running=1)
        request.end(first_token, finish_reason="stop")
    assert trail.flush(20)
    collector.wait_until(lambda: requests()["ok"] == 2)
    assert requests() == {
        "total": 2, "ok": 2, "good": 1, "undetermined": 0, "failed": 0, "cancelled": 0, "unknown": 0, "excused": 0,
        "unselected": 0, "in_flight": 0, "in_flight_violations": 0, "lost": 0,
    }  # fmt: skip
    collector.wait_until(lambda: counted(collector) == (2, 1, 0))


def test_a_stream_that_stands_still_is_bad_while_it_does_and_stays_so(collector, trail):
    stream = trail.start_request(operation="chat", model="m", slo_class="steady")
    stream.tokens([now_ns()] * 20)
    assert trail.flush(20)
    collector.wait_until(lambda: counted(collector, "steady") == (0, 0, 0))
    collector.wait_until(lambda: counted(collector, "steady") == (1, 0, 1))
    stream.tokens([now_ns()] * 200)
    stream.end()
    assert trail.flush(20)
    collector.wait_until(lambda: counted(collector, "steady") == (1, 0, 0))
    (row,) = collector.get("/api/v1/requests?missed=gap").json()["requests"]
    assert row["gap_s"] > 2
    assert row["tpot_s"] < 0.1
    assert row["verdict"] == "bad"
