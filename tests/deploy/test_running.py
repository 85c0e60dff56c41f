"""The compose file, run by a container engine: `make test-compose`. Building its images takes minutes."""

import asyncio
import os
import subprocess
import time

import httpx
import pytest

from tests.deploy.test_compose import ROOT, compose_command
from tests.e2e.support import settled
from tokentrail.cli.api import Api
from tokentrail.load import CHAT, poisson, run
from tokentrail.load.compare import compare

SERVICES = os.environ.get("COMPOSE_TEST", "").split()
"""Services that are started with all that they need; none when the tests are not asked for."""
OURS = ("collector", "engine", "dashboard")
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
        self.command = [*command, "--project-name", "tokentrail-test"]

    def __call__(self, *arguments):
        done = subprocess.run([*self.command, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-1000:]}{done.stderr[-4000:]}"
        return done.stdout

    def states(self):
        """Of each service that was started: its status, its exit code, and its health."""
        of = "{{.State.Status}} {{.State.ExitCode}} {{.State.Health.Status}}"
        asked = {service: self("ps", "--all", "--quiet", service).strip() for service in SERVICES}
        inspect = ["docker", "inspect", "--format", of, *asked.values()]
        lines = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.splitlines()
        return {service: tuple(line.split()) for service, line in zip(asked, lines, strict=True)}

    def until_healthy(self):
        until(lambda: {health for *_, health in self.states().values()} == {"healthy"}, self.states, READY_S)


@pytest.fixture(scope="module")
def stack():
    stack = Stack(compose_command() or pytest.fail("neither `docker compose` nor `docker-compose` is installed"))
    stack("down", "--volumes", "--remove-orphans")
    try:
        stack("up", "--detach", *os.environ.get("COMPOSE_TEST_UP", "--build").split(), *SERVICES)
        stack.until_healthy()
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


def test_the_collectors_container_has_the_command_line(stack):
    assert stack("exec", "-T", "collector", "tokentrail", "requests").count("\n") > 1
    assert stack("exec", "-T", "collector", "tokentrail", "dead-letters", "list").strip() == "no dead letters"
    made = stack("exec", "-T", "collector", "tokentrail", "keys", "create", "--role", "read", "--all-tenants")
    assert made.startswith("tokentrail_")


def test_our_services_end_when_they_are_told_to(stack):
    stack("stop")
    ended = {service: code for service, (_, code, _) in stack.states().items() if service in OURS}
    assert ended == dict.fromkeys(OURS, "0")
