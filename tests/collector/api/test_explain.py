"""Which causes took the time of slow requests, against a plain computation over rows by hand and by chance."""

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.app.service import build_api
from collector.ask.times import rfc3339
from collector.causes.answer.sentence import number_of_bad
from collector.causes.split.names import PARTS
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND
from tests.support.keys import access_to, add_key

MS = 1_000_000
FEW = ("wait_kv", "own_prompt", "others_prompts", "stall", "unexplained")
AFTER = ("batch", "others_prompts", "preempted", "stall", "unexplained")


def request(*, ttft, rest, tokens=11, status="ok", **fields):
    """A request, and its row of causes, from the milliseconds of each cause."""
    first, after = (sum(parts.values()) for parts in (ttft, rest))
    has_token = tokens is None or tokens > 0
    return {
        "e2e": (first + after) * MS,
        "ttft_ns": first * MS if has_token else None,
        "tpot_ns": after * MS / (tokens - 1) if tokens and tokens > 1 else None,
        "output_tokens": tokens,
        "status": status,
        **fields,
    }, {
        f"{of}_{name}_us": parts.get(name, 0) * 1000 for of, parts in (("ttft", ttft), ("rest", rest)) for name in PARTS
    }


def store(rows, many, *, explained=None):
    """Store requests, and the causes of those at the places `explained`. Returns the requests."""
    found = rows.requests([{"ended": NOW - SECOND - i, **fields} for i, (fields, _) in enumerate(many)])
    rows.causes(
        [
            (row, causes)
            for i, (row, (_, causes)) in enumerate(zip(found, many, strict=True))
            if explained is None or i in explained
        ]
    )
    return found


def chats(n, **fields):
    """Typical requests: TTFT 100 ms, TPOT 20 ms."""
    return [
        request(ttft={"own_prompt": 80, "wait_kv": 20}, rest={"batch": 150, "alone": 50}, slo_class="chat", **fields)
        for _ in range(n)
    ]


def by_cause(answer):
    return {part["cause"]: part for part in answer["parts"]}


def test_the_cause_of_slow_requests_is_found_beside_typical_ones(rows, api):
    slow = request(ttft={"own_prompt": 80, "wait_kv": 820}, rest={"batch": 150, "alone": 50}, slo_class="chat")
    found = store(rows, [*chats(36), *[slow] * 4])
    answer = api("explain", slo="chat")
    assert answer["selected"] == {
        "requests": 4, "explained": 4, "failed": 0, "time_s": pytest.approx(4.4), "processes": ["engine i-1"],
        "start": rfc3339(NOW - SECOND - 39), "end": rfc3339(NOW - SECOND - 36),
    }  # fmt: skip
    assert (answer["attainment"], answer["judged"]) == (0.9, 40)
    first, *others = answer["parts"]
    assert (first["cause"], first["group"]) == ("wait_kv", "waiting for KV")
    assert (first["time_s"], first["typical_s"], first["excess_s"]) == pytest.approx((3.28, 0.08, 3.2))
    assert (first["share"], first["requests"]) == pytest.approx((1.0, 4))
    assert first["without"] == {
        "causes": ["wait_kv"], "attainment": 1.0, "points": pytest.approx(10.0), "kind": "first order",
        "low": 1.0, "high": 1.0,
    }  # fmt: skip
    assert {one["trace_id"] for one in first["exemplars"]} <= {row["trace_id"] for row in found[-4:]}
    assert [one["excess_s"] for one in first["exemplars"]] == pytest.approx([0.8] * 3)
    assert "--kv-blocks" in first["advice"], "the engine is tokentrail"
    assert "--gpu-memory-utilization" not in first["advice"]
    assert {other["cause"] for other in others} == {"own_prompt", "batch", "alone"}
    assert all(other["share"] == 0 and other["without"]["points"] == 0 for other in others)
    waits = "What 4 bad requests took beyond typical requests was 100 % waiting for KV."
    assert answer["sentence"] == waits, "the first order says little of a queue"
    assert answer["typical"] == {
        "text": "the middle half of good requests of the same model",
        "start": answer["window"]["start"], "end": answer["window"]["end"],
        "ttft_requests": 36, "ttft_from_s": 0.1, "ttft_to_s": 0.1,
    }  # fmt: skip
    assert answer["levels"] == [{"level": "steps", "requests": 4, "engines": ["tokentrail"], "reasons": [], "more": ""}]
    assert answer["note"] is None


def test_rows_have_their_causes_by_what_people_call_them_if_these_are_asked_for(rows, api):
    slow = request(ttft={"wait_batch": 7, "wait_priority": 20}, rest={"wait_tokens": 3, "others_prompts": 50})
    ended = NOW - SECOND  # of all, so that each is found by its key
    found = store(rows, [(fields | {"ended": ended}, causes) for fields, causes in (slow, *chats(2))], explained=[0, 1])
    answer = api("requests", explained=True)
    told = dict(zip((row["trace_id"] for row in answer["requests"]), answer["explained"], strict=True))
    first, second, unexplained = (told[row["trace_id"]] for row in found)
    assert unexplained is None
    assert [(one["group"], one["ttft_s"], one["rest_s"]) for one in first["causes"]] == [
        ("others' prompts", 0.0, pytest.approx(0.053)),
        ("waiting for a place", pytest.approx(0.027), 0.0),
    ]
    assert [one["colour"] for one in first["causes"]] == ["#f59e0b", "#94a3b8"]
    assert {one["group"] for one in second["causes"]} >= {"own prompt", "alone (the floor)"}
    assert (first["level"], second["level"]) == ("steps", "steps")
    rows.open(start=NOW - SECOND, seen=NOW)
    assert api("requests", explained=True, status="in_flight")["explained"] == [None]
    assert api("requests")["explained"] == []
    assert api("requests", explained=True, model="other")["explained"] == []


def test_a_window_in_which_nearly_all_are_bad_is_compared_with_its_good_ones_and_with_those_before(rows, api):
    slow = request(ttft={"own_prompt": 80, "wait_kv": 820}, rest={"batch": 150, "alone": 50}, slo_class="chat")
    store(rows, [*chats(10), *[slow] * 90])
    for hours, n in ((20, 25), (30, 100)):
        before = NOW - hours * 3600 * SECOND
        store(rows, [(fields | {"ended": before - i}, causes) for i, (fields, causes) in enumerate(chats(n))])
    answer = api("explain", slo="chat", slowest=1)
    assert answer["parts"][0]["cause"] == "wait_kv"
    assert answer["parts"][0]["excess_s"] == pytest.approx(90 * 0.8)
    assert answer["typical"]["ttft_requests"] == 10 + 25, "those of the day before the window, and none of older ones"
    assert answer["typical"]["start"] == rfc3339(NOW - 900 * SECOND - 86400 * SECOND)
    assert answer["typical"]["text"].endswith(f"of the same model since {answer['typical']['start']}")
    told = api(f"requests/{answer['slowest'][0]['trace_id']}")["explained"]
    assert [one["excess_s"] for one in told["causes"] if one["cause"] == "wait_kv"] == pytest.approx([0.8])


