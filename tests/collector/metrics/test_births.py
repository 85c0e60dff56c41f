"""A series is 0 in the first scrape that has it, and leaves the page when it is idle."""

from collections import defaultdict

import pytest
from fastapi.testclient import TestClient

from collector.ask.queries import Queries
from collector.count.in_flight import InFlight, read_in_flight
from collector.metrics import metrics, store_counters
from collector.metrics.filled import FilledTables
from collector.metrics.series import LabelSets
from collector.slo.model import Slo
from collector.sql.fragment import TRUE
from tests.collector.metrics.scraped import CHAT, OPENMETRICS, ended_of, samples_of
from tests.collector.rows import NOW, SECOND

pytestmark = pytest.mark.usefixtures("no_evaluation")


def test_a_series_is_0_in_the_first_scrape_that_has_it(app, arrive, live):
    def seen():
        live.refresh()
        samples = samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))
        names = (
            "tokentrail_requests_total",
            "gen_ai_server_request_duration_seconds_count",
            "gen_ai_server_request_duration_seconds_sum",
        )
        return [max((n for key, n in samples.items() if key[0] == name), default=None) for name in names]

    live.refresh()
    assert seen() == [None] * 3
    arrive(CHAT, CHAT)
    assert seen() == [0, 0, 0]
    assert seen() == [2, 2, 2]


@pytest.mark.parametrize(("age_s", "n"), [(179, 0), (180, 2), (-179, 0), (-180, 2)])
def test_an_old_series_has_its_value_in_the_first_scrape_that_has_it(age_s, n, app, rows, arrive, live, clock):
    """Prometheus took all that had happened since the beginning for the increase of one interval."""
    segment = arrive(CHAT, CHAT)
    for _ in range(2):
        rows.kv_event(start=NOW - SECOND, segment=segment, blocks=1, reason="a reason")
    live.refresh()
    clock.now += age_s * SECOND  # somebody may have set the clock back
    live.counters.on_segment("another")
    live.refresh()
    samples = samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))
    names = (
        "tokentrail_slo_requests_total",
        "tokentrail_requests_total",
        "tokentrail_kv_evicted_blocks_total",
        "gen_ai_server_time_to_first_token_seconds_count",
    )
    assert [max(v for key, v in samples.items() if key[0] == name) for name in names] == [n] * 4


UNKNOWN = {
    metrics.REQUEST,
    metrics.PROCESS,
    metrics.SAMPLED,
    metrics.LIMITED.labels,
    metrics.SERVED,
    metrics.SLO_CAUSE_TIME.labels,
}
"""Labels whose values nobody knows before the first event. Their series are 0 for a scrape or a minute."""


def test_a_counter_whose_labels_are_known_is_0_from_the_start(app, live):
    live.refresh()
    samples = samples_of(TestClient(app).get("/metrics", headers=OPENMETRICS))
    counters = [metric for metric in metrics.ALL if metric.kind == "counter"]
    known = {m.name for m in counters if not any(m.labels[: len(labels)] == labels for labels in UNKNOWN)}
    labelled = (metrics.RETENTION_ROWS, metrics.SCRAPES, metrics.OVERFLOW, metrics.SLO_REQUESTS)
    assert known >= {metric.name for metric in labelled}
    assert {key[0] for key in samples} >= known
    assert {n for key, n in samples.items() if key[0] in known} == {0}


def test_a_page_of_before_has_not_seen_the_series_of_now(arrive, live):
    live.refresh()
    before = live.families[0]
    arrive(CHAT)
    live.refresh()
    live.scraped(before)
    live.refresh()
    assert ended_of("", live) == [0]


def test_a_series_that_went_and_comes_back_is_0_in_the_first_scrape_that_has_it(arrive, live, clock):
    def scraped():
        live.refresh()
        live.scraped(live.families[0])
        return ended_of("rare", live)

    for _ in range(2):
        arrive({"tenant": "rare"})
        assert [scraped(), scraped()] == [[0], [1]]
        clock.now += 31 * 86_400 * SECOND
        assert scraped() == [], "an idle collector drops it too"
        scraped()


