"""llm-d's spans around vLLM's, made by hand from the sources of its router and of vLLM: there is no recording.

ms              0    10             50    53   55    60                   100
sidecar         forward_request ……………………………………………………………………………………………
prefill engine    2  queued  prefill 12…48
decode engine                                  55 …  70 first token 72    100
"""

from itertools import count

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, T0, Request
from tests.support.recordings import join, phases_partition, requests

SIDECAR = ("gateway.request", "forward_request", "prefill", "decode")
S = 1_000 * MS
_segments = count()


def vllm(role, **resource):
    given = {"tokentrail.disaggregation": role} if role else {}
    return Request(
        scope="vllm.llm_engine", **{"service.name": "llama", "service.instance.id": role or "both"} | given | resource
    )


def leg(request, *, start, e2e, ttft, prefill, tokens, name="chatcmpl-1", **where):
    attributes = {
        "gen_ai.request.id": name,
        "gen_ai.latency.time_to_first_token": ttft / 1000,
        "gen_ai.latency.e2e": e2e / 1000,
        "gen_ai.latency.time_in_model_prefill": prefill / 1000,
        "gen_ai.latency.time_in_model_decode": (e2e - ttft) / 1000,
        "gen_ai.usage.prompt_tokens": 100,
        "gen_ai.usage.completion_tokens": tokens,
    }
    request.span("llm_request", start=T0 + start * MS, ns=e2e * MS, kind=2, attributes=attributes, **where)
    return request


def prefill_leg(start=2, trace=1, span=10, **changes):
    """Waits 10 ms, prefills for 36 ms and emits the token that the sidecar throws away."""
    resource = changes.pop("resource", {})
    leg_of = {"e2e": 46, "ttft": 46, "prefill": 36, "tokens": 1, "trace": trace, "span": span, "parent": 3} | changes
    return leg(vllm("prefill", **resource), start=start, **leg_of)


def decode_leg(start=55, trace=1, span=11, **changes):
    """Waits 15 ms for the KV cache, and has its first token 2 ms after that."""
    leg_of = {"e2e": 45, "ttft": 17, "prefill": 2, "tokens": 15, "trace": trace, "span": span, "parent": 4} | changes
    return leg(vllm("decode"), start=start, **leg_of)


@pytest.fixture(scope="module")
def rows(engine_store):
    """Stores spans, a segment for each request or list of requests, and returns the rows that came of them."""

    def stored(*sent):
        before = {(row["trace_id"], row["span_id"]) for row in requests(engine_store)}
        for segment in sent:
            bodies = [request.body() for request in (segment if isinstance(segment, list) else [segment])]
            insert_otlp(engine_store, TRACES, b"".join(bodies), f"llm-d-{next(_segments)}")
        join(engine_store)
        return [row for row in requests(engine_store) if (row["trace_id"], row["span_id"]) not in before]

    return stored


def phases_of(store, row):
    sql = """SELECT name, toUnixTimestamp64Nano(start), duration_ns FROM phases
             WHERE trace_id = toFixedString(unhex({trace:String}), 16) ORDER BY start"""
    found = store.query(sql, {"trace": bytes(row["trace_id"]).hex()}).result_rows
    return [(name, (start - T0) / MS, ns / MS) for name, start, ns in found]


ORDERS = {
    f"{first} first, {traces[1] - traces[0] + 1} traces": (first, traces)
    for first in ("prefill", "decode")
    for traces in ((0, 0), (0, 1))
}
"""The leg that arrives first, and how far the traces of prefill and decode are behind the case's own."""


@pytest.fixture(scope="module")
def in_every_order(rows):
    """The row of each of ORDERS. The first legs come in one segment, the others in the next one."""
    arrivals: list[list[Request]] = [[], []]
    for trace, (first, (of_prefill, of_decode)) in zip(count(10, 10), ORDERS.values(), strict=False):
        name = f"chatcmpl-{trace}"
        legs = [prefill_leg(trace=trace + of_prefill, name=name), decode_leg(trace=trace + of_decode, name=name)]
        for arrived, leg in zip(arrivals, legs if first == "prefill" else legs[::-1], strict=True):
            arrived.append(leg)
    made = rows(*arrivals)
    assert len(made) == len(ORDERS)
    found = {row["request_id"]: row for row in made}
    return {order: found[f"chatcmpl-{trace}"] for trace, order in zip(count(10, 10), ORDERS, strict=False)}


@pytest.mark.parametrize("order", ORDERS)
def test_the_spans_of_both_engines_are_one_request(engine_store, in_every_order, order):
    row = in_every_order[order]
    assert (row["engine"], row["instance"], row["status"], row["vantage"]) == ("vllm", "decode", "ok", "server")
    assert (row["start_ns"] - T0, row["e2e_ns"], row["ttft_ns"]) == (2 * MS, 98 * MS, (55 + 17 - 2) * MS)
    assert (row["input_tokens"], row["output_tokens"]) == (100, 15)
    assert row["tpot_ns"] == pytest.approx(28 * MS / 14)
    assert phases_of(engine_store, row) == [
        ("queued", 2, 10), ("prefill", 12, 36), ("kv_transfer", 48, 22), ("decode", 70, 30),
    ]  # fmt: skip
    columns = "queue_ns", "prefill_ns", "kv_transfer_ns", "decode_ns"
    assert [row[column] / MS for column in columns] == [10, 36, 22, 30]


