"""The hooks on vLLM's fakes record requests, steps and starts."""

from asyncio import CancelledError
from types import SimpleNamespace

import pytest

from tests.tokentrail.support import MS, T0
from tokentrail import semconv
from tokentrail.integrations import recorder
from tokentrail.semconv import Limit

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FIRST = (("QUEUED", 2), ("SCHEDULED", 4))


def test_tokens_have_the_front_end_s_stamp_and_steps_the_engine_core_s(vllm):
    v = vllm()
    key = v.add()
    v.step(10, v.output(key, events=FIRST, prefill_stats=SimpleNamespace(num_cached_tokens=3)), front_ms=12)
    v.step(20, v.output(key), front_ms=23)
    v.step(30, v.output(key, finish="LENGTH"), front_ms=31)
    [row] = v.rows()
    assert v.tokens(row) == [12, 11, 8]
    assert v.phases(row) == [("queued", 4), ("prefill", 8), ("decode", 19)]
    assert row.name == "chat m"
    assert row.resource[semconv.ENGINE] == "vllm"
    assert {key: row.attributes[key] for key in row.attributes if "phase_time" not in key and "time_to" not in key} == {
        semconv.OPERATION_NAME: "chat", semconv.PROVIDER_NAME: "vllm", semconv.REQUEST_MODEL: "m",
        semconv.RESPONSE_MODEL: "m", semconv.RESPONSE_ID: "chatcmpl-1", semconv.INPUT_TOKENS: 7,
        semconv.OUTPUT_TOKENS: 3, semconv.CACHED_TOKENS: 3, semconv.STATUS: "ok", semconv.FINISH_REASON: "length",
        semconv.FINISH_REASONS: ["length"], semconv.REQUEST_MAX_TOKENS: 9, semconv.REQUEST_TEMPERATURE: 0.5,
        semconv.REQUEST_TOP_P: 1.0, semconv.REQUEST_STREAM: True,
        semconv.LONGEST_GAP: 0.011, semconv.LONGEST_GAP_INDEX: 1,
    }  # fmt: skip
    assert [(round((s.start_ns - T0) / MS, 2), round((s.end_ns - T0) / MS, 2)) for s in v.steps()] == [
        (4, 10), (10, 20), (20, 30),
    ]  # fmt: skip


def test_a_step_says_what_vllm_says_and_no_more(vllm):
    v = vllm()
    key = v.add()
    v.step(10, v.output(key, events=FIRST), num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=4,
           kv_cache_usage=0.25)  # fmt: skip
    v.step(20, v.output(key, 2))
    details = SimpleNamespace(num_ctx_tokens=64, num_generation_tokens=5, elapsed_ms=6.0)
    v.step(30, v.output(key), iteration_details=details)
    first, second, third = v.steps()
    assert [first.attributes[key] for key in (
        semconv.STEP_RUNNING, semconv.STEP_WAITING, semconv.STEP_KV_USED, semconv.STEP_KV_TOTAL,
        semconv.STEP_DECODE_TOKENS,
    )] == [3, 6, 25, 100, 0]  # fmt: skip
    assert not first.attributes.get(semconv.STEP_PREFILL_TOKENS)
    assert second.attributes[semconv.STEP_DECODE_TOKENS] == 2
    assert (third.attributes[semconv.STEP_PREFILL_TOKENS], third.attributes[semconv.STEP_DECODE_TOKENS]) == (64, 5)
    assert third.duration_ns / MS == pytest.approx(6)


def test_a_message_without_statistics_is_no_step(vllm):
    v = vllm()
    v.step(10, stats=False)
    assert v.steps() == []


def test_chunked_prefill_has_steps_before_the_first_token(vllm):
    v = vllm()
    key = v.add()
    v.step(10, front_ms=10)
    v.step(20, front_ms=20)
    v.step(30, v.output(key, events=FIRST, finish="LENGTH"))
    [row] = v.rows()
    assert v.tokens(row) == [31]
    assert [round((s.start_ns - T0) / MS) for s in v.steps()] == [0, 10, 20]
    assert [s.attributes[semconv.STEP_DECODE_TOKENS] for s in v.steps()] == [0, 0, 0]


def test_a_preemption_is_a_phase_and_counts(vllm):
    v = vllm()
    key = v.add()
    v.step(10, v.output(key, events=FIRST))
    v.step(40, v.output(key, events=(("PREEMPTED", 15), ("SCHEDULED", 30))))
    v.step(50, v.output(key, finish="STOP"))
    [row] = v.rows()
    assert v.phases(row) == [
        ("queued", 4),
        ("prefill", 7),
        ("decode", 4),
        ("preempted", 15),
        ("prefill", 11),
        ("decode", 10),
    ]
    assert row.attributes[semconv.PREEMPTIONS] == 1


