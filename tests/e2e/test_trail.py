"""Every token of a real model passes from the engine through the collector and is compared with a client's clock."""

import asyncio
import itertools
import random
import statistics
import time

import openai
import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.support import settled
from tokentrail.load import CHAT, COMPLETION, LONG_GENERATION, burst, observe, poisson, run
from tokentrail.load.compare import compare, longest_hop_s

pytestmark = pytest.mark.e2e


def middle_of_the_widest_gap(pairs):
    """A threshold on the same side of which each request lies by its client's clock and by its server's.

    A busy machine delays a client's chunks: of 16 tokens, one that came 0.2 s late changes TPOT by 13 ms.
    """
    ordered = sorted((min(pair), max(pair)) for pair in pairs)
    reached = itertools.accumulate((high for _, high in ordered), max)
    return max((low - high, (low + high) / 2) for high, (low, _) in zip(reached, ordered[1:], strict=False))[1]


def good_by_brute_force(seen, thresholds):
    def meets(o):
        measured = {"ttft": o.ttft_s, "tpot": o.tpot_s, "e2e": o.e2e_s}
        return all(measured[k] is None or measured[k] <= limit for k, limit in thresholds.items())

    return sum(o.status == "ok" and meets(o) for o in seen)


@pytest.fixture(scope="module")
def driven(stack, engine, api):
    """An engine with a small KV cache under a mixed load: a client cancels a request, and `kill -9` ends the collector.

    The collector comes back at the same addresses. Returns the begin of the load, the clients' observations, and rows.
    """
    began = time.time()
    plan = sorted(
        [
            *poisson({CHAT: 0.8, COMPLETION: 0.8}, seconds=6, seed=3),
            *burst(LONG_GENERATION, count=6, at_s=2.0, seed=4),
        ],
        key=lambda r: r.at_s,
    )
    impatient = random.Random(1).choice([p for p in plan if p.ignore_eos])
    seen = []

    async def send(client, model, planned):
        return await observe(client, model, planned, cancel_after=5 if planned is impatient else None)

    def restart():
        before = stack.urls
        stack.running.pop("collector").kill()
        time.sleep(1)
        stack.collector(stack.home / "data")
        assert stack.urls == before  # the engine still exports to the same address

    async def load_and_crash():
        load = asyncio.create_task(run(engine, MODEL, plan, on_observation=seen.append, send=send))
        while len(seen) < 2:
            assert not load.done()
            await asyncio.sleep(0.1)
        await asyncio.to_thread(restart)
        await load

    asyncio.run(load_and_crash())
    rows = settled(api, {o.request_id for o in seen if o.request_id}, since=began)
    return began, seen, rows


def test_the_collector_and_the_client_tell_the_same_story(driven, api):
    began, seen, rows = driven
    ok = [o for o in seen if o.status == "ok"]
    assert len(ok) == len(seen) - 1, [o.error for o in seen if o.status == "error"]

    comparison = compare(seen, rows)
    assert comparison.matched == len(ok)
    assert comparison.problems(median_s=longest_hop_s(seen, 0.030)) == []
    tpot_s = statistics.median(o.tpot_s for o in ok if o.tpot_s is not None)
    assert statistics.median(abs(g) for g in comparison.tpot_gaps_s) < max(0.005, 0.05 * tpot_s)

    # the request that its client cancelled is counted as such (it is excused unless it missed a threshold before)
    (gone,) = [o for o in seen if o.status == "cancelled"]
    assert {r["request_id"]: r["status"] for r in rows}[gone.request_id] == "cancelled"
    summary = api.get("summary", start=began)
    assert summary["requests"] | {"good": 0, "excused": 0} == {
        "total": len(seen), "ok": len(ok), "good": 0, "undetermined": 0, "failed": 0, "cancelled": 1, "unknown": 0,
        "excused": 0, "unselected": 0, "in_flight": 0, "in_flight_violations": 0, "lost": 0,
    }  # fmt: skip
    deadline = time.monotonic() + 120
    while not (api.get("summary", start=began)["throughput"]["output_tokens_per_s"] or 0) > 0:
        assert time.monotonic() < deadline, "rates wait for those who could not send to the collector that was killed"
        time.sleep(0.5)

    # phases and tokens partition each request, to the nanosecond
    evictions = 0
    for row in rows:
        detail = api.get(f"requests/{row['trace_id']}", span_id=row["span_id"])
        e2e_ns = round(row["e2e_s"] * 1e9)
        assert sum(round(p["duration_s"] * 1e9) for p in detail["phases"]) == e2e_ns
        ends = [round((p["offset_s"] + p["duration_s"]) * 1e9) for p in detail["phases"]]
        assert [round(p["offset_s"] * 1e9) for p in detail["phases"]] == [0, *ends[:-1]]
        assert [t["index"] for t in detail["tokens"]] == list(range(row["output_tokens"]))
        if row["status"] == "ok":
            assert sum(round(t["duration_s"] * 1e9) for t in detail["tokens"]) == e2e_ns
            assert round(detail["tokens"][0]["duration_s"] * 1e9) == round(row["ttft_s"] * 1e9)
        evictions += sum(e["kind"] == "kv.evict" and e["own"] for e in detail["events"])

    # six sequences of over 100 tokens do not fit in 768: some were preempted, and the trail names them
    assert sum(r["preemptions"] for r in rows) == evictions > 0

    # goodput, recomputed from the clients' observations; a request cancelled after it missed a threshold counts
    cancelled = next(r for r in rows if r["request_id"] == gone.request_id)
    by_id = {row["request_id"]: row for row in rows}
    limits = {
        name: middle_of_the_widest_gap(
            (getattr(o, f"{name}_s"), by_id[o.request_id][f"{name}_s"])
            for o in ok
            if getattr(o, f"{name}_s") is not None
        )
        for name in ("ttft", "tpot", "e2e")
    }
    for chosen in ({"ttft"}, {"tpot"}, {"e2e"}, {"ttft", "tpot"}, {"ttft", "tpot", "e2e"}):
        thresholds = {k: v for k, v in limits.items() if k in chosen}
        answer = api.get("goodput", start=began, **{k: f"{v * 1e3:.3f}ms" for k, v in thresholds.items()})
        assert answer["requests"]["good"] == good_by_brute_force(seen, thresholds), thresholds
        missed = any(cancelled[f"{k}_s"] is not None and cancelled[f"{k}_s"] > v for k, v in thresholds.items())
        assert answer["requests"]["excused"] == (not missed)
        assert answer["attainment"] == pytest.approx(answer["requests"]["good"] / (len(ok) + missed))


def test_kill_minus_nine_of_the_collector_loses_and_repeats_nothing(driven):
    """Each token of each request is compared in the test above."""
    _, seen, rows = driven
    assert [o.error for o in seen if o.status not in ("ok", "cancelled")] == []
    assert sorted(r["request_id"] for r in rows) == sorted(o.request_id for o in seen)  # each once
    assert compare(seen, rows).wrong == []


def test_an_error_is_a_request_too(engine, api):
    began = time.time()
    client = openai.OpenAI(base_url=f"{engine}/v1", api_key="unused", max_retries=0)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="word " * 700, max_tokens=5)
    assert refused.value.code == "context_length_exceeded"
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=5, temperature=0)
    assert "Paris" in answer.choices[0].text
    rows = settled(api, {answer.id}, since=began)
    assert [r["operation"] for r in rows if r["request_id"] == answer.id] == ["text_completion"]
