"""A real Prometheus scrapes a real server of ours and evaluates the shipped rules."""

import re
import shutil
import socket
import subprocess
import threading
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import uvicorn
import yaml

from alerts.generate import generate
from alerts.links import Links
from collector.exposition import live as live_module
from collector.measure.times import parse_moment
from collector.service import build_api
from collector.slo.model import load_slos
from collector.status import IngestStatus
from tests.alerts.test_dashboards import BOARDS, queries
from tests.collector.rows import SECOND, Rows
from tests.support.stores import open_new_store

DEADLINE_S = 120
SLOS = 'slos: [{name: chat, objective: "0.95", window: 30d, thresholds: {ttft: 500ms}}]'


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LateClock:
    """The time of so many seconds ago."""

    def __init__(self, late_s):
        self.late_s = late_s

    def __call__(self):
        return time.time_ns() - self.late_s * SECOND


@pytest.fixture
def clock(request):
    return LateClock(getattr(request, "param", 0))


@pytest.fixture
def served(tmp_path, clock, monkeypatch):
    """The collector's API behind uvicorn, with rows and segments at the test's command."""
    store = open_new_store(tmp_path / "store")
    slos = tmp_path / "slos.yaml"
    slos.write_text(SLOS)
    status = IngestStatus()
    status.set_ready("start")
    app, live = build_api(store, load_slos(slos), status, lost_after_s=30, data_dir=tmp_path, clock=clock)
    for name, value in (("EVALUATE_EVERY_NS", 2 * SECOND), ("MOST_PAUSE_S", 0.5), ("_SHARE_OF_EVALUATIONS", 5)):
        monkeypatch.setattr(live_module, name, value)
    live.start()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield live, Rows(store), "{}:{}".format(*server.servers[0].sockets[0].getsockname()), slos
    server.should_exit = True
    thread.join()
    assert live.stop(20)
    store.close()