def test_speculative_tokens_come_together(vllm):
    v = vllm()
    key = v.add()
    v.step(10, v.output(key, 1, events=FIRST))
    v.step(20, v.output(key, 3, finish="LENGTH"))
    [row] = v.rows()
    assert v.tokens(row) == [11, 10, 0, 0]


def test_a_stop_string_ends_the_request_and_cuts_its_last_tokens(vllm):
    v = vllm()
    key, other = v.add(), v.add("b", "chatcmpl-2")
    v.step(10, v.output(key, 4, events=FIRST, cut_to=2), v.output(other, events=FIRST))
    [row] = v.rows()
    assert (row.attributes[semconv.OUTPUT_TOKENS], row.attributes[semconv.FINISH_REASON]) == (2, "stop")


def test_a_step_may_be_processed_in_slices(vllm):
    v = vllm()
    keys = [v.add(f"k{i}", f"chatcmpl-{i}") for i in range(3)]
    outputs = [v.output(key, events=FIRST, finish="LENGTH") for key in keys]
    v.step(10, *outputs, slices=[outputs[:2], outputs[2:]])
    assert len(v.rows()) == 3
    assert len(v.steps()) == 1


@pytest.mark.parametrize(
    ("error", "status", "error_type"),
    [(CancelledError, "cancelled", None), (GeneratorExit, "cancelled", None), (None, "cancelled", None),
     (ValueError, "error", "ValueError")],
)  # fmt: skip
def test_an_abort_is_the_client_s_or_an_error(vllm, error, status, error_type):
    v = vllm()
    key = v.add()
    v.step(10, v.output(key, events=FIRST))
    v.at(25)
    try:
        if error:
            raise error
        raise StopIteration
    except (CancelledError, GeneratorExit, ValueError):
        v.processor.abort_requests([key, "unknown"], internal=True)
    except StopIteration:
        pass
    if error is None:
        v.processor.abort_requests([key])
    [row] = v.rows()
    assert (row.attributes[semconv.STATUS], row.attributes.get(semconv.ERROR_TYPE)) == (status, error_type)
    assert row.duration_ns / MS == pytest.approx(25)


@pytest.mark.parametrize(("reason", "status"), [("ABORT", "error"), ("ERROR", "error"), ("STOP", "ok")])
def test_the_engine_s_finish_reason_decides_the_status(vllm, reason, status):
    v = vllm()
    v.step(10, v.output(v.add(), events=FIRST, finish=reason))
    [row] = v.rows()
    assert (row.attributes[semconv.STATUS], row.attributes[semconv.FINISH_REASON]) == (status, reason.lower())
    assert (semconv.ERROR_TYPE in row.attributes) == (status == "error")


def test_a_dead_engine_fails_all_open_requests(vllm):
    v = vllm()
    v.add()
    v.add("b", "chatcmpl-2")
    v.at(50)
    v.processor.propagate_error(BrokenPipeError())
    assert [row.attributes[semconv.ERROR_TYPE] for row in v.rows()] == ["BrokenPipeError"] * 2


def test_the_caller_s_trace_goes_on_although_vllm_does_not_trace(vllm):
    v = vllm()
    key = v.add(trace_headers={"traceparent": PARENT})
    other = v.add("b", "chatcmpl-2")
    v.step(10, v.output(key, finish="STOP"), v.output(other, finish="STOP"))
    mine, alone = v.rows()
    assert f"{mine.trace_id:032x}-{mine.parent_id:016x}" in PARENT
    assert alone.parent_id == 0
    assert v.llm.seen_headers == [{"traceparent": PARENT}, None]


def test_trace_headers_are_read_although_vllm_does_not_trace(vllm):
    import asyncio

    v = vllm()
    assert asyncio.run(v.llm.is_tracing_enabled())
    v.hooks.recorder.on = False
    assert not asyncio.run(v.llm.is_tracing_enabled())


def test_vllm_s_own_request_spans_are_off_while_recording_and_on_after_a_fault(vllm, monkeypatch):
    v = vllm()
    v.processor.tracing_enabled = True
    key = v.add()
    assert not v.processor.tracing_enabled
    monkeypatch.setattr(v.hooks.recorder, "emitted", lambda *_: 1 / 0)
    v.step(10, v.output(key))
    assert v.processor.tracing_enabled
    v.add("b", "chatcmpl-2")
    assert v.processor.tracing_enabled