def test_the_hour_before_the_window_is_asked_before_the_day(rows, api):
    slow = request(ttft={"own_prompt": 80, "wait_kv": 820}, rest={"batch": 200}, slo_class="chat")
    store(rows, [slow])
    hour_ago, day_ago = NOW - 3600 * SECOND, NOW - 20 * 3600 * SECOND
    store(rows, [(fields | {"ended": hour_ago - i}, causes) for i, (fields, causes) in enumerate(chats(20))])
    store(rows, [(slow[0] | {"ended": hour_ago + 1 + i}, slow[1]) for i in range(20)])
    other = request(ttft={"own_prompt": 400}, rest={"batch": 200}, slo_class="chat")
    store(rows, [(other[0] | {"ended": day_ago - i}, other[1]) for i in range(90)])
    answer = api("explain", slo="chat")
    assert by_cause(answer)["own_prompt"]["excess_s"] == pytest.approx(0)
    assert answer["typical"]["ttft_requests"] == 20
    assert answer["typical"]["start"] == rfc3339(NOW - 900 * SECOND - 3600 * SECOND)


def test_where_no_good_one_is_known_nothing_is_beyond_typical_and_nothing_is_0(rows, api):
    store(rows, [request(ttft={"wait_kv": 900}, rest={"batch": 200}, slo_class="chat")] * 3)
    answer = api("explain", slo="chat")
    assert answer["typical"] is None
    assert {(part["typical_s"], part["excess_s"], part["share"], part["requests"]) for part in answer["parts"]} == {
        (None, None, None, None)
    }
    assert "nothing is known of what is typical" in answer["note"]


def test_each_request_is_compared_with_its_own_model(rows, api):
    """The large model takes 300 ms for a prompt, which nobody waits for in vain; a third one has no good request."""
    own = {"small": 100, "large": 300, "new": 100}
    good = [
        request(ttft={"own_prompt": own[name]}, rest={"batch": 100}, model=name, slo_class="chat")
        for name in ("small", "large")
        for _ in range(25)
    ]
    bad = [
        request(ttft={"own_prompt": own[name], "stall": 500}, rest={"batch": 100}, model=name, slo_class="chat")
        for name in ("small", "large", "large")
    ]
    store(rows, [*good, *bad])
    answer = api("explain", slo="chat")
    assert [part["excess_s"] for part in answer["parts"]] == pytest.approx([1.5, 0, 0])
    assert (answer["typical"]["ttft_from_s"], answer["typical"]["ttft_to_s"]) == (0.1, 0.3)
    assert answer["note"] is None
    store(rows, [request(ttft={"stall": 800}, rest={"batch": 100}, model="new", slo_class="chat")])
    slower = request(ttft={"own_prompt": 400}, rest={"batch": 100}, model="small", slo_class="chat")
    store(rows, [(slower[0] | {"ended": NOW - 2000 * SECOND - i}, slower[1]) for i in range(60)])
    answer = api("explain", slo="chat")
    assert answer["typical"]["ttft_to_s"] == 0.3, "small has enough good ones in the window"
    assert answer["note"].startswith("1 requests are compared with other models")


def test_a_longer_answer_is_no_delay(rows, api):
    long = request(ttft={"own_prompt": 100}, rest={"batch": 60_000, "alone": 20_000}, tokens=4001)
    store(rows, [*chats(20), long])
    answer = api("explain", e2e="60s")
    assert answer["selected"]["requests"] == 1
    parts = by_cause(answer)
    assert parts["batch"]["excess_s"] == pytest.approx(0)
    assert parts["alone"]["excess_s"] == pytest.approx(0)
    assert parts["own_prompt"]["excess_s"] == pytest.approx(0.1 - 0.08)


def test_pairs_and_any_number_of_causes_are_left_out_together(rows, api):
    slow = request(ttft={"wait_kv": 400, "stall": 400}, rest={"batch": 200}, slo_class="chat")
    store(rows, [*chats(19), slow])
    asked = ["wait_kv", "stall", "wait_kv, stall", "stall,wait_kv,batch"]
    answer = api("explain", slo="chat", without=asked)
    assert [one["causes"] for one in answer["without"]] == [
        ["wait_kv"],
        ["stall"],
        ["wait_kv", "stall"],
        ["wait_kv", "batch", "stall"],
    ]
    assert [one["attainment"] for one in answer["without"]] == [1.0, 1.0, 1.0, 1.0]
    strict = api("explain", ttft="200ms", without=asked)
    assert [one["attainment"] for one in strict["without"]] == [0.95, 0.95, 1.0, 1.0], "any thresholds"


def test_a_threshold_is_met_exactly(rows, api):
    store(rows, [*chats(3), request(ttft={"wait_kv": 301, "own_prompt": 200}, rest={"batch": 200})])
    assert api("explain", ttft="200ms", without=["wait_kv"])["without"][0]["attainment"] == 1.0
    assert api("explain", ttft="199999us", without=["wait_kv"])["without"][0]["attainment"] == 0.75


def test_tpot_is_judged_without_the_time_after_the_first_token(rows, api):
    store(rows, [*chats(3), request(ttft={"stall": 90}, rest={"batch": 150, "stall": 1850}, slo_class="chat")])
    part = by_cause(api("explain", slo="chat"))["stall"]
    assert part["without"]["attainment"] == 1.0
    assert by_cause(api("explain", tpot="14ms"))["stall"]["without"]["attainment"] == 0.0, (
        "15 ms are left, and the others have 20"
    )
    assert by_cause(api("explain", tpot="15ms"))["stall"]["without"]["attainment"] == 0.25


def test_failed_and_cancelled_requests_count_up_to_their_end(rows, api):
    failed = request(
        ttft={"wait_batch": 2000}, rest={}, tokens=0, status="error", error_type="queue_full", slo_class="chat"
    )
    left = request(ttft={"wait_batch": 2000}, rest={}, tokens=0, status="cancelled", slo_class="chat")
    store(rows, [*chats(8), failed, left])
    answer = api("explain", slo="chat")
    assert (
        answer["selected"].items() >= {"requests": 2, "explained": 2, "failed": 1, "time_s": pytest.approx(4.0)}.items()
    )
    part = by_cause(answer)["wait_batch"]
    assert part["requests"] == 2
    assert answer["attainment"] == 0.8
    assert part["without"]["attainment"] == pytest.approx(8 / 9), "a failure stays bad, who left would be excused"
    assert answer["sentence"].startswith("What 2 bad requests (1 failed) took")


@pytest.mark.parametrize(
    ("n", "failed", "who"),
    [(1, 0, "1 bad request"), (1, 1, "1 bad request (1 failed)"), (3, 3, "3 bad requests (all failed)")],
)
def test_where_all_failed_the_sentence_says_that(n, failed, who):
    assert number_of_bad(n, failed) == who


def test_one_that_failed_at_once_takes_nothing_from_the_excess_of_others(rows, api):
    refused = request(ttft={"unexplained": 0}, rest={}, tokens=0, status="error", slo_class="chat")
    slow = request(ttft={"own_prompt": 80, "wait_kv": 820}, rest={"batch": 150, "alone": 50}, slo_class="chat")
    store(rows, [*chats(36), *[slow] * 4, *[refused] * 50])
    parts = by_cause(api("explain", slo="chat"))
    assert parts["wait_kv"]["excess_s"] == pytest.approx(3.2)
    assert parts["wait_kv"]["requests"] == 4


def test_the_tail_of_a_metric(rows, api):
    slow = request(ttft={"cold_start": 5000}, rest={"batch": 150, "alone": 50})
    drawn_out = request(ttft={"own_prompt": 100}, rest={"drift": 9000})
    store(rows, [*chats(97), slow, slow, drawn_out])
    answer = api("explain", metric="ttft", quantile=0.98)
    assert (answer["metric"], answer["quantile"], answer["value_s"]) == ("ttft", 0.98, pytest.approx(0.1 + 0.02 * 4.9))
    assert answer["selected"]["requests"] == 2
    assert answer["parts"][0]["cause"] == "cold_start"
    assert "batch" not in by_cause(answer), "it is after the first token"
    assert answer["parts"][0]["without"] is None
    assert "attainment" in answer["without_hidden"]
    assert answer["sentence"].startswith("What the TTFT of the slowest 2 % of requests (0.198 s or longer)")
    of_tpot = api("explain", metric="tpot")
    assert (of_tpot["parts"][0]["cause"], of_tpot["quantile"]) == ("drift", 0.99)
    both = api("explain", metric="e2e", quantile=0)
    assert both["selected"]["requests"] == 100, "0 takes all"
    assert {part["cause"] for part in both["parts"]} == {
        "cold_start",
        "own_prompt",
        "wait_kv",
        "batch",
        "alone",
        "drift",
    }