def test_label_sets_are_bounded_and_what_is_idle_makes_room(arrive, clock, monkeypatch, rows, caplog):
    monkeypatch.setattr(store_counters, "MOST_LABEL_SETS", 3)
    queries = Queries(rows.store)
    fresh = store_counters.StoreCounters(queries, FilledTables(queries), [], clock=clock)
    nothing = InFlight.nothing()

    def add(*requests):
        fresh.on_segment(arrive(*requests))
        fresh.count_segments()
        fresh.count_in_flight(nothing, clock())

    def totals():
        counted = defaultdict(int)
        for labels, n in fresh._series.counters[metrics.REQUESTS].items():
            counted[labels[6]] += n
        return counted

    add(*({"tenant": f"t{i}"} for i in range(3)))
    assert not caplog.messages
    add(*({"tenant": f"t{i}"} for i in range(3, 5)), {"tenant": "t0"})
    add({"tenant": "t6"}, {"tenant": "t7"})
    (line,) = caplog.messages  # once, and not with each segment
    assert "counts requests as `other`: it has room for 3 combinations" in line
    assert sum(totals().values()) == 8
    assert totals()["other"] == 4
    assert fresh._series.counters[metrics.OVERFLOW]["requests",] == totals()["other"]
    clock.now += store_counters.IDLE_NS + SECOND
    add()
    add({"tenant": "late"})
    assert totals()["late"] == 1


@pytest.mark.parametrize(("asked", "told"), [(False, {"": 3}), (True, {"acme": 2, "bolt": 1})])
def test_histograms_tell_tenants_apart_only_where_somebody_asked(arrive, clock, rows, asked, told):
    queries = Queries(rows.store)
    of = store_counters.StoreCounters(queries, FilledTables(queries), [], clock=clock, tenant_histograms=asked)

    of._longest_ns = 3 * store_counters.IDLE_NS  # the window of an SLO

    def add(*tenants):
        of.on_segment(arrive(*({"tenant": tenant} for tenant in tenants)))
        of.count_segments()
        of.count_in_flight(InFlight.nothing(), clock())

    def counted():
        histograms = of._series.histograms.get(metrics.E2E, {})
        by_tenant = {labels[6]: sum(histogram.counts) for labels, histogram in histograms.items()}
        return by_tenant, {labels[6] for labels in of._series.counters[metrics.REQUESTS]}

    add("acme", "acme", "bolt")
    assert counted() == (told, {"acme", "bolt"})
    clock.now += of._longest_ns - SECOND
    add("bolt")
    assert counted()[0] == ({"acme": 2, "bolt": 2} if asked else {"": 4})
    clock.now += 2 * SECOND
    add()
    still = {"": 4} if not asked else {"bolt": 2}
    assert counted() == (still, {"bolt"}), "a histogram stays as long as one of its tenants"
    clock.now += of._longest_ns
    add()
    assert counted() == ({}, set())
    assert not [key for key in of._series.created if key[0] is metrics.E2E]


def test_a_tenant_with_thousands_of_services_leaves_room_for_others(arrive, rows, scrape, live, monkeypatch):
    for sets in (live.counters._label_sets, live.counters._processes):
        monkeypatch.setattr(sets, "limit", 6)

    def send(tenant, services):
        """Requests and cold starts, each of a service with its own process."""
        processes = [{"service": service, "process_tenant": tenant} for service in services]
        segment = arrive(*({"tenant": tenant, **process} for process in processes))
        for process in processes:
            rows.cold_start(start=NOW - SECOND, duration=SECOND, segment=segment, **process)

    def exposed(metric):
        """The services by tenant."""
        named = [dict(label.split("=", 1) for label in labels) for (name, *labels) in scrape() if name == metric]
        found = defaultdict(set)
        for labels in named:
            found[labels.get("process_tenant", "")].add(labels["service_name"])
        return found

    send("acme", [f"s{n}" for n in range(20)])
    send("bolt", ["b1", "b2"])
    send("", ["e1"])
    send("acme", ["new"])
    send("", ["e2"])
    for metric in ("tokentrail_requests_total", "tokentrail_cold_starts_total"):
        found = exposed(metric)
        assert (found["bolt"], found[""], len(found["acme"]), found["other"]) == (
            {"b1", "b2"},
            {"e1", "e2"},
            2,
            {"other"},
        )
    send("bolt", ["b3", "b4"])
    send("acme", ["newer"])
    assert exposed("tokentrail_cold_starts_total")["bolt"] == {"b1", "b2"}, "acme has no more than bolt"
    send("", [f"e{n}" for n in range(3, 9)])
    send("bolt", ["b5"])
    found = exposed("tokentrail_requests_total")
    assert found.keys() == {"", "other"}, "no tenant takes a place of those without one"
    assert found[""] > {"e1", "e2"}
    assert len(found[""]) == 6


