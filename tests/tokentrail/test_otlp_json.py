"""A request that was downloaded as OTLP is the same request again in another collector's store."""

import json

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp.json_otlp import to_protobuf
from tokentrail import semconv
from tokentrail.shared import otlp_json
from tokentrail.testing import parse_spans

DETAIL = {
    "request": {
        "trace_id": "9c6fc12aa364a3332eda6b780f3486e0", "span_id": "f2fd9e794bf55607", "request_id": "chatcmpl-3",
        "engine": "vllm", "service": "llama-70b", "instance": "vllm-b", "variant": "v2.4", "vantage": "server",
        "operation": "chat", "model": "llama", "tenant": "acme", "slo_class": "chat", "status": "error",
        "error_type": "engine_error", "finish_reason": "", "start": "2026-11-26T22:48:30.174492Z", "ttft_s": 0.25,
        "e2e_s": 0.5, "input_tokens": 9, "output_tokens": 2, "cached_tokens": 0, "reasoning_tokens": None,
        "preemptions": 0,
    },
    "phases": [
        {"name": "prefill", "offset_s": 0.0, "duration_s": 0.25},
        {"name": "decode", "offset_s": 0.25, "duration_s": 0.25},
    ],
    "tokens": [
        {"index": 0, "offset_s": 0.25, "duration_s": 0.25, "step": 7},
        {"index": 1, "offset_s": 0.5, "duration_s": 0.25, "step": None},
        {"index": 3, "offset_s": None, "duration_s": 0.1, "step": 9},
    ],
}  # fmt: skip
START = 1_795_733_310_174_492_000


def test_a_receiver_of_json_takes_it_and_finds_the_request_its_phases_and_its_tokens():
    body = to_protobuf(json.dumps(otlp_json.spans(DETAIL)).encode(), ExportTraceServiceRequest)
    request, *parts = parse_spans(body)
    assert (f"{request.trace_id:032x}", f"{request.span_id:016x}", request.parent_id) == (
        "9c6fc12aa364a3332eda6b780f3486e0", "f2fd9e794bf55607", 0,
    )  # fmt: skip
    assert (request.start_ns, request.duration_ns) == (START, 500_000_000)
    assert request.attributes[semconv.TIME_TO_FIRST_TOKEN] == 0.25
    assert (request.attributes[semconv.CACHED_TOKENS], request.attributes[semconv.STATUS]) == (0, "error")
    assert semconv.REASONING_TOKENS not in request.attributes
    assert request.resource[semconv.SERVICE_INSTANCE_ID] == "vllm-b"
    assert (request.message.status.code, request.message.kind) == (2, 2)
    assert {part.parent_id for part in parts} == {request.span_id}
    phases = [part for part in parts if part.name == semconv.PHASE_SPAN]
    assert [(p.attributes[semconv.PHASE_NAME], p.start_ns - START, p.duration_ns) for p in phases] == [
        ("prefill", 0, 250_000_000), ("decode", 250_000_000, 250_000_000),
    ]  # fmt: skip
    tokens = [part for part in parts if part.name == semconv.TOKEN_SPAN]
    assert [(t.token_index, t.start_ns - START, t.duration_ns, t.attributes.get(semconv.STEP)) for t in tokens] == [
        (0, 0, 250_000_000, 7), (1, 250_000_000, 250_000_000, None),
    ]  # fmt: skip
    assert len({part.span_id for part in (request, *parts)}) == 5