def test_what_is_not_explained_yet_is_said(rows, api):
    slow = request(ttft={"wait_kv": 820}, rest={"batch": 200}, slo_class="chat")
    assert api("explain")["sentence"] == "No request is judged.", "without requests, none is good either"
    store(rows, [*chats(9), slow, slow], explained=())
    answer = api("explain")
    assert answer["selected"].items() >= {"requests": 2, "explained": 0, "failed": 0, "time_s": 0.0}.items()
    assert (answer["parts"], answer["typical"], answer["levels"]) == ([], None, [])
    assert answer["note"].startswith("none of these 2 requests is explained yet")
    assert answer["without_hidden"] == "no request is explained"
    assert answer["sentence"] == "Nothing explains 2 bad requests yet."
    store(rows, [slow])
    some = api("explain")
    assert some["note"].startswith("2 of 3 requests are not explained yet")
    assert some["selected"]["explained"] == 1
    assert some["parts"][0]["typical_s"] is None, "no typical request is explained, so nothing is beyond it"
    assert some["parts"][0]["share"] is None
    assert "67 % of the time is not explained" in some["without_hidden"]


def test_a_counterfactual_is_hidden_where_too_much_is_unexplained(rows, api):
    def asked(unexplained):
        rows.clear()
        slow = request(
            ttft={"wait_kv": 1000 - unexplained, "unexplained": unexplained}, rest={}, tokens=1, slo_class="chat"
        )
        store(rows, [*chats(9), slow])
        return api("explain", slo="chat", without=["wait_kv"])

    shown, hidden = asked(150), asked(151)
    assert shown["without_hidden"] is None
    assert shown["unexplained_s"] == pytest.approx(0.15)
    assert by_cause(shown)["wait_kv"]["without"]["attainment"] == 1.0
    assert shown["without"]
    assert hidden["without_hidden"] == "15 % of the time is not explained, which is more than 15 %"
    assert (by_cause(hidden)["wait_kv"]["without"], hidden["without"]) == (None, [])
    assert by_cause(shown)["unexplained"]["without"] is None, "nobody can take that away"


def test_the_bounds_hold_the_error_of_the_model_and_what_is_not_explained(rows, api):
    def asked(**told):
        rows.clear()
        fields, causes = request(
            ttft={"wait_kv": 450, "own_prompt": 500, "unexplained": 40}, rest={}, tokens=1, slo_class="chat"
        )
        found = rows.requests(
            [{"ended": NOW - SECOND - i, **one} for i, (one, _) in enumerate([*chats(9), (fields, causes)])]
        )
        rows.causes([*((row, chats(1)[0][1]) for row in found[:9]), (found[9], causes | told)])
        return by_cause(api("explain", slo="chat"))["wait_kv"]["without"]

    bounds = {"attainment": 0.9, "low": 0.9, "high": 1.0}
    assert asked().items() >= bounds.items(), "540 ms are left, 40 of them perhaps KV"
    assert asked(ttft_wait_kv_us=490_000, ttft_unexplained_us=0)["low"] == 1.0
    sure = asked(ttft_wait_kv_us=490_000, ttft_unexplained_us=0, error_permille=2)
    assert (sure["low"], sure["attainment"], sure["high"]) == (0.9, 1.0, 1.0), "500 ms are left, 502 perhaps"
    unknown = asked(ttft_wait_kv_us=490_000, ttft_unexplained_us=0, error_permille=65535)
    assert (unknown["low"], unknown["attainment"], unknown["high"]) == (None, 1.0, None)


def test_a_row_that_is_explained_again_is_the_newer_one(rows, api):
    slow, again = (request(ttft={name: 900}, rest={}, tokens=1, slo_class="chat") for name in ("unexplained", "stall"))
    (found, *_) = store(rows, [slow, *chats(3)])
    rows.causes([(found, again[1] | {"version": 2})])
    answer = api("explain", slo="chat")
    assert answer["selected"]["explained"] == 1
    assert answer["parts"][0]["cause"] == "stall"


def test_filters_choose_the_requests_and_the_typical_ones(rows, api):
    small = [request(ttft={"own_prompt": 100}, rest={"batch": 100}, model="small", slo_class="chat") for _ in range(4)]
    large = [request(ttft={"own_prompt": 300}, rest={"batch": 100}, model="large", slo_class="chat") for _ in range(4)]
    slow = [
        request(ttft={"own_prompt": 600}, rest={"batch": 100}, model=name, slo_class="chat")
        for name in ("small", "large")
    ]
    store(rows, [*small, *large, *slow])
    excess = {
        model: by_cause(api("explain", slo="chat", model=model))["own_prompt"]["excess_s"]
        for model in ("small", "large")
    }
    assert excess == pytest.approx({"small": 0.5, "large": 0.3})
    assert api("explain", model="small", metric="e2e", quantile=0)["selected"]["requests"] == 5
    assert api("explain", start="-2h", end="-1h", metric="tpot")["sentence"] == "No request has a TPOT."


def test_a_request_that_its_client_reported_too_is_explained_once(rows, api):
    server = request(ttft={"wait_kv": 900}, rest={}, tokens=1, request_id="r1")
    client = request(ttft={"unexplained": 950}, rest={}, tokens=1, request_id="r1", vantage="client")
    store(rows, [*chats(3), server, client])
    found = api("explain", ttft="500ms")
    assert (found["selected"]["requests"], found["parts"][0]["cause"]) == (1, "wait_kv")
    seen = api("explain", ttft="500ms", vantage="client")
    assert (seen["selected"]["requests"], seen["parts"][0]["cause"]) == (1, "unexplained")


def test_sampled_requests_count_by_their_weight(rows, api):
    slow = request(ttft={"wait_kv": 900, "own_prompt": 80}, rest={"batch": 200}, slo_class="chat", weight=4.0)
    store(rows, [*chats(16), slow])
    answer = api("explain", slo="chat")
    assert answer["estimated"] is True
    assert answer["selected"]["requests"] == 4
    part = by_cause(answer)["wait_kv"]
    assert part["time_s"] == pytest.approx(3.6)
    assert (part["requests"], part["without"]["attainment"]) == (4, 1.0)
    assert answer["attainment"] == 0.8


def test_of_very_many_requests_some_are_read_and_stand_for_all(rows, api, monkeypatch):
    slow = [
        request(ttft={"wait_kv": 900, "own_prompt": 80}, rest={"batch": 200}, slo_class="chat", instance=f"gpu-{i % 2}")
        for i in range(400)
    ]
    store(rows, [*chats(2000), *slow])
    monkeypatch.setattr("collector.causes.answer.explain.MOST_CHOSEN", 100)
    answer = api("explain", slo="chat")
    assert answer["estimated"] is True
    assert (answer["selected"]["requests"], answer["selected"]["explained"]) == (400, 400)
    part = by_cause(answer)["wait_kv"]
    assert part["time_s"] == pytest.approx(400 * 0.9)
    assert (part["requests"], part["without"]["attainment"]) == (400, pytest.approx(1.0))
    assert len(part["culprits"]) == 2


