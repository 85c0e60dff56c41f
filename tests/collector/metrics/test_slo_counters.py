"""The counters of SLOs: each request counts once, whenever it is stored and whatever is unknown of it."""

import time

import pytest

from collector.metrics import store_counters
from collector.metrics.early import KEEP_NS, EarlyRequests
from tests.collector.metrics.scraped import CHAT, slo
from tests.collector.rows import NOW, SECOND
from tokentrail.shared.durations import format_duration


def test_slo_counters_start_at_zero_and_grow_by_what_arrives(scrape, arrive, clock):
    assert slo(scrape()) == (0, 0)
    arrive(
        CHAT, CHAT | {"ttft_ns": SECOND}, CHAT | {"status": "error"}, CHAT | {"status": "cancelled"}, {"slo_class": "x"}
    )
    assert slo(scrape()) == (3, 1)
    assert slo(scrape(), "all") == (4, 3)
    clock.now += 5 * SECOND
    arrive(CHAT)
    arrive(CHAT)
    arrive()
    assert slo(scrape()) == (5, 3)
    samples = scrape()
    assert slo(samples) == (5, 3)
    assert samples["tokentrail_slo_objective_ratio", "slo=chat"] == 0.95


def test_a_segment_that_was_stored_days_before_it_is_counted_is_counted(rows, on_segment, scrape, clock):
    """Its collector died in between, and the server's clock was behind."""
    scrape()
    stored = {"ended": NOW - SECOND, "ingested_at": NOW - 3600 * SECOND}
    rows.requests([CHAT | stored | {"segment": f"{NOW:020d}-a"}, CHAT | stored | {"segment": f"{NOW:020d}-b"}])
    clock.now += 3 * 86_400 * SECOND
    on_segment(f"{clock.now:020d}-of-today")
    on_segment(f"{NOW:020d}-a")
    assert slo(scrape()) == (1, 1)


def test_what_is_stored_is_counted_by_a_collector_whose_clock_is_days_ahead_of_the_servers(
    rows, on_segment, scrape, clock
):
    scrape()
    stored_ns = time.time_ns()
    clock.now = stored_ns + 3 * 86_400 * SECOND
    segment = f"{clock.now:020d}-a"
    rows.request(**CHAT, ended=stored_ns, ingested_at=stored_ns, segment=segment)
    rows.kv_event(start=stored_ns, segment=segment)
    rows.cold_start(start=stored_ns, duration=SECOND, segment=segment)
    on_segment(segment)
    samples = scrape()
    process = ("service_instance_id=i-1", "service_name=engine")
    assert slo(samples) == (1, 1)
    assert samples[("tokentrail_preemptions_total", *process)] == 1
    assert samples[("tokentrail_cold_starts_total", *process)] == 1


def test_many_segments_are_counted_some_at_a_time(live, monkeypatch):
    monkeypatch.setattr(store_counters, "MOST_AT_ONCE", 2)
    read, parts = live.counters._read, []
    monkeypatch.setattr(live.counters, "_read", lambda segments: (parts.append([*segments]), read(segments))[1])
    for segment in "121345":
        live.counters.on_segment(segment)
    live.refresh()
    assert parts == [["1", "2"], ["3", "4"], ["5"]]


def test_a_server_and_its_client_count_apart(scrape, arrive):
    arrive({"vantage": "server"}, {"vantage": "client"}, {"vantage": "client"})
    samples = scrape()
    ended = {key: n for key, n in samples.items() if key[0] == "tokentrail_requests_total"}
    counts = {v: sum(n for key, n in ended.items() if f"vantage={v}" in key) for v in ("server", "client")}
    assert counts == {"server": 1, "client": 2}


