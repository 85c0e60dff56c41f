"""The plan of the synthetic day, and the simulated engine that lives it."""

from collections import Counter
from itertools import pairwise

import pytest

from tokentrail import semconv
from tokentrail._send.http import Endpoint
from tokentrail.cli.day.engine import SimulatedEngine
from tokentrail.cli.day.plan import Day
from tokentrail.cli.day.play import play
from tokentrail.cli.day.process import MS, Law, Limits, Planned, Process, S
from tokentrail.config import Settings
from tokentrail.testing import MemoryTransport, parse_spans

END = 1_795_000_000 * S
DAY = Day(END, scale=0.1)


@pytest.fixture(scope="module")
def lived():
    """The spans of a small day, and the trails of what hangs."""
    transport = MemoryTransport()
    trails = play(DAY, transport)
    return [span for body in transport.bodies for span in parse_spans(body) if span.name != "tokentrail.token"], trails


@pytest.fixture(scope="module")
def steps(lived):
    """Steps by process, in the order of time."""
    found = {}
    for span in lived[0]:
        if span.name == "tokentrail.step":
            found.setdefault(span.resource["service.instance.id"], []).append(span)
    return found


def by_process(lived, name):
    return {span.resource["service.instance.id"]: span for span in lived[0] if span.name == name}


def test_one_seed_plans_one_day_and_another_seed_another():
    assert DAY.processes() == Day(END, scale=0.1).processes()
    assert DAY.processes() != Day(END, seed=8, scale=0.1).processes()


def test_a_day_is_planned_in_order_and_within_a_day_and_an_hour():
    for process, requests in DAY.processes():
        assert requests, process.instance
        assert all(before.at <= after.at for before, after in pairwise(requests))
        assert max(DAY.start, process.start) <= requests[0].at
        assert requests[-1].at < END