def test_whose_prompts_made_others_wait(rows, api):
    victim = request(ttft={"own_prompt": 80, "others_prompts": 900}, rest={"batch": 200}, slo_class="chat", tenant="b")
    many = [*chats(6, tenant="b"), victim, *chats(2, tenant="a", model="large")]
    many[-1] = (many[-1][0] | {"input_tokens": 1500}, many[-1][1] | {"inflicted_us": 900_000})
    many[-2] = (many[-2][0] | {"input_tokens": 300}, many[-2][1] | {"inflicted_us": 100_000})
    found = store(rows, many)
    culprits = by_cause(api("explain", slo="chat"))["others_prompts"]["culprits"]
    by = {kind: [one for one in culprits if one["by"] == kind] for kind in ("request", "tenant", "model", "length")}
    assert [(one["trace_id"], one["time_s"], one["share"]) for one in by["request"]] == [
        (found[-1]["trace_id"], 0.9, 0.9), (found[-2]["trace_id"], 0.1, 0.1),
    ]  # fmt: skip
    assert by["request"][0]["span_id"] == found[-1]["span_id"]
    assert by["request"][0]["name"] == f"{found[-1]['trace_id'][:8]}, 1500 tokens"
    assert [(one["name"], one["time_s"]) for one in by["tenant"]] == [("a", 1.0)]
    assert [(one["name"], one["time_s"]) for one in by["model"]] == [("large", 1.0)]
    assert [(one["name"], one["time_s"]) for one in by["length"]] == [
        ("1024 to 2047 tokens", 0.9),
        ("256 to 511 tokens", 0.1),
    ]


def test_for_whom_blocks_were_taken(rows, api):
    victim = request(ttft={"own_prompt": 100}, rest={"batch": 100, "preempted": 4000}, slo_class="chat")
    found = store(rows, [*chats(6), victim, *chats(1)])
    lost, got = found[6], found[7]
    rows.kv_event(
        start=lost["end"] - SECOND,
        trace_id=lost["trace_id"],
        request_span_id=bytes.fromhex(lost["span_id"]),
        beneficiary=got["trace_id"],
    )
    (culprit,) = by_cause(api("explain", slo="chat"))["preempted"]["culprits"]
    assert culprit == {
        "by": "request", "name": got["trace_id"][:8], "trace_id": got["trace_id"], "span_id": got["span_id"],
        "time_s": pytest.approx(4.0), "share": pytest.approx(1.0), "without": None, "requests": None, "within_s": None,
        "low_s": None, "high_s": None,
    }  # fmt: skip


def test_the_processes_that_lost_the_time(rows, api):
    slow = [
        request(
            ttft={"own_prompt": 100},
            rest={"others_prompts": ms, "batch": 150, "stall": ms},
            instance=name,
            slo_class="chat",
            variant=new,
        )
        for name, ms, new in (("e1", 3000, "v2"), ("e2", 1000, "v1"))
    ]
    store(rows, [*chats(6, variant="v1"), *slow])
    parts = by_cause(api("explain", slo="chat"))
    assert [(one["by"], one["name"], one["time_s"], one["share"]) for one in parts["stall"]["culprits"]] == [
        ("process", "engine e1", 3.0, 0.75), ("process", "engine e2", 1.0, 0.25),
        ("variant", "v2", 3.0, 0.75), ("variant", "v1", 1.0, 0.25),
    ]  # fmt: skip
    slower = "Variant v2 has most of it; a slower version shows in: tokentrail compare --a variant=v1 --b variant=v2. "
    assert parts["stall"]["advice"].startswith(f"{slower}Look for compilation")
    assert parts["others_prompts"]["advice"].startswith(slower), "it computes the prompts of others more slowly too"
    assert parts["own_prompt"]["advice"].startswith("Shorten the prompt"), "each variant has half"
    # No process is to blame for a request's own work.
    assert {(one["by"], one["share"]) for one in parts["own_prompt"]["culprits"]} == {("variant", 0.5)}


@pytest.mark.parametrize(("cause", "held"), [("wait_batch", (1, 2)), ("wait_kv", (100, 2000)), ("stall", None)])
def test_the_tenants_that_had_the_places_or_the_blocks_are_the_same_in_each_window(rows, api, cause, held):
    """Asked about one tenant's requests alone. Who ran at another time or elsewhere is not to blame, also in a day."""
    slow = request(ttft={"own_prompt": 80, "wait_kv": 20, cause: 820}, rest={"batch": 150, "alone": 50})
    slow[0]["queue_ns"] = 840 * MS  # they have no place so long
    small = {"tenant": "small", "slo_class": "chat", "input_tokens": 10}
    bulk = request(ttft={"own_prompt": 100}, rest={"batch": 8900}, tokens=200, tenant="bulk", input_tokens=800)
    third = request(ttft={"own_prompt": 100}, rest={"batch": 8900}, tokens=90, tenant="third", input_tokens=10)
    elsewhere, client = (bulk[0] | {"tenant": "fourth"} | more for more in ({"instance": "x"}, {"vantage": "client"}))
    others = [bulk, bulk, third, (elsewhere, bulk[1]), (client, bulk[1])]
    store(rows, [*[(one | small, causes) for one, causes in [slow] * 4], *others])
    store(rows, [(one | small | {"ended": NOW - 30 * SECOND - i}, causes) for i, (one, causes) in enumerate(chats(6))])
    for hours in (0.1, 0.2, 20):
        store(rows, [(third[0] | {"ended": NOW - int(hours * 3600) * SECOND - i}, third[1]) for i in range(40)])
    told = {}
    for start in ("-45s", "-10m", "-20m", "-1d"):
        part = by_cause(api("explain", slo="chat", tenant="small", start=start))[cause]
        told[start] = {one["name"]: (one["time_s"], one["share"]) for one in part["culprits"] if one["by"] == "tenant"}
    shares = {name: n / sum(held) for name, n in zip(("third", "bulk"), held, strict=True)} if held else {}
    assert told["-45s"] == {name: pytest.approx((part["excess_s"] * n, n)) for name, n in shares.items()}
    assert told["-10m"] == told["-20m"] == told["-1d"] == told["-45s"]


def test_who_does_not_tell_when_it_got_a_place_had_one_from_its_first_token(rows, api):
    """Of four tenants whose requests were there meanwhile: one tells nothing at all, and is not to blame."""
    slow = request(ttft={"own_prompt": 80, "wait_batch": 920}, rest={"batch": 200}, slo_class="chat", tenant="small")
    slow[0]["queue_ns"] = 920 * MS
    told = request(ttft={"own_prompt": 4000}, rest={"batch": 4000}, tokens=90, tenant="told")
    told[0]["queue_ns"] = 0
    late, half = (request(ttft={"own_prompt": ms}, rest={"batch": 8000 - ms}, tokens=90, tenant=name)
                  for name, ms in (("late", 7900), ("half", 7260)))  # fmt: skip
    silent = request(ttft={"own_prompt": 8000}, rest={}, tokens=0, tenant="silent", status="cancelled")
    ended = NOW - SECOND
    many = [(fields | {"ended": ended}, causes) for fields, causes in (slow, told, late, half, silent)]
    store(
        rows,
        [*many, *[(fields | {"ended": ended - 30 * SECOND}, causes) for fields, causes in chats(6, tenant="small")]],
    )
    answer = api("explain", slo="chat", tenant="small", start="-45s")
    culprits = by_cause(answer)["wait_batch"]["culprits"]
    shares = {one["name"]: one["share"] for one in culprits if one["by"] == "tenant"}
    # They waited from 1200 to 280 ms before the end: `told` had its place all the time, `half` from 740 ms on.
    assert shares == {"told": pytest.approx(920 / 1380), "half": pytest.approx(460 / 1380)}
    told = "of 81.81 % of the requests that ran meanwhile nobody tells when they got a place"  # 9 of 11
    assert answer["note"].endswith(f"{told}: each counts from its first token on")


