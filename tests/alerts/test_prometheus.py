"""A real Prometheus scrapes a real server of ours and evaluates the shipped rules."""

import http.server
import json
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
import uvicorn
import yaml
from typer.testing import CliRunner

from alerts.generate import generate
from alerts.links import Links
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.causes.split.names import load_causes
from collector.metrics import live as live_module
from collector.slo.model import load_slos
from tests.alerts.test_dashboards import BOARDS, queries
from tests.collector.rows import SECOND, Rows
from tests.support.stores import open_new_store
from tokentrail.cli.app import app

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120
FAULTS = {
    "kv": ("wait_kv", "due to requests of kv-bulk"),
    "burst": ("wait_batch", "due to requests of burst-bulk"),
    "long": ("others_prompts", "due to requests of long-bulk"),
    "cold": ("cold_start", "at cold i-1"),
}
"""By the service that has it, the cause that a fault adds, and the culprit that an alert names."""
BAD, GOOD = 15, 4
PROMISE = {"objective": "0.95", "window": "30d", "thresholds": {"ttft": "500ms"}}
SLOS = yaml.safe_dump(
    {"slos": [{"name": "chat", **PROMISE}, *({"name": of, **PROMISE, "select": {"model": [of]}} for of in FAULTS)]}
)


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
def webhooks(tmp_path):
    """The alerts that an Alertmanager with the shipped routes has sent, the newest of each; and its address."""
    if shutil.which("prometheus-alertmanager") is None:
        pytest.skip("prometheus-alertmanager is not installed")
    told = {}

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
                told[json.dumps(alert["labels"], sort_keys=True)] = alert
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    config = yaml.safe_load((ROOT / "alerts" / "alertmanager.yml").read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "1s"}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever).start()
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": f"http://127.0.0.1:{server.server_port}/"}]
        (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        with (tmp_path / "alertmanager.log").open("wb") as log:
            process = subprocess.Popen(
                ["prometheus-alertmanager", f"--config.file={tmp_path}/alertmanager.yml",
                 f"--storage.path={tmp_path}/am", f"--web.listen-address=127.0.0.1:{port}",
                 "--cluster.listen-address="], stdout=log, stderr=log,
            )  # fmt: skip
        yield told, f"127.0.0.1:{port}"
        process.terminate()
        process.wait(120)
        server.shutdown()


@pytest.fixture
def prometheus(served, webhooks, tmp_path):
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
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [webhooks[1]]}]}]},
        "scrape_configs": [{"job_name": "tokentrail-collector", "static_configs": [{"targets": [address]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
             f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage",
             "--rules.alert.resend-delay=1s"], stdout=log, stderr=log,
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
BURNING = {("TokentrailSloBurn", "page")}
RULES = {"page-outage", "page-outage-few", "page-fast", "page-slow", "ticket-fast", "ticket-slow"}


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
        return {(a["labels"]["alertname"], a["labels"]["severity"]) for a in alerts if a["state"] == "firing"}

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


def faulty(rows, live, now):
    """Each fault slows requests of a service of its own, of which one tenant has a large request."""
    asked = []
    for of, (cause, _) in FAULTS.items():
        own = {"ended": now, "ingested_at": now, "segment": "one", "service": of, "model": of}
        slow = own | {"e2e": 2 * SECOND, "ttft_ns": SECOND, "tpot_ns": 1e7, "tenant": "victim"}
        if cause == "wait_batch":  # who waits has no place
            slow |= {"queue_ns": SECOND}
        fast = own | {"ttft_ns": SECOND // 10, "queue_ns": 1, "tenant": "victim"}
        # A prompt makes those wait that are there while it is computed; an answer holds its place all the time.
        length = 2 * SECOND + 1 if of == "long" else 60 * SECOND
        large = fast | {"e2e": length, "input_tokens": 9999, "tenant": f"{of}-bulk"}
        asked += [(slow, {f"ttft_{cause}_us": 10**6})] * BAD + [(fast, {"ttft_busy_us": 10**5})] * (GOOD - 1)
        asked.append((large, {"inflicted_us": 10**6 * BAD} if of == "long" else {}))
    made = rows.requests([fields for fields, _ in asked])
    rows.causes([(request, told) for request, (_, told) in zip(made, asked, strict=True)])
    live.counters.on_segment("one")
    live.counters.on_explained("one")
    return made


def follow(annotations, api):
    """Go where a webhook's text leads: what the commands print, and how many requests are in the list of the link."""
    page, _, section = annotations["runbook_url"].partition("#")
    assert page.endswith("/docs/alerts.md")
    assert f"\n## {section}\n" in (ROOT / "docs" / "alerts.md").read_text().lower()
    link = urlsplit(annotations["dashboard_url"])
    assert (link.netloc, link.path) == ("dashboard:8501", "/explore")
    asked = dict(parse_qsl(link.query))
    assert asked.pop("range") == "custom"
    answer = httpx.get(f"{api}/api/v1/requests", params=asked, trust_env=False).raise_for_status().json()
    printed = []
    for command in annotations["command"].split("; "):
        name, *arguments = shlex.split(command)
        done = CliRunner().invoke(app, [*arguments, "--api", api], env={"COLUMNS": "300"})
        assert (name, done.exit_code) == ("tokentrail", 0), done.output
        printed.append(done.output)
    return "".join(printed), answer["total"]


def test_the_webhook_tells_which_requests_why_whose_fault_and_what_to_do(served, prometheus, query, firing, webhooks):
    live, rows, address, _ = served
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
    # A process hangs: it has run no step for a minute, and goes on to announce its request.
    rows.step(start=now - 60 * SECOND, instance="it's 9")
    hung = rows.open(start=now - 61 * SECOND, seen=now, instance="it's 9")
    made = faulty(rows, live, now)

    eventually(
        lambda: query(COUNTED), lambda r: [*r.values()] == [(BAD + GOOD) * len(FAULTS) + 1]
    )  # and the one that hangs
    expected = BURNING | {("TokentrailKvCacheEvictions", "ticket"), ("TokentrailColdStart", "info")}
    assert eventually(firing, lambda now: now >= expected) <= expected | {("TokentrailEngineHung", "page")}

    def told():
        if hung["seen"] < time.time_ns() - 5 * SECOND:
            hung.update(rows.open(**hung | {"seen": time.time_ns()}))
        return {(a["labels"]["alertname"], a["labels"].get("slo")): a["annotations"] for a in [*webhooks[0].values()]}

    def is_told(alerts):
        causes = {of: alerts.get(("TokentrailSloBurn", of), {"cause": ""})["cause"] for of in FAULTS}
        return "TokentrailEngineHung" in {name for name, _ in alerts} and all(
            f"({cause})" in causes[of] and culprit in causes[of] for of, (cause, culprit) in FAULTS.items()
        )

    alerts = eventually(told, is_told)
    for of, (cause, culprit) in FAULTS.items():
        printed, listed = follow(alerts["TokentrailSloBurn", of], f"http://{address}")
        assert listed == BAD
        advice = load_causes()[cause].advice["any"].rstrip(".")
        assert f"{advice[0].lower()}{advice[1:]}" in printed.partition("do: ")[2]
        assert culprit.split()[-1] in printed
        assert all(
            request["trace_id"] in printed
            for request in made
            if request["model"] == of and request["e2e_ns"] == 2 * SECOND
        )
    printed, listed = follow(alerts["TokentrailEngineHung", None], f"http://{address}")
    assert (listed, hung["trace_id"] in printed) == (1, True)

    slo = httpx.get(f"http://{served[2]}/api/v1/slos/chat", trust_env=False).json()
    assert slo["firing"] == "page"
    assert {burn["name"] for burn in slo["burn"] if burn["firing"]} == RULES

    def traces():
        asked = {
            "query": "gen_ai_server_time_to_first_token_seconds_bucket",
            "start": now / 1e9 - 60,
            "end": now / 1e9 + 60,
        }
        found = prometheus.get("/query_exemplars", params=asked).raise_for_status().json()["data"]
        return {e["labels"]["trace_id"] for series in found for e in series["exemplars"]}

    assert eventually(traces, bool) <= {r["trace_id"] for r in made}

    rows.step(start=time.time_ns(), running=2, kv_blocks_used=5, kv_blocks_total=9)
    counters.on_segment("two")
    for board in BOARDS.values():
        for expr in queries(board):
            asked = re.sub(r"\$(cluster|service|slo)\b", ".*", expr).replace("$__rate_interval", "1m")
            eventually(lambda asked=asked: query(asked), bool)