def test_what_has_lost_its_place_to_another_was_unused_for_the_longest_time():
    sets = LabelSets(("service_name", metrics.PROCESS_TENANT), 3, gone=(gone := []).append)
    for at, service in ((1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "d")):
        sets.admit((service, "acme"), at)
    assert sets.admit(("x", "bolt"), 6) == ("x", "bolt")
    assert gone == [("b", "acme")]
    assert sets.admit(("y", "bolt"), 7) == ("other", "other")
    assert sets.admit(("y" * 1025, ""), 8) == ("other", "other")
    assert gone == [("b", "acme")]


@pytest.mark.parametrize(
    ("idle_since", "unused_since", "gone"), [(9, 0, 1), (1, 0, 1), (0, 0, 0), (0, 3, 3), (9, 3, 3)]
)
def test_of_full_label_sets_those_that_were_idle_for_the_longest_time_go(idle_since, unused_since, gone):
    sets = LabelSets(("name",), 10, {(str(n),): n for n in range(10)})
    assert sets.forget(idle_since_ns=idle_since, unused_since_ns=unused_since) == [(str(n),) for n in range(gone)]


def test_label_sets_with_room_keep_those_that_are_idle():
    sets = LabelSets(("name",), 11, {(str(n),): n for n in range(10)})
    assert sets.forget(idle_since_ns=99, unused_since_ns=0) == []


def test_a_tenant_with_a_request_a_day_keeps_its_counter(arrive, clock, scrape):
    def of(tenant):
        return [n for key, n in scrape().items() if key[0] == "tokentrail_requests_total" and
                {f"tenant={tenant}", "status=ok"} <= {*key}]  # fmt: skip

    for n in range(1, 3):
        arrive({"tenant": "rare"})
        clock.now += 43_200 * SECOND
        assert of("rare") == [n]
        clock.now += 43_200 * SECOND
    clock.now += 30 * 86_400 * SECOND
    assert of("rare") == []


def test_a_long_name_is_in_no_label(arrive, rows, scrape):
    """A name of 200,000 characters made a page of 70 MB."""
    long = {name: name * 1025 for name in ("model", "tenant", "service", "instance", "error_type")}
    segment = arrive(
        {"status": "error", **long}, {"status": "error", "error_type": long["error_type"]}, {"model": "m" * 1024}
    )
    process = {name: long[name] for name in ("service", "instance")}
    rows.kv_event(start=NOW - SECOND, segment=segment, blocks=7, reason="r" * 1025, **process)
    samples = scrape()
    assert max(len(part) for key in samples for part in key) == len("gen_ai_request_model=") + 1024
    assert samples["tokentrail_collector_label_overflow_total", "kind=requests"] == 1
    assert [n for key, n in samples.items() if key[0] == "tokentrail_kv_evicted_blocks_total" and
            {"reason=other", "service_name=other"} <= {*key}] == [7]  # fmt: skip


def test_reasons_of_evictions_beyond_a_limit_count_as_other(live):
    row = {"service": "s", "instance": "i", "process_tenant": "", "n": 1, "evicted": 2, "last_ns": NOW}
    live.counters._add_kv_events([row | {"reason": f"reason {n}"} for n in range(60)])
    counted = live.counters._series.counters[metrics.KV_EVICTED]
    assert (len(counted), counted["s", "i", "", "preemption"], counted["s", "i", "", "other"]) == (51, 0, 22)


def test_reasons_and_errors_of_one_tenant_leave_room_for_those_of_others(arrive, rows, scrape):
    many = [f"{n:02}" for n in range(60)]
    segment = arrive(*({"status": "error", "error_type": one, "process_tenant": "acme"} for one in many),
                     {"status": "error", "error_type": "own", "process_tenant": "bolt"})  # fmt: skip
    for owner, reasons in (("acme", many), ("bolt", ["own"])):
        for reason in reasons:
            rows.kv_event(start=NOW - SECOND, segment=segment, reason=reason, process_tenant=owner)
    found = scrape()
    own = {
        name
        for name, *labels in found
        if {"error_type=own", "reason=own"} & {*labels} and "process_tenant=bolt" in labels
    }
    assert own > {"gen_ai_server_request_duration_seconds_count", "tokentrail_kv_evicted_blocks_total"}


