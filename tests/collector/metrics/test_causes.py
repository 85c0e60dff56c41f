"""Where the time of requests went, on `/metrics`: counted once, when their causes are stored, and why an SLO burns."""

import pytest

from collector.ask.queries import Queries
from collector.metrics.filled import FilledTables
from collector.metrics.store_counters import StoreCounters
from collector.slo.model import load_slos
from collector.store.definitions import read_schema
from collector.store.early_claims import EarlyClaims
from tests.collector.metrics.scraped import CHAT, MS
from tests.collector.rows import NOW, SECOND

SLOW = CHAT | {"ttft_ns": 800 * MS, "e2e": 2 * SECOND}
WAITED = {"ttft_wait_kv_us": 600_000, "ttft_own_prompt_us": 200_000, "rest_batch_us": 900_000, "rest_alone_us": 300_000}
FAST = {"ttft_own_prompt_us": 100_000, "rest_batch_us": 600_000, "rest_alone_us": 300_000}


def by_cause(samples, name, *asked, label="cause"):
    """The values of a metric by one of its labels, of the series with others of them."""
    return {
        next(one for one in key if one.startswith(f"{label}=")).removeprefix(f"{label}="): n
        for key, n in samples.items()
        if key[0] == f"tokentrail_{name}" and {*asked} <= {*key}
    }


@pytest.fixture
def explain(arrive, rows, live, clock):
    """Requests with their causes arrive in a segment, and are explained."""

    def explain(*pairs, **fields):
        segment = arrive()
        ended = {"segment": segment, "ingested_at": clock.now - SECOND, "ended": clock.now - SECOND}
        found = rows.requests([{**ended, **request, **fields} for request, _ in pairs])
        rows.causes([(row, causes) for row, (_, causes) in zip(found, pairs, strict=True)])
        live.counters.on_explained(segment)
        return segment

    return explain


@pytest.fixture(autouse=True)
def no_share_of_evaluations(monkeypatch):
    """A pause is 20 times as long as the evaluation before it, which takes a second on a busy machine."""
    monkeypatch.setattr("collector.metrics.live._SHARE_OF_EVALUATIONS", 0)


def test_the_time_of_bad_requests_counts_by_cause_once(scrape, explain, live, clock):
    scrape()
    segment = explain((CHAT, FAST), (SLOW, WAITED), (SLOW, WAITED | {"weight": 3.0}))
    bad = by_cause(scrape(), "slo_cause_bad_seconds_total", "slo=chat")
    assert bad == pytest.approx({"wait_kv": 2.4, "own_prompt": 0.8, "batch": 3.6, "alone": 1.2})
    clock.now += 5 * SECOND
    live.counters.on_explained(segment)  # again, when more of its steps have come
    assert by_cause(scrape(), "slo_cause_bad_seconds_total", "slo=chat") == bad
    assert by_cause(scrape(), "slo_cause_bad_seconds_total", "slo=all") == {}


def test_all_time_counts_by_model_and_what_clients_report_does_not(scrape, explain):
    scrape()
    explain((CHAT, FAST), (SLOW, WAITED), ({**SLOW, "model": "other one"}, WAITED), ({**SLOW, "vantage": "client"}, {}))
    samples = scrape()
    of_m = "gen_ai_request_model=m", "service_name=engine"
    before = by_cause(samples, "request_cause_seconds_total", *of_m, "of=ttft")
    assert before == pytest.approx({"wait_kv": 0.6, "own_prompt": 0.3})
    after = by_cause(samples, "request_cause_seconds_total", *of_m, "of=rest")
    assert after == pytest.approx({"batch": 1.5, "alone": 0.6})


def test_a_request_is_held_up_by_what_took_half_of_its_time_to_the_first_token(scrape, explain):
    scrape()
    times = (
        {"ttft_wait_kv_us": 400_000, "ttft_stall_us": 400_000},
        {"ttft_wait_kv_us": 399_999, "ttft_stall_us": 400_001},  # by nothing that is counted
        *[{"ttft_wait_batch_us": 800_000}] * 2,
        *[{"ttft_wait_tokens_us": 500_000, "ttft_wait_priority_us": 300_000}] * 3,
    )
    explain(*((SLOW, causes) for causes in times))
    found = by_cause(scrape(), "requests_held_up_total", label="reason")
    assert found == {"kv": 1, "batch": 2, "tokens": 3, "priority": 0}


