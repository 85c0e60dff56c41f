import pytest

from collector.api import abilities
from collector.api.times import rfc3339
from tests.collector.rows import NOW, SECOND, trace_id

MS = 1_000_000
T0 = NOW - 60 * SECOND


def test_kv_is_the_newest_step_and_the_windows_sums(api, rows):
    rows.step(start=T0, kv_blocks_used=60, kv_blocks_total=64, running=9)
    rows.step(start=T0 + SECOND, kv_blocks_used=30, kv_blocks_total=64, running=4, waiting=2)
    rows.step(start=NOW, kv_blocks_used=1, kv_blocks_total=64)
    rows.step(start=T0, instance="no-cache", running=1)
    for at, fields in (
        (0, {}),
        (1, {"blocks": 8}),
        (2, {"reason": "cache_full", "blocks": 3}),
        (3, {"kind": "restore", "reason": ""}),
    ):
        rows.kv_event(start=T0 + at, **fields)
    first, second = api("kv")["engines"]
    assert first == {
        "service": "engine", "instance": "i-1", "variant": "baseline", "seen": "2026-11-21T09:59:01Z",
        "blocks_used": 30, "blocks_total": 64, "usage": 30 / 64, "running": 4, "waiting": 2, "evicted_blocks": 15,
        "evictions": 3, "preemptions": 2, "source": "spans", "up": None,
    }  # fmt: skip
    assert (second["instance"], second["usage"], second["evictions"]) == ("no-cache", None, 0)


def test_an_old_step_says_nothing_of_now(api, rows):
    rows.step(start=NOW - 60 * SECOND - 1, kv_blocks_used=60, kv_blocks_total=64, running=9, waiting=1)
    (engine,) = api("kv")["engines"]
    assert [engine[key] for key in ("blocks_used", "usage", "running", "waiting")] == [None] * 4
    assert (engine["blocks_total"], engine["seen"]) == (64, "2026-11-21T09:58:59.999999999Z")
    (then,) = api("kv", end="2026-11-21T09:59:30Z")["engines"]
    assert [then[key] for key in ("blocks_used", "usage", "running", "waiting")] == [60, 60 / 64, 9, 1]


def test_a_count_that_the_engine_did_not_send_is_null_and_no_earlier_one_stands_in(api, rows):
    rows.step(start=T0, kv_blocks_used=60, kv_blocks_total=64, running=9)
    unknown = dict.fromkeys(("running", "waiting", "kv_blocks_used", "step"), None)
    rows.step(start=T0 + SECOND, kv_blocks_total=64, **unknown)
    rows.kv_event(start=T0, blocks=None)
    (engine,) = api("kv")["engines"]
    assert {
        key: engine[key] for key in ("running", "waiting", "blocks_used", "usage", "evicted_blocks")
    } == dict.fromkeys(("running", "waiting", "blocks_used", "usage", "evicted_blocks"))
    assert (engine["blocks_total"], engine["evictions"]) == (64, 1)
    (incident,) = api("incidents")["incidents"]
    assert "took an unknown number of blocks" in incident["detail"]
    request = rows.request(ended=T0 + 2 * SECOND, e2e=3 * SECOND)
    trail = api(f"requests/{request['trace_id']}")
    assert [(step["step"], step["running"]) for step in trail["steps"]] == [(0, 9), (None, None)]
    assert trail["events"][0]["blocks"] is None


def test_a_step_without_numbers_of_the_engine_hides_none(api, rows):
    """As of two API servers of one vLLM: one has the engine's numbers, and both have tokens of the step."""
    nothing = dict.fromkeys(("running", "waiting", "kv_blocks_used", "kv_blocks_total"), None)
    rows.step(start=T0, step=0, kv_blocks_used=60, kv_blocks_total=64, running=9, waiting=1)
    rows.step(start=T0 + SECOND, step=1, **nothing)
    rows.step(start=T0 + SECOND, step=3, instance="never", **nothing)
    first, second = api("kv")["engines"]
    assert [first[key] for key in ("blocks_used", "running", "waiting", "seen")] == [60, 9, 1, "2026-11-21T09:59:00Z"]
    assert (second["instance"], second["running"], second["seen"]) == ("never", None, "2026-11-21T09:59:01Z")
    assert [p["value"] for p in api("timeseries", metric="running")["points"]] == [9]


