"""The page Request without a browser: what it says of one request, and what it asks for."""

import re
from typing import get_args

import pytest

from dashboard.views.request import LISTED
from tests.dashboard.conftest import TRACE
from tests.dashboard.test_tracks import START, bad, cause, lane, miss, phase, step, timeline, token, trail
from tokentrail.shared.formatting import THRESHOLDS
from tokentrail.shared.parameters import Threshold

SPAN, OTHER = "bb" * 8, "cc" * 8
LABELS = {
    "trace_id": TRACE, "span_id": SPAN, "operation": "chat", "model": "m", "service": "s", "engine": "vllm",
    "instance": "i", "variant": "v", "tenant": "acme", "process_tenant": "", "slo_class": "chat", "request_id": "req-1",
    "end": "2026-11-26T10:00:01Z", "queue_s": 0.1, "preemptions": 2, "finish_reason": "stop",
    "verdicts": [bad(miss("ttft", 0.2, 0.3))],
}  # fmt: skip
HOPS = [
    {"service": "app", "engine": "", "vantage": "client", "e2e_s": 1.2, "added_e2e_s": 0.05},
    {"service": "", "engine": "vllm", "vantage": "server", "e2e_s": 1.0, "added_e2e_s": None},
]
EXPLAINED = {
    "level": "steps", "typical_ttft_s": 0.05, "typical_rest_s": 0.06,
    "causes": [cause("own prompt", "ttft", 0.25, 0.2), cause("alone", "rest", 0.7, -0.003)],
}  # fmt: skip
WAIT = {
    "index": 2, "duration_s": 0.6, "offset_s": 0.9, "phase": "", "step": None, "prefill_tokens": 7,
    "kv_blocks_evicted": None,
}  # fmt: skip
WHOLE = {
    "phases": [phase("queued", 0.0, 0.1), phase("decode", 0.1, 0.9)],
    "tokens": [token(0, 0.3, 0.3), token(1, None, 0.1)],
    "steps": [step(1, 0.1, 0.2)],
    "steps_total": 3,
    "events_total": 0,
    "explained": EXPLAINED,
    "longest_waits": [WAIT],
    "span_ids": [SPAN, OTHER],
    "waits": [],
    "interference": None,
}


def shown(show, own=None, **more):
    """The page, with the texts and the numbers on it."""
    answers = {
        f"requests/{TRACE}": trail({**LABELS, "hops": HOPS, **(own or {})}, **{**WHOLE, **more}),
        "processes/timeline": timeline(*(lane(n, 0.0, 1.0) for n in range(25))),
        "requests": {"requests": [{"trace_id": "dd" * 16, "span_id": "ee" * 8}]},
    }
    page = show("request", lambda path: answers.get(path, {"slos": [], "labels": {}}))
    assert not page.exception
    texts = [one.value for one in (*page.markdown, *page.caption)]
    return page, texts, {one.label: one.value for one in page.metric}


@pytest.mark.parametrize("threshold", get_args(Threshold))
def test_a_request_that_missed_any_threshold_has_a_page(show, threshold):
    _, texts, _ = shown(show, {"verdicts": [bad(miss(threshold, 0.2, 0.9))]})
    assert texts[0].startswith(f"##### :red[●] bad for chat: {THRESHOLDS[threshold]} 900 ms, 200 ms promised. Why: ")


