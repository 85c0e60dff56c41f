"""What one tenant is answered does not depend on another tenant's data, on any route of the API."""

import re
from asyncio import run, sleep
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest
from fastapi.testclient import TestClient

import collector
from collector.api.session import TENANT_FILTERS
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND, Rows
from tests.support.keys import access_to, add_key
from tokentrail.testing import ManualClock

TRACE = f"{0xACE:032x}"
THEIR_TRACE = f"{0xB0B:032x}"
ASKED = ("", "tenant=globex&start=-30d&model=globex-model&label.team=globex-team&not.label.team=acme")
METRICS = (
    "ttft",
    "tpot",
    "itl",
    "e2e",
    "queue",
    "gap",
    "requests",
    "failed",
    "cancelled",
    "output_tokens",
    "goodput",
    "attainment",
)
PROCESS_METRICS = ("kv_evictions", "preemptions", "kv_usage", "running", "waiting")

ANSWERED = {
    "/api/v1/summary": [*ASKED, "group_by=label.team"],
    "/api/v1/goodput": [f"ttft=1s&{asked}" for asked in ASKED],
    "/api/v1/explain": [*ASKED, "slo=ours", "ttft=1ms&without=wait_kv,stall"],
    "/api/v1/compare": ["a.start=-1h&a.end=-3s&b.start=-3s", "a.model=acme-model&b.model="],
    "/api/v1/check": [*(f"slo=all&{asked}" for asked in ASKED), "slo=ours&against.start=-2h&against.end=-1h"],
    "/api/v1/differences": ["", "slo=ours&select.status=error"],
    "/api/v1/timeouts": [*ASKED, "at=1s&at=60s&kill=10%25"],
    "/api/v1/heatmap": [*ASKED, "metric=e2e&slo=ours"],
    "/api/v1/labels": ASKED,
    "/api/v1/changes": ASKED,
    "/api/v1/verdict": ("",),
    "/api/v1/slos": ASKED,
    "/api/v1/slos/all": ("",),
    "/api/v1/requests": [
        *ASKED,
        "sort=ttft",
        "request_id=globex-request",
        "status=error",
        "status=in_flight",
        "status=lost",
        "cause=kv_eviction",
        "cause=cold_start",
        "slo=all",
        "slo=ours&verdict=bad",
        "verdict=good",
    ],
    f"/api/v1/requests/{TRACE}": ("", "span_id=00000000000000aa"),
    "/api/v1/timeseries": [*(f"metric={metric}" for metric in METRICS), "metric=ttft&tenant=globex"],
    "/api/v1/incidents": ASKED,
    "/api/v1/spans": ("", "service=globex-service"),
    "/api/v1/spans/names": ("",),
}
"""Queries of a route that a tenant's key is answered. Filters reach the longest of them as they reach the others."""
REFUSED = {
    "/api/v1/cold_starts": ASKED,
    "/api/v1/engines": ASKED,
    "/api/v1/processes": ASKED,
    "/api/v1/processes/timeline": ["service=globex-service&instance=globex-instance"],
    "/api/v1/samples": ASKED,
    "/api/v1/timeseries": [f"metric={metric}" for metric in PROCESS_METRICS],
    "/api/v1/storage": ("",),
    "/api/v1/collector": ("",),
    "/metrics": ("",),
}
"""Queries that need a key for all tenants."""
OPEN = {"/healthz", "/readyz", "/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css"}
CHANGES = {"/api/v1/backup"}
"""Routes that are posted to, with an admin's key."""
UNREAD = ("payload_claims", "early_claims", "joined_segments", "explained_segments")
"""Tables of the writers, the counters, the joiner and the explainer: digests of payloads, keys of requests, names
of segments."""
HELD = ("held_requests", "held_spans")
"""Spans that wait for the rest of their requests."""

