"""Processes of two tenants under one name are two, in every answer and in every judgement by their steps."""

import pytest

from collector.ask.queries import Queries
from collector.base.process import Process, by_turns
from collector.count.in_flight import read_in_flight
from collector.sql.fragment import TRUE
from tests.collector.rows import NOW, SECOND

pytestmark = pytest.mark.usefixtures("no_evaluation")

ACME, BOLT, ALL = ({"process_tenant": tenant} for tenant in ("acme", "bolt", ""))
T0 = NOW - 60 * SECOND


def owners(found):
    return [one["process_tenant"] for one in found]


@pytest.fixture
def hung(rows):
    """Requests of bolt's process and of one of all tenants with its name, of which neither ran a step for a minute."""
    for owner in (BOLT, ALL):
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, tenant="bolt", **owner)
        rows.step(start=NOW - 80 * SECOND, kv_blocks_used=99, kv_blocks_total=100, running=7, **owner)
    return rows


def stuck(rows):
    asked = {"start_ns": NOW - 900 * SECOND, "end_ns": NOW, "heard_until_ns": NOW}
    found = read_in_flight(Queries(rows.store), TRUE, lost_after_ns=30 * SECOND, **asked)
    return {process.process_tenant for process in found.count_by_process(found.no_progress)}


def test_no_step_of_another_tenant_is_progress(hung):
    assert stuck(hung) == {"bolt", ""}
    hung.step(start=NOW - SECOND, **ACME)
    assert stuck(hung) == {"bolt", ""}


def test_a_step_of_its_own_tenant_is_progress_of_its_process_alone(hung):
    hung.step(start=NOW - SECOND, **BOLT)
    assert stuck(hung) == {""}


def test_a_step_of_a_process_of_all_tenants_is_progress_of_a_tenants_requests_too(hung):
    hung.step(start=NOW - SECOND, **ALL)
    assert stuck(hung) == set()


def test_metrics_keep_them_apart(hung, scrape):
    hung.step(start=NOW - SECOND, kv_blocks_used=1, kv_blocks_total=100, running=1, **ACME)
    found = scrape()

    def of(metric):
        return {
            next((label.partition("=")[2] for label in labels if label.startswith("process_tenant=")), ""): n
            for (name, *labels), n in found.items()
            if name == f"tokentrail_{metric}"
        }

    assert of("requests_stuck") == {"acme": 0, "bolt": 1, "": 1}
    assert of("requests_in_flight") == {"acme": 0, "bolt": 1, "": 1}
    assert of("kv_usage_ratio") == {"acme": 0.01, "bolt": 0.99, "": 0.99}
    assert of("requests_running") == {"acme": 1, "bolt": 7, "": 7}


def test_counters_keep_them_apart(rows, arrive, scrape, clock):
    segment = arrive(*({"tenant": "shared", **owner} for owner in (ACME, ACME, BOLT)))
    rows.kv_event(start=NOW - SECOND, segment=segment, **ACME)
    rows.cold_start(start=NOW - 9 * SECOND, duration=2 * SECOND, segment=segment, **BOLT)
    for _ in range(3):
        rows.open(start=NOW - SECOND, seen=NOW, tenant="shared", **ACME)
    scrape()
    clock.now += 60 * SECOND
    found = scrape()

    def of(name, tenant, *labels):
        wanted = {f"process_tenant={tenant}", *labels}
        return [n for (metric, *own), n in found.items() if metric == f"tokentrail_{name}" and wanted <= {*own}]

    assert [of("requests_total", tenant, "status=ok") for tenant in ("acme", "bolt")] == [[2], [1]]
    assert [of("preemptions_total", tenant) for tenant in ("acme", "bolt")] == [[1], [0]]
    assert [of("cold_starts_total", tenant) for tenant in ("acme", "bolt")] == [[0], [1]]
    assert [of("requests_lost_total", tenant) for tenant in ("acme", "bolt")] == [[3], [0]]


def test_clocks_are_told_apart(arrive, scrape):
    arrive({"ended": NOW + 90 * SECOND, **ACME}, {"ended": NOW, **BOLT})
    ahead = [key for key in scrape() if key[0] == "tokentrail_clock_ahead_seconds"]
    assert ahead == [("tokentrail_clock_ahead_seconds", "process_tenant=acme", "service_name=engine")]