@pytest.mark.parametrize("external", ["chatcmpl-1", None])
def test_answers_of_one_request_are_one_row_with_the_id_that_the_client_sees(vllm, external):
    v = vllm()
    parent = SimpleNamespace(request_id="chatcmpl-1" if external is None else "chatcmpl-1-0a1b2c3d", n=2)
    keys = [f"{index}_{parent.request_id}" for index in range(2)]
    for index, key in enumerate(keys):
        v.processor.add_request(v.request(key, external), None, parent, index)
    v.step(10, *(v.output(key, events=FIRST, finish="LENGTH") for key in keys))
    [row] = v.rows()
    assert (row.attributes[semconv.RESPONSE_ID], row.attributes[semconv.CHOICE_COUNT]) == ("chatcmpl-1", 2)
    assert labels_of(row) == {"n": "2"}
    assert sorted(s.attributes[semconv.CHOICE_INDEX] for s in v.trails[0].spans(semconv.TOKEN_SPAN)) == [0, 1]


@pytest.mark.parametrize(
    ("external", "params", "operation", "response_id"),
    [
        ("chatcmpl-7-2", True, "chat", "chatcmpl-7-2"),
        ("cmpl-7-1", True, "text_completion", "cmpl-7"),
        ("cmpl-7", True, "text_completion", "cmpl-7"),
        ("resp_7", True, "chat", "resp_7"),
        ("my-own", True, "generate_content", "my-own"),
        ("embd-7-0", False, "embeddings", "embd-7-0"),
    ],
)
def test_the_operation_follows_from_the_id(vllm, external, params, operation, response_id):
    v = vllm()
    given = {} if params else {"sampling_params": None}
    key = v.add(f"{external}-ffff0000", external, **given)
    v.step(10, v.output(key, tokens=0, finish="STOP"))
    [row] = v.rows()
    assert (row.attributes[semconv.OPERATION_NAME], row.attributes[semconv.RESPONSE_ID]) == (operation, response_id)


def test_an_old_release_has_no_external_id(vllm):
    v = vllm()
    key = v.add("chatcmpl-9", None)
    v.step(10, v.output(key, finish="STOP"))
    assert v.rows()[0].attributes[semconv.RESPONSE_ID] == "chatcmpl-9"


def test_an_adapter_is_the_model_and_embedded_prompts_have_no_known_length(vllm):
    v = vllm()
    key = v.add(lora_request=SimpleNamespace(lora_name="sql"), prompt_token_ids=None)
    v.step(10, v.output(key, finish="STOP"))
    [row] = v.rows()
    assert row.attributes[semconv.REQUEST_MODEL] == "sql"
    assert semconv.INPUT_TOKENS not in row.attributes


def test_a_streaming_session_is_one_request_until_its_input_ends(vllm):
    v = vllm()
    key = v.add(resumable=True)
    v.step(10, v.output(key, events=FIRST, finish="LENGTH"))
    v.add(resumable=True, at=20)
    v.step(30, v.output(key, finish="LENGTH"))
    assert v.rows() == []
    v.add(at=40)
    [row] = v.rows()
    assert (row.attributes[semconv.OUTPUT_TOKENS], row.attributes[semconv.STATUS]) == (2, "ok")
    assert row.duration_ns / MS == pytest.approx(40)


def test_engines_of_data_parallelism_have_an_instance_each(vllm):
    from tests.tokentrail.integrations import fake_vllm

    v = vllm(cache_config=SimpleNamespace(num_gpu_blocks=202))
    v.loggers.append(v.plugin.StatLogger(fake_vllm.config(cache_config=SimpleNamespace(num_gpu_blocks=202)), 1))
    a, b = v.add(), v.add("b", "chatcmpl-2")
    v.step(10, v.output(a, events=FIRST, finish="STOP"), kv_cache_usage=0.1)
    v.step(11, v.output(b, events=FIRST, finish="STOP"), engine=1, kv_cache_usage=0.2)
    assert [row.attributes[semconv.RESPONSE_ID] for i in (0, 1) for row in v.rows(i)] == ["chatcmpl-1", "chatcmpl-2"]
    assert [[s.attributes[semconv.STEP_KV_USED] for s in v.steps(i)] for i in (0, 1)] == [[10], [20]]
    assert v.steps(1)[0].attributes[semconv.STEP_KV_TOTAL] == 100


