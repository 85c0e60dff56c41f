"""The workload has the distributions that it claims; the comparison finds every planted discomparison."""

import asyncio
import itertools
import json
import statistics
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Semaphore, Thread

import openai
import pytest

from tokentrail.load import CHAT, COMPLETION, LONG_GENERATION, Observation, PlannedRequest, burst, observe, poisson, run
from tokentrail.load.compare import compare, longest_hop_s


def test_arrivals_are_poisson():
    plan = list(poisson({CHAT: 3.0, COMPLETION: 1.0}, seconds=2000, seed=1))
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(plan)]
    # an exponential's mean and standard deviation are both 1/rate; 8,000 draws put both within a few percent
    assert statistics.mean(gaps) == pytest.approx(1 / 4, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 4, rel=0.08)
    share = sum(r.slo_class == "chat" for r in plan) / len(plan)
    assert share == pytest.approx(3 / 4, abs=0.03)
    assert all(0 < r.at_s < 2000 for r in plan)


def test_lengths_keep_their_median_and_bounds():
    outputs = [r.max_tokens for r in poisson({CHAT: 50.0}, seconds=100, seed=2)]
    assert statistics.median(outputs) == pytest.approx(CHAT.output.median, rel=0.1)
    assert min(outputs) >= CHAT.output.low
    assert max(outputs) <= CHAT.output.high
    assert len({r.prompt for r in poisson({CHAT: 50.0}, seconds=10, seed=2)}) > 400


def test_the_same_seed_asks_the_same():
    assert list(poisson({CHAT: 1.0}, seconds=50, seed=9)) == list(poisson({CHAT: 1.0}, seconds=50, seed=9))
    assert list(poisson({CHAT: 1.0}, seconds=50, seed=9)) != list(poisson({CHAT: 1.0}, seconds=50, seed=8))
    assert [r.at_s for r in burst(LONG_GENERATION, count=3, at_s=4.0, seed=1)] == [4.0, 4.0, 4.0]


def test_a_rate_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        next(poisson({CHAT: 0.0}, seconds=1, seed=1))