@pytest.fixture
def both(rows):
    """Two processes of one name: all that rows can tell of acme's, and less of bolt's."""
    for n, owner in ((3, ACME), (1, BOLT)):
        for _ in range(n):
            rows.request(
                tenant=owner["process_tenant"], cold_start_ns=SECOND, ended=T0 + 9 * SECOND, e2e=8 * SECOND, **owner
            )
        rows.step(start=T0, running=n, kv_blocks_used=n, kv_blocks_total=10, **owner)
        rows.cold_start(start=T0, duration=9 * SECOND, **owner)
        rows.open(start=T0, seen=NOW - 50 * SECOND, **owner)
        for second in range(n):
            rows.kv_event(start=T0 + second * SECOND, **owner)
    return rows


def test_processes_beyond_the_most_leave_each_tenant_some(rows, api):
    """A tenant with hundreds of newer processes does not hide another's one."""
    rows.requests([{"instance": f"i-{n}", "ended": NOW - n * 10**7, **ACME} for n in range(1, 321)])
    rows.request(ended=NOW - 60 * SECOND, **BOLT)
    answer = api("processes")
    assert (answer["processes_total"], len(answer["processes"])) == (321, 300)
    assert owners(answer["processes"])[298:] == ["acme", "bolt"], "in the order of all"