def test_phases_count_as_servers_tell_them(scrape, arrive):
    scrape()
    told = {"queue_ns": 300 * MS, "prefill_ns": 200 * MS}
    arrive({**SLOW, **told}, {**SLOW, **told, "weight": 2.0}, {**SLOW, **told, "vantage": "client"}, SLOW)
    found = by_cause(scrape(), "request_phase_seconds_total", "gen_ai_request_model=m", label="phase")
    assert found == pytest.approx({"queued": 0.9, "prefill": 0.6})


def test_models_beyond_the_limit_count_together_and_are_told(scrape, explain, live, monkeypatch):
    scrape()
    monkeypatch.setattr(live.counters._served, "limit", 1)
    explain((CHAT, FAST), ({**CHAT, "service": "b"}, FAST), ({**CHAT, "service": "c"}, FAST))
    samples = scrape()
    both = {"of=ttft", "cause=own_prompt"}
    times = by_cause(samples, "request_cause_seconds_total", *both, label="service_name")
    assert times == pytest.approx({"engine": 0.1, "other": 0.2})
    assert samples["tokentrail_collector_label_overflow_total", "kind=models"] == 2


class TestSeveralCollectors:
    @pytest.fixture
    def opened(self, rows, slos_file, clock, tmp_path):
        """Opens collectors that share the store; the same name again is the same one after a crash."""
        rows.store.client().command("DROP TABLE early_claims SYNC")
        rows.store.client().command(read_schema().tables["early_claims"])
        queries = Queries(rows.store)

        def opened(name):
            (tmp_path / name).mkdir(exist_ok=True)
            claims = EarlyClaims(rows.store)
            return StoreCounters(
                queries, FilledTables(queries), load_slos(slos_file), clock=clock, folder=tmp_path / name, claims=claims
            )

        return opened

    @staticmethod
    def bad_s(counters):
        counters.scraped(counters.families()[1])
        (bad,) = [f for f in counters.families()[0] if f.name == "tokentrail_slo_cause_bad_seconds"] or [None]
        return sum(sample.value for sample in bad.samples if sample.name.endswith("_total")) if bad else 0

    def test_a_segment_that_both_explained_counts_in_one(self, opened, explain):
        both = opened("a"), opened("b")
        segment = explain((SLOW, WAITED))
        for counters in both:
            counters.on_explained(segment)
            counters.count_segments()
        assert [self.bad_s(counters) for counters in both] == [pytest.approx(2.0), 0]

    def test_a_restart_counts_what_was_explained_before_and_nothing_twice(self, opened, explain):
        segment = explain((SLOW, WAITED))
        opened("a").on_explained(segment)
        after = opened("a")
        after.count_segments()
        after.save()
        assert self.bad_s(after) == pytest.approx(2.0)
        again = opened("a")
        again.on_explained(segment)
        again.count_segments()
        assert self.bad_s(again) == pytest.approx(2.0)


