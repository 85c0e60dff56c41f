import pytest

from collector.api.cursor import Cursor
from tests.collector.rows import NOW, SECOND, trace_id

MS = 1_000_000


def _cursor(sort, value, trace_id="0" * 32):
    return Cursor(sort, value, 1, trace_id, "0" * 16).text()


def test_rows_have_every_field_of_the_contract(api, rows):
    made = rows.request(
        ended=NOW - 123,
        e2e=SECOND + 1,
        request_id="chatcmpl-1",
        ttft_ns=200_000_001,
        tpot_ns=1e8 / 3,
        queue_ns=0,
        prefill_ns=7,
        wait_kv_ns=5,
        wait_priority_ns=6,
        first_visible_ns=8,
        accepted_tokens=3,
        perplexity=1.5,
        mean_entropy=1.25,
        gap_ns=9_000,
        gap_index=4,
    )
    (row,) = api("requests")["requests"]
    assert row == {
        "trace_id": made["trace_id"], "span_id": "00000000000000aa", "request_id": "chatcmpl-1", "engine": "tokentrail",
        "service": "engine", "instance": "i-1", "process_tenant": "", "variant": "baseline", "vantage": "server",
        "operation": "chat", "model": "m", "tenant": "", "slo_class": "", "start": "2026-11-21T09:59:58.999999876Z",
        "end": "2026-11-21T09:59:59.999999877Z", "status": "ok", "error_type": "", "finish_reason": "stop",
        "input_tokens": 5, "output_tokens": 10, "cached_tokens": 0, "reasoning_tokens": 0, "preemptions": 0,
        "ttft_s": 0.200000001, "tpot_s": pytest.approx(0.1 / 3), "tpot_at_most_s": None, "e2e_s": 1.000000001,
        "queue_s": 0.0, "cold_start_s": None, "prefill_s": 7e-9, "decode_s": None, "preempted_s": None,
        "kv_transfer_s": None, "labels": {},
        "stalled_s": None, "first_visible_s": 8e-9, "wait_batch_s": None, "wait_tokens_s": None, "wait_kv_s": 5e-9,
        "wait_priority_s": 6e-9, "drafted_tokens": None, "accepted_tokens": 3,
        "image_input_tokens": None, "audio_input_tokens": None, "image_output_tokens": None,
        "audio_output_tokens": None, "perplexity": 1.5, "mean_entropy": 1.25,
        "weight": 1.0, "hops": [], "gap_s": 9e-6, "gap_index": 4,
        "verdict": "good", "verdicts": [{"slo": "all", "verdict": "good", "missed": []}],
    }  # fmt: skip


@pytest.mark.parametrize(("sort", "order"), [("end", "desc"), ("tpot", "desc"), ("ttft", "asc")])
def test_pages_are_slices_of_one_order(api, rows, sort, order):
    rows.requests(
        [{"ended": NOW - i % 7 * SECOND - 1, "e2e": (i * 37 % 11 + 1) * MS, "output_tokens": i % 3} for i in range(40)]
    )
    asked = {"sort": sort, "order": order}
    everything = api("requests", **asked)
    assert everything["total"] == 40
    field = "end" if sort == "end" else f"{sort}_s"
    values = [r[field] for r in everything["requests"] if r[field] is not None]
    assert values == sorted(values, reverse=order == "desc")
    assert all(r[field] is None for r in everything["requests"][len(values) :])
    pages = [api("requests", **asked, limit=7)]
    while cursor := pages[-1]["next"]:
        if order == "desc":
            rows.request(ended=NOW - 1)  # a newcomer before the cursor moves no page
        pages.append(api("requests", **asked, limit=7, cursor=cursor))
    assert [len(page["requests"]) for page in pages] == [7, 7, 7, 7, 7, 5]
    assert [page["total"] for page in pages] == ([40, 41, 42, 43, 44, 45] if order == "desc" else [40] * 6)
    assert [row for page in pages for row in page["requests"]] == everything["requests"]