def test_labels_have_no_line_breaks_escapes_or_marks_that_turn_the_direction(arrive, rows, scrape, live):
    bad = "a\nb\x1b[31m\u202ec\u200bd\U000e0041"
    shown = "a\ufffdb\ufffd[31m\ufffdc\ufffdd\ufffd"
    names = dict.fromkeys(("service", "instance", "model", "tenant", "variant", "process_tenant"), bad)
    segment = arrive({**names, "status": "error", "error_type": bad, "ended": NOW + 9 * SECOND}, {"tenant": bad})
    process = dict.fromkeys(("service", "instance", "process_tenant"), bad)
    rows.kv_event(start=NOW - SECOND, segment=segment, reason=bad, **process)
    rows.step(start=NOW - SECOND, **process)
    at = {"time": (NOW - SECOND) // 10**6, "name": "running", "kind": "gauge", "value": 1.0}
    rows.insert("samples", [at | process | {"engine": bad}])
    live.on_samples("segment")
    found = scrape()
    with_names = {key[0] for key in found if any(label.endswith(f"={shown}") for label in key[1:])}
    assert with_names >= {
        "tokentrail_requests_total", "gen_ai_server_request_duration_seconds_count", "tokentrail_requests_running",
        "tokentrail_kv_evicted_blocks_total", "tokentrail_engine_requests_running", "tokentrail_clock_ahead_seconds",
    }  # fmt: skip
    assert [label for key in found for label in key if not label.isprintable()] == []
    assert found["tokentrail_collector_processes_under_other",] == 0
    assert found["tokentrail_collector_label_overflow_total", "kind=requests"] == 0


def test_names_that_look_alike_as_labels_count_together(arrive, scrape):
    arrive({"model": "a\nb"}, {"model": "a\tb"})
    counted = [n for key, n in scrape().items() if key[0] == "tokentrail_requests_total" and "status=ok" in key]
    assert counted == [2]


def test_tenants_beyond_the_limit_of_an_slo_are_counted(rows, arrive, clock):
    queries = Queries(rows.store)
    promise = {"name": "each", "objective": "0.9", "window": "30d", "group_by": ["tenant"], "thresholds": {"e2e": "9s"}}
    slos = [Slo.model_validate(promise | {"most_groups": 2}), Slo.model_validate(promise | {"name": "roomy"})]
    counters = store_counters.StoreCounters(queries, FilledTables(queries), slos, clock=clock)
    counters.on_segment(arrive(*({"tenant": tenant} for tenant in "abcd")))
    counters.count_segments()
    assert counters._series.counters[metrics.SLO_REQUESTS]["each", "other"] == 2
    assert counters._series.counters[metrics.OVERFLOW] == {("requests",): 0, ("models",): 0, ("tenants",): 2}
    rows.open(start=NOW - 60 * SECOND, seen=NOW - SECOND, tenant="e")  # is late before it ends
    in_flight = read_in_flight(
        queries, TRUE, start_ns=NOW - 99 * SECOND, end_ns=NOW, lost_after_ns=30 * SECOND, heard_until_ns=NOW
    )
    counters.count_in_flight(in_flight, NOW)
    assert counters._series.counters[metrics.SLO_REQUESTS]["each", "other"] == 3
    assert counters._series.counters[metrics.OVERFLOW]["tenants",] == 3


def test_processes_beyond_the_limit_are_counted_while_they_give_a_sign_of_life(rows, live, clock, scrape, monkeypatch):
    monkeypatch.setattr(live.counters._processes, "limit", 1)
    for instance in ("a", "b"):
        rows.step(start=NOW - SECOND, instance=instance)
    rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, instance="c")
    rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, instance="a")
    assert scrape()["tokentrail_collector_processes_under_other",] == 2
    clock.now += 3600 * SECOND
    assert scrape()["tokentrail_collector_processes_under_other",] == 0