SLOS = """
slos:
  - {name: all, objective: "0.9", window: 30d, thresholds: {ttft: 600ms, e2e: 60s}}
  - {name: ours, objective: "0.9", window: 30d, select: {tenant: [acme, globex]}, thresholds: {e2e: 60s}}
  - {name: globex-only, objective: "0.9", window: 30d, select: {tenant: [globex]}, thresholds: {e2e: 60s}}
"""


def paths(queries):
    return [f"{path}?{query}" for path, each in queries.items() for query in each]


TELL_MORE = ["/api/v1/differences?", f"/api/v1/requests/{TRACE}?"]
"""An admin learns more from these also where there is one tenant. They name no tenant."""
OF_ALL = [
    path
    for path in paths({**ANSWERED, "/api/v1/goodput": ["ttft=1s&"], "/api/v1/check": ["slo=all&"]})
    if path not in TELL_MORE
    and (path.endswith(("?", "&")) or path.startswith(("/api/v1/timeseries?metric=", "/api/v1/compare?a.start")))
]
"""What an admin asks about both tenants as each asks about itself, without filters."""
NAMES_ALL = [f"/api/v1/{name}?" for name in ("explain", "verdict", "slos", "incidents")]
"""An admin learns more from these of OF_ALL, too. They name the tenants."""
OF_PROCESSES = [*TELL_MORE, *(path for path in paths(REFUSED) if "tenant=" not in path)]
"""What an admin asks before and after the other tenant's data came."""


@pytest.fixture(scope="module")
def asked(module_store, tmp_path_factory):
    """Answers before and after another tenant's data came, for 10 s of CPU. Other tests look at the same rows."""
    folder, rows = tmp_path_factory.mktemp("asked"), Rows(module_store)
    slos = folder / "slos.yaml"
    slos.write_text(SLOS)
    keys = folder / "keys.json"
    app, live = build_api(
        module_store, load_slos(slos), IngestStatus(), lost_after_s=30.0, clock=ManualClock(NOW), access=access_to(keys)
    )
    client, acme, admin = TestClient(app), add_key(keys, "read", "acme"), add_key(keys, "admin")

    def refreshed(paths):
        live.refresh()
        return answers(client, admin, paths)

    add_traffic(rows, "acme", TRACE)
    alone, before = answers(client, acme, paths(ANSWERED)), refreshed(OF_PROCESSES)
    add_traffic(rows, "globex", THEIR_TRACE)
    with_others = answers(client, acme, paths(ANSWERED))
    of_all, after = refreshed(OF_ALL), answers(client, admin, OF_PROCESSES)
    rows.request(tenant="acme", service="acme-scraped")
    process = {"service": "acme-service", "instance": "acme-instance", "variant": "acme-variant"}
    for trace, other in ((TRACE, THEIR_TRACE), (THEIR_TRACE, TRACE)):
        rows.kv_event(**process, trace_id=trace, beneficiary=other, start=NOW - 2 * SECOND)
    yield SimpleNamespace(
        client=client, keys=keys, acme=acme, admin=admin, alone=alone, with_others=with_others, of_all=of_all,
        of_processes=(before, after),
    )  # fmt: skip
    for table in ("spans", *HELD):
        module_store.client().command(f"TRUNCATE TABLE {table}")