class TestWhyAnSloBurns:
    def shares(self, samples, name="slo_cause_share", label="cause", slo="chat"):
        return by_cause(samples, name, f"slo={slo}", label=label)

    def test_it_has_the_shares_of_the_incidents_and_the_process(self, scrape, explain, api):
        explain(*[(CHAT, FAST)] * 6, *[(SLOW, WAITED)] * 3)
        explain((SLOW, {**WAITED, "ttft_wait_kv_us": 100_000, "ttft_stall_us": 500_000}), instance="i-2")
        samples = scrape()
        found = self.shares(samples)
        whole = 4 * 100 + 3 * 600 + 100 + 500 + 4 * 300
        assert found == pytest.approx({"wait_kv": 1900 / whole, "batch": 1200 / whole, "stall": 500 / whole,
                                       "own_prompt": 400 / whole})  # fmt: skip
        (burn,) = [one for one in api("incidents")["incidents"] if one["slo"] == "chat"]
        assert burn["top_cause"]["share"] == pytest.approx(found["wait_kv"])
        assert self.shares(samples, "slo_culprit_share", "name") == {"engine i-1": pytest.approx(18 / 19)}
        assert self.shares(samples, slo="all") == {}, "it does not burn"

    def test_prompts_of_others_name_the_tenant_that_sent_them(self, scrape, explain):
        delayed = {"ttft_others_prompts_us": 700_000, "ttft_own_prompt_us": 100_000, "rest_batch_us": 1_200_000}
        explain(*[(CHAT, {**FAST, "inflicted_us": 10})] * 6, *[(SLOW, delayed)] * 3, tenant="small")
        explain((CHAT, {**FAST, "inflicted_us": 990_000}), tenant="bulk")
        samples = scrape()
        assert max(self.shares(samples).items(), key=lambda item: item[1])[0] == "others_prompts"
        assert self.shares(samples, "slo_culprit_share", "name") == {"bulk": pytest.approx(1, abs=0.001)}
        assert self.shares(samples, "slo_culprit_share", "by").keys() == {"tenant"}

    def test_waits_name_the_tenant_whose_requests_had_the_blocks_and_the_variant(self, scrape, explain):
        explain(*[(CHAT, FAST)] * 6, *[(SLOW, WAITED)] * 3, tenant="small", input_tokens=100, queue_ns=0)
        while_they_waited = {"ended": NOW - 2 * SECOND}
        explain((CHAT | while_they_waited, FAST), tenant="bulk", input_tokens=5000, queue_ns=0)
        explain((CHAT | {"ended": NOW - 1800 * SECOND}, FAST), instance="i-2", variant="old", tenant="small")
        samples = scrape()
        bulk = pytest.approx(5010 / (5010 + 3 * 110))  # each has ten tokens more, and six of small's began later
        assert self.shares(samples, "slo_culprit_share", "by") == {"process": 1, "variant": 1, "tenant": bulk}
        assert self.shares(samples, "slo_culprit_share", "name").keys() == {"engine i-1", "baseline", "bulk"}

    def test_old_bad_requests_do_not_speak_for_those_of_the_last_minutes(self, scrape, explain):
        old = {"ended": NOW - 900 * SECOND}
        explain(*[(SLOW | old, {"ttft_stall_us": 800_000})] * 20, *[(CHAT, FAST)] * 6, (SLOW, WAITED))
        found = self.shares(scrape())
        assert found.keys() == {"wait_kv", "batch", "own_prompt"}

    def test_it_is_absent_where_nothing_burns_or_nothing_is_explained(self, scrape, explain, rows, clock):
        explain(*[(CHAT, FAST)] * 40, (SLOW, WAITED))
        assert self.shares(scrape()) == {}
        rows.requests([SLOW | {"ended": NOW - SECOND}] * 40)
        clock.now += 61 * SECOND
        assert self.shares(scrape()).keys() >= {"wait_kv"}
        for _ in range(2):
            rows.open(start=NOW + 10 * SECOND, seen=NOW + 60 * SECOND, slo_class="chat")
        clock.now += 200 * SECOND
        assert self.shares(scrape()) == {}, "more have not ended than are explained"
        clock.now += 3600 * SECOND
        assert self.shares(scrape()) == {}

    @pytest.mark.parametrize(("looks", "soon"), [(2, True), (3, False)])
    def test_what_is_not_known_is_looked_at_soon_some_times_and_then_each_minute(
        self, scrape, explain, rows, clock, monkeypatch, looks, soon
    ):
        monkeypatch.setattr("collector.metrics.live._MOST_UNKNOWN", 2)
        explain(*[(CHAT, FAST)] * 6)
        made = rows.requests([SLOW | {"ended": NOW - SECOND}] * 9)
        for _ in range(looks):
            assert self.shares(scrape()) == {}
            clock.now += 16 * SECOND
        rows.causes([(one, WAITED) for one in made])
        assert ("wait_kv" in self.shares(scrape())) == soon
        if not soon:
            clock.now += 45 * SECOND
            assert "wait_kv" in self.shares(scrape())


class TestOfEachTenant:
    @pytest.fixture
    def slos_file(self, slo_of_each_tenant):
        return slo_of_each_tenant

    def test_the_gauge_is_of_the_tenant_whose_promise_is_broken(self, scrape, explain):
        explain(*[(CHAT, FAST)] * 300, tenant="big")
        explain(*[(CHAT, FAST)] * 5, *[(SLOW, WAITED)] * 5, tenant="small\n")
        samples = scrape()
        assert by_cause(samples, "slo_cause_share", label="tenant").keys() == {"small\ufffd"}

    def test_what_is_not_known_is_looked_at_soon_beside_what_is_known(self, scrape, explain, rows, clock):
        for tenant in ("small", "new"):
            explain(*[(CHAT, FAST)] * 5, tenant=tenant)
        explain(*[(SLOW, WAITED)] * 5, tenant="small")
        made = rows.requests([SLOW | {"ended": NOW - SECOND, "tenant": "new"}] * 5)
        assert by_cause(scrape(), "slo_cause_share", label="tenant").keys() == {"", "small"}
        rows.causes([(one, WAITED) for one in made])
        clock.now += 16 * SECOND
        assert by_cause(scrape(), "slo_cause_share", label="tenant").keys() == {"", "small", "new"}
