"""A real Alertmanager with the shipped configuration: which alerts keep others silent, and within which cluster."""

import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tokentrail.cli.processes import free_port

CONFIG = Path(__file__).parents[2] / "alerts" / "alertmanager.yml"
BURN = {"alertname": "TokentrailSloBurn", "severity": "page", "slo": "chat", "cluster": "a"}
TICKET = BURN | {"severity": "ticket"}
LOST = {"alertname": "TokentrailEngineLost", "severity": "page", "cluster": "a"}
DOWN = {"alertname": "TokentrailCollectorDown", "severity": "page", "cluster": "a"}
UNWATCHED = {"alertname": "TokentrailSloUnwatched", "severity": "ticket", "slo": "chat", "cluster": "a"}


@pytest.fixture
def alertmanager(tmp_path):
    if shutil.which("prometheus-alertmanager") is None:
        pytest.skip("prometheus-alertmanager is not installed")
    port = free_port(0)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus-alertmanager", f"--config.file={CONFIG}", f"--storage.path={tmp_path}/data",
             f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="], stdout=log, stderr=log,
        )  # fmt: skip
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v2", trust_env=False)
    deadline = time.monotonic() + 120
    while True:
        try:
            client.get("/status").raise_for_status()
            break
        except httpx.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield client
    process.terminate()
    process.wait(120)


def test_an_alert_is_silent_only_while_its_cause_fires_in_the_same_cluster(alertmanager):
    now = datetime.now(UTC)

    def send(*alerts, minutes=10):
        ends = (now + timedelta(minutes=minutes)).isoformat()
        body = [
            {"labels": labels, "startsAt": (now - timedelta(minutes=30)).isoformat(), "endsAt": ends}
            for labels in alerts
        ]
        alertmanager.post("/alerts", json=body).raise_for_status()

    def silent(labels):
        """Whether it is inhibited, as soon as Alertmanager knows of all that was sent."""
        deadline = time.monotonic() + 120
        while True:
            found = alertmanager.get("/alerts").raise_for_status().json()
            mine = [alert for alert in found if alert["labels"] == labels]
            if mine:
                return bool(mine[0]["status"]["inhibitedBy"])
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def eventually_silent(labels, wanted):
        deadline = time.monotonic() + 120
        while silent(labels) != wanted:
            assert time.monotonic() < deadline, labels
            time.sleep(0.05)

    elsewhere = {**TICKET, "cluster": "b"}, {**TICKET, "slo": "other"}
    forecast = {"alertname": "TokentrailBudgetForecast", "severity": "ticket", "slo": "chat", "cluster": "a"}
    send(TICKET, forecast, UNWATCHED, *elsewhere)
    assert not any(silent(alert) for alert in (TICKET, forecast, UNWATCHED, *elsewhere))
    send(BURN)
    for alert in (TICKET, forecast):
        eventually_silent(alert, True)
    assert not any(silent(alert) for alert in (BURN, UNWATCHED, *elsewhere))
    of_tenant, of_other = ({**BURN, "slo": slo, "tenant": "t"} for slo in ("each", "other"))
    send(of_tenant, of_other, {**TICKET, "slo": "each", "groups": "all"})
    assert not any(silent(alert) for alert in (of_tenant, of_other))
    send({**BURN, "slo": "each", "groups": "all"})
    eventually_silent(of_tenant, True)
    eventually_silent({**TICKET, "slo": "each", "groups": "all"}, True)
    assert not silent(of_other)
    send(LOST, {**LOST, "alertname": "TokentrailEngineHung"}, DOWN)
    eventually_silent(UNWATCHED, True)
    # One engine of many does not explain what users of the others see.
    assert not any(silent(alert) for alert in (BURN, LOST, DOWN))
    full = {
        "alertname": "TokentrailDiskNearlyFull",
        "severity": "page",
        "cluster": "a",
        "disk": "default",
        "path": "/d",
    }
    fills = full | {"alertname": "TokentrailDiskFills", "severity": "ticket"}
    others = {**fills, "path": "/e"}, {**fills, "host": "ch-2"}, {**fills, "cluster": "b"}
    logs = [{"alertname": "TokentrailDiskFills", "severity": "ticket", "cluster": "a", "instance": i} for i in "ab"]
    send(full, fills, *others, *logs, logs[0] | {"alertname": full["alertname"], "severity": "page"})
    for alert in (fills, logs[0]):
        eventually_silent(alert, True)
    assert not any(silent(alert) for alert in (full, *others, logs[1]))
    send(DOWN, minutes=-1)
    eventually_silent(UNWATCHED, False)
