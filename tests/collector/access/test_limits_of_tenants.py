"""A limit of an answer counts the caller's own rows: another tenant above it switches nothing off."""

import sys

import pytest
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND
from tests.support.keys import access_to, add_key
from tokentrail.testing import ManualClock

OWN, OTHERS = 3, 5
"""Rows of each kind that the caller has, and another tenant."""
LIMITS = {
    "MOST_CHOSEN", "MOST_EVENTS", "MOST_FOUND", "MOST_JUDGED", "MOST_KINDS", "MOST_LABELS", "MOST_NAMES",
    "MOST_OF_A_KIND", "MOST_OF_A_TRACE", "MOST_REQUESTS", "MOST_ROWS", "MOST_STEPS", "MOST_TYPICAL", "_MOST_EVENTS",
    "_MOST_GROUPS", "_MOST_INFLICTERS", "_MOST_LABELS", "_MOST_MODELS", "_MOST_PROCESSES", "_MOST_ROWS", "_MOST_VALUES",
}  # fmt: skip
"""Constants of `ROOMS` that bound what an answer reads or lists of the store."""
ROOMS = tuple(
    f"collector.{room}."
    for room in ("count", "numbers", "timeouts", "causes.answer", "compare", "engines", "incidents", "api")
)
TRACE = f"{0xACE:032x}"
SLOS = """
slos:
  - {name: all, objective: "0.9", window: 30d, thresholds: {ttft: 600ms, e2e: 900ms}}
"""
EXPLAIN = "explain?ttft=100ms"
PATHS = (
    "differences", EXPLAIN, "incidents", f"requests/{TRACE}", "requests?status=lost", "labels", "spans/names",
    "timeouts", "verdict",
)  # fmt: skip


@pytest.fixture
def low(monkeypatch):
    """All limits are as many as the caller's own rows."""
    patched = set()
    for name, module in [*sys.modules.items()]:
        if name.startswith(ROOMS):
            for limit in LIMITS & vars(module).keys():
                monkeypatch.setattr(module, limit, OWN + 1)
                patched.add(limit)
    assert patched == LIMITS


def add_rows(rows, tenant, n, *, ago):
    """Slow requests that lost KV blocks and waited for prompts, each at a process and with a model of its own."""
    explained = []
    for i in range(n):
        process = {"service": f"{tenant}-{i}", "instance": "i", "process_tenant": tenant, "variant": f"{tenant}-{i}"}
        request = rows.request(
            **process, tenant=tenant, model=f"{tenant}-{i}", ended=NOW - ago * SECOND - i * SECOND // 10,
            trace_id=TRACE if not i else f"{len(tenant) * 1000 + i:032x}", span_id=f"{len(tenant) * 1000 + i:016x}",
            status="error" if i % 2 else "ok", error_type=f"{tenant}-{i}" if i % 2 else "",
            labels={f"{tenant}{i}": "x"}, request_id=f"{tenant}-{i}",
        )  # fmt: skip
        explained.append((request, {"rest_preempted_us": 300_000, "inflicted_us": 1000, "level": "steps"}))
        began = {"start": request["end"] - SECOND // 2}
        rows.step(**process, **began, running=i, kv_blocks_used=i, kv_blocks_total=9)
        ids = {"trace_id": request["trace_id"], "request_span_id": bytes.fromhex(request["span_id"])}
        rows.kv_event(**process, **began, **ids, beneficiary=TRACE)
        rows.cold_start(**process, start=began["start"], duration=SECOND, model="m")
        rows.open(**process, tenant=tenant, start=NOW - 120 * SECOND, seen=NOW - 100 * SECOND)
        resource = f"{{'tokentrail.tenant': '{tenant}'}}"
        values = f"(fromUnixTimestamp64Nano({began['start']}), 's', 'span of {tenant} {i}', {resource})"
        rows.store.client().command(f"INSERT INTO spans (start, service, name, resource) VALUES {values}")
    good = rows.request(
        tenant=tenant, model=f"{tenant}-0", ttft_ns=SECOND // 20, e2e_ns=SECOND // 10, ended=NOW - ago * SECOND
    )
    rows.causes([*explained, (good, {"level": "steps"})])


def test_another_tenant_above_each_limit_changes_no_answer(low, rows, tmp_path):
    (tmp_path / "slos.yaml").write_text(SLOS)
    keys, slos = tmp_path / "keys.json", load_slos(tmp_path / "slos.yaml")
    access, clock = access_to(keys), ManualClock(NOW)
    app, _ = build_api(rows.store, slos, IngestStatus(), lost_after_s=30.0, clock=clock, access=access)
    client, acme, admin = TestClient(app), add_key(keys, "read", "acme"), add_key(keys, "admin")

    def answers(headers):
        found = {path: client.get(f"/api/v1/{path}", headers=headers) for path in PATHS}
        assert {path: answer.text for path, answer in found.items() if answer.status_code != 200} == {}
        return {path: answer.json() for path, answer in found.items()}

    add_rows(rows, "acme", OWN, ago=2)
    alone = answers(acme)
    add_rows(rows, "globex", OTHERS, ago=1)
    beside, of_all = answers(acme), client.get("/api/v1/differences", headers=admin).json()
    assert {path: answer for path, answer in beside.items() if answer != alone[path]} == {}
    assert alone["differences"]["not_asked"] == []
    assert of_all["not_asked"] != [], "the limits are so low that the others are above them"
    (lost,) = [one for one in alone[EXPLAIN]["parts"] if one["cause"] == "preempted"]
    assert [one["trace_id"] for one in lost["culprits"]] == [TRACE]