def test_cold_starts_beyond_the_most_leave_each_tenant_some(rows, api):
    for n in range(4):
        rows.cold_start(start=T0 + n * SECOND, duration=SECOND, instance=f"i-{n}", **ACME)
    rows.cold_start(start=T0 - SECOND, duration=SECOND, **BOLT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collector.engines.cold_starts.MOST_COLD_STARTS", 3)
        found = api("cold_starts", start="-3h")["cold_starts"]
    assert owners(found) == ["acme", "acme", "bolt"]


def test_answers_about_processes_keep_them_apart(both, api):
    caches = api("processes")["processes"]
    found = {(c["process_tenant"], c["running"], c["preemptions"]) for c in caches}
    assert found == {("acme", 3, 3), ("bolt", 1, 1)}
    engines = api("engines")["engines"]
    assert {e["process_tenant"]: (e["requests"], e["processes_total"]) for e in engines} == {
        "acme": (3, 1),
        "bolt": (1, 1),
    }
    assert sorted(owners(api("cold_starts")["cold_starts"])) == ["acme", "bolt"]
    assert owners(api("processes", tenant="bolt")["processes"]) == ["bolt"]
    running = [point["value"] for point in api("timeseries", metric="running", step="1h")["points"]]
    assert [value for value in running if value is not None] == [4], "a sum over two processes, and no maximum of one"


def test_incidents_keep_them_apart(both, api):
    found = {(i["cause"], i["process_tenant"]): i for i in api("incidents")["incidents"]}
    assert found.keys() == {(c, t) for c in ("engine_lost", "kv_eviction", "cold_start") for t in ("acme", "bolt")}
    assert [found["cold_start", tenant]["requests_affected"] for tenant in ("acme", "bolt")] == [3, 1]
    assert found["kv_eviction", "bolt"]["title"].startswith("engine i-1 of bolt takes ")
    for (_, tenant), incident in found.items():
        for behind in incident["requests"]:
            rows = api("requests", **behind["parameters"])
            assert rows["total"] == behind["total"]
            assert {*owners(rows["requests"])} == {tenant}


def test_a_list_of_requests_can_ask_for_processes_of_all_tenants(both, api):
    both.request()
    assert owners(api("requests", process_tenant="")["requests"]) == [""]
    assert owners(api("requests", process_tenant="bolt", service="engine")["requests"]) == ["bolt"]
    assert len(api("requests")["requests"]) == 5


@pytest.mark.parametrize(
    ("owner", "steps", "events"), [(BOLT, [1, 2], [10, 20]), (ACME, [0, 2], [0, 20]), (ALL, [2], [20])]
)
def test_a_request_has_steps_and_events_of_its_own_process_and_of_one_of_all_tenants(rows, api, owner, steps, events):
    request = rows.request(ended=NOW - SECOND, e2e=9 * SECOND, **owner)
    for n, other in enumerate((ACME, BOLT, ALL)):
        rows.step(start=NOW - 5 * SECOND + n, step=n, **other)
        rows.kv_event(start=NOW - 5 * SECOND + n, blocks=10 * n, **other)
    trail = api(f"requests/{request['trace_id']}")
    assert trail["request"]["process_tenant"] == owner["process_tenant"]
    assert [step["step"] for step in trail["steps"]] == steps
    assert [event["blocks"] for event in trail["events"]] == events
    assert (trail["steps_total"], trail["events_total"]) == (len(steps), len(events))


def sampled(rows, owner, instance="i:1", *, name="running", kind="gauge", at=NOW - SECOND, value=1.0, **fields):
    row = {"service": "engine", "instance": instance, "engine": "vllm", "name": name, "kind": kind, "time": at // 10**6}
    rows.insert("samples", [row | {"value": value, **owner} | fields])


def test_samples_keep_them_apart(rows, api, scrape, live):
    for owner, n in ((ACME, 5), (BOLT, 2)):
        sampled(rows, owner, value=float(n))
        for at, count in ((NOW - 20 * SECOND, 0), (NOW - SECOND, n)):
            sampled(rows, owner, at=at, value=float(count), kind="counter", name="preemptions")
    assert {p["process_tenant"]: p["values"]["running"] for p in api("samples")["processes"]} == {"acme": 5, "bolt": 2}
    assert {e["process_tenant"]: e["preemptions"] for e in api("processes")["processes"]} == {"acme": 5, "bolt": 2}
    incidents = api("incidents")["incidents"]
    assert {i["process_tenant"]: i["requests_affected"] for i in incidents} == {"acme": 5, "bolt": 2}
    live.on_samples("segment")
    running = {key: n for key, n in scrape().items() if key[0] == "tokentrail_engine_requests_running"}
    assert {next(label for label in key if "tenant" in label): n for key, n in running.items()} == {
        "process_tenant=acme": 5, "process_tenant=bolt": 2,
    }  # fmt: skip


def test_steps_of_a_tenant_do_not_stand_in_for_samples_of_others(rows, api):
    for owner in (BOLT, ALL):
        sampled(rows, owner)
    rows.step(start=NOW - SECOND, running=9, **ACME)
    found = {(e["process_tenant"], e["running"]) for e in api("processes")["processes"]}
    assert found == {("acme", 9), ("bolt", 1), ("", 1)}
    assert {e["process_tenant"] for e in api("engines")["engines"]} == {"acme", "bolt", ""}
    rows.step(start=NOW - SECOND, running=9, **BOLT)
    found = {(e["process_tenant"], e["running"]) for e in api("processes")["processes"]}
    assert found == {("acme", 9), ("bolt", 9), ("", 1)}


def test_outages_and_standstills_keep_them_apart(rows, api):
    for n in range(8):
        at = NOW - (80 - 10 * n) * SECOND
        sampled(rows, ACME, name="up", at=at, scraper="a", value=1.0)
        sampled(rows, BOLT, name="up", at=at, scraper="a", value=0.0)
        for owner, tokens in ((ACME, n), (BOLT, 0)):
            sampled(rows, owner, "i:2", at=at, scraper="a", series=1, value=1.0)
            sampled(
                rows,
                owner,
                "i:2",
                at=at,
                scraper="a",
                series=2,
                name="generation_tokens",
                kind="counter",
                value=float(tokens),
            )
    found = {(i["cause"], i["process_tenant"]) for i in api("incidents")["incidents"]}
    assert found == {("engine_lost", "bolt"), ("engine_hung", "bolt")}


def test_a_process_of_all_tenants_is_shown_where_a_tenants_own_process_has_matching_requests(rows, api):
    rows.request(model="wanted", **ACME)
    for owner in (ACME, BOLT, ALL):
        rows.step(start=NOW - SECOND, **owner)
    for owner in (BOLT, ALL):
        sampled(rows, owner, "i:1")
    assert sorted(owners(api("processes", model="wanted")["processes"])) == ["", "acme"]
    assert owners(api("samples", model="wanted")["processes"]) == [""]


def test_tenants_take_turns():
    found = [("acme", n) for n in range(4)] + [("bolt", 0), ("", 9), ("bolt", 1)]
    assert by_turns(found, lambda one: one[0]) == [
        ("", 9), ("acme", 0), ("bolt", 0), ("acme", 1), ("bolt", 1), ("acme", 2), ("acme", 3),
    ]  # fmt: skip


def test_a_process_has_a_title_with_its_tenant():
    assert [p.title for p in (Process("chat", "e1"), Process("chat", "", "acme"))] == ["chat e1", "chat of acme"]