class Replies(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server: three chunks of text, or 500 for a prompt that asks for it.

    The answer to the prompt HOLD waits until it is `released`.
    """

    received: list
    arrived = Semaphore(0)
    released = Event()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.received.append((body, dict(self.headers)))
        if body["messages"][0]["content"] == "HOLD":
            self.arrived.release()
            self.released.wait(60)
        if "FAIL" in body["messages"][0]["content"]:
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        texts = [{"index": 0, "delta": {"content": t}, "finish_reason": None} for t in ("a", "b", "c")]
        last = {"index": 0, "delta": {}, "finish_reason": "length"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        events = [base | {"choices": [c]} for c in (first, *texts, last)]
        events += [base | {"id": "", "choices": [], "usage": usage}]
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Replies,), {"received": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.handle_error = lambda *_: None  # a client that goes away is part of a test
        Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", handler.received  # type: ignore[attr-defined]
        http.shutdown()


def test_run_sends_the_plan_and_sees_every_chunk(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there, and the server is on this machine
    url, received = server
    plan = [*burst(LONG_GENERATION, count=2, at_s=0.0, seed=1), *burst(CHAT, count=1, at_s=0.05, seed=2)]
    seen = []
    asyncio.run(run(url, "m", plan, on_observation=seen.append))
    assert [(o.status, o.request_id, o.input_tokens, o.output_tokens, o.finish_reason) for o in seen] == [
        ("ok", "chatcmpl-1", 7, 3, "length")
    ] * 3
    for o in seen:
        assert len(o.chunks_ns) == 4  # three with text and the one that ends it, not the empty first
        assert o.sent_ns <= o.chunks_ns[0] <= o.chunks_ns[-1] <= o.ended_ns
        assert o.tpot_s == pytest.approx((o.e2e_s - o.ttft_s) / 2)
    assert sorted(body["max_tokens"] for body, _ in received) == sorted(p.max_tokens for p in plan)
    assert sorted(body.get("ignore_eos", False) for body, _ in received) == [False, True, True]
    assert {headers["x-tokentrail-slo-class"] for _, headers in received} == {"chat"}


def test_failures_and_cancellations_are_observations(server):
    url, _ = server
    (plan,) = burst(CHAT, count=1, at_s=0.0, seed=1)

    async def both():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            failing = type(plan)(0.0, "FAIL", 1, "chat", 0.0, 1)
            return await observe(client, "m", failing), await observe(client, "m", plan, cancel_after=2)

    failed, cancelled = asyncio.run(both())
    assert failed.status == "error"
    assert "InternalServerError" in failed.error
    assert failed.ttft_s is None
    assert (cancelled.status, len(cancelled.chunks_ns)) == ("cancelled", 2)


CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
BROKEN = {
    "no end": CHUNK,
    "no JSON": CHUNK + b"data: {\n\n",
    "null": b"data: null\n\n",
    "no choices": b'data: {"x": 1}\n\n',
    "no delta": b'data: {"choices": [{"index": 0, "delta": null}]}\n\n',
    "no UTF-8": b"data: \xff\n\n",
}


def observed(answer):
    """What a client sees of a stream of these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        plan = burst(CHAT, count=1, at_s=0.0, seed=1)
        asyncio.run(run(f"http://127.0.0.1:{http.server_port}", "m", plan, on_observation=seen.append))
        http.shutdown()
    return seen[0]


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_an_error_and_does_not_end_the_load(answer):
    assert observed(answer).status == "error"


def test_tokens_that_an_answer_does_not_tell_are_not_known():
    seen = observed(CHUNK + LAST + b"data: [DONE]\n\n")
    assert (seen.status, seen.input_tokens, seen.output_tokens, seen.tpot_s) == ("ok", None, None, None)
    assert compare([seen], [row(request_id="c", e2e_s=0.0)]).wrong == []


def test_requests_that_end_with_the_load_are_observations(server):
    url, _ = server
    held = PlannedRequest(at_s=0.0, prompt="HOLD", max_tokens=1, slo_class="chat", temperature=0.0, seed=1)
    seen = []

    async def interrupted():
        load = asyncio.create_task(run(url, "m", [held, held], on_observation=seen.append))
        for _ in range(2):
            assert await asyncio.to_thread(Replies.arrived.acquire, timeout=60)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

    asyncio.run(interrupted())
    Replies.released.set()
    assert [(o.status, o.error) for o in seen] == [("cancelled", "")] * 2
    assert all(o.ended_ns >= o.sent_ns for o in seen)


def row(**changes):
    base = {"request_id": "r1", "status": "ok", "input_tokens": 4, "output_tokens": 3}
    return base | {"ttft_s": 0.1, "tpot_s": 0.05, "e2e_s": 0.2} | changes


def observation(**changes):
    base = {"slo_class": "chat", "sent_ns": 0, "request_id": "r1", "input_tokens": 4, "output_tokens": 3}
    return Observation(**(base | {"chunks_ns": [110_000_000, 210_000_000], "ended_ns": 211_000_000} | changes))


def test_a_time_per_token_needs_two_tokens():
    assert observation(output_tokens=2).tpot_s == pytest.approx(0.1)
    assert observation(output_tokens=1).tpot_s is observation(output_tokens=0).tpot_s is None
    assert observation(output_tokens=2, chunks_ns=[]).tpot_s is None


def test_comparison_accepts_a_hop_and_nothing_else():
    comparison = compare([observation()], [row()])
    assert comparison.matched == 1
    gaps = (comparison.ttft_gaps_s, comparison.tpot_gaps_s, comparison.e2e_gaps_s)
    assert [one for (one,) in gaps] == pytest.approx([0.01, 0.0, 0.01])
    assert comparison.problems(median_s=0.02) == []
    assert len(comparison.problems(median_s=0.005)) == 2  # the hop is longer than allowed, in TTFT and E2E


def test_a_hop_may_take_a_tenth_of_the_median_ttft():
    seen = [observation(chunks_ns=[ttft_ns], ended_ns=ttft_ns) for ttft_ns in (10**9, 2 * 10**9, 9 * 10**9)]
    failed = observation(chunks_ns=[90 * 10**9], ended_ns=90 * 10**9, status="error")
    assert longest_hop_s([*seen, failed], 0.05) == pytest.approx(0.2)
    assert longest_hop_s(seen, 0.3) == 0.3
    assert longest_hop_s([observation(chunks_ns=[], status="error")], 0.05) == 0.05


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"output_tokens": 2}, "output_tokens is 2"),
        ({"status": "error"}, "status is 'error'"),
        ({"request_id": "r2"}, "has no row"),
        ({"ttft_s": 0.15}, "TTFT: the collector reports 40.0 ms more"),
    ],
)
def test_comparison_finds_what_is_planted(changed, named):
    problems = compare([observation()], [row(**changed)]).problems(median_s=0.02)
    assert any(named in p for p in problems), problems