@pytest.mark.parametrize(("lost", "is_told"), [(5, False), (400, True)])
def test_the_switches_are_those_of_engines_whose_requests_lost_most(rows, api, lost, is_told):
    """A tenth of what the worst process lost is little."""
    usual = {"own_prompt": 80, "wait_kv": 20}
    slow = request(ttft=usual | {"wait_kv": 820}, rest={"batch": 200}, slo_class="chat")
    other = request(ttft=usual | {"wait_kv": 20 + lost, "own_prompt": 900}, rest={"batch": 200}, slo_class="chat")
    other[0].update(engine="vllm", instance="v")
    store(rows, [*chats(6), slow, other])
    advice = by_cause(api("explain", slo="chat"))["wait_kv"]["advice"]
    assert "--kv-blocks" in advice
    assert ("--gpu-memory-utilization" in advice) == is_told


@pytest.mark.parametrize(("hours", "of_silent"), [(0, 920), (5, 200)])
def test_who_has_not_ended_yet_has_places_too(rows, api, hours, of_silent):
    """Since its first token, until now or until it was lost; one that has ended since counts once, by its end."""
    at = NOW - hours * 3600 * SECOND
    slow = request(ttft={"own_prompt": 80, "wait_batch": 920}, rest={"batch": 200}, slo_class="chat", tenant="small")
    slow[0]["queue_ns"] = 920 * MS
    ended = request(ttft={"own_prompt": 4000}, rest={"batch": 4000}, tokens=90, tenant="ended", queue_ns=0)
    many = [(fields | {"ended": at - SECOND}, causes) for fields, causes in (slow, ended)]
    many += [(fields | {"ended": at - 30 * SECOND}, causes) for fields, causes in chats(6, tenant="small")]
    _, row, *_ = store(rows, many)
    for tenant, first, seen, again in (
        ("runs", 1000 * MS, at - 2 * SECOND, {}),
        ("late", 7340 * MS, at - 200 * MS, {}),
        ("queued", None, at - 2 * SECOND, {}),
        ("elsewhere", 0, at, {"instance": "x"}),
        ("ended", 0, at - 2 * SECOND, {"trace_id": row["trace_id"], "span_id": row["span_id"]}),
        ("lost", 0, at - 2000 * MS, {}),
    ):
        heard = at - 60 * SECOND if tenant == "lost" else seen
        rows.open(start=at - 9 * SECOND, seen=seen, heard=heard, ttft_ns=first, tenant=tenant, **again)
    part = by_cause(api("explain", slo="chat", tenant="small", start=rfc3339(at - 40 * SECOND), end=rfc3339(at)))
    shares = {one["name"]: one["share"] for one in part["wait_batch"]["culprits"] if one["by"] == "tenant"}
    # They waited from 2.2 to 1.28 s before `at`; `late` had its first token 1.66 s before it.
    places = {"ended": 920, "runs": of_silent, "late": 380, "lost": 200}
    assert shares == {name: pytest.approx(n / sum(places.values())) for name, n in places.items()}


def test_a_prompt_of_another_time_is_not_to_blame_and_one_of_which_nothing_is_known_neither(rows, api):
    victim = request(ttft={"own_prompt": 80, "others_prompts": 900}, rest={"batch": 200}, slo_class="chat", tenant="b")
    guilty, innocent, earlier = chats(3, tenant="a")
    many = [*chats(6, tenant="b"), victim, (guilty[0], guilty[1] | {"inflicted_us": 900_000})]
    many += [(innocent[0] | {"tenant": "none"}, innocent[1] | {"inflicted_us": None, "level": level})
             for level in ("none", "phases", "estimated")]  # fmt: skip
    many += [(earlier[0] | {"tenant": "past", "ended": NOW - 600 * SECOND}, earlier[1] | {"inflicted_us": 5_000_000})]
    store(rows, many)
    for start in ("-45s", "-1d"):
        culprits = by_cause(api("explain", slo="chat", start=start))["others_prompts"]["culprits"]
        assert [(one["name"], one["time_s"], one["share"]) for one in culprits if one["by"] == "tenant"] == [
            ("a", 0.9, 1.0)
        ]


def test_a_tenant_sees_its_own_requests_and_no_name_of_another(rows, slos_file, clock, ingest_status, tmp_path):
    mine = request(
        ttft={"own_prompt": 80, "others_prompts": 900},
        rest={"batch": 100, "preempted": 2000},
        slo_class="chat",
        tenant="a",
    )
    theirs = request(ttft={"wait_kv": 5000}, rest={"batch": 200}, slo_class="chat", tenant="secret")
    many = [*chats(6, tenant="a"), mine, theirs]
    many[-1] = (many[-1][0], many[-1][1] | {"inflicted_us": 800_000})
    found = store(rows, many)
    rows.kv_event(
        start=found[6]["end"] - SECOND,
        trace_id=found[6]["trace_id"],
        request_span_id=bytes.fromhex(found[6]["span_id"]),
        beneficiary=found[7]["trace_id"],
    )
    access = access_to(tmp_path / "keys.json")
    app, _ = build_api(rows.store, load_slos(slos_file), ingest_status, lost_after_s=30.0, clock=clock, access=access)
    key = add_key(tmp_path / "keys.json", "read", "a")
    answer = TestClient(app).get("/api/v1/explain", params={"slo": "chat"}, headers=key).json()
    assert answer["selected"]["requests"] == 1
    text = str(answer)
    assert "secret" not in text
    assert found[7]["trace_id"] not in text
    assert found[7]["trace_id"][:8] not in {one["name"] for part in answer["parts"] for one in part["culprits"]}
    parts = by_cause(answer)
    unknown = dict.fromkeys(("trace_id", "span_id", "without", "requests", "within_s", "low_s", "high_s"))
    another = {"by": "tenant", "name": "another tenant", **unknown}
    assert parts["others_prompts"]["culprits"] == [{**another, "time_s": None, "share": None}]
    assert parts["preempted"]["culprits"] == [{**another, "time_s": pytest.approx(2.0), "share": pytest.approx(1.0)}]