def test_an_engine_with_another_index_alone_is_the_first(plugin, monkeypatch, clock, vllm):
    v = vllm()
    v.hooks._engines.clear()
    v.hooks.add_engine(v.hooks._config, 3)
    v.step(10, v.output(v.add(), events=FIRST, finish="STOP"), engine=3)
    assert len(v.trails) == 1


class TestSeveralApiServers:
    """vLLM gives the statistics of a step to one of the API servers that got tokens of it."""

    @pytest.fixture
    def server(self, vllm):
        return lambda rank: vllm(parallel_config=SimpleNamespace(_api_process_count=2, _api_process_rank=rank))

    def test_one_of_them_knows_its_tokens_and_not_the_step_s(self, server):
        v = server(1)
        key = v.add()
        v.step(10, v.output(key, events=FIRST), stats=False)
        v.step(20, v.output(key, 2, finish="STOP"), num_running_reqs=3)
        first, second = v.steps()
        assert [one.attributes[semconv.STEP] for one in (first, second)] == [1, 3]
        assert second.attributes[semconv.STEP_RUNNING] == 3
        assert semconv.STEP_RUNNING not in first.attributes
        for one in (first, second):
            assert not {semconv.STEP_DECODE_TOKENS, semconv.STEP_PREEMPTED} & one.attributes.keys()
        assert v.tokens(v.rows()[0]) == [11, 10, 0]

    def test_their_engines_have_common_instances_and_one_of_them_tells_the_start(self, server):
        first, second = server(0), server(1)
        first.add()
        second.add()
        assert first.instances == second.instances
        assert first.instances[0]
        starts = [len(v.trails[0].spans(semconv.COLD_START_SPAN)) for v in (first, second)]
        assert starts == [1, 0]

    def test_a_vllm_with_one_has_an_instance_of_its_own(self, vllm):
        v = vllm()
        v.add()
        assert v.instances == [""]


class TestDivided:
    """Prefill and decode on two engines: a request is one row of vLLM's own spans, and steps come from inside."""

    @pytest.fixture
    def divided(self, vllm, monkeypatch):
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "tokentrail.disaggregation=decode")

        def start(endpoint="grpc://c:4317"):
            return vllm(observability_config=SimpleNamespace(otlp_traces_endpoint=endpoint))

        return start

    def test_steps_are_recorded_and_requests_are_left_to_vllm(self, divided, caplog):
        v = divided()
        v.processor.tracing_enabled = True
        key = v.add()
        v.step(10, v.output(key, events=(*FIRST, ("PREEMPTED", 8))), front_ms=12, kv_cache_usage=0.25)
        v.step(20, v.output(key, 2, finish="STOP"), num_running_reqs=0)
        assert v.rows() == []
        assert v.trails[0].spans(semconv.TOKEN_SPAN) == v.trails[0].spans(semconv.OPEN_SPAN) == []
        first, second = v.steps()
        assert [first.attributes[key] for key in (semconv.STEP_RUNNING, semconv.STEP_KV_USED)] == [1, 25]
        assert (first.end_ns - T0) / MS == 10
        assert second.attributes[semconv.STEP_DECODE_TOKENS] == 2
        assert semconv.STEP_PREEMPTED not in first.attributes
        assert v.processor.tracing_enabled
        assert not hasattr(v.fake.AsyncLLM.add_request, "__wrapped__")
        assert recorder.active() is None, "the middleware has no rows to add"
        assert caplog.records == []

    def test_without_vllm_s_own_spans_one_warning_says_so(self, divided, caplog):
        divided(endpoint=None)
        assert [record.getMessage() for record in caplog.records] == [
            "tokentrail records no requests of a divided vLLM without --otlp-traces-endpoint"
        ]


def test_the_clock_of_another_host_is_found_from_the_fastest_message(vllm):
    v = vllm()
    key = v.add()
    far = 77_000.0
    v.step(
        10, v.output(key, events=()), front_ms=10.5, core_s=far + 0.010
    )  # 0.5 ms to the front end, 0.5 ms to the logger
    late = v.output(key, finish="STOP")
    late.events = [v.fake.EngineCoreEvent(type=v.fake.EngineCoreEventType.PREEMPTED, timestamp=far + 0.015)]
    v.step(20, late, front_ms=29, core_s=far + 0.020)
    [row] = v.rows()
    assert v.phases(row) == [("queued", 10.5), ("decode", 5.5), ("preempted", 13)]
    assert [round((s.end_ns - T0) / MS, 1) for s in v.steps()] == [10.5, 21]