def add_traffic(rows, tenant, trace):
    """Ended, failed and open requests with tokens and phases, and the events of the process that served them."""
    own = {
        "tenant": tenant, "model": f"{tenant}-model", "service": f"{tenant}-service", "instance": f"{tenant}-instance",
        "variant": f"{tenant}-variant", "labels": {"team": f"{tenant}-team", f"only.{tenant}": "x"},
    }  # fmt: skip
    process = {name: own[name] for name in ("service", "instance", "variant")}
    engine = {"engine": f"{tenant}-server"}
    request = rows.request(
        **own, **engine, trace_id=trace, request_id=f"{tenant}-request", queue_ns=SECOND // 4, ended=NOW - 2 * SECOND,
        gap_ns=400_000_000,
    )  # fmt: skip
    rows.tokens(request, [500_000, 100_000, 400_000])
    rows.phases(request, [("queued", SECOND // 4), ("decode", SECOND - SECOND // 4)])
    rows.causes([(request, {"ttft_busy_us": 1})])
    # A second request in the trace that both tenants share.
    shared = f"{0xACE:032x}"
    rows.request(**own, trace_id=shared, span_id=f"{len(tenant):016x}", status="error", error_type=f"{tenant}-error")
    rows.request(**own, status="cancelled", ended=NOW - 3 * SECOND)
    if tenant == "globex":
        rows.request(**own, status="error", ended=NOW - 2 * SECOND)
    rows.open(**own, start=NOW - 120 * SECOND, seen=NOW - 100 * SECOND)
    rows.open(**own, start=NOW - 20 * SECOND, seen=NOW - SECOND)
    rows.step(**process, start=NOW - SECOND, running=3, waiting=7, kv_blocks_used=len(tenant), kv_blocks_total=9)
    victim = {"trace_id": trace, "request_span_id": bytes.fromhex("00000000000000aa"), "beneficiary": THEIR_TRACE}
    rows.kv_event(**process, **victim, start=NOW - SECOND)
    rows.cold_start(**process, **engine, model=own["model"], start=NOW - 5 * SECOND, duration=4 * SECOND)
    rows.store.client().command(
        "INSERT INTO spans (start, service, name, resource) VALUES "
        f"(fromUnixTimestamp64Nano({NOW - SECOND}), '{tenant}-service', 'schedule', "
        f"{{'tokentrail.tenant': '{tenant}'}})"
    )
    for table in HELD:
        rows.store.client().command(f"INSERT INTO {table} (tenant, arrived) VALUES ('{tenant}', now())")
    scraped = {"service": f"{tenant}-scraped", "instance": f"{tenant}-instance", "engine": f"{tenant}-server"}
    times = [(n, {**scraped, "scraper": "me", "time": NOW // 10**6 - 10_000 * (6 - n)}) for n in range(6)]
    up = [{**at, "name": "up", "kind": "gauge", "series": 1, "value": 0.0} for _, at in times]
    counter = [{**at, "name": "preemptions", "kind": "counter", "series": 2, "value": float(n)} for n, at in times]
    rows.insert("samples", up + counter)
    ttft = [
        {**at, "name": "ttft", "kind": "counter", "series": 3, "value": float(n), "sum": float(n), "bounds": [1.0],
         "buckets": [n, 0]}
        for n, at in times
    ]  # fmt: skip
    rows.insert("samples", ttft)


def answers(client, headers, asked):
    found = {}
    for path in asked:
        answer = client.get(path, headers=headers)
        found[path] = (answer.status_code, answer.text)
    return found


def test_every_route_of_the_api_is_asked_here(asked):
    routes = asked.client.get("/openapi.json").json()["paths"]
    known = {*ANSWERED, *REFUSED, *OPEN, *CHANGES}

    def is_asked(route):
        return any(re.fullmatch(re.sub(r"\{[a-z_]+\}", "[^/]+", route), path) for path in known)

    assert [route for route in routes if not is_asked(route)] == []
    metrics = next(p for p in routes["/api/v1/timeseries"]["get"]["parameters"] if p["name"] == "metric")
    assert {*METRICS, *PROCESS_METRICS} == {*metrics["schema"]["enum"]}


def without_names_asked_for(path, text):
    """The answer without the names of its query, which /check and /compare say back where no request has them."""
    route, _, query = path.partition("?")
    names = [value for key, value in parse_qsl(query) if key.removeprefix("b.") in ("tenant", "model", "label.team")]
    if route not in ("/api/v1/check", "/api/v1/compare") or not names:
        return text
    return re.sub(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])", "", text)


def test_a_tenant_is_answered_as_if_it_were_alone(asked):
    assert {status for status, _ in asked.alone.values()} == {200}
    assert {path: text for path, text in asked.with_others.items() if text != asked.alone[path]} == {}
    # The client may send the other tenant's name; nothing else may bring it.
    told = {path: without_names_asked_for(path, text) for path, (_, text) in asked.with_others.items()}
    assert [path for path, text in told.items() if "globex" in text] == []


def test_all_of_these_answers_hold_the_other_tenants_data_for_an_admin(asked):
    """So the test above would see a filter that is missing."""
    assert {status for status, _ in asked.of_all.values()} == {200}
    # A new service is no change.
    assert [path for path in OF_ALL if asked.of_all[path] == asked.with_others[path]] == ["/api/v1/changes?"]
    assert [path for path in NAMES_ALL if "globex" not in asked.of_all[path][1]] == []
    before, after = asked.of_processes
    assert {status for status, _ in after.values()} == {200}
    # These rows were not received.
    assert [path for path in OF_PROCESSES if before[path] == after[path]] == ["/api/v1/collector?"]


def test_a_tenant_sees_its_own_requests(asked):
    client, acme, admin = asked.client, asked.acme, asked.admin
    assert client.get("/api/v1/summary", headers=acme).json()["requests"]["total"] == 4
    path = f"/api/v1/requests/{TRACE}?span_id=00000000000000aa"
    detail, of_all = (client.get(path, headers=key).json() for key in (acme, admin))
    assert len(detail["tokens"]) == 3
    cold_start, own, others = ("cold_start", True, ""), ("kv.evict", True, THEIR_TRACE), ("kv.evict", False, TRACE)
    events = [[(e["kind"], e["own"], e["beneficiary"]) for e in answer["events"]] for answer in (detail, of_all)]
    assert [sorted(of_one) for of_one in events] == [[cold_start, (*own[:2], "")], [cold_start, others, own]]
    assert [answer["events_total"] for answer in (detail, of_all)] == [2, 3]
    assert [answer["steps_total"] for answer in (detail, of_all)] == [None, len(of_all["steps"])]
    assert (detail["steps"], detail["interference"]) == (None, None)


def test_incidents_of_processes_need_a_key_for_all_tenants_also_when_samples_show_them(asked):
    found = {
        name: {i["title"] for i in asked.client.get("/api/v1/incidents?tenant=acme", headers=key).json()["incidents"]}
        for name, key in (("acme", asked.acme), ("admin", asked.admin))
    }
    of_samples = {title for title in found["admin"] if title.startswith("acme-scraped")}
    assert len(of_samples) == 2, "an outage and preemptions"
    assert not found["acme"] & of_samples


def test_another_tenants_trace_does_not_exist(asked):
    assert asked.client.get(f"/api/v1/requests/{THEIR_TRACE}", headers=asked.acme).status_code == 404
    assert asked.client.get(f"/api/v1/requests/{THEIR_TRACE}", headers=asked.admin).status_code == 200


def test_an_slo_of_another_tenant_does_not_exist(asked):
    client, acme = asked.client, asked.acme
    assert [slo["name"] for slo in client.get("/api/v1/slos", headers=acme).json()["slos"]] == ["all", "ours"]
    assert client.get("/api/v1/slos/ours", headers=acme).json()["select"] == {
        "tenant": ["acme"],
        "vantage": ["server"],
    }
    missing = client.get("/api/v1/slos/globex-only", headers=acme)
    assert missing.status_code == 404
    assert "there are: all, ours" in missing.json()["detail"]


@pytest.mark.parametrize("path", paths(REFUSED))
def test_engine_processes_need_a_key_for_all_tenants(asked, path):
    answer = asked.client.get(path, headers=asked.acme)
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("spelling", ["{}%0A", "{}/", "/{}"])
@pytest.mark.parametrize("path", sorted(REFUSED.keys() - ANSWERED))
def test_no_other_spelling_of_a_path_is_answered(asked, path, spelling):
    answer = asked.client.get(spelling.format(path), headers=asked.acme, follow_redirects=True)
    assert answer.status_code in (403, 404)


@pytest.mark.parametrize("path", sorted({*chain(ANSWERED, REFUSED)}))
def test_no_route_answers_without_a_reading_key(asked, tmp_path, path):
    without = asked.client.get(path)
    assert without.status_code == 401
    assert without.headers["www-authenticate"].startswith("Bearer")
    assert without.headers["content-type"] == "application/problem+json"
    assert asked.client.get(path, headers=add_key(tmp_path / "other.json", "admin")).status_code == 401
    ingest = add_key(asked.keys, "ingest", "acme")
    assert asked.client.get(path, headers=ingest).status_code == 403


@pytest.mark.parametrize("path", ["/static-offline-docs/../metrics", "/static-offline-docs//metrics"])
def test_the_assets_of_the_page_lead_nowhere_else(asked, path):
    async def ask():
        sent = []
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        await asked.client.app(scope, None, lambda message: sent.append(message) or sleep(0))
        return sent[0]["status"]

    assert run(ask()) == 404


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_a_change_needs_an_admins_key(asked, path):
    assert asked.client.post(path).status_code == 401
    assert asked.client.post(path, headers=asked.acme).status_code == 403


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_and_the_description_of_the_api_need_no_key(asked, path):
    assert asked.client.get(path).status_code in (200, 503)
    assert "www-authenticate" not in asked.client.get(path).headers


def test_every_table_is_hidden_or_has_no_tenant(module_store):
    """A new table needs a decision: a filter in TENANT_FILTERS, or a reason why it has no tenant."""
    without_tenant = {
        "tokens": "read by the ids of requests",
        "phases": "read by the ids of requests",
        **dict.fromkeys(UNREAD, "no query of the API reads it"),
        "schema_version": "the collector's own",
    }
    sql = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    tables = {name for (name,) in module_store.query(sql).result_rows}
    assert tables == {*TENANT_FILTERS, *without_tenant}


@pytest.mark.parametrize("table", UNREAD)
def test_no_query_of_the_api_names_a_table_that_only_writers_read(table):
    package = Path(collector.__file__).parent
    files = [
        path
        for room in ("api", "ask", "count", "numbers", "engines", "causes/answer", "compare", "incidents")
        for path in (package / room).rglob("*.*")
    ]
    files = [path for path in files if path.suffix in (".py", ".sql")]
    assert len(files) > 50
    assert [path.name for path in files if table in path.read_text()] == []


def test_the_store_hides_other_tenants_from_a_query_that_forgets_the_filter(module_store, asked):
    from collector.access.caller import Caller, Role
    from collector.api.session import QueryLimits, Session

    module_store.client().command("INSERT INTO spans (start, resource) VALUES (now(), {})")
    for table, column in (("samples", "time"), ("step_models", "at"), ("steps", "start")):
        for process_tenant in ("globex", "acme"):
            values = f"(now() - INTERVAL 1 YEAR, '{process_tenant}')"
            module_store.client().command(f"INSERT INTO {table} ({column}, process_tenant) VALUES {values}")
    settings = Session(Caller("k", Role.READ, "acme"), QueryLimits()).query_settings()
    counts = {
        table: module_store.query(f"SELECT count() FROM {table}", settings=settings).result_rows[0][0]
        for table in TENANT_FILTERS
    }
    assert counts == {
        "requests": 4, "open_requests": 6, "spans": 1, "held_requests": 1, "held_spans": 1, "causes": 1,
        # Two steps, four KV events, two cold starts and 36 samples are of processes of all tenants.
        "steps": 3, "kv_events": 4, "cold_starts": 2, "step_models": 1, "samples": 37,
    }  # fmt: skip