def test_the_law_of_step_times_is_told_with_its_error(rows, api):
    slow = request(ttft={"stall": 900}, rest={"batch": 200}, slo_class="chat")
    judged = [causes | {"model_at": NOW // SECOND - minutes * 60} for (_, causes), minutes in ((slow, 20), (slow, 40))]
    store(rows, [*chats(3), *((slow[0], causes) for causes in judged)])
    laws = [(40, "i-1", 500, 0.99, 0.5), (20, "i-1", 500, 0.99, 0.03), (20, "other", 7, 0.1, 0.4)]
    laws.append((10, "i-1", 900, 0.9, 0.2))  # learned from their time: it judges later ones
    rows.insert(
        "step_models",
        [
            {"at": NOW // SECOND - minutes * 60, "service": "engine", "instance": instance, "process_tenant": "",
             "start_ns": NOW - 3600 * SECOND, "end_ns": NOW - 600 * SECOND, "n": n, "r2": r2, "sigma": sigma}
            for minutes, instance, n, r2, sigma in laws
        ],
    )  # fmt: skip
    assert api("explain", slo="chat")["models"] == [
        {"service": "engine", "instance": "i-1", "process_tenant": "", "start": "2026-11-21T09:00:00Z",
         "end": "2026-11-21T09:50:00Z", "steps": 500, "r2": 0.99, "sigma": 0.03},
    ]  # fmt: skip


def test_levels_say_how_to_get_further(rows, api):
    slow = [
        request(ttft={"unexplained": 900}, rest={}, tokens=1, slo_class="chat", engine=engine)
        for engine in ("vllm", "tokentrail")
    ]
    told = ({"level": "phases", "reason": "scatter", "reason_share": 0.42}, {"level": "steps"})
    store(rows, [(fields, causes | more) for (fields, causes), more in zip(slow, told, strict=True)])
    answer = api("explain", slo="chat")
    steps, phases = answer["levels"]
    assert (steps["level"], steps["requests"], steps["engines"], steps["more"]) == ("steps", 1, ["tokentrail"], "")
    assert (phases["level"], phases["requests"], phases["engines"]) == ("phases", 1, ["vllm"])
    assert [(one["reason"], one["requests"], one["share"]) for one in phases["reasons"]] == [
        ("scatter", 1, pytest.approx(0.42))
    ]
    assert phases["more"].startswith("steps scatter by 42 % around their law, of 30 % allowed")
    assert by_cause(answer)["unexplained"]["advice"] == phases["reasons"][0]["action"]
    assert phases["reasons"][0]["action"].startswith("vllm: "), "the steps are recorded, and so is the package"
    rows.clear()
    store(rows, [(fields, causes | {"level": "none", "reason": "no_phases"}) for fields, causes in slow])
    note = api("explain", slo="chat")["note"]
    assert note.startswith("the engines tell neither phases nor steps of these requests. Record the engine's steps")
    assert "install the package beside vLLM" in note


def test_nobody_is_told_what_would_be_without_the_floor(rows, api):
    """One token of one request takes its time whatever happens."""
    slow = request(ttft={"own_prompt": 80}, rest={"alone": 2000}, slo_class="chat")
    store(rows, [*chats(20), slow])
    answer = api("explain", slo="chat")
    assert answer["groups"][0]["without"]["points"] > 0
    assert answer["sentence"] == "What 1 bad request took beyond typical requests was 100 % alone (the floor)."


def test_a_slower_version_is_told_by_how_much_and_against_what(rows, api):
    slow = request(ttft={"own_prompt": 80}, rest={"batch": 100, "slower": 2000}, slo_class="chat", variant="772")
    than = {
        "slower_than": "version",
        "slower_name": "build-771",
        "slower_by": 2.6,
        "slower_low": 2.5,
        "slower_high": 2.71,
    }
    store(rows, [*chats(20), *[(slow[0], slow[1] | than)] * 9])
    answer = api("explain", slo="chat")
    (told,) = answer["slower"]
    assert (told["than"], told["name"], told["instance"]) == ("version", "build-771", "i-1")
    assert told["text"] == "× 2.6 (2.5 to 2.7) against build-771"
    assert answer["groups"][0]["group"] == "slower by itself"
    assert answer["sentence"].startswith("What 9 bad requests took beyond typical requests was 100 % slower by itself.")


def test_requests_that_have_not_ended_are_the_incident_of_the_moment(rows, api):
    rows.open(start=NOW - 9 * SECOND, seen=NOW - SECOND, slo_class="chat")
    rows.open(start=NOW - 4 * SECOND, seen=NOW - SECOND, slo_class="chat", ttft_ns=SECOND, output_tokens=3)
    rows.open(start=NOW - 80 * SECOND, seen=NOW - 70 * SECOND, instance="gone")
    rows.step(start=NOW - 2 * SECOND, running=1, waiting=1)
    here, gone = api("explain")["not_ended"]
    assert here == {
        "service": "engine", "instance": "i-1", "process_tenant": "",
        "requests": 2, "lost": 0, "bad": 2, "without_token": 1,
        "longest_wait_s": pytest.approx(9.0), "step_s_ago": pytest.approx(2.0), "running": 1, "waiting": 1,
        "text": "engine i-1: 1 request waits for a first token, the longest for 9.00 s; 1 more is answered; "
        "its last step began 2.00 s ago with 1 running and 1 waiting",
    }  # fmt: skip
    assert (gone["instance"], gone["requests"], gone["lost"], gone["step_s_ago"]) == ("gone", 0, 1, None)
    assert gone["text"] == "engine gone: 1 was lost: nothing is heard of the process; nothing is known of its steps"
    assert api("explain", slo="chat")["not_ended"] == [here], "the SLO does not select the lost one"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"quantile": "1"}, "quantile"),
        ({"quantile": "nan", "metric": "ttft"}, "quantile"),
        ({"quantile": "0.5"}, "quantile"),
        ({"metric": "itl"}, "metric"),
        ({"metric": "ttft", "verdict": "bad"}, "metric"),
        ({"verdict": "good"}, "verdict"),
        ({"without": "wait_kv,nonsense'; DROP TABLE causes"}, "without"),
        ({"without": ""}, "without"),
        ({"slo": "chat", "ttft": "1s"}, "slo"),
        ({"ttft": "0s"}, "ttft"),
        ({"cause": "stall"}, "cause"),
        ({"metric": ["ttft", "tpot"]}, "metric"),
    ],
)
def test_wrong_parameters_are_named(api, params, field):
    answer = api.client.get("/api/v1/explain", params=params)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == field


def test_an_unknown_slo_is_not_found(api):
    answer = api.client.get("/api/v1/explain", params={"slo": "nope' OR 1"})
    assert (answer.status_code, "chat, all" in answer.json()["detail"]) == (404, True)


def test_the_causes_of_one_request_add_up_to_its_e2e(rows, api):
    slow = request(ttft={"own_prompt": 80, "wait_kv": 820}, rest={"batch": 150, "preempted": 4000}, slo_class="chat")
    slow[0].update(e2e=slow[0]["e2e"] - 7, ttft_ns=slow[0]["ttft_ns"] - 3)
    found = store(rows, [*chats(9), slow, slow], explained=set(range(10)))
    lost = {"trace_id": found[9]["trace_id"], "request_span_id": bytes.fromhex(found[9]["span_id"])}
    rows.kv_event(start=found[9]["end"] - SECOND, beneficiary=found[0]["trace_id"], **lost)
    told = api(f"requests/{found[9]['trace_id']}")["explained"]
    assert told["level"] == "steps"
    assert [(one["cause"], one["of"]) for one in told["causes"]] == [
        ("preempted", "rest"), ("wait_kv", "ttft"), ("batch", "rest"), ("own_prompt", "ttft"),
    ]  # fmt: skip
    assert sum(round(one["time_s"] * 1e9) for one in told["causes"]) == found[9]["e2e_ns"]
    assert sum(round(one["time_s"] * 1e9) for one in told["causes"] if one["of"] == "ttft") == found[9]["ttft_ns"]
    assert [one["excess_s"] for one in told["causes"]] == pytest.approx([4.0, 0.8, 0.0, 0.0], abs=1e-6)
    assert [[one["trace_id"] for one in cause["culprits"]] for cause in told["causes"]] == [
        [found[0]["trace_id"]], [], [], [],
    ]  # fmt: skip
    assert api(f"requests/{found[10]['trace_id']}")["explained"]["level"] is None
    begun = rows.open(start=NOW - 9 * SECOND, seen=NOW - SECOND)
    assert api(f"requests/{begun['trace_id']}")["explained"] is None


def test_the_causes_of_one_without_a_token_are_all_before_it(rows, api):
    failed = request(ttft={"wait_batch": 2000}, rest={}, tokens=0, status="error")
    found = store(rows, [failed])
    told = api(f"requests/{found[0]['trace_id']}")["explained"]
    (cause,) = told["causes"]
    assert (
        cause.items() >= {"cause": "wait_batch", "of": "ttft", "time_s": 2.0, "excess_s": None, "culprits": []}.items()
    )