def test_all_that_is_known_of_a_request_is_on_its_page(show):
    page, texts, numbers = shown(show)
    assert texts[0].startswith("##### :red[●] bad for chat: TTFT 300 ms, 200 ms promised. Why: own prompt 250 ms (")
    assert [text.replace("\\", "") for text in texts[1:]] == [
        "chat · m · s · i · v · acme",
        "Typical of its model and class in the hour before: TTFT 50.0 ms, TPOT 30.0 ms (this one 300 ms, TPOT 350 ms).",
        "req-1 · arrived 2026-11-26 10:\u200b00:00 UTC · ok (stop)",
        "app (client): E2E 1.20 s, 50.0 ms added → vllm (server): E2E 1.00 s",
        "Wheel: zoom · drag: move · double click: all · click on another request: open it · 1 more requests ran here",
        "1 tokens are not drawn: a token before them is missing, so their times are not known.",
        "This page has 1 of 3 steps. The tables below count only these.",
        "Found by the steps of its process.",
        "Why it waited: –",
        texts[-1].replace("\\", ""),
    ]
    other = re.fullmatch(
        r"1 more of this trace: \[(\w+)\]\(/request\?range=custom&start=\S+(&trace_id=.*)\)", texts[-1]
    )
    assert other is not None
    assert other.groups() == (OTHER, f"&trace_id={TRACE}&span_id={OTHER}")
    around = "range=custom&start=2026-11-26T09%3A45%3A00Z&end=2026-11-26T10%3A15%3A00Z"
    assert [one.proto.url for one in page.get("link_button")] == [
        f"/explore?{around}&model=m&slo_class=chat&metric=ttft",
        f"/engines?{around}&at=2026-11-26T10%3A00%3A00Z&sel=s%2Fi",
    ]
    assert [*numbers.values()] == ["300 ms", "350 ms", "1.00 s", "100 ms", "1\u202f200", "0", "3", "2"]
    causes, phases, waits = (table.value.values.tolist() for table in page.dataframe)
    assert causes == [["own prompt", "250 ms", "–", "200 ms"], ["alone", "–", "700 ms", "−3.00 ms"]]
    assert phases == [["decode", "900 ms", "90 %", 1], ["queued", "100 ms", "10 %", 1]]
    assert waits == [[2, "600 ms", "900 ms", "–", None, "7", "–"]]


def test_it_asks_for_its_process_and_for_the_next_slower_and_faster_one_by_what_was_missed(show):
    page, _, _ = shown(show)
    slower, faster = (params for path, params in show.asked if path == "requests")
    (process,) = (params for path, params in show.asked if path == "processes/timeline")
    assert (slower["sort"], slower["order"], slower["at_least"]) == ("ttft", "asc", "300000001ns")
    assert (faster["sort"], faster["order"], faster["at_most"]) == ("ttft", "desc", "299999999ns")
    assert (slower["start"], slower["end"]) == ("2026-11-26T09:45:00Z", "2026-11-26T10:15:00Z")
    assert (process["instance"], process["start"], process["end"]) == ("i", START, "2026-11-26T10:00:01Z")
    (button,) = (one for one in page.button if one.label == "‹ slower")
    button.click().run()
    assert (page.query_params["trace_id"], page.query_params["span_id"]) == ("dd" * 16, "ee" * 8)


def test_what_is_not_known_of_a_request_is_not_on_its_page(show):
    little = {"hops": [], "instance": "", "verdicts": [], "request_id": "", "output_tokens": None}
    nothing = {"tokens": [], "phases": [], "steps": None, "steps_total": None, "explained": None, "longest_waits": []}
    _, texts, _ = shown(show, little, **nothing, span_ids=[SPAN])
    assert texts[0] == "##### :gray[●] No SLO selects this request."
    assert [text.replace("\\", "") for text in texts[1:]] == [
        "chat · m · s · v · acme",
        "– · arrived 2026-11-26 10:\u200b00:00 UTC · ok (stop)",
        "No single tokens are recorded: its engine sends one span per request, or no token was emitted.",
        "This engine does not report phases.",
        "Why it waited: –",
        "No single tokens are recorded.",
    ]


@pytest.mark.parametrize("status", ["in_flight", "lost"])
def test_a_request_that_has_not_ended_is_not_said_to_have_an_engine_that_tells_nothing(show, status):
    nothing = {"tokens": [], "phases": [], "steps": None, "steps_total": None, "explained": None, "longest_waits": []}
    _, texts, _ = shown(show, {"status": status, "instance": "", "e2e_s": None, "output_tokens": None}, **nothing)
    assert [text for text in texts if "phases" in text or "token is" in text] == [
        "No token is known yet: tokens of a request come with its end.",
        "Its phases come with its end.",
        "No token is known yet.",
    ]


def test_prompts_of_others_are_told_and_so_is_a_trace_that_has_more_than_are_listed(show):
    interference = {"steps": 1, "time_s": 0.2, "prefill_tokens": 64}
    _, texts, _ = shown(show, interference=interference, span_ids=[SPAN, *(f"{n:016x}" for n in range(1, LISTED))])
    assert any("Prefill interference: 1 step, 200 ms in all, prefilled 64 prompt tokens" in text for text in texts)
    assert texts[-1].startswith("At least 999 more of this trace: [")
    assert texts[-1].count("](") == 20
