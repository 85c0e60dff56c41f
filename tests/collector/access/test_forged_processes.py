"""A real collector with tenants' keys: what one sends under the names of another one's engine changes nothing of it."""

import time

import pytest

from collector.base.process import Process
from tests.collector.metrics.scraped import OPENMETRICS, samples_of
from tests.support.collector import Collector
from tests.support.keys import add_key
from tests.support.otlp import Request
from tokentrail import semconv

SECOND = 10**9
ASKED = {"gen_ai.operation.name": "chat", semconv.REQUEST_MODEL: "m"}
BOLT = Process("chat", "i-1", "bolt")


def announcement(trace, *, began_s, until_s=0.0):
    """A body that announces a request; both times are seconds ago."""
    now, request = time.time_ns(), Request()
    start, end = (now - round(ago * SECOND) for ago in (began_s, until_s))
    request.span(semconv.OPEN_SPAN, trace=trace, span=2, parent=1, start=start, ns=end - start, attributes=ASKED)
    return request.body()


def step(*, ago_s, used=1):
    """A body with a step of an engine whose KV cache has 100 blocks."""
    request = Request()
    counts = {"tokentrail.step.running": 1, semconv.STEP_KV_USED: used, semconv.STEP_KV_TOTAL: 100}
    request.span(semconv.STEP_SPAN, start=time.time_ns() - round(ago_s * SECOND), attributes={semconv.STEP: 1} | counts)
    return request.body()


@pytest.fixture
def guarded(tmp_path):
    """A collector that gives a request up after four seconds of silence, with keys of two tenants and an admin."""
    keys = tmp_path / "data" / "keys.json"
    collector = Collector(tmp_path / "data", "--lost-after-s", "4")
    senders = {tenant: add_key(keys, "ingest", tenant) for tenant in ("acme", "bolt")}
    collector.keys = senders | {"bolt reads": add_key(keys, "read", "bolt")}  # type: ignore[attr-defined]
    collector.http.headers.update(add_key(keys, "admin"))
    with collector:
        yield collector


def exposed(collector, metric):
    """The values of a metric by process."""
    found = samples_of(collector.http.get(f"{collector.urls['api']}/metrics", headers=OPENMETRICS))
    names = {key[1:]: value for key, value in found.items() if key[0] == f"tokentrail_{metric}"}
    return {Process(*_labels(key)): value for key, value in names.items()}


def _labels(key):
    given = dict(label.split("=", 1) for label in key)
    return given["service_name"], given["service_instance_id"], given.get("process_tenant", "")


def incidents(collector, headers):
    answer = collector.http.get(f"{collector.urls['api']}/api/v1/incidents", headers=headers).json()
    return [(one["cause"], one["process_tenant"], one["firing"]) for one in answer["incidents"]]


def test_steps_of_another_tenant_silence_neither_a_hung_engine_nor_a_full_cache(guarded):
    acme, bolt, reads = (guarded.keys[name] for name in ("acme", "bolt", "bolt reads"))
    assert guarded.post(step(ago_s=30, used=99), **bolt).status_code == 200
    assert guarded.post(announcement(1, began_s=60), **bolt).status_code == 200
    guarded.wait_until(lambda: exposed(guarded, "requests_stuck").get(BOLT) == 1)
    assert guarded.post(step(ago_s=0), **acme).status_code == 200
    guarded.wait_until(lambda: exposed(guarded, "kv_usage_ratio").get(BOLT._replace(process_tenant="acme")) == 0.01)
    assert guarded.post(announcement(1, began_s=60), **bolt).status_code == 200
    guarded.wait_until(lambda: incidents(guarded, reads) == [("engine_hung", "bolt", True)])
    assert exposed(guarded, "requests_stuck")[BOLT] == 1
    assert exposed(guarded, "kv_usage_ratio")[BOLT] == 0.99


def test_announcements_of_another_tenant_lose_no_request_of_a_healthy_engine(guarded):
    acme, bolt, reads = (guarded.keys[name] for name in ("acme", "bolt", "bolt reads"))
    for trace in (11, 12, 13):
        assert guarded.post(announcement(trace, began_s=1), **acme).status_code == 200
    forged = BOLT._replace(process_tenant="acme")

    def lost():
        assert guarded.post(announcement(1, began_s=3), **bolt).status_code == 200
        assert guarded.post(step(ago_s=0), **bolt).status_code == 200
        return exposed(guarded, "requests_lost_total").get(forged) == 3

    guarded.wait_until(lost)
    assert exposed(guarded, "requests_lost_total")[BOLT] == 0
    assert exposed(guarded, "requests_in_flight")[BOLT] == 1
    assert not [one for one in incidents(guarded, reads) if one[0] == "engine_lost"]
    assert ("engine_lost", "acme", True) in incidents(guarded, {})