@pytest.fixture
def prometheus(served, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    _, _, address, slos = served
    for name, text in generate(load_slos(slos), Links("http://dashboard:8501")).items():
        # The test has no time for intervals of minutes; shares are the same at any.
        (tmp_path / name).write_text(re.sub(r"\n  interval: .*", "", text))
    config = {
        # A scrape may take as long as its interval: a busy machine needs the two seconds.
        "global": {"scrape_interval": "2s", "evaluation_interval": "500ms"},
        "rule_files": [str(tmp_path / name) for name in ("slos.yml", "conditions.yml")],
        "scrape_configs": [{"job_name": "tokentrail-collector", "static_configs": [{"targets": [address]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
             f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"], stdout=log, stderr=log,
        )  # fmt: skip
    yield httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False)
    process.terminate()
    process.wait(120)


def eventually(ask, wanted):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            seen = ask()
        except (httpx.HTTPError, KeyError) as error:
            seen = error
        if not isinstance(seen, Exception) and wanted(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


COUNTED = 'tokentrail_slo_requests_total{slo="chat"}'
BURNING = {
    ("TokentrailSloBurn", rule) for rule in ("page-outage", "page-fast", "page-slow", "ticket-fast", "ticket-slow")
}


@pytest.fixture
def query(prometheus):
    def query(text):
        result = prometheus.get("/query", params={"query": text}).raise_for_status().json()["data"]["result"]
        return {tuple(sorted(r["metric"].items())): float(r["value"][1]) for r in result}

    return query


@pytest.fixture
def firing(prometheus):
    def firing():
        alerts = prometheus.get("/alerts").raise_for_status().json()["data"]["alerts"]
        return {(a["labels"]["alertname"], a["labels"].get("rule")) for a in alerts if a["state"] == "firing"}

    return firing


def fail(rows, live, segment, requests, ended):
    """A number of `requests` that missed the promise arrive in a segment."""
    bad = {"ended": ended, "e2e": 2 * SECOND, "ttft_ns": SECOND, "tpot_ns": 1e7}
    made = rows.requests([bad | {"segment": segment, "ingested_at": ended}] * requests)
    live.counters.on_segment(segment)
    return made


@pytest.fixture
def past(served, clock):
    """Requests that failed 43 minutes ago, when nobody scraped."""
    live, rows, _, _ = served
    fail(rows, live, "one", 174, clock())
    eventually(lambda: live.counters.pending, lambda pending: not pending)
    clock.late_s = 0
    eventually(lambda: live.state_at_s, lambda at_s: at_s > time.time() - 60)


@pytest.mark.parametrize("clock", [43 * 60], indirect=True)
def test_what_failed_while_nobody_scraped_makes_no_alert_fire(served, past, prometheus, query, firing):
    """The first scrape showed 0 and the next one 174 bad requests, as if all had failed between the two."""
    live, rows, _, _ = served
    eventually(lambda: query(f"count_over_time({COUNTED}[5m])"), lambda r: max(r.values(), default=0) >= 4)
    eventually(lambda: query("count_over_time(slo:tokentrail_bad_requests:increase1m[5m])"), lambda r: r)
    assert [*query(COUNTED).values()] == [174]
    assert firing() == set()
    fail(rows, live, "two", 40, time.time_ns())
    eventually(lambda: query(COUNTED), lambda r: [*r.values()] == [214])
    eventually(firing, lambda now: now >= BURNING)


def test_what_happens_to_requests_makes_alerts_fire(served, prometheus, query, firing):
    live, rows, _, _ = served
    counters = live.counters

    rows.cold_start(start=time.time_ns() - 9 * SECOND, duration=1, segment="zero")
    counters.on_segment("zero")
    eventually(lambda: query("tokentrail_preemptions_total"), lambda r: list(r.values()) == [0])
    eventually(lambda: query(COUNTED), lambda r: list(r.values()) == [0])
    assert firing() == set()

    now = time.time_ns()
    for i in range(12):
        rows.kv_event(start=now + i, segment="one")
    rows.cold_start(start=now - 3 * SECOND, duration=2 * SECOND, segment="one")
    made = fail(rows, live, "one", 40, now)
    fast = {"ended": now, "ingested_at": now, "segment": "good", "ttft_ns": SECOND // 10, "queue_ns": 1}
    good = rows.requests([fast] * 3)
    rows.causes([*((r, {"ttft_wait_kv_us": 10**6}) for r in made), *((r, {"ttft_busy_us": 10**5}) for r in good)])
    for segment in ("one", "good"):
        counters.on_explained(segment)
    counters.on_segment("good")

    eventually(lambda: query(COUNTED), lambda r: list(r.values()) == [43])
    expected = BURNING | {("TokentrailKvCacheEvictions", None), ("TokentrailColdStart", None)}
    assert eventually(firing, lambda now: now >= expected) == expected

    def annotations():
        alerts = prometheus.get("/alerts").raise_for_status().json()["data"]["alerts"]
        return {alert["labels"].get("rule"): alert["annotations"] for alert in alerts}

    told = eventually(annotations, lambda found: "wait_kv" in found["page-fast"]["cause"])["page-fast"]
    assert told["cause"].endswith("is waiting for KV (wait_kv); 100 % of that is at engine i-1.")
    link = urlsplit(told["dashboard_url"])
    asked = parse_qs(link.query)
    start, end = (parse_moment(asked.pop(name)[0]).ns for name in ("start", "end"))
    assert (link.netloc, link.path, asked) == (
        "dashboard:8501", "/explore", {"slo": ["chat"], "verdict": ["bad"], "range": ["custom"]},
    )  # fmt: skip
    assert end - start == 3600 * SECOND
    listed = httpx.get(
        f"http://{served[2]}/api/v1/requests?slo=chat&verdict=bad&start={start // SECOND}&end={end // SECOND + 1}"
    )
    assert listed.json()["total"] == 40

    slo = httpx.get(f"http://{served[2]}/api/v1/slos/chat", trust_env=False).json()
    assert slo["firing"] == "page"
    assert {("TokentrailSloBurn", b["name"]) for b in slo["burn"] if b["firing"]} == BURNING

    def traces():
        asked = {
            "query": "gen_ai_server_time_to_first_token_seconds_bucket",
            "start": now / 1e9 - 60,
            "end": now / 1e9 + 60,
        }
        found = prometheus.get("/query_exemplars", params=asked).raise_for_status().json()["data"]
        return {e["labels"]["trace_id"] for series in found for e in series["exemplars"]}

    assert eventually(traces, bool) <= {r["trace_id"] for r in (*made, *good)}

    rows.step(start=time.time_ns(), running=2, kv_blocks_used=5, kv_blocks_total=9)
    counters.on_segment("two")
    for board in BOARDS.values():
        for expr in queries(board):
            asked = re.sub(r"\$(cluster|service|slo)\b", ".*", expr).replace("$__rate_interval", "1m")
            eventually(lambda asked=asked: query(asked), bool)