def test_metrics_leave_out_a_state_that_is_not_known(api, rows, live):
    rows.step(start=NOW - SECOND, running=None, waiting=3, kv_blocks_used=None, kv_blocks_total=64)
    live.refresh()
    text = api.client.get("/metrics").text
    assert "tokentrail_requests_waiting{" in text
    assert "tokentrail_requests_running{" not in text
    assert "tokentrail_kv_usage_ratio{" not in text


def test_engine_state_is_filtered_by_the_requests_that_an_engine_has(api, rows):
    rows.step(start=T0, instance="a")
    rows.step(start=T0, instance="b")
    rows.step(start=T0, instance="c")
    rows.request(instance="a", model="big")
    rows.open(instance="b", model="big", start=T0, seen=T0)
    assert [e["instance"] for e in api("kv", model="big")["engines"]] == ["a", "b"]
    assert api("kv", model="small")["engines"] == []


def test_cold_starts_have_their_sub_phases(api, rows):
    cold = rows.cold_start(start=T0, duration=3 * SECOND)
    rows.cold_start(start=T0 + 100 * MS, duration=2 * SECOND, phase="load_weights", trace_id=cold["trace_id"])
    rows.cold_start(start=T0 + 2100 * MS, duration=SECOND // 2, phase="warmup", trace_id=cold["trace_id"])
    rows.cold_start(start=T0 + SECOND, duration=SECOND, instance="i-2", status="error", error_type="OutOfMemory")
    rows.cold_start(start=NOW - 901 * SECOND, duration=2 * SECOND)  # still under way when the window begins
    rows.cold_start(start=NOW - 903 * SECOND, duration=2 * SECOND)
    newest, whole, overlapping = api("cold_starts")["cold_starts"]
    assert (newest["status"], newest["error_type"], newest["phases"]) == ("error", "OutOfMemory", [])
    assert whole == {
        "trace_id": cold["trace_id"], "start": "2026-11-21T09:59:00Z", "duration_s": 3.0, "engine": "tokentrail",
        "service": "engine", "instance": "i-1", "variant": "baseline", "model": "m", "status": "ok", "error_type": "",
        "phases": [
            {"name": "load_weights", "offset_s": 0.1, "duration_s": 2.0},
            {"name": "warmup", "offset_s": 2.1, "duration_s": 0.5},
        ],
    }  # fmt: skip
    assert overlapping["start"] == "2026-11-21T09:44:59Z"


def test_engines_by_any_sign_of_life(api, rows):
    rows.request(ended=NOW - 5 * SECOND, e2e=10 * SECOND, model="b")
    rows.request(ended=NOW - 50 * SECOND, model="a")
    rows.step(start=NOW - SECOND)
    rows.open(start=NOW - 100 * SECOND, seen=NOW - 90 * SECOND, instance="hung", service="other", engine="vllm")
    rows.cold_start(start=NOW - 200 * SECOND, duration=SECOND, instance="new")
    first, second = api("engines")["engines"]
    tells = {told["what"]: told["told"] for told in first.pop("tells")}
    assert first == {
        "service": "engine", "engine": "tokentrail", "variants": ["baseline"], "models": ["a", "b", "m"],
        "first_seen": "2026-11-21T09:56:40Z", "last_seen": "2026-11-21T09:59:59Z", "requests": 2, "processes_total": 2,
        "processes": [
            {"service": "engine", "instance": "i-1", "variant": "baseline", "first_seen": "2026-11-21T09:59:09Z",
             "last_seen": "2026-11-21T09:59:59Z", "requests": 2},
            {"service": "engine", "instance": "new", "variant": "baseline", "first_seen": "2026-11-21T09:56:40Z",
             "last_seen": "2026-11-21T09:56:41Z", "requests": 0},
        ],
    }  # fmt: skip
    assert tells == {
        "requests": "full", "tokens": "full", "itl": "none", "phases": "none", "kv": "full", "preemption": "full",
        "in_flight": "full", "cold_start": "full",
    }  # fmt: skip
    assert (second["service"], second["engine"], second["requests"]) == ("other", "vllm", 0)


class TestOneEngineIsOneLine:
    def test_processes_and_restarts_of_a_service(self, api, rows):
        rows.requests([{"instance": f"run-{i}", "ended": NOW - (i + 1) * SECOND} for i in range(150)])
        (line,) = api("engines")["engines"]
        assert (line["requests"], line["processes_total"], len(line["processes"])) == (150, 150, 100)
        assert line["processes"][0]["instance"] == "run-0"

    def test_a_weight_and_a_request_that_began_before_the_window_count(self, api, rows):
        rows.request(weight=3.0, ended=NOW - 2 * SECOND)
        rows.open(start=NOW - 1000 * SECOND, seen=NOW - SECOND, instance="long")
        (line,) = api("engines")["engines"]
        assert (line["requests"], [p["instance"] for p in line["processes"]]) == (3, ["long", "i-1"])

    def test_a_service_without_a_name_is_one_for_each_product(self, api, rows):
        for service, engine in (("unknown_service:python3", "vllm"), ("unknown_service", "vllm")):
            rows.cold_start(start=T0, duration=SECOND, service=service, engine=engine, instance=service)
        rows.request(service="unknown_service:python", engine="langfuse", vantage="client")
        lines = api("engines")["engines"]
        assert {(line["engine"], line["service"], line["processes_total"]) for line in lines} == {
            ("vllm", "unknown_service", 2), ("langfuse", "unknown_service", 1),
        }  # fmt: skip

    def test_a_process_of_which_only_steps_came_belongs_to_its_service(self, api, rows):
        rows.request(instance="front", engine="vllm", ended=NOW - 9 * SECOND)
        rows.step(start=NOW - SECOND, instance="core")
        (line,) = api("engines")["engines"]
        assert (line["engine"], [p["instance"] for p in line["processes"]]) == ("vllm", ["core", "front"])


class TestWhatAnEngineTells:
    def tells(self, api):
        (line,) = api("engines")["engines"]
        return {told["what"]: told for told in line["tells"]}

    def test_what_vllms_spans_lack_comes_with_the_way_to_get_it(self, api, rows):
        rows.request(engine="vllm", prefill_ns=1, preemptions=None)
        tells = self.tells(api)
        assert tells["phases"] == {"what": "phases", "told": "full", "reason": "", "ways": []}
        assert tells["itl"]["told"] == "none"
        assert tells["itl"]["reason"] == "nothing of it came in this window"
        assert any("pip install tokentrail" in way for way in tells["itl"]["ways"])

    def test_spans_that_leave_requests_out_tell_of_some_until_announcements_come(self, api, rows):
        request = rows.request(engine="vllm")
        rows.store.client().command("TRUNCATE TABLE open_requests")
        requests = self.tells(api)["requests"]
        assert (requests["told"], requests["reason"]) == ("partly", "aborted and refused requests have no span")
        assert any("pip install tokentrail" in way for way in requests["ways"])
        rows.open(engine="vllm", start=request["start"], seen=NOW)
        assert self.tells(api)["requests"]["told"] == "full"

    def test_the_queue_alone_is_a_part_of_the_phases(self, api, rows):
        rows.request(engine="tgi", queue_ns=1, prefill_ns=None)
        phases = self.tells(api)["phases"]
        assert (phases["told"], phases["reason"]) == ("partly", "the time in the queue alone")

    def test_a_client_never_tells_what_only_the_engine_knows(self, api, rows):
        rows.request(engine="langfuse", vantage="client", preemptions=None)
        kv = self.tells(api)["kv"]
        assert (kv["told"], kv["reason"]) == ("none", "a client or gateway cannot see it")
        assert kv["ways"] == ["connect the engine behind it too (docs/engines/README.md)"]

    def test_an_engine_that_nobody_knows_has_no_ways(self, api, rows):
        rows.request(engine="new", preemptions=None)
        assert self.tells(api)["kv"] == {
            "what": "kv", "told": "none", "reason": "this engine does not send it", "ways": [],
        }  # fmt: skip

    def test_some_requests_are_not_all(self, api, rows):
        failed = [{"output_tokens": n, "status": "error"} for n in (None, 5)]
        rows.requests([{"output_tokens": 5}, {"output_tokens": None}, *failed])
        assert self.tells(api)["tokens"]["told"] == "partly"
        assert self.tells(api)["tokens"]["reason"] == "1 of 2 requests tell it"

    def test_tokens_of_requests_with_more_than_one(self, api, rows):
        whole, _, _ = rows.requests([{"output_tokens": 2}, {"output_tokens": 1}, {"output_tokens": None}])
        rows.tokens(whole, [400_000, 5_000])
        assert (self.tells(api)["itl"]["told"], self.tells(api)["itl"]["reason"]) == (
            "partly",
            "1 of 2 requests tell it",
        )

    def test_what_no_row_says_is_not_told(self, api, rows):
        trace = trace_id()
        said = {"engine": "vllm", "preemptions": None, "queue_ns": None, "prefill_ns": None, "trace_id": trace}
        first, last = rows.requests(
            [
                said | {"ended": NOW - 300 * SECOND, "span_id": "00000000000000a1"},
                said | {"span_id": "00000000000000a2"},
            ]
        )
        rows.step(start=T0, preempted=None, kv_blocks_used=None)
        rows.tokens(last, [400_000, 5_000])
        tells = self.tells(api)
        missing = {what for what, told in tells.items() if told["told"] == "none"}
        assert missing == {"phases", "kv", "preemption", "cold_start"}
        assert tells["itl"]["reason"] == "1 of 2 requests tell it"
        rows.tokens(first, [400_000, 5_000])
        rows.step(start=T0, preempted=0, kv_blocks_used=0)
        rows.cold_start(start=T0, duration=SECOND, engine="vllm")
        tells = self.tells(api)
        assert {what for what, told in tells.items() if told["told"] == "none"} == {"phases"}
        assert tells["itl"]["told"] == "full"

    def test_marks_of_counts(self):
        """On counts alone: what was told in full is not called a part because another source tells a part too."""

        def told(what, engine, **counts):
            process = dict.fromkeys(("tokens", "phases", "queue", "itl", "kv", "in_flight", "cold_start"), 0)
            process |= {"requests": 4, "could_tell": 4, "preemption": 0, "examples": 4} | counts
            return next(one for one in abilities.told(engine, "server", [process]) if one.what == what)

        assert told("in_flight", "vllm", in_flight=2, running=3).told == "full"
        assert told("in_flight", "vllm", running=3).told == "partly"
        assert told("phases", "vllm", phases=2, queue=4).reason == "2 of 4 requests tell it"
        assert told("requests", "sglang").told == "full", "vLLM's spans leave requests out, and SGLang's do not"
        assert told("kv", "vllm").ways == [
            "install the package beside vLLM: pip install tokentrail (docs/engines/vllm.md)",
            "start vLLM with --otlp-traces-endpoint and scrape its /metrics (docs/engines/vllm.md)",
        ]


class TestIncidents:
    def test_nothing_happened(self, api, rows):
        rows.requests([{} for _ in range(20)])
        assert api("incidents")["incidents"] == []

    def test_a_run_of_evictions_is_one_incident(self, api, rows):
        for age in (300, 299, 250, 20, 19):
            rows.kv_event(start=NOW - age * SECOND, trace_id=f"{age:032x}", request_span_id="00000000000000aa")
        rows.kv_event(start=NOW - SECOND, reason="cache_full")
        now, before = api("incidents")["incidents"]
        assert (now["cause"], now["firing"], now["end"], now["requests_affected"]) == ("kv_eviction", True, None, 2)
        assert (before["firing"], before["start"], before["end"]) == (
            False,
            "2026-11-21T09:55:00Z",
            "2026-11-21T09:55:50Z",
        )
        assert "3 preemptions took 12 blocks" in before["detail"]
        assert now["instance"] == "i-1"

    def test_a_cold_start_fires_for_a_while_and_knows_who_waited(self, api, rows):
        rows.cold_start(start=NOW - 10 * SECOND, duration=3 * SECOND)
        rows.cold_start(start=NOW - 500 * SECOND, duration=3 * SECOND, instance="i-2", status="error")
        rows.cold_start(start=NOW - 10 * SECOND, duration=50 * MS, instance="quick")
        rows.requests(
            [
                {"cold_start_ns": SECOND, "e2e": 9 * SECOND},
                {"cold_start_ns": 0, "e2e": 9 * SECOND},
                {"cold_start_ns": 1},
            ]
        )
        new, old = api("incidents")["incidents"]
        assert (new["cause"], new["severity"], new["firing"], new["requests_affected"]) == (
            "cold_start",
            "info",
            True,
            1,
        )
        assert new["end"] == "2026-11-21T09:59:53Z"
        assert (old["firing"], old["requests_affected"]) == (False, 0)
        assert "failed (no reason given)" in old["detail"]

    def test_engines_that_hang_or_die(self, api, rows):
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 50 * SECOND, instance="dead")
        rows.open(start=NOW - 800 * SECOND, seen=NOW - 700 * SECOND, instance="died")
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, instance="hung")
        rows.step(start=NOW - 80 * SECOND, instance="hung")
        found = {i["instance"]: i for i in api("incidents")["incidents"]}
        assert {k: (i["cause"], i["severity"], i["firing"]) for k, i in found.items()} == {
            "dead": ("engine_lost", "page", True), "died": ("engine_lost", "page", False),
            "hung": ("engine_hung", "page", True), None: ("slo_burn", "ticket", True),
        }  # fmt: skip
        assert (found[None]["slo"], found[None]["requests_affected"]) == ("all", 3)
        assert found["dead"]["start"] == "2026-11-21T09:59:10Z"
        assert found["hung"]["start"] == "2026-11-21T09:58:40Z"

    def test_a_burning_budget_says_how_fast_and_since_when(self, api, rows):
        rows.requests([{"slo_class": "chat", "ttft_ns": 1, "tpot_ns": 1.0} for _ in range(10)])
        rows.requests([{"slo_class": "chat", "ttft_ns": SECOND, "ended": NOW - i * SECOND} for i in range(20, 60)])
        (burn,) = api("incidents")["incidents"]
        assert (burn["cause"], burn["slo"], burn["severity"], burn["requests_affected"]) == (
            "slo_burn",
            "chat",
            "page",
            40,
        )
        assert burn["title"] == "chat burns its error budget 16.0 times too fast"
        assert burn["detail"] == (
            "80% of the requests of the last 5m were bad; 5% may be "
            "(page-outage: more than 10 times, also over the last 1m)."
        )
        assert burn["start"] == "2026-11-21T09:59:01Z"

    def test_a_burn_began_after_the_last_calm_however_long_ago(self, api, rows):
        def ended(seconds_ago, status="error", n=1):
            rows.requests(
                [
                    {"slo_class": "chat", "ended": NOW - s * SECOND, "status": status}
                    for s in seconds_ago
                    for _ in range(n)
                ]
            )

        def start():
            return next(i["start"] for i in api("incidents")["incidents"] if i["cause"] == "slo_burn")

        ended(range(1, 1200, 10))
        ended([700])  # with nothing for some minutes, it is the same burn
        assert start() == "2026-11-21T09:40:09Z"
        ended([1240, 1500])
        assert start() == "2026-11-21T09:35:00Z"
        ended([1570], "ok", n=60)  # calm
        ended([1640])
        assert start() == "2026-11-21T09:35:00Z"

    def test_a_burn_of_many_days_is_found_in_remembered_days_and_ends_at_the_slos_window(self, api, rows):
        apart, day = 50 * 60 * SECOND, 86_400 * SECOND
        edge = [NOW - 30 * day + seconds * SECOND for seconds in (20, -20)]  # a window of a rule holds both
        bad = sorted([*edge, *(NOW - SECOND - n * apart for n in range(40 * day // apart))], reverse=True)
        rows.requests([{"slo_class": "chat", "ended": at, "status": "error"} for at in [*bad, *[NOW - 9 * SECOND] * 9]])

        def burn(end="now"):
            found = next(i for i in api("incidents", end=end)["incidents"] if i["cause"] == "slo_burn")
            return found["start"], found["requests_affected"]

        in_window = [at for at in bad if at >= NOW - 30 * day]
        assert [burn(), burn()] == [(rfc3339(in_window[-1]), len(in_window) + 9)] * 2
        for calm, days in ((bad[-1] + apart // 2, 30), (bad[200] - apart // 2, 7), (NOW - 33_000 * SECOND, 0)):
            rows.requests([{"slo_class": "chat", "ended": calm} for _ in range(60)])
            since = [at for at in in_window if at > calm]
            assert burn() == (rfc3339(since[-1]), len(since) + 9), days

    def test_a_pause_longer_than_the_rule_looks_back_is_calm_too(self, api, rows):
        rows.requests([{"slo_class": "chat", "ended": NOW - s * SECOND, "status": "error"} for s in range(1, 241, 10)])
        rows.requests([{"slo_class": "chat", "ended": NOW - 600 * SECOND, "status": "error"}])
        assert api("incidents")["incidents"][0]["start"] == "2026-11-21T09:56:09Z"

    def test_the_number_of_a_burn_is_that_of_its_lists_whenever_they_are_asked(self, api, rows):
        def ended(status, seconds_ago):
            rows.requests([{"slo_class": "chat", "ended": NOW - s * SECOND, "status": status} for s in seconds_ago])

        ended("error", [450, 451, 452])  # bad, before the calm
        ended("ok", range(300, 420))
        ended("error", range(3, 301, 3))
        ended("ok", range(5, 300, 15))
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, slo_class="chat")
        rows.open(start=NOW - 200 * SECOND, seen=NOW - 100 * SECOND, slo_class="chat")
        starts = set()
        for seconds_ago in (0, 7, 30, 61):
            found = api("incidents", end=f"-{seconds_ago}s" if seconds_ago else "now", start="-1h")["incidents"]
            burn = next(i for i in found if i["slo"] == "chat")
            totals = [api("requests", **one["parameters"])["total"] for one in burn["requests"]]
            assert totals == [one["total"] for one in burn["requests"]]
            assert burn["requests_affected"] == sum(totals)
            assert burn["requests"][0]["parameters"]["start"] == burn["start"]
            if not seconds_ago:
                assert totals == [100, 1, 1]
            starts.add(burn["start"])
        assert starts == {"2026-11-21T09:55:00Z"}

    def test_a_burn_of_requests_that_hang_began_with_the_oldest(self, api, rows):
        for age in range(12):
            rows.open(start=NOW - (70 + age) * SECOND, seen=NOW - SECOND, slo_class="chat")
        burn = next(i for i in api("incidents")["incidents"] if i["slo"] == "chat")
        assert (burn["start"], burn["requests_affected"]) == ("2026-11-21T09:58:39Z", 12)
        (one,) = burn["requests"]
        assert one["total"] == api("requests", **one["parameters"])["total"] == 12

    def test_the_number_of_a_process_in_trouble_is_that_of_its_list(self, api, rows):
        for instance in ("dead", "hung"):
            for age in range(3):
                seen = NOW - (SECOND if instance == "hung" else (50 + 100 * age) * SECOND)
                rows.open(start=NOW - (90 + 100 * age) * SECOND, seen=seen, instance=instance)
        rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, instance="hung")  # it waits too, and not for long
        rows.open(start=NOW - 2 * SECOND, seen=NOW - SECOND, instance="other", vantage="client")
        rows.step(start=NOW - 80 * SECOND, instance="hung")
        rows.requests([{"vantage": "client"}, {}])
        found = {i["instance"]: i for i in api("incidents")["incidents"] if i["instance"]}
        assert {name: i["requests_affected"] for name, i in found.items()} == {"dead": 3, "hung": 4}
        for incident in found.values():
            (one,) = incident["requests"]
            listed = api("requests", **one["parameters"])
            assert listed["total"] == one["total"] == incident["requests_affected"]
            assert {row["instance"] for row in listed["requests"]} == {incident["instance"]}

    def test_preempted_requests_are_listed_by_their_run(self, api, rows):
        def preempted(seconds_ago, **fields):
            given = {"instance": "i-1", "ended": NOW - SECOND, "e2e": 400 * SECOND} | fields
            row = rows.request(**given)
            event = {"trace_id": row["trace_id"], "request_span_id": row["span_id"], "instance": "i-1"}
            rows.kv_event(start=NOW - seconds_ago * SECOND, **event)
            return row["trace_id"]

        early, late = {preempted(300), preempted(299)}, {preempted(20), preempted(19, tenant="a")}
        moved = rows.request()  # its blocks were copied, and not taken away
        its = {"trace_id": moved["trace_id"], "request_span_id": moved["span_id"]}
        rows.kv_event(start=NOW - 19 * SECOND, reason="cache_full", **its)
        preempted(18, instance="elsewhere")  # the event of another process
        still_open = rows.open(start=NOW - 60 * SECOND, seen=NOW - SECOND)
        rows.open(start=NOW - 60 * SECOND, seen=NOW - SECOND)
        rows.kv_event(start=NOW - 19 * SECOND, trace_id=still_open["trace_id"], request_span_id=still_open["span_id"])
        now, before = [i for i in api("incidents")["incidents"] if i["cause"] == "kv_eviction"]
        assert (now["requests_affected"], [one["total"] for one in now["requests"]]) == (4, [2, 1])
        assert [one["total"] for one in before["requests"]] == [2]
        for incident, ids in ((now, late), (before, early)):
            listed = api("requests", **incident["requests"][0]["parameters"])
            assert ({row["trace_id"] for row in listed["requests"]}, listed["total"]) == (ids, 2)
        (row,) = api("requests", **now["requests"][1]["parameters"])["requests"]
        assert (row["trace_id"], row["status"]) == (still_open["trace_id"], "in_flight")
        of_a = next(i for i in api("incidents", tenant="a")["incidents"] if i["firing"] and i["cause"] == "kv_eviction")
        assert [one["total"] for one in of_a["requests"]] == [1]
        assert api("requests", tenant="a", **of_a["requests"][0]["parameters"])["total"] == 1
        assert api("requests", cause="kv_eviction")["total"] == 4, "without times, those of the window"

    def test_requests_that_waited_for_a_cold_start_are_listed(self, api, rows):
        rows.cold_start(start=NOW - 10 * SECOND, duration=3 * SECOND)
        waited = rows.request(cold_start_ns=SECOND, e2e=9 * SECOND)
        rows.request(cold_start_ns=SECOND, e2e=9 * SECOND, instance="elsewhere")
        rows.request(cold_start_ns=SECOND, e2e=2 * SECOND)  # of another start
        rows.request(cold_start_ns=SECOND, e2e=SECOND, ended=NOW - 10 * SECOND)
        rows.request(cold_start_ns=0, e2e=9 * SECOND)
        (start,) = [i for i in api("incidents")["incidents"] if i["cause"] == "cold_start"]
        (one,) = start["requests"]
        listed = api("requests", **one["parameters"])
        assert [row["trace_id"] for row in listed["requests"]] == [waited["trace_id"]]
        assert listed["total"] == one["total"] == start["requests_affected"] == 1
        assert api("requests", cause="cold_start", status="in_flight")["total"] == 0

    @pytest.mark.parametrize("params", [{"slo_class": "completion"}, {"end": "-2h", "start": "-3h"}])
    def test_only_what_was_asked_about(self, api, rows, params):
        rows.requests([{"slo_class": "chat", "status": "error"} for _ in range(40)])
        assert api("incidents")["incidents"] != []
        assert api("incidents", **params)["incidents"] == []

    def test_a_filter_says_how_many_fire_outside_of_it(self, api, rows):
        assert api("incidents", tenant="other")["firing_outside"] == 0
        rows.requests([{"slo_class": "chat", "status": "error"} for _ in range(40)])
        rows.open(start=NOW - 90 * SECOND, seen=NOW - 50 * SECOND, instance="dead")
        rows.open(start=NOW - 800 * SECOND, seen=NOW - 700 * SECOND, instance="died")
        assert api("incidents")["firing_outside"] == 0
        firing = [(i["cause"], i["slo"], i["instance"]) for i in api("incidents")["incidents"] if i["firing"]]
        assert {("slo_burn", "chat", None), ("engine_lost", None, "dead")} < set(firing)
        assert api("incidents", tenant="other")["firing_outside"] == len(firing)
        chat = api("incidents", slo_class="chat")
        inside = [(i["cause"], i["slo"], i["instance"]) for i in chat["incidents"]]
        assert ("slo_burn", "chat", None) in inside
        assert ("engine_lost", None, "dead") not in inside
        assert chat["firing_outside"] == len(set(firing) - set(inside))