parts_of_ttft = st.dictionaries(st.sampled_from(FEW), st.integers(1, 900), max_size=4)
parts_after = st.dictionaries(st.sampled_from(AFTER), st.integers(1, 3000), max_size=4)
some_request = st.fixed_dictionaries(
    {
        "ttft": parts_of_ttft,
        "rest": parts_after,
        "tokens": st.sampled_from([0, 1, 2, 11, 11, 40, None]),
        "status": st.sampled_from(["ok", "ok", "ok", "error", "cancelled", "unknown"]),
        "slo_class": st.sampled_from(["chat", ""]),
        "is_explained": st.sampled_from([True, True, True, False]),
    }
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    many=st.lists(some_request, min_size=1, max_size=40),
    ttft=st.sampled_from([100, 500, 900]),
    tpot=st.none() | st.sampled_from([20, 100]),
    e2e=st.none() | st.sampled_from([1500]),
    left_out=st.sets(st.sampled_from(sorted({*FEW, *AFTER} - {"unexplained"})), min_size=1, max_size=3),
)
def test_the_numbers_are_those_of_a_plain_computation(rows, api, many, ttft, tpot, e2e, left_out):
    rows.clear()
    limits = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    made = []
    for one in many:
        tokens = one["tokens"]
        rest = {} if tokens in (0, 1) else one["rest"]
        first = one["ttft"] or {"own_prompt": 1}
        made.append(
            (
                request(ttft=first, rest=rest, tokens=tokens, status=one["status"], slo_class=one["slo_class"]),
                one["is_explained"],
            )
        )
    store(rows, [pair for pair, _ in made], explained={i for i, (_, told) in enumerate(made) if told})
    asked = {name: f"{ms}ms" for name, ms in limits.items() if ms is not None}
    answer = api("explain", **asked, without=[",".join(left_out)])
    expected = plain([Plain(fields, causes, told) for (fields, causes), told in made], limits, left_out)
    assert answer["selected"]["requests"] == expected["selected"]
    assert answer["selected"]["explained"] == expected["explained"]
    found = {part["cause"]: (part["time_s"], part["typical_s"], part["requests"]) for part in answer["parts"]}
    assert found == {name: pytest.approx(values) for name, values in expected["parts"].items()}
    assert bool(answer["without_hidden"]) == expected["hidden"]
    if not expected["hidden"]:
        assert answer["without"][0]["attainment"] == pytest.approx(expected["without"])
        assert answer["without"][0]["low"] == pytest.approx(expected["without"]), "no model has an error here"


class Plain:
    """One request as the definitions see it. Milliseconds."""

    def __init__(self, fields, causes, told):
        self.status, self.tokens, self.told = fields["status"], fields["output_tokens"], told
        self.first = {name: causes.get(f"ttft_{name}_us", 0) / 1000 for name in PARTS}
        self.after = {name: causes.get(f"rest_{name}_us", 0) / 1000 for name in PARTS}
        self.later = None if self.tokens is None else max(self.tokens, 1) - 1

    def missed(self, limits, left_out=()):
        """Thresholds missed, and whether a value that is not known may have missed another."""
        first = sum(ms for name, ms in self.first.items() if name not in left_out)
        after = sum(ms for name, ms in self.after.items() if name not in left_out)
        values = {"ttft": first, "tpot": None if not self.later else after / self.later, "e2e": first + after}
        if self.tokens == 0 and self.status != "cancelled":
            values["ttft"] = None
        missed = {
            name
            for name, limit in limits.items()
            if limit is not None and values[name] is not None and values[name] > limit + 1e-9
        }
        unknown = limits["tpot"] is not None and self.tokens is None
        return missed, unknown

    def outcome(self, limits, left_out=()):
        missed, unknown = self.missed(limits, left_out)
        if self.status == "error":
            return "bad"
        if missed:
            return "bad"
        if self.status == "cancelled":
            return "excused"
        return "undetermined" if unknown or self.status == "unknown" else "good"


def plain(many, limits, left_out):
    bad = [one for one in many if one.outcome(limits) == "bad"]
    told = [one for one in bad if one.told]
    ok = [one for one in many if one.outcome(limits) == "good" and one.told]
    ttfts = [sum(one.first.values()) for one in ok if one.tokens != 0]
    tpots = [
        np.ceil(1000 * sum(one.after.values()) / one.later) / 1000
        for one in ok
        if one.later and sum(one.after.values())
    ]
    first = middle([one for one in ok if one.tokens != 0], ttfts)
    rest = middle([one for one in ok if one.later and sum(one.after.values())], tpots)
    is_compared = bool(first) and bool(told)
    mean = {name: sum(one.first[name] for one in first) / len(first) if first else 0 for name in PARTS}
    later = sum(one.later for one in rest)
    rate = {name: sum(one.after[name] for one in rest) / later if later else 0 for name in PARTS}
    time, typical, most = (dict.fromkeys(PARTS, 0.0) for _ in range(3))
    for one in told:
        waited = sum(one.first.values())
        scale = min(1, waited / sum(mean.values())) if one.tokens == 0 and sum(mean.values()) else 1
        excess = {}
        for name in PARTS:
            usual = mean[name] * scale + (one.after[name] if one.later is None else rate[name] * one.later)
            own = one.first[name] + one.after[name]
            time[name] += own
            typical[name] += usual
            excess[name] = own - usual
        largest = max(PARTS, key=lambda name: (round(excess[name], 6), -PARTS.index(name)))
        if round(excess[largest], 6) > 0:
            most[largest] += 1
    whole = sum(time.values())
    missing = 1 - len(told) / len(bad) if bad else 0
    hidden = bool(bad) and (not told or missing + (1 - missing) * time["unexplained"] / whole > 0.15)
    outcomes = [one.outcome(limits, left_out) if one.told else one.outcome(limits) for one in bad]
    judged = sum(one.outcome(limits) in ("good", "bad") for one in many)
    good = sum(one.outcome(limits) == "good" for one in many) + outcomes.count("good")
    judged -= sum(outcome in ("excused", "undetermined") for outcome in outcomes)
    return {
        "selected": len(bad),
        "explained": len(told),
        "parts": {
            name: (
                time[name] / 1000,
                typical[name] / 1000 if is_compared else None,
                most[name] if is_compared else None,
            )
            for name in PARTS
            if time[name] or (is_compared and typical[name])
        },
        "hidden": hidden,
        "without": good / judged if judged else None,
    }


def middle(ok, values):
    """Requests whose value is in the middle half."""
    if not values:
        return []
    low, high = np.percentile(values, 25, method="lower"), np.percentile(values, 75, method="higher")
    return [one for one, value in zip(ok, values, strict=True) if low <= value <= high]


