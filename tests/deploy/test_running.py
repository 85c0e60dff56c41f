"""The compose file, run by a container engine: `make test-compose`. Building its images takes minutes."""

import asyncio
import os
import subprocess
import time

import httpx
import pytest

from tests.dashboard.browser import browsing, chromium
from tests.dashboard.browser import settled as settled_page
from tests.deploy.test_compose import ROOT, compose_command
from tests.e2e.support import settled
from tokentrail.cli.api import Api
from tokentrail.load import CHAT, poisson, run
from tokentrail.load.compare import compare

SERVICES = os.environ.get("COMPOSE_TEST", "").split()
"""Services that are started with all that they need; none when the tests are not asked for."""
OURS = ("collector", "engine", "dashboard")
PROJECT = "tokentrail-test"
READY_S = 1800
MODEL = "smollm2-135m-instruct"

pytestmark = pytest.mark.skipif(not SERVICES, reason="make test-compose runs it")


def until(true, reason, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"after {timeout_s} s: {reason()}"
        time.sleep(1)


class Stack:
    """The containers of a project of its own, with empty volumes."""

    def __init__(self, command):
        self.command = [*command, "--project-name", PROJECT]

    def __call__(self, *arguments):
        done = subprocess.run([*self.command, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-1000:]}{done.stderr[-4000:]}"
        return done.stdout

    def states(self):
        """Of each service that was started: its status, its exit code, and its health."""
        found = ["docker", "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}"]
        ids = subprocess.run(found, capture_output=True, text=True, check=True).stdout.split()
        of = '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}} '
        inspect = ["docker", "inspect", "--format", of + "{{.State.Health.Status}}", *ids]
        lines = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.splitlines()
        return {service: state for service, *state in (line.split() for line in lines) if service in SERVICES}

    def until_healthy(self):
        def all_are() -> bool:
            states = self.states()
            return states.keys() == {*SERVICES} and {health for *_, health in states.values()} == {"healthy"}

        until(all_are, self.states, READY_S)


@pytest.fixture(scope="module")
def stack():
    stack = Stack(compose_command() or pytest.fail("neither `docker compose` nor `docker-compose` is installed"))
    stack("down", "--volumes", "--remove-orphans")
    try:
        began = time.monotonic()
        stack("up", "--detach", *os.environ.get("COMPOSE_TEST_UP", "--build").split(), *SERVICES)
        print(f"\ncreated after {time.monotonic() - began:.0f} s")
        stack.until_healthy()
        print(f"all healthy after {time.monotonic() - began:.0f} s")
        yield stack
    finally:
        stack("down", "--volumes")


@pytest.fixture(scope="module")
def api():
    api = Api("http://127.0.0.1:8080")
    yield api
    api.close()


def asked(seed):
    """What clients observe of a few requests."""
    seen = []
    plan = [*poisson({CHAT: 1.0}, seconds=8, seed=seed)]
    asyncio.run(run("http://127.0.0.1:8000", MODEL, plan, on_observation=seen.append))
    assert [o.status for o in seen] == ["ok"] * len(plan), [o.error for o in seen]
    return seen


def compared(api, seen, began):
    return compare(seen, settled(api, {o.request_id for o in seen}, since=began))


@pytest.mark.timeout(2 * READY_S)
def test_a_healthy_stack_answers_at_once_and_clients_and_collector_agree(stack, api):
    began = time.time()
    seen = asked(seed=1)
    found = compared(api, seen, began)
    assert (found.matched, found.problems(median_s=10)) == (len(seen), [])
    # The engine is healthy when it can serve: nobody waits for a model that loads.
    for row in api.requests(start=began):
        assert "cold_start" not in [phase["name"] for phase in api.request(row["trace_id"])["phases"]]


def test_a_request_is_judged_and_its_page_shows_it(stack, api):
    began = time.monotonic()
    asked(seed=3)
    judged = [row for row in api.requests() if row["verdicts"]]
    assert {one["slo"] for row in judged for one in row["verdicts"]} >= {"all"}
    print(f"\na request judged after {time.monotonic() - began:.0f} s, 8 s of load among them")
    if "dashboard" not in SERVICES or not chromium():
        pytest.skip("the dashboard or a browser is missing")
    with browsing() as browser:
        page = browser.new_page()
        page.set_default_timeout(240_000)
        page.goto(f"http://127.0.0.1:8501/request?trace_id={judged[0]['trace_id']}")
        settled_page(page)
        assert judged[0]["request_id"] in page.content()
    print(f"its page drawn after {time.monotonic() - began:.0f} s")


def test_nothing_is_lost_when_the_store_is_away_and_when_the_collector_is_killed(stack, api):
    began = time.time()
    stack("stop", "clickhouse")
    seen = asked(seed=2)
    until(lambda: api.ready().status_code == 503, lambda: api.ready().text)
    stack("kill", "--signal", "SIGKILL", "collector")
    stack("start", "clickhouse")
    stack("start", "collector")
    stack.until_healthy()
    found = compared(api, seen, began)
    assert (found.matched, found.wrong) == (len(seen), [])
    assert len(api.requests(start=began)) == len(seen)


def test_prometheus_scrapes_all_and_evaluates_every_rule(stack):
    if "prometheus" not in SERVICES:
        pytest.skip("prometheus is not among the services")
    with httpx.Client(base_url="http://127.0.0.1:9090/api/v1/") as prometheus:

        def targets():
            found = prometheus.get("targets").json()["data"]["activeTargets"]
            return {target["scrapeUrl"]: target["health"] for target in found}

        until(lambda: set(targets().values()) == {"up"}, targets)
        assert targets().keys() == {"http://collector:8080/metrics", "http://engine:8000/metrics"}

        def rules():
            return [rule for group in prometheus.get("rules").json()["data"]["groups"] for rule in group["rules"]]

        until(lambda: not [rule for rule in rules() if rule["health"] == "unknown"], rules)
        assert [rule for rule in rules() if rule["health"] != "ok"] == []
        alertmanagers = prometheus.get("alertmanagers").json()["data"]["activeAlertmanagers"]
    assert [one["url"] for one in alertmanagers] == ["http://alertmanager:9093/api/v2/alerts"]


def test_an_engine_that_is_killed_pages_somebody_until_it_is_back(stack):
    if not {"prometheus", "engine"} <= {*SERVICES}:
        pytest.skip("prometheus or the engine is not among the services")
    with httpx.Client(base_url="http://127.0.0.1:9093/api/v2/") as alertmanager:

        def pages():
            found = alertmanager.get("alerts", params={"receiver": "page", "active": "true"}).json()
            return {alert["labels"]["alertname"] for alert in found}

        assert "TokentrailEngineDown" not in pages()
        stack("stop", "engine")
        began = time.monotonic()
        until(lambda: "TokentrailEngineDown" in pages(), pages, 300)
        print(f"\npaged {time.monotonic() - began:.0f} s after the engine had stopped")
        stack("start", "engine")
        stack.until_healthy()
        until(lambda: "TokentrailEngineDown" not in pages(), pages, 600)


def test_the_collectors_container_has_the_command_line(stack):
    assert stack("exec", "-T", "collector", "tokentrail", "requests").count("\n") > 1
    assert stack("exec", "-T", "collector", "tokentrail", "dead-letters", "list").strip() == "no dead letters"
    made = stack("exec", "-T", "collector", "tokentrail", "keys", "create", "--role", "read", "--all-tenants")
    assert made.startswith("tokentrail_")


def test_our_services_end_when_they_are_told_to(stack):
    stack("stop")
    ended = {service: code for service, (_, code, _) in stack.states().items() if service in OURS}
    by_sigterm = "143"  # as its web server ends when it has closed its connections; 137 would be a kill
    assert ended == {**dict.fromkeys(OURS, "0"), "dashboard": by_sigterm}
