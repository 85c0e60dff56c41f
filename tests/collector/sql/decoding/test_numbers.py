"""Numbers that are wrong, absent or extreme: a value that is not known is NULL."""

import pytest

from tests.collector.sql.decoding.stored import by_trace, insert, rows
from tests.support.otlp import MS, T0, Request, token_body
from tokentrail import semconv


def test_hostile_numbers_do_not_stop_a_segment(store):
    request = Request(scope="vllm.tracing.otel")
    keys = ("e2e", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
    for trace, value in enumerate([NAN, float("inf"), -1.0, 1e300], start=1):
        attributes = {f"gen_ai.latency.{key}": value for key in keys} | {"gen_ai.usage.completion_tokens": -5}
        request.span("llm_request", trace=trace, kind=2, attributes=attributes)
        known = {semconv.OPERATION_NAME: "chat", semconv.TIME_TO_FIRST_CHUNK: value}
        request.span("chat m", trace=trace, span=2, kind=2, attributes=known)
    insert(store, request.body() + token_body(count=2))
    assert len(rows(store, "tokens")) == 2
    found = store.query("SELECT trace_id, count() FROM requests WHERE end < '2100-01-01' GROUP BY ALL ORDER BY ALL")
    assert found.result_rows == [(trace.to_bytes(16, "big"), 1) for trace in range(1, 5)]


NAN = float("nan")
NOT_LATENCIES = [NAN, float("inf"), -1.0, 1e12, 0.601, "soon"]
NOT_COUNTS = [NAN, -5, 2**32, 5.5, "five"]
COUNTS = "input_tokens, output_tokens, cached_tokens, reasoning_tokens, preemptions"
LATENCIES = "ttft_ns, tpot_ns, queue_ns, prefill_ns, decode_ns"
VLLM = "vllm.tracing.otel"


def test_a_ttft_that_is_no_latency_is_unknown_and_so_is_its_tpot(span_rows):
    known = {semconv.OUTPUT_TOKENS: 5, "gen_ai.request.stream": False}
    said = [known | {semconv.TIME_TO_FIRST_CHUNK: value} for value in NOT_LATENCIES]
    found = span_rows(["tokentrail", "other"], said, "ttft_ns, tpot_ns, output_tokens")
    assert found == [(None, None, 5)] * 2 * len(said)


def test_a_ttft_as_long_as_its_span_to_the_nanosecond_is_known(span_rows):
    said = [{semconv.OUTPUT_TOKENS: 2, semconv.TIME_TO_FIRST_CHUNK: ttft} for ttft in (0.6, 0.6000000004)]
    assert span_rows(["tokentrail"], said, "ttft_ns") == [(600 * MS,)] * 2


def test_tokens_of_one_step_have_no_tpot_and_waited_for_nothing_and_of_one_arrival_nobody_knows(span_rows):
    told = {semconv.OUTPUT_TOKENS: 9, semconv.TIME_TO_FIRST_TOKEN: 0.5, semconv.TIME_TO_LAST_TOKEN: 0.5}
    arrived = told | {semconv.ARRIVALS: 3}
    said = [told, told | {semconv.OUTPUT_TOKENS: 1}, arrived, arrived | {semconv.LATER_ARRIVALS: 2}]
    found = span_rows(["tokentrail"], said, "tpot_ns, tpot_at_most_ns, tpot_us")
    unknown = (None, None, 2**32 - 1)
    assert found == [(None, 0, 0), (None, None, 0), unknown, unknown]


@pytest.mark.parametrize(
    ("later", "at_most_ns"), [(4, 25 * MS), (None, None), (0, None), (-1, None), (1.5, None), (NAN, None), ("x", None)]
)
def test_the_bound_of_a_tpot_is_the_time_between_the_arrivals_by_those_after_the_first(span_rows, later, at_most_ns):
    told = {semconv.TIME_TO_FIRST_TOKEN: 0.5, semconv.ARRIVALS: 5}
    said = told if later is None else told | {semconv.LATER_ARRIVALS: later}
    known = said | {semconv.OUTPUT_TOKENS: 9}
    found = span_rows(["tokentrail"], [said, known | {semconv.ARRIVED_TOKENS: 0}, known], "tpot_ns, tpot_at_most_ns")
    assert found == [(None, at_most_ns), (None, at_most_ns), (12.5 * MS, None)]


def test_a_latency_of_vllm_that_is_none_is_unknown(span_rows):
    keys = ("time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
    said = [{}, *({f"gen_ai.latency.{key}": value for key in keys} for value in NOT_LATENCIES)]
    known = {"gen_ai.latency.e2e": 0.6, semconv.OUTPUT_TOKENS: 5}
    found = span_rows([VLLM], [known | attributes for attributes in said], LATENCIES)
    assert found == [(None,) * 5] * len(said)


def test_without_an_e2e_of_its_own_vllms_span_says_how_long_it_took(span_rows):
    said = [{}, *({"gen_ai.latency.e2e": value} for value in (NAN, float("inf"), -1.0, 1.61, 1e6, 1e12, "soon"))]
    known = {"gen_ai.latency.time_to_first_token": 0.2, semconv.OUTPUT_TOKENS: 5}
    ends = "toUnixTimestamp64Nano(start), toUnixTimestamp64Nano(end)"
    found = span_rows([VLLM], [known | attributes for attributes in said], f"e2e_ns, ttft_ns, tpot_ns, {ends}")
    assert found == [(600 * MS, 200 * MS, 100.0 * MS, T0, T0 + 600 * MS)] * len(said)


def test_phases_of_vllm_need_both_times(span_rows, store):
    said = [{"gen_ai.latency.e2e": 0.5, "gen_ai.latency.time_in_model_prefill": 0.2}]
    assert span_rows([VLLM], said, LATENCIES) == [(None, None, None, 200 * MS, None)]
    assert rows(store, "phases") == []


def test_a_vllm_request_whose_parts_are_longer_than_the_whole_has_not_waited(span_rows, store):
    keys = ("e2e", "time_in_model_prefill", "time_in_model_decode")
    parts = [(0.6, 0.2, 0.3), (0.6, 0.3, 0.3), (0.6, 0.5, 0.4)]
    said = [{f"gen_ai.latency.{key}": s for key, s in zip(keys, each, strict=True)} for each in parts]
    assert span_rows([VLLM], said, "queue_ns, e2e_ns") == [(100 * MS, 600 * MS), (0, 600 * MS), (0, 600 * MS)]
    waited = "SELECT duration_ns FROM phases WHERE name = 'queued'"
    assert store.query(waited).result_rows == [(100 * MS,)]


SCOPES = ["tokentrail", VLLM, "other"]


def test_a_count_that_is_none_is_unknown(span_rows):
    keys = (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, semconv.REASONING_TOKENS)
    said = [dict.fromkeys((*keys, semconv.PREEMPTIONS), value) for value in NOT_COUNTS]
    assert span_rows(SCOPES, said, COUNTS) == [(None,) * 5] * 3 * len(said)


def test_the_largest_count_is_known(span_rows):
    assert span_rows(["other"], [{semconv.OUTPUT_TOKENS: 2**32 - 1}], "output_tokens") == [(2**32 - 1,)]


def test_a_count_that_no_attribute_gives_is_unknown_but_our_sdk_counts_preemptions_itself(span_rows):
    assert span_rows(SCOPES, [{}], COUNTS) == [(None, None, None, None, 0), (None,) * 5, (None,) * 5]


def test_a_count_of_0_is_known(span_rows):
    said = dict.fromkeys((semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS), 0)
    assert span_rows(SCOPES, [said], "input_tokens, output_tokens, cached_tokens") == [(0, 0, 0)] * 3


def test_the_old_names_of_token_counts_are_read_and_the_new_ones_go_first(span_rows):
    old = {"gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.completion_tokens": 8}
    new = {semconv.INPUT_TOKENS: 0, semconv.OUTPUT_TOKENS: 2}
    assert span_rows([VLLM, "other"], [old, old | new], "input_tokens, output_tokens") == [(7, 8), (0, 2)] * 2


def test_a_phase_time_that_is_none_is_unknown_and_an_absent_one_is_0(span_rows):
    keys = [semconv.PHASE_TIME_PREFIX + phase for phase in ("queued", "prefill")]
    said = [dict.fromkeys(keys, value) for value in (NAN, -1, 601 * MS, "five")]
    assert span_rows(["tokentrail"], said, LATENCIES) == [(None, None, None, None, 0)] * 4


@pytest.mark.parametrize(("attributes", "kind"), [({}, 3), ({semconv.ARRIVALS: 4}, 2)])
def test_preemptions_and_phase_times_that_a_client_or_a_proxy_does_not_send_are_not_known(span_rows, attributes, kind):
    phases = ("queue", "cold_start", "prefill", "decode", "preempted", "kv_transfer", "stalled")
    columns = ", ".join(["preemptions", *(f"{phase}_ns" for phase in phases)])
    (nothing, told) = span_rows(
        ["tokentrail"], [attributes, attributes | {semconv.PHASE_TIME_PREFIX + "queued": 5}], columns, kind
    )
    assert nothing == (None,) * 8
    assert told == (None, 5) + (None,) * 6


def test_counts_of_steps_and_kv_events_that_are_none_or_absent_are_unknown(store):
    request = Request()
    for number, value in enumerate([None, NAN, -1, 1.5, 2**32, "five"]):
        known = dict.fromkeys(semconv.STEP_ATTRIBUTES + semconv.STEP_DETAILS[:-3], value)
        counts = {} if value is None else known
        request.span(semconv.STEP_SPAN, span=2 * number + 1, attributes=counts | {semconv.STEP: number})
        blocks = {} if value is None else {semconv.KV_BLOCKS: value, semconv.KV_BENEFICIARY: "no trace id"}
        request.span("tokentrail.kv.evict", span=2 * number + 2, attributes={semconv.STEP: number} | blocks)
    insert(store, request)
    found = store.query(
        "SELECT * EXCEPT (start, service, instance, process_tenant, variant, duration_ns) FROM steps ORDER BY step"
    )
    assert found.result_rows == [(number,) + (None,) * 19 for number in range(6)]
    assert rows(store, "kv_events", "step, blocks, bytes, beneficiary") == [(n, None, None, "") for n in range(6)]


def test_a_time_of_a_step_that_is_none_or_absent_is_unknown(store):
    request, times = Request(), semconv.STEP_DETAILS[-3:]
    request.span(semconv.STEP_SPAN, attributes=dict.fromkeys(times, 2**40) | {semconv.STEP: 0})
    for step, value in enumerate([None, NAN, -1, 1.5, "five"], start=1):
        told = {} if value is None else dict.fromkeys(times, value)
        request.span(semconv.STEP_SPAN, span=1 + step, attributes=told | {semconv.STEP: step})
    insert(store, request)
    found = rows(store, "steps", "step, device_ns, compute_ns, memory_ns")
    assert found == [(0, *(2**40,) * 3), *((step, None, None, None) for step in range(1, 6))]


def test_the_times_for_which_a_request_waited_for_a_reason_are_parts_of_it(span_rows):
    keys = [semconv.WAIT_TIME_PREFIX + reason for reason in ("batch", "tokens", "kv", "priority")]
    said = [{}, *(dict.fromkeys(keys, value) for value in (7, 0, NAN, -1, 601 * MS))]
    found = span_rows(["tokentrail"], said, "wait_batch_ns, wait_tokens_ns, wait_kv_ns, wait_priority_ns")
    assert found == [(stored,) * 4 for stored in (None, 7, 0, None, None, None)]


def test_the_first_visible_token_and_the_drafts_of_a_request_are_stored(span_rows):
    told = [
        {semconv.TIME_TO_FIRST_VISIBLE_TOKEN: 0.25, semconv.DRAFTED_TOKENS: 9},
        {semconv.TIME_TO_FIRST_VISIBLE_TOKEN: 0.7, semconv.DRAFTED_TOKENS: -1},
    ]
    found = span_rows(["tokentrail"], told, "first_visible_ns, drafted_tokens, accepted_tokens")
    assert found == [(250 * MS, 9, None), (None, None, None)]


def test_the_longest_gap_of_a_request_is_stored(span_rows):
    seconds, index = semconv.LONGEST_GAP, semconv.LONGEST_GAP_INDEX
    told = [{seconds: 0.25, index: 9}, {seconds: 0, index: 9}, {seconds: 0.7, index: 1}, {seconds: NAN}, {index: 3}]
    told += [{seconds: 0.25, index: -1}, {seconds: -1.0, index: 2}, {}]
    found = span_rows(["tokentrail"], told, "gap_ns, gap_index")
    assert found == [(250 * MS, 9), (0, None), *[(None, None)] * 3, (250 * MS, None), (None, None), (None, None)]


def test_how_sure_the_model_was_is_stored(span_rows):
    both = [(7.5, 1.5), (1, 0), (0.9, -0.1), (NAN, float("inf"))]
    told = [{semconv.PERPLEXITY: perplexity, semconv.MEAN_ENTROPY: entropy} for perplexity, entropy in both]
    found = span_rows(["tokentrail"], told, "perplexity, mean_entropy")
    assert found == [(7.5, 1.5), (1, 0), (None, None), (None, None)]


def test_a_step_without_a_number_is_kept(store):
    request = Request()
    for number, value in enumerate([None, NAN, -1, 1.5, "five"]):
        attributes = {semconv.STEP_RUNNING: number} | ({} if value is None else {semconv.STEP: value})
        request.span(semconv.STEP_SPAN, span=2 * number + 1, attributes=attributes)
        request.span("tokentrail.kv.evict", span=2 * number + 2, attributes=attributes | {semconv.KV_BLOCKS: number})
    insert(store, request)
    assert rows(store, "steps", "running, step") == [(number, None) for number in range(5)]
    assert rows(store, "kv_events", "blocks, step") == [(number, None) for number in range(5)]


def test_an_announcement_and_its_end_have_the_vantage_of_their_kind(store):
    request = Request()
    for kind in (1, 2, 3):
        request.span(semconv.OPEN_SPAN, trace=kind, span=7, parent=5, kind=kind)
        request.span("chat m", trace=kind, span=6, kind=kind, attributes={semconv.OPERATION_NAME: "chat"})
    insert(store, request)
    assert by_trace(store, "requests", "vantage") == ["server", "server", "client"]
    assert by_trace(store, "open_requests", "vantage") == ["server"] * 4 + ["client"] * 2


def test_an_announcement_without_usage_has_unknown_counts(store):
    request = Request()
    request.span(semconv.OPEN_SPAN, parent=5, attributes={semconv.INPUT_TOKENS: -1, semconv.TIME_TO_FIRST_CHUNK: NAN})
    insert(store, request)
    assert rows(store, "open_requests", "input_tokens, output_tokens, ttft_ns") == [(None, None, None)]