def test_rows_can_be_picked(api, rows):
    rows.requests([{"status": s, "request_id": f"r-{s}"} for s in ("ok", "error", "cancelled", "unknown")])
    assert [r["request_id"] for r in api("requests", status="error")["requests"]] == ["r-error"]
    picked = api("requests", request_id="r-ok")
    assert picked["total"] == 1
    assert picked["requests"][0]["status"] == "ok"


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({"min_input_tokens": 9}, {"9", "20"}),
        ({"min_input_tokens": 1, "max_input_tokens": 9}, {"9"}),
    ],
)
def test_requests_are_chosen_by_the_length_of_their_prompts(api, rows, bounds, found):
    rows.requests([{"request_id": str(n), "input_tokens": n} for n in (0, 9, 20, None)])
    assert {row["request_id"] for row in api("requests", **bounds)["requests"]} == found
    assert sum(cell["requests"] for cell in api("heatmap", metric="e2e", **bounds)["cells"]) == len(found)
    answer = api("differences", **bounds, **{"select.status": "ok"})
    assert answer["selected"] + answer["others"] == len(found)
    rows.open(start=NOW - SECOND, seen=NOW, input_tokens=9)
    assert api("requests", status="in_flight", **bounds)["total"] == 1


@pytest.mark.parametrize(
    ("metric", "bounds", "found"),
    [
        ("ttft", {"at_least": "200ms"}, {"200", "300"}),
        ("ttft", {"at_most": "200ms"}, {"100", "200"}),
        ("ttft", {"at_least": "150ms", "at_most": "250ms"}, {"200"}),
        ("queue", {"at_least": "20ms", "at_most": "20ms"}, {"200"}),
        ("tpot", {"at_least": "1ns"}, {"200"}),
    ],
)
def test_rows_can_be_picked_by_a_latency_and_one_that_is_not_known_is_between_no_bounds(
    api, rows, metric, bounds, found
):
    known = [
        {"request_id": str(ms), "ttft_ns": ms * MS, "queue_ns": ms * MS // 10, "tpot_ns": 5e6 if ms == 200 else None}
        for ms in (100, 200, 300)
    ]
    rows.requests([*known, {"request_id": "none", "ttft_ns": None, "queue_ns": None, "tpot_ns": None}])
    answer = api("requests", metric=metric, **bounds)
    assert {row["request_id"] for row in answer["requests"]} == found
    assert answer["total"] == len(found)


@pytest.mark.parametrize("status", ["ok", "in_flight"])
def test_the_first_digits_of_a_trace_id_pick_it(api, rows, status):
    ids = ["ab12ff" + "0" * 26, "ab12" + "0" * 28, "cd" + "0" * 30]
    if status == "ok":
        rows.requests([{"trace_id": trace_id} for trace_id in ids])
    else:
        for trace_id in ids:
            rows.open(trace_id=trace_id, start=NOW - 10 * SECOND, seen=NOW - SECOND)

    def picked(begins):
        return {row["trace_id"] for row in api("requests", status=status, trace_id=begins)["requests"]}

    assert picked("AB12") == set(ids[:2])
    assert picked("ab12f") == {ids[0]}
    assert picked(ids[2]) == {ids[2]}
    assert picked("b12f") == set()
    assert api.client.get("/api/v1/requests", params={"trace_id": "ab%2"}).status_code == 400


@pytest.fixture
def one(rows):
    """A request of 1 s, from 10 s before now."""
    made = rows.request(ended=NOW - 9 * SECOND, e2e=SECOND, output_tokens=3, ttft_ns=400 * MS)
    rows.phases(made, [("queued", 100 * MS + 1000), ("prefill", 300 * MS - 1000), ("decode", 600 * MS)])
    rows.tokens(made, [400_000, 350_001, 249_999], step=17)
    return made


def test_a_request_of_a_long_trace_has_ended_although_a_thousand_came_after_it(api, rows):
    trace, spans = trace_id(), [f"{n:016x}" for n in range(1, 1003)]
    short = {1001: {"e2e": MS}}  # it began after the others
    made = {"trace_id": trace}
    rows.requests([made | {"span_id": s, "ended": NOW - n * MS} | short.get(n, {}) for n, s in enumerate(spans)])
    assert api(f"requests/{trace}")["span_ids"] == spans[:1000]
    oldest = api(f"requests/{trace}", span_id=spans[-1])
    assert (oldest["request"]["status"], oldest["request"]["e2e_s"]) == ("ok", 0.001)
    assert oldest["span_ids"] == [*spans[:999], spans[-1]]


def test_one_request_with_all_that_is_known(api, rows, one):
    t0 = one["start"]
    rows.step(start=t0 - 20 * MS, step=16)  # over before it began
    rows.step(
        start=t0 - 5 * MS, step=17, running=4, kv_blocks_total=64, kv_blocks_used=30, waiting_for_kv=2,
        cached_tokens=16, device_ns=9 * MS, compute_ns=3 * MS, memory_ns=6 * MS,
    )  # fmt: skip
    rows.step(start=t0 + 2 * SECOND, step=18)
    rows.step(start=t0, step=99, instance="other")
    rows.kv_event(start=t0 + 300 * MS, trace_id=one["trace_id"], request_span_id=one["span_id"])
    served = {"bytes": 4096, "beneficiary": one["trace_id"]}
    rows.kv_event(start=t0 + 500 * MS, reason="cache_full", blocks=2, **served)
    rows.kv_event(start=t0 - SECOND)
    rows.cold_start(start=t0 - SECOND, duration=SECOND + MS)
    rows.cold_start(start=t0 - SECOND, duration=SECOND + MS, phase="load_weights")
    answer = api(f"requests/{one['trace_id'].upper()}")
    assert answer["request"]["trace_id"] == one["trace_id"]
    assert answer["span_ids"] == [one["span_id"]]
    assert answer["phases"] == [
        {"name": "queued", "offset_s": 0.0, "duration_s": 0.100001},
        {"name": "prefill", "offset_s": 0.100001, "duration_s": 0.299999},
        {"name": "decode", "offset_s": 0.4, "duration_s": 0.6},
    ]
    assert answer["tokens"] == [
        {"index": 0, "offset_s": 0.4, "duration_s": 0.4, "step": 17, "phase": "prefill"},
        {"index": 1, "offset_s": 0.750001, "duration_s": 0.350001, "step": 18, "phase": "decode"},
        {"index": 2, "offset_s": 1.0, "duration_s": 0.249999, "step": 19, "phase": "decode"},
    ]
    for part in ("phases", "tokens"):
        assert sum(round(p["duration_s"] * 1e9) for p in answer[part]) == round(answer["request"]["e2e_s"] * 1e9)
    unserved = {"bytes": None, "beneficiary": ""}
    start, preemption, dropped = answer["events"]
    assert start == unserved | {
        "kind": "cold_start", "reason": "", "offset_s": -1.0, "duration_s": 1.001, "blocks": 0, "own": True,
    }  # fmt: skip
    assert preemption == unserved | {
        "kind": "kv.evict", "reason": "preemption", "offset_s": 0.3, "duration_s": 0.0, "blocks": 4, "own": True,
    }  # fmt: skip
    assert dropped == served | {
        "kind": "kv.evict", "reason": "cache_full", "offset_s": 0.5, "duration_s": 0.0, "blocks": 2, "own": False,
    }  # fmt: skip
    assert [(s["step"], s["offset_s"], s["running"], s["kv_blocks_used"]) for s in answer["steps"]] == [
        (17, -0.005, 4, 30)
    ]
    (step,) = answer["steps"]
    details = ("waiting_for_batch", "waiting_for_tokens", "waiting_for_kv", "waiting_for_priority", "drafted_tokens")
    assert [step[name] for name in details] == [None, None, 2, None, None]
    assert step["cached_tokens"] == 16
    assert (step["mfu"], step["mbu"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_steps_and_events_that_are_too_many_are_counted_and_its_own_events_stay(api, rows, one, monkeypatch):
    monkeypatch.setattr("collector.causes.answer.request.MOST_EVENTS", 3)
    for n in range(5):
        rows.step(start=one["start"] + n * MS, step=n)
        rows.kv_event(start=one["start"] + n * MS, reason="cache_full")
    for at in (9 * MS, 8 * MS):
        own = {"trace_id": one["trace_id"], "request_span_id": one["span_id"]}
        rows.kv_event(start=one["start"] + at, **own)
    answer = api(f"requests/{one['trace_id']}")
    assert [step["step"] for step in answer["steps"]] == [0, 1, 2]
    assert [(event["own"], event["offset_s"]) for event in answer["events"]] == [
        (False, 0),
        (True, 0.008),
        (True, 0.009),
    ]
    assert (answer["steps_total"], answer["events_total"]) == (5, 7)


def test_a_request_without_steps_and_events_has_none_of_them(api, one):
    answer = api(f"requests/{one['trace_id']}")
    assert (answer["steps_total"], answer["events_total"], answer["steps"], answer["events"]) == (0, 0, [], [])


def test_nobody_knows_when_a_token_behind_a_missing_one_was_emitted(api, rows):
    made = rows.request(ended=NOW - 9 * SECOND, e2e=SECOND, output_tokens=4)
    key = {"minute": made["start"], "trace_id": made["trace_id"], "request_span_id": made["span_id"], "step": 1}
    stored = [(0, 0, 100), (0, 0, 100), (0, 1, 50), (0, 3, 70), (1, 0, 200), (1, 1, 10), (1, 1, 20), (1, 2, 30)]
    rows.insert(
        "tokens",
        [key | {"choice": choice, "token_index": index, "duration_us": 1000 * ms} for choice, index, ms in stored],
    )
    tokens = api(f"requests/{made['trace_id']}")["tokens"]
    assert [(t["index"], t["duration_s"], t["offset_s"]) for t in tokens] == [
        (0, 0.1, 0.1), (1, 0.05, 0.15), (3, 0.07, None),
        (0, 0.2, 0.2), (1, 0.01, 0.21), (1, 0.02, None), (2, 0.03, None),
    ]  # fmt: skip


def test_a_trace_may_hold_several_requests(api, rows, one):
    rows.request(trace_id=one["trace_id"], span_id="00000000000000bb", ended=NOW - 5 * SECOND)
    newest = api(f"requests/{one['trace_id']}")
    assert newest["span_ids"] == ["00000000000000bb", one["span_id"]]
    assert newest["request"]["span_id"] == "00000000000000bb"
    assert newest["tokens"] == []
    assert len(api(f"requests/{one['trace_id']}", span_id=one["span_id"])["tokens"]) == 3


def test_a_window_leaves_out_requests_of_the_trace_that_ended_outside(api, rows):
    trace, names = trace_id(), {}
    for seconds in (50, 30, 10):
        made = rows.request(trace_id=trace, span_id=f"{seconds:016x}", ended=NOW - seconds * SECOND)
        names[made["span_id"]] = seconds
    rows.open(trace_id=trace, span_id="00000000000000cc", start=NOW - 20 * SECOND, seen=NOW - SECOND)
    names["00000000000000cc"] = "open"

    def within(**window):
        return [names[span] for span in api(f"requests/{trace}", **window)["span_ids"]]

    assert within() == [10, 30, 50, "open"]
    assert within(start="-40s") == [10, 30, "open"]
    assert within(start="-30s") == [10, 30, "open"]
    assert within(end="-15s") == [30, 50, "open"]
    assert within(end="-20s") == within(end="-25s") == [30, 50]
    assert within(end="-30s") == [50]
    assert within(start="-35s", end="-25s") == [30]


def test_an_empty_window_and_one_without_the_request_are_refused(api, one):
    def refusal(**window):
        answer = api.client.get(f"/api/v1/requests/{one['trace_id']}", params=window)
        return answer.status_code, answer.json()["detail"]

    assert refusal(start="-1s", end="-2s") == refusal(start="-1s", end="-1s")
    assert refusal(start="-1s", end="-2s")[0] == 400
    assert "must be before end" in refusal(start="-1s", end="-2s")[1]
    assert refusal(start="-5s") == (404, f"there is no request with trace id {one['trace_id']} in this window")


def test_a_request_in_flight_shows_what_was_announced_and_its_tokens(api, rows):
    open_ = rows.open(start=NOW - 10 * SECOND, seen=NOW - SECOND, ttft_ns=400 * MS, output_tokens=2, request_id="r")
    rows.tokens(open_, [400_000, 5_000_000])
    answer = api(f"requests/{open_['trace_id']}")
    row = answer["request"]
    assert (row["status"], row["end"], row["e2e_s"], row["ttft_s"], row["output_tokens"]) == (
        "in_flight",
        None,
        None,
        0.4,
        2,
    )
    assert [t["offset_s"] for t in answer["tokens"]] == [0.4, 5.4]


@pytest.mark.parametrize(
    ("path", "params", "status", "detail"),
    [
        ("requests/xyz", {}, 400, "not 32 hex digits"),
        ("requests/" + "a" * 31, {}, 400, "not 32 hex digits"),
        ("requests/" + "a" * 32, {}, 404, "no request with trace id"),
        ("requests/" + "a" * 32, {"span_id": "b"}, 400, "not 16 hex digits"),
        ("requests/" + "a" * 32, {"model": "m"}, 400, "unknown parameter"),
        ("requests", {"limit": 0}, 400, "limit"),
        ("requests", {"cause_start": "-5m"}, 400, "cause_start: is the time of a cause"),
        ("requests", {"cause_end": "now", "status": "lost"}, 400, "cause_end: is the time of a cause"),
        ("requests", {"limit": 1001}, 400, "limit"),
        ("requests", {"cursor": "x"}, 400, "cursor: is not the `next` of an answer"),
        ("requests", {"cursor": _cursor("end", True)}, 400, "cursor: is not"),
        ("requests", {"cursor": _cursor("end", 2**63)}, 400, "cursor: is not"),
        ("requests", {"cursor": _cursor("end", 1, "x" * 32)}, 400, "cursor: is not"),
        ("requests", {"cursor": _cursor("ttft", 1)}, 400, "cursor: is of another order"),
        ("requests", {"slo": "nobody"}, 404, "there are: chat, all"),
        ("requests", {"verdict": "fine"}, 400, "verdict"),
        ("requests", {"sort": "end; DROP TABLE requests"}, 400, "sort"),
        ("requests", {"status": "gone"}, 400, "status"),
        ("summary", {"modle": "m"}, 400, "modle: unknown parameter"),
        ("storage", {"tenant": "acme"}, 400, "tenant: unknown parameter"),
        ("storage", {"tenant": ["a", "b"]}, 400, "tenant: unknown parameter"),
        ("requests", {"status": ["ok", "error"]}, 400, "status: is given more than once, and takes one value"),
        ("requests", {"model": ["a", "b"], "start": ["-1h", "-2h"]}, 400, "start: is given more than once"),
        ("summary", {"start": "yesterday"}, 400, "start: 'yesterday' is not a time"),
        ("summary", {"start": "-15"}, 400, "is not a duration"),
        ("summary", {"start": "now", "end": "-10m"}, 400, "must be before end"),
        ("summary", {"start": "10:00", "end": "10:00"}, 400, "must be before end"),
        ("slos", {"start": "now"}, 400, "without it, the window begins 15 minutes before its end"),
        ("summary", {"start": "2026-02-30T00:00:00Z"}, 400, "start"),
        ("summary", {"end": "99999999999"}, 400, "between the years"),
        ("summary", {"model": "x" * 257}, 400, "model"),
        ("summary", {"model": ["m"] * 101}, 400, "model"),
        ("requests", {"metric": "ttft"}, 400, "at_least or at_most"),
        ("requests", {"at_most": "1s"}, 400, "metric"),
        ("requests", {"metric": "ttft", "at_most": "1s", "status": "lost"}, 400, "have not ended"),
        ("timeseries", {"metric": "latency"}, 400, "metric"),
        ("timeseries", {}, 400, "metric"),
        ("timeseries", {"metric": "ttft", "step": "10ms"}, 400, "more than 11000 points"),
        ("timeseries", {"metric": "ttft", "slo": "nobody"}, 404, "there are: chat, all"),
        ("slos/nobody", {}, 404, "there are: chat, all"),
        ("nothing", {}, 404, "this API has no path /api/v1/nothing; /docs lists the paths"),
        ("x" * 300, {}, 404, f"no path /api/v1/{'x' * 192}; /docs"),
    ],
)
def test_errors_are_problem_documents(api, path, params, status, detail):
    answer = api.client.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert detail in problem["detail"]
    assert (status == 400) == ("errors" in problem)


def test_a_wrong_method_is_a_problem_too(api):
    answer = api.client.post("/api/v1/summary")
    assert (answer.status_code, answer.json()["status"]) == (405, 405)
    assert answer.headers["allow"] == "GET"
