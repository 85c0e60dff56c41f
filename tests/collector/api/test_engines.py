import pytest

from collector.ask.queries import Queries
from collector.engines import abilities
from collector.sql.fragment import TRUE
from tests.collector.rows import NOW, SECOND, trace_id

MS = 1_000_000
MINUTE = 60 * SECOND
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
    rows.request(instance="no-steps")
    rows.kv_event(start=T0, instance="no-steps")
    found = {one["instance"]: one for one in api("processes")["processes"]}
    named = ("running", "waiting", "kv_usage", "preemptions")
    assert [found["i-1"][name] for name in named] == [4, 2, 30 / 64, 2]
    assert [found["no-cache"][name] for name in named] == [1, 0, None, 0]
    assert [found["no-steps"][name] for name in named] == [None, None, None, 1]


def test_processes_of_one_name_have_each_the_numbers_of_its_own_requests(api, rows):
    """StatefulSets of two services, and those of two tenants, name their pods alike."""
    served = {
        ("chat", "acme"): (4, SECOND // 10, "ok"),
        ("chat", "globex"): (2, SECOND, "error"),
        ("code", ""): (3, SECOND // 5, "ok"),
    }
    for (service, tenant), (n, ttft, status) in served.items():
        for i in range(n):
            rows.request(
                service=service, instance="vllm-0", process_tenant=tenant, slo_class="chat", status=status,
                ttft_ns=ttft if status == "ok" else None, tpot_ns=1.0, ended=NOW - (i + 1) * SECOND, output_tokens=10,
            )  # fmt: skip
    rows.open(service="code", instance="vllm-0", start=NOW - 2 * SECOND, seen=NOW - SECOND)
    found = {(one["service"], one["process_tenant"]): one for one in api("processes")["processes"]}
    assert found.keys() == served.keys()
    told = {key: (one["requests"], one["attainment"], one["ttft_p99_s"]) for key, one in found.items()}
    assert told == {("chat", "acme"): (4, 1, 0.1), ("chat", "globex"): (2, 0, None), ("code", ""): (3, 1, 0.2)}
    assert {key: one["in_flight"] for key, one in found.items()} == {key: int(key[0] == "code") for key in served}
    assert all(one["output_tokens_per_s"] for one in found.values())


def test_a_slow_process_stands_before_its_siblings_with_how_much_slower_it_is(api, rows):
    """Of steps that only decode: one with a prompt is longer, and no fault of its process."""
    steps = []

    def made(start, ms, instance, prompt=0, **more):
        counts = {"prefill_tokens": prompt, "decode_tokens": 4}
        steps.append(rows.step_row(start=start, duration_ns=ms * MS, instance=instance, **counts, **more))

    for at in (NOW - 14 * MINUTE + bucket * MINUTE + n * SECOND for bucket in range(9) for n in range(6)):
        for instance, ms in (("a", 20), ("slow", 39), ("b", 21)):
            made(at, ms, instance)
        made(at + SECOND // 2, 900, "b", prompt=4000)
        made(at, 90, "alone", service="other")
    made(at, 5, "few")
    rows.insert("steps", steps)
    first, *others = api("processes")["processes"]
    assert first["instance"] == "slow"
    assert first["beside"] == {"ratio": 1.95, "low": 1.95, "high": 1.95, "siblings": 2, "is_slow": True}
    of = {one["instance"]: one["beside"] for one in others}
    assert of["b"] == {"ratio": 1.05, "low": 1.05, "high": 1.05, "siblings": 2, "is_slow": False}
    assert (of["alone"], of["few"]) == (None, None)


def test_an_old_step_says_nothing_of_now(api, rows):
    rows.step(start=NOW - 60 * SECOND - 1, kv_blocks_used=60, kv_blocks_total=64, running=9, waiting=1)
    (engine,) = api("processes")["processes"]
    assert [engine[key] for key in ("kv_usage", "running", "waiting")] == [None] * 3
    (then,) = api("processes", end="2026-11-21T09:59:30Z")["processes"]
    assert [then[key] for key in ("kv_usage", "running", "waiting")] == [60 / 64, 9, 1]


def test_a_count_that_the_engine_did_not_send_is_null_and_no_earlier_one_stands_in(api, rows):
    rows.step(start=T0, kv_blocks_used=60, kv_blocks_total=64, running=9)
    unknown = dict.fromkeys(("running", "waiting", "kv_blocks_used", "step"), None)
    rows.step(start=T0 + SECOND, kv_blocks_total=64, **unknown)
    rows.kv_event(start=T0, blocks=None)
    (engine,) = api("processes")["processes"]
    assert [engine[key] for key in ("running", "waiting", "kv_usage")] == [None] * 3
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
    found = {one["instance"]: one for one in api("processes")["processes"]}
    assert [found["i-1"][key] for key in ("kv_usage", "running", "waiting")] == [60 / 64, 9, 1]
    assert found["never"]["running"] is None
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
    assert sorted(e["instance"] for e in api("processes", model="big")["processes"]) == ["a", "b"]
    assert api("processes", model="small")["processes"] == []


def test_a_request_that_ended_before_the_window_keeps_no_process(api, rows):
    rows.step(start=T0)
    rows.request(ended=NOW - 15 * MINUTE - 1, model="before")
    rows.request(ended=NOW - 15 * MINUTE, model="in")
    rows.request(ended=NOW + MINUTE, e2e=2 * MINUTE, model="under way")
    rows.request(ended=NOW + 2 * MINUTE, e2e=MINUTE, model="behind")
    rows.open(start=NOW - SECOND, seen=NOW, model="other", instance="i-2")
    found = {
        model: len(api("processes", model=model)["processes"]) for model in ("before", "in", "under way", "behind")
    }
    assert found == {"before": 0, "in": 1, "under way": 1, "behind": 0}


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
        "service": "engine", "instance": "i-1", "process_tenant": "", "variant": "baseline", "model": "m",
        "status": "ok", "error_type": "",
        "phases": [
            {"name": "load_weights", "offset_s": 0.1, "duration_s": 2.0},
            {"name": "warmup", "offset_s": 2.1, "duration_s": 0.5},
        ],
    }  # fmt: skip
    assert overlapping["start"] == "2026-11-21T09:44:59Z"


def test_an_engine_whose_clock_differs_says_by_how_much(api, rows, live):
    segment = f"{NOW:020d}-a"
    ends = {"ahead": NOW + 90 * SECOND, "behind": NOW - 600 * SECOND, "even": NOW - SECOND}
    rows.requests({"service": name, "ended": end, "segment": segment} for name, end in ends.items())
    live.counters.on_segment(segment)
    live.refresh()
    lines = api("engines", end="2026-11-21T10:05:00Z")["engines"]
    told = {line["service"]: (line["clock_ahead_s"], line["clock_behind_s"]) for line in lines}
    assert told == {"ahead": (90, None), "behind": (None, 600), "even": (None, None)}


def test_engines_by_any_sign_of_life(api, rows):
    rows.request(ended=NOW - 5 * SECOND, e2e=10 * SECOND, model="b")
    rows.request(ended=NOW - 50 * SECOND, model="a")
    rows.step(start=NOW - SECOND)
    rows.open(start=NOW - 100 * SECOND, seen=NOW - 90 * SECOND, instance="hung", service="other", engine="vllm")
    rows.cold_start(start=NOW - 200 * SECOND, duration=SECOND, instance="new")
    first, second = api("engines")["engines"]
    tells = {told["what"]: told["told"] for told in first.pop("tells")}
    assert first == {
        "service": "engine", "process_tenant": "", "engine": "tokentrail", "variants": ["baseline"],
        "models": ["a", "b", "m"],
        "first_seen": "2026-11-21T09:56:40Z", "last_seen": "2026-11-21T09:59:59Z", "requests": 2, "processes_total": 2,
        "clock_ahead_s": None, "clock_behind_s": None,
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


def test_a_process_that_ran_as_two_variants_has_both(api, rows):
    """An engine without `service.instance.id`, or with its host's name in it, is the same process after a restart."""
    rows.request(variant="bf16", instance="", ended=NOW - 50 * SECOND)
    rows.request(variant="fp8", instance="", ended=NOW - 5 * SECOND)
    (line,) = api("engines")["engines"]
    assert line["variants"] == ["bf16", "fp8"]
    assert [process["variant"] for process in line["processes"]] == ["fp8"]


def test_a_process_of_two_instrumentations_is_of_the_one_that_reports_most_requests(api, rows):
    for engine in ("openinference", "langfuse", "genai"):
        rows.requests([{"engine": engine, "vantage": "client"}] * (3 if engine == "langfuse" else 2))
    (found,) = api("engines")["engines"]
    assert (found["engine"], found["requests"]) == ("langfuse", 7)
    rows.request(engine="genai", vantage="client")  # as many: the first by alphabet
    (found,) = api("engines")["engines"]
    assert found["engine"] == "genai"


@pytest.mark.parametrize("query", ["engine_requests", "engine_announcements", "engine_steps", "engine_cold_starts"])
def test_the_models_and_variants_of_a_process_make_no_rows_of_their_own(rows, query):
    """The rows of past days are remembered: a platform of 400 processes with 60 models had 24,000 of each day."""
    for n in range(30):
        names = {"model": f"m{n % 15:02}", "variant": f"v{n % 3}"}
        rows.request(**names, ended=NOW - n * SECOND)
        rows.open(**names, start=NOW - n * SECOND, seen=NOW - n * SECOND)
        rows.cold_start(**names, start=NOW - n * SECOND, duration=SECOND)
        rows.step(variant=names["variant"], start=NOW - n * SECOND)
    fragments, bounds = {"filter": TRUE, "ended": TRUE}, {"start_ns": NOW - MINUTE, "end_ns": NOW + SECOND}
    if query in ("engine_announcements", "engine_cold_starts"):
        del fragments["ended"]
    if query == "engine_cold_starts":
        fragments = {"process_filter": TRUE}
    found = [row for row in Queries(rows.store).rows(query, fragments, **bounds) if row.get("listed", True)]
    assert [(row["variant_now"], row["variants"]) for row in found] == [("v0", ["v0", "v1", "v2"])]
    if query != "engine_steps":
        assert found[0]["models"] == [f"m{n:02}" for n in range(15)]
    assert len(found[0].get("examples", ())) <= 20


def test_a_process_with_an_id_in_place_of_each_model_has_some_of_them(api, rows):
    rows.requests([{"model": f"m{n:04}", "variant": f"v{n:04}"} for n in range(1100)])
    (row,) = Queries(rows.store).rows("engine_requests", {"ended": TRUE, "filter": TRUE})
    assert (len(row["models"]), len(row["variants"])) == (1000, 1000)
    (engine,) = api("engines")["engines"]
    assert (len(engine["models"]), len(engine["variants"])) == (100, 100)


def test_a_process_was_last_heard_of_when_its_last_request_ended(api, rows):
    rows.request(ended=NOW - 120 * MINUTE)
    rows.request(ended=NOW - 181 * MINUTE, instance="before")
    (line,) = api("engines", start="-3h")["engines"]
    assert [(p["instance"], p["last_seen"]) for p in line["processes"]] == [("i-1", "2026-11-21T08:00:00Z")]


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
        assert missing == {"phases", "kv", "preemption", "cold_start", "in_flight"}
        assert tells["itl"]["reason"] == "1 of 2 requests tell it"
        rows.tokens(first, [400_000, 5_000])
        rows.step(start=T0, preempted=0, kv_blocks_used=0)
        rows.cold_start(start=T0, duration=SECOND, engine="vllm")
        rows.open(start=T0, seen=NOW, engine="vllm")
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