def test_a_whole_day_has_traffic_at_all_hours_and_a_smaller_one_around_its_faults():
    def hours(found):
        return {(one.at - DAY.start) // (3600 * S) for _, requests in found for one in requests}

    whole = Day(END).processes()
    assert hours(whole) == set(range(25))
    ones = [one for _, requests in whole for one in requests]
    usual = Counter((one.at - DAY.at(1)) // (7200 * S) % 12 for one in ones if one.tenant == "acme")
    assert min(usual, key=usual.get) == 0, "at two at night"
    assert 8 * usual[0] < usual[4] < usual[7], "most in the afternoon"
    statuses = Counter(one.status for one in ones)
    assert len(ones) / 1000 < statuses["error"] * 2 < statuses["cancelled"] < len(ones) / 50
    long = {
        (at.service, one.tenant, one.slo_class, one.cached) for at, some in whole for one in some if one.prompt > 3599
    }
    assert long == {("llama-70b", "acme", "chat", 0)}, "with documents that were retrieved"
    assert len(hours(DAY.processes())) < 12

    by_minute = Counter(
        ((one.at - since) // (60 * S), process.instance[:8])
        for process, requests in whole
        for one in requests
        for since in (DAY.at(8, 30), DAY.at(10, 20))
        if one.tenant == "globex" and since - 1800 * S < one.at < since + 1800 * S
    )
    burst, documents = (
        {minute for (minute, name), n in by_minute.items() if name == of and n > 25} for of in ("sglang-b", "vllm-a-7")
    )
    assert (burst, documents) == (set(range(15)), set(range(10)))


def test_a_step_takes_what_its_law_says_and_has_room_for_so_many_tokens_and_blocks():
    law = Law(step=MS, token=10_000, sequence=100_000, prompt=2 * MS, attention=1_000, context=20_000, noise=0)

    def steps(*prompts, answer=3, **limits):
        """The µs of each step of requests that come together, and what it has to do."""
        room = Limits(**{"seqs": 4, "batched_tokens": 64, "kv_blocks": 100} | limits)
        process, transport = Process("s", "i", "e", "m", "v", law, room, END, 10 * S), MemoryTransport()
        planned = [Planned(END + 20 * S, "t", "chat", prompt, cached, answer) for prompt, cached in prompts]
        engine = SimulatedEngine(process, planned, Settings(Endpoint.to("http://localhost")), transport, seed=1)
        engine.run(END + 60 * S)
        spans = [span for body in transport.bodies for span in parse_spans(body)]
        assert engine.in_flight == 0
        names = ("prefill_tokens", "decode_tokens", "kv_blocks_used", "waiting_for_tokens", "waiting_for_kv")
        done = [span for span in spans if span.name == "tokentrail.step"]
        assert done[0].start_ns == END + 20 * S
        return [(s.duration_ns // 1000, *(s.attributes.get(f"tokentrail.step.{name}") for name in names)) for s in done]

    def us(prompt, attention=0.0, decoding=0, context=0):
        return int(1000 + 10 * prompt + attention + 100 * decoding + 20 * context + (2000 if prompt else 0))

    assert steps((100, 0), (20, 10)) == [
        (us(64, 64 * 32), 64, 0, 7, 1, 0),
        (us(46, 36 * 82 + 10 * 15), 46, 0, 9, 0, 0),
        (us(0, 0, 2, 101 + 21), 0, 2, 9, 0, 0),
        (us(0, 0, 2, 102 + 22), 0, 2, 9, 0, 0),
    ]
    assert [one[-1] for one in steps((15, 0), (15, 0), answer=1, kv_blocks=2)] == [0]
    assert [one[-1] for one in steps((15, 0), (16, 0), answer=1, kv_blocks=2)] == [1, 0]
    assert [one[1:3] for one in steps((4, 0), (200, 0))][:3] == [(64, 0), (63, 1), (63, 1)]
    assert [one[3] for one in steps((31, 0), (31, 0), answer=1, kv_blocks=2)] == [2, 2], "one after another"


def test_an_engine_takes_one_step_after_another_and_no_more_than_its_limits(lived, steps):
    limits = {process.instance: process.limits for process, _ in DAY.processes()}
    for instance, some in steps.items():
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(some))
        for one in (span.attributes for span in some):
            assert one["tokentrail.step.running"] <= limits[instance].seqs
            assert 0 <= one["tokentrail.step.kv_blocks_used"] <= limits[instance].kv_blocks
            tokens = one["tokentrail.step.prefill_tokens"] + one["tokentrail.step.decode_tokens"]
            assert tokens <= limits[instance].batched_tokens


def test_blocks_are_free_again_when_nothing_runs(steps):
    idle = [
        after.attributes["tokentrail.step.kv_blocks_used"]
        for before, after in pairwise(steps["tt-a-11aa"])
        if after.start_ns - before.end_ns > 10 * S
    ]
    assert idle
    assert max(idle) < 200, "of 2,000: those of the requests that came now"


def test_the_processes_start_when_the_day_says(lived):
    starts = {name: (one.start_ns, one.duration_ns) for name, one in by_process(lived, "tokentrail.cold_start").items()}
    assert starts["vllm-b-9e30"] == (DAY.at(12), 105 * S)
    assert starts["vllm-a-c2e1"] == (DAY.at(12, 2), 110 * S)
    assert starts["sglang-b-5e77"] == (DAY.at(3), 95 * S)


def test_requests_wait_while_the_process_of_03_00_loads(lived):
    waited = [s for s in lived[0] if s.name == "tokentrail.phase" and s.attributes[semconv.PHASE_NAME] == "cold_start"]
    assert len(waited) >= 26
    assert {span.end_ns for span in waited} == {DAY.at(3) + 95 * S}


def test_the_burst_of_08_30_is_more_than_its_service_takes(lived):
    refused = [span for span in lived[0] if span.attributes.get("error.type") == "queue_full"]
    assert refused
    assert {span.attributes["tokentrail.tenant"] for span in refused} == {"globex"}
    assert all(DAY.at(8, 30) < span.start_ns < DAY.at(8, 45) for span in refused)
    assert {span.resource["service.name"] for span in refused} == {"qwen-8b"}


def test_the_documents_of_10_20_take_blocks_of_others(lived):
    taken = [span for span in lived[0] if span.name == "tokentrail.kv.evict"]
    storm = [span for span in taken if DAY.at(10, 20) < span.start_ns < DAY.at(10, 32)]
    assert len(storm) >= 20
    assert len(storm) > 0.9 * len(taken)
    assert {span.resource["service.instance.id"] for span in storm} == {"vllm-a-7f9c"}
    assert all(span.attributes.get(semconv.KV_BENEFICIARY) != f"{span.trace_id:032x}" for span in taken)


def test_v2_4_takes_over_at_12_00_and_computes_long_prompts_slowly(steps):
    def speed(instance):
        """Tokens per s in steps with a long prompt alone."""
        alone = [s for s in steps[instance] if s.attributes["tokentrail.step.prefill_tokens"] >= 2000]
        return (
            sum(s.attributes["tokentrail.step.prefill_tokens"] for s in alone) / sum(s.duration_ns for s in alone) * S
        )

    assert steps["vllm-b-9e30"][0].resource["tokentrail.variant"] == "v2.4"
    assert steps["vllm-b-4d21"][-1].end_ns < DAY.at(12) + 60 * S
    assert DAY.at(12) + 105 * S <= steps["vllm-b-9e30"][0].start_ns
    assert speed("vllm-b-9e30") < speed("vllm-b-4d21") / 2


def test_the_process_that_hangs_at_13_02_keeps_its_requests_open(lived, steps):
    spans, trails = lived
    assert steps["sglang-a-91ee"][-1].end_ns < DAY.at(13, 2) + 300 * MS
    assert steps["sglang-b-5e77"][-1].end_ns > END - 300 * S
    (trail,) = trails
    ended = {span.span_id for span in spans}
    hang = [s for s in spans if s.name == "tokentrail.request.open" and s.parent_id not in ended]
    assert len({span.parent_id for span in hang}) >= 18
    assert {span.resource["service.instance.id"] for span in hang} == {"sglang-a-91ee"}
    assert trail.stats.queued == 0


def test_the_whole_day_is_sent_and_nothing_is_lost(lived):
    spans, (trail,) = lived
    planned = sum(len(requests) for _, requests in DAY.processes())
    ended = {span.span_id for span in spans if "tokentrail.status" in span.attributes}
    still_open = {s.parent_id for s in spans if s.name == "tokentrail.request.open"} - ended
    assert len(ended) + len(still_open) == planned
    assert trail.stats.dropped == 0