def test_the_routers_spans_are_kept_beside_it_and_instances_without_a_role_have_a_row_each(engine_store, rows):
    sidecar = Request(scope="llm-d-router/pkg/sidecar/proxy", **{"service.name": "sidecar"})
    for span, name in enumerate(SIDECAR, 1):
        sidecar.span(name, trace=500, span=span, parent=span - 1 or None, start=T0, ns=(150 - span) * MS)
    none = [leg(vllm(None), trace=500, span=span, start=5, e2e=40, ttft=10, prefill=5, tokens=4) for span in (10, 11)]
    found = rows(sidecar, *none)
    assert [(row["engine"], row["ttft_ns"], row["kv_transfer_ns"]) for row in found] == [("vllm", 10 * MS, None)] * 2
    kept = engine_store.query("SELECT name FROM spans ORDER BY name").result_rows
    assert kept == [(name,) for name in sorted(SIDECAR)]


def test_a_request_that_the_decode_engine_prefills_is_its_span(engine_store, rows):
    changes = {
        "another request": {"name": "chatcmpl-other"},
        "another tenant": {"resource": {"tokentrail.tenant": "somebody else"}},
        "480 s before": {"start": 55 - 46 - 480_001},
        "ends after the decode engine": {"start": 55},
        "none": None,
    }
    legs = [{"trace": 100 + n, "name": f"chatcmpl-{100 + n}"} for n in range(len(changes))]
    prefills = [prefill_leg(**leg | changed) for leg, changed in zip(legs, changes.values(), strict=True) if changed]
    found = rows(prefills, [decode_leg(**leg) for leg in legs])
    assert len(found) == len(changes)
    for row in found:
        assert (row["start_ns"] - T0, row["e2e_ns"], row["ttft_ns"]) == (55 * MS, 45 * MS, 17 * MS)
        assert phases_of(engine_store, row) == [("queued", 55, 15), ("prefill", 70, 2), ("decode", 72, 28)]


def test_a_prefill_within_480_s_counts_and_the_last_attempt_of_several(rows):
    legs = {"trace": 700, "name": "chatcmpl-700"}
    first, last = prefill_leg(**legs, start=-480_000 + 55 - 46), prefill_leg(**legs, start=-100, span=20)
    (row,) = rows(first, decode_leg(**legs))
    assert row["start_ns"] == T0 + (55 - 46 - 480_000) * MS
    (row,) = rows(last, decode_leg(**legs, span=21))
    assert row["start_ns"] == T0 - 100 * MS


def test_a_prefill_without_its_decode_is_no_request(rows):
    assert rows(prefill_leg(trace=800, name="chatcmpl-800")) == []


def test_answers_of_one_request_have_a_row_each_with_its_prefill(rows):
    legs = {"trace": 900, "name": "chatcmpl-900"}
    found = rows(prefill_leg(**legs), decode_leg(**legs), decode_leg(**legs, span=12))
    assert [row["prefill_ns"] / MS for row in found] == [36, 36]


def test_engines_whose_clocks_differ_have_no_negative_transfer(engine_store, rows):
    legs = {"trace": 1000, "name": "chatcmpl-1000"}
    later = {"trace": 1001, "name": "chatcmpl-1001"}
    prefills = [prefill_leg(**legs, start=34), prefill_leg(**later, start=54)]
    decodes = [decode_leg(**legs), decode_leg(**later, start=50, e2e=100, ttft=60)]
    row, at_once = sorted(rows(prefills, decodes), key=lambda row: row["request_id"])
    assert phases_of(engine_store, row) == [("queued", 34, 10), ("prefill", 44, 36), ("decode", 80, 20)]
    assert row["kv_transfer_ns"] == 0
    assert (at_once["start_ns"] - T0, at_once["ttft_ns"]) == (50 * MS, 60 * MS), "both engines were asked at once"
    assert phases_of(engine_store, at_once) == [
        ("queued", 50, 14), ("prefill", 64, 36), ("kv_transfer", 100, 8), ("decode", 108, 42),
    ]  # fmt: skip


def test_latencies_that_an_engine_does_not_tell_are_not_known(engine_store, rows):
    legs = {"trace": 1100, "name": "chatcmpl-1100"}
    bare = vllm("prefill")
    bare.span(
        "llm_request", trace=1100, span=10, start=T0, ns=40 * MS, attributes={"gen_ai.request.id": "chatcmpl-1100"}
    )
    (row,) = rows(bare, decode_leg(**legs))
    assert (row["e2e_ns"], row["ttft_ns"]) == (100 * MS, 72 * MS)
    assert [row[column] for column in ("queue_ns", "prefill_ns", "kv_transfer_ns")] == [None] * 3
    assert phases_of(engine_store, row) == []


def test_a_span_with_an_error_status_is_an_error(rows):
    plain, failed = vllm(None), {"error.type": "EngineDeadError", "gen_ai.usage.cache_read.input_tokens": 4}
    error = Status(code=Status.STATUS_CODE_ERROR)
    plain.span("llm_request", trace=1200, span=10, start=T0, ns=40 * MS, attributes=failed, status=error)
    (row,) = rows(plain)
    assert (row["status"], row["error_type"], row["e2e_ns"]) == ("error", "EngineDeadError", 40 * MS)
    assert row["cached_tokens"] == 4


def test_a_server_s_span_is_no_part_of_a_start(engine_store, rows):
    plain = vllm(None)
    plain.span("reload", trace=1300, span=10, kind=2, attributes={"code.function": "reload"})
    assert rows(plain) == []
    assert engine_store.query("SELECT count() FROM cold_starts").result_rows == [(0,)]


def test_phases_of_all_add_up(engine_store):
    assert phases_partition(engine_store) > 10