def test_without_a_typical_request_the_sentence_says_where_the_time_went(api, rows):
    """One request alone is explained: nothing is known of what is usual."""
    slow = rows.request(ended=NOW - SECOND, e2e=6 * SECOND, ttft_ns=5 * SECOND)
    rows.request(ended=NOW - 2 * SECOND, e2e=SECOND, ttft_ns=SECOND // 10)
    rows.causes([(slow, {"ttft_cold_start_us": 4_500_000, "ttft_unexplained_us": 500_000})])
    got = api("explain", metric="ttft", quantile=0.9)
    assert all(part["excess_s"] is None for part in got["parts"])
    assert got["sentence"] == (
        "Time of the TTFT of the slowest 10 % of requests (4.51 s or longer): 90 % cold start, 10 % unexplained."
        " There is no typical request to compare with."
    )


def test_the_slowest_are_told_one_by_one_and_by_model(rows, api):
    made = [
        request(
            ttft={"own_prompt": 80, "wait_kv": 1000 + 10 * i},
            rest={"batch": 100, "stall": 5000 if i == 2 else 0},
            slo_class="chat",
            model="a" if i % 3 else "b",
        )
        for i in range(7)
    ]
    found = store(rows, [*chats(20, model="a"), *made])[20:]
    answer = api("explain", slo="chat", slowest=3)
    total_s = [sum(of.values()) for i in range(7) for of in [{"t": 1.18 + 0.01 * i + (5 if i == 2 else 0)}]]
    order = sorted(range(7), key=lambda i: -total_s[i])
    told = answer["slowest"]
    assert (
        [one["trace_id"] for one in told]
        == [found[i]["trace_id"] for i in order[:3]]
        == [found[i]["trace_id"] for i in (2, 6, 5)]
    )
    assert told[0]["parts"] == pytest.approx({"wait_kv": 1.02, "own_prompt": 0.08, "batch": 0.1, "stall": 5.0})
    assert [one["time_s"] for one in told] == pytest.approx([total_s[i] for i in order[:3]])
    assert [(one["model"], one["tenant"]) for one in told] == [("a", found[2]["tenant"]), ("b", ""), ("a", "")]
    models = {one["model"]: one for one in answer["by_model"]}
    assert {name: one["requests"] for name, one in models.items()} == {"a": 4, "b": 3}
    assert sum(one["time_s"] for one in models.values()) == pytest.approx(answer["selected"]["time_s"])
    assert models["b"]["parts"] == pytest.approx({"wait_kv": 3.09, "own_prompt": 0.24, "batch": 0.3})
    assert answer["by_model"][0]["model"] == "a", "the longest time first"
    tail = api("explain", metric="ttft", quantile=0.99, slowest=10)
    assert [one["trace_id"] for one in tail["slowest"]] == [found[6]["trace_id"]]
    assert tail["slowest"][0]["parts"] == pytest.approx({"wait_kv": 1.06, "own_prompt": 0.08}), "of TTFT alone"


def test_stretches_of_time_are_left_out(rows, api):
    """Ended ones by their end; one that has not ended is of now."""
    slow = request(ttft={"wait_kv": 2000}, rest={"batch": 100}, slo_class="chat")
    found = store(rows, [*chats(10), slow, *chats(10), slow])  # a nanosecond apart, the newest first
    rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, slo_class="chat", ttft_ns=None)
    ends = [NOW - SECOND - i for i in range(len(found))]

    def asked(*stretches):
        texts = [f"{rfc3339(start)}/{rfc3339(end)}" for start, end in stretches]
        answer = api("explain", slo="chat", leave_out=texts, slowest=9)
        return answer["selected"]["requests"], answer["attainment"], [one["trace_id"] for one in answer["slowest"]]

    both = {found[10]["trace_id"], found[21]["trace_id"]}
    n, attainment, told = asked()
    assert (n, attainment, {*told}) == (2, 20 / 23, both)
    assert asked((ends[10], ends[9])) == (1, 20 / 22, [found[21]["trace_id"]])
    assert asked((ends[10], ends[10] + 1), (ends[21], ends[21] + 1))[:2] == (0, 20 / 21)


@pytest.mark.parametrize("text", ["-5m", "now/-5m", "-5m/-5m", "soon/now", "-5m/"])
def test_a_stretch_that_is_none_is_refused(api, text):
    answer = api.client.get("/api/v1/explain", params={"leave_out": text})
    assert answer.status_code == 400
    assert "leave_out" in answer.text
    assert "START/END" in answer.text


def test_causes_with_one_name_are_one_group_and_are_left_out_together(rows, api):
    kv = request(
        ttft={"own_prompt": 80}, rest={"batch": 100, "preempted": 1200, "recompute": 1200}, tokens=11, slo_class="chat"
    )
    queue = request(ttft={"wait_kv": 900}, rest={"batch": 100}, slo_class="chat")
    store(rows, [*chats(15), kv, kv, queue])
    answer = api("explain", slo="chat")
    parts, groups = by_cause(answer), {one["group"]: one for one in answer["groups"]}
    both = groups["preempted and recomputed"]
    assert both["causes"] == ["preempted", "recompute"]
    for name in ("time_s", "typical_s", "share", "requests"):
        assert both[name] == pytest.approx(parts["preempted"][name] + parts["recompute"][name])
    assert both["without"]["causes"] == ["preempted", "recompute"]
    assert parts["preempted"]["without"]["points"] == parts["recompute"]["without"]["points"] == 0, "one is not enough"
    assert both["without"]["points"] == pytest.approx(100 * 2 / 18)
    assert groups["waiting for KV"]["without"] == parts["wait_kv"]["without"]
    assert [one["group"] for one in answer["groups"]][:2] == ["preempted and recomputed", "waiting for KV"]
    worth = [one["without"]["points"] for one in answer["groups"]]
    assert worth == sorted(worth, reverse=True)
    assert sum(one["time_s"] for one in answer["groups"]) == pytest.approx(answer["selected"]["time_s"])
    assert all(one["without"] is None for one in api("explain", metric="ttft")["groups"])


def test_a_group_tells_when_its_time_was_lost(rows, api):
    """Without the twentieth that is earliest and the twentieth that is latest."""
    slow = [request(ttft={"wait_kv": 800}, rest={"batch": 150, "alone": 50}, slo_class="chat") for _ in range(50)]
    few = request(ttft={"stall": 800}, rest={"batch": 150, "alone": 50}, slo_class="chat")
    store(rows, [few, *slow, *chats(80)])
    groups = {one["group"]: one for one in api("explain", slo="chat")["groups"]}
    at = [rfc3339(NOW - SECOND - i) for i in range(51)]  # the newest first
    assert groups["waiting for KV"]["excess_s"] == pytest.approx(50 * 0.78, rel=0.01)
    assert groups["waiting for KV"]["factor"] is None
    assert groups["waiting for KV"]["start"] == at[48]
    assert groups["waiting for KV"]["end"] == at[3]
    assert groups["stall"]["start"] == groups["stall"]["end"] == at[0]
    assert groups["others' answers"]["start"] is None, "it took no longer than a typical request"


def test_a_slow_device_tells_how_many_times_as_slow_it_was(rows, api):
    """By those that lost most to it: some were there before or after."""
    slow = [request(ttft={"own_prompt": 80}, rest={"batch": 1600, "alone": 400, "drift": ms}, slo_class="chat")
            for ms in (1000, 1000, 1000, 1000, 200)]  # fmt: skip
    store(rows, [*chats(30), *slow])
    groups = {one["group"]: one for one in api("explain", slo="chat")["groups"]}
    assert groups["slow device"]["factor"] == pytest.approx(1.5)
    assert api("explain", slo="chat")["sentence"].endswith("(first order)."), "no queue"


@pytest.mark.parametrize(("waits", "is_told"), [(240, True), (260, False)])
def test_the_first_order_is_said_where_waits_are_a_fifth_of_the_excess_at_most(rows, api, waits, is_told):
    slow = request(
        ttft={"own_prompt": 80, "wait_kv": 20 + waits, "stall": 1000},
        rest={"batch": 150, "alone": 50},
        slo_class="chat",
    )
    store(rows, [*chats(30), slow])
    said = api("explain", slo="chat")["sentence"]
    assert said.endswith(" Without stall, 100 % would be good instead of 96.77 % (first order).") == is_told