class TestUnknown:
    NO_USAGE = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "ttft_ns", "tpot_ns"))
    UNDETERMINED = "tokentrail_slo_undetermined_requests_total"

    def test_an_undetermined_request_is_counted_apart(self, scrape, arrive):
        assert scrape()[self.UNDETERMINED, "slo=chat", "tenant="] == 0
        arrive(CHAT, *[CHAT | self.NO_USAGE] * 10, CHAT | self.NO_USAGE | {"status": "cancelled"})
        samples = scrape()
        assert (slo(samples), samples[self.UNDETERMINED, "slo=chat", "tenant="]) == ((1, 1), 10)
        assert (slo(samples, "all"), samples[self.UNDETERMINED, "slo=all", "tenant="]) == ((11, 11), 0)

    def test_one_whose_tpot_has_a_bound_within_the_threshold_is_good(self, scrape, arrive):
        told = CHAT | {"output_tokens": None, "tpot_ns": None}
        arrive(told, *[told | {"tpot_at_most_ns": ms * 1e6} for ms in (99.5, 100.0, 100.5)])
        samples = scrape()
        assert (slo(samples), samples[self.UNDETERMINED, "slo=chat", "tenant="]) == ((2, 2), 2)

    def test_one_that_was_bad_in_flight_is_not_counted_again(self, scrape, arrive, rows):
        hung = rows.open(start=NOW - 2 * SECOND, seen=NOW, slo_class="chat")
        assert slo(scrape()) == (1, 0)
        arrive(CHAT | self.NO_USAGE | {"trace_id": hung["trace_id"]})
        samples = scrape()
        assert (slo(samples), samples[self.UNDETERMINED, "slo=chat", "tenant="]) == ((1, 0), 0)

    def test_tokens_that_nobody_reports_have_no_series(self, scrape, arrive):
        def tokens(model):
            mine = f"gen_ai_request_model={model}"
            of_model = {key: n for key, n in scrape().items() if mine in key and "tokens_total" in key[0]}
            return {key[0]: n for key, n in of_model.items() if "gen_ai_token_type=input" not in key}

        arrive(self.NO_USAGE | {"model": "silent"}, self.NO_USAGE | {"model": "m", "output_tokens": 7}, {"model": "m"})
        assert tokens("silent") == {}
        assert tokens("m") == {"tokentrail_tokens_total": 17, "tokentrail_cached_input_tokens_total": 0}


def test_a_sampled_request_adds_its_weight(scrape, arrive):
    arrive(CHAT | {"weight": 3.0, "output_tokens": 7}, CHAT | {"weight": 2.0, "output_tokens": 7})
    samples = scrape()
    assert slo(samples) == (5, 5)
    latencies = {"time_to_first_token": 0.1, "time_per_output_token": 0.01, "request_duration": 1.0}
    for name, seconds in latencies.items():
        found = [
            sum(n for key, n in samples.items() if key[0] == f"gen_ai_server_{name}_seconds_{of}")
            for of in ("count", "sum")
        ]
        assert found == [5, pytest.approx(5 * seconds)]
    tokens = [
        n for key, n in samples.items() if key[0] == "tokentrail_tokens_total" and "gen_ai_token_type=output" in key
    ]
    assert tokens == [35]


def test_burn_rates_are_those_of_the_api(api, arrive, scrape):
    for age_s, bad in ((60, 1), (1800, 3), (4 * 3600, 2), (20 * 3600, 5), (2 * 86_400, 0)):
        ended = NOW - age_s * SECOND
        arrive(*({"ended": ended, "ingested_at": ended, "status": "error" if n < bad else "ok"} for n in range(7)))
    samples, rules = scrape(), api("slos/all")["burn"]
    exposed = {key[-1]: n for key, n in samples.items() if key[:2] == ("tokentrail_slo_burn_rate", "slo=all")}
    told = {
        f"window={format_duration(round(rule[f'{length}_s']) * SECOND)}": rule[f"{length}_burn"]
        for rule in rules
        for length in ("short", "long")
    }
    assert exposed == told
    assert len(set(told.values())) > 3


def test_requests_that_were_counted_early_are_forgotten_after_a_day_and_the_oldest_beyond_a_limit(monkeypatch):
    monkeypatch.setattr("collector.metrics.early.MOST", 2)
    found = EarlyRequests()
    for seen_ns, key in ((0, "old"), (1, "a day"), (3, "new"), (2, "older"), (4, "newest")):
        found.seen(key, seen_ns)
    assert found.forget(KEEP_NS + 1) == 2
    assert [key for key, _ in found.dump()] == ["new", "newest"]
    found.seen("newest", KEEP_NS)
    assert found.forget(KEEP_NS + 5) == 0
    assert [key for key, _ in found.dump()] == ["newest"]
    assert EarlyRequests([("a day", {"seen_ns": 1, "late": (), "lost": ()})]).forget(KEEP_NS + 1) == 0


def test_a_gauge_of_an_slo_has_the_requests_that_come_days_late(rows, scrape, clock):
    """Whole days that are past are remembered from one evaluation to the next."""
    attainment = "tokentrail_slo_attainment_ratio", "slo=all", "tenant="
    bad = {"e2e": 61 * SECOND}
    rows.requests([{"ended": NOW - day * 86_400 * SECOND} for day in (3, 4)])
    found = [scrape()[attainment]]
    for late in ([bad, bad], [bad] * 4):
        rows.requests([{"ended": NOW - 3 * 86_400 * SECOND, **request} for request in late])
        clock.now += 120 * SECOND
        found.append(scrape()[attainment])
    assert found == [1.0, 0.5, 0.25]