def test_a_start_tells_the_limits_of_the_engine_that_this_release_has(vllm):
    scheduler = SimpleNamespace(
        max_num_seqs=256, max_num_batched_tokens=2048, enable_chunked_prefill=True, policy="fcfs"
    )
    cache = SimpleNamespace(num_gpu_blocks=101, block_size=16)
    v = vllm(scheduler_config=scheduler, cache_config=cache)
    [whole] = v.trails[0].spans(semconv.COLD_START_SPAN)
    told = {name.removeprefix(semconv.LIMIT_PREFIX): value for name, value in whole.attributes.items()}
    assert {Limit(name): told.get(name) for name in Limit} == {
        "max_seqs": 256, "max_batched_tokens": 2048, "block_size": 16, "kv_blocks": None, "watermark_blocks": None,
        "chunked_prefill": True, "prefix_caching": None, "policy": "fcfs",
    }  # fmt: skip


def test_a_start_lasts_from_the_process_s_start_to_the_first_logger(vllm):
    v = vllm()
    [whole] = v.trails[0].spans(semconv.COLD_START_SPAN)
    api, core = (v.trails[0].spans(f"{semconv.COLD_START_SPAN}.{name}")[0] for name in ("api_server", "engine_core"))
    assert (whole.attributes[semconv.REQUEST_MODEL], whole.duration_ns) == ("m", 9_000 * MS)
    assert (api.duration_ns, core.duration_ns) == (1_000 * MS, 8_000 * MS)


def test_vllm_s_own_start_up_spans_are_not_doubled(vllm):
    v = vllm(observability_config=SimpleNamespace(otlp_traces_endpoint="grpc://c:4317"))
    v.step(10, v.output(v.add(), finish="STOP"))
    assert v.trails[0].spans(semconv.COLD_START_SPAN) == []
    assert len(v.rows()) == 1


def labels_of(row):
    start = semconv.LABEL_PREFIX
    return {key.removeprefix(start): value for key, value in row.attributes.items() if key.startswith(start)}


@pytest.mark.parametrize(
    ("params", "given", "labels"),
    [
        ({}, {}, {}),
        ({"logprobs": None, "structured_outputs": None}, {"priority": 0}, {}),
        ({"logprobs": 0}, {"priority": -2}, {"logprobs": "0", "priority": "-2"}),
        ({"structured_outputs": SimpleNamespace(json={"type": "object"})}, {}, {"response_format": "json_schema"}),
        ({"structured_outputs": SimpleNamespace(json=None, json_object=True)}, {}, {"response_format": "json_object"}),
        ({"guided_decoding": SimpleNamespace(json=None, regex="a+")}, {}, {"response_format": "regex"}),
        ({"structured_outputs": SimpleNamespace(json=None, grammar="x")}, {}, {"response_format": "grammar"}),
        ({}, {"lora_request": SimpleNamespace(lora_name="sql")}, {"adapter": "sql"}),
    ],
)
def test_what_is_special_about_the_sampling_is_a_label(vllm, params, given, labels):
    v = vllm()
    usual = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "output_kind": SimpleNamespace(name="DELTA"),
    }
    key = v.add(sampling_params=SimpleNamespace(**usual | params), **given)
    v.step(10, v.output(key, events=FIRST, finish="STOP"))
    [row] = [span for trail in v.trails for span in trail.spans() if span.name.startswith("chat ")]
    assert labels_of(row) == labels


def test_sampling_parameters_that_say_nothing_are_no_attributes(vllm):
    v, told = vllm(), []
    usual = {"max_tokens": None, "temperature": 0.0, "top_p": 0.5, "output_kind": SimpleNamespace(name="FINAL_ONLY")}
    for top_k in (None, -1, 0, 1):
        v.step(10, v.output(v.add(sampling_params=SimpleNamespace(**usual, top_k=top_k)), events=FIRST, finish="STOP"))
        *_, row = (span for trail in v.trails for span in trail.spans() if span.name.startswith("chat "))
        told.append({name: value for name, value in row.attributes.items() if name.startswith("gen_ai.request.")})
    asked = {"gen_ai.request.temperature": 0.0, "gen_ai.request.top_p": 0.5, "gen_ai.request.stream": False}
    model = {"gen_ai.request.model": told[0]["gen_ai.request.model"]}
    assert told == [*[model | asked] * 3, model | asked | {"gen_ai.request.top_k": 1}]
