"""Good requests of metrics and logs, which `tests.fuzz` changes, and those with known rows."""

import json

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.otlp import MS, set_attributes

GAUGES = ["vllm:num_requests_running", "vllm:kv_cache_usage_perc", "sglang:num_queue_reqs", "unknown"]
SUMS = ["vllm:generation_tokens_total", "vllm:num_preemptions_total", "sglang:prompt_tokens_total", "unknown_total"]
HISTOGRAMS = [
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "trtllm_e2e_request_latency_seconds",
]
TEXTS = ["", "x", "5", "\x00", "é", "x" * 1500]
PAYLOADS = ["", "[]", "{}", "{", "null", '{"request":[]}', '{"request":{"total_time_ms":1e400}}', "[" * 2000]
PAYLOADS += [
    '{"request":{"total_time_ms":-1,"output_tokens":1e18,"ttft_ms":"x"}}',
    '{"request":{"worker":{"prefill_worker_id":{}}}}',
]


def metrics(chance, at, service="fuzz"):
    """A few metrics of one process at a time in ns, each with a few points."""
    message = ExportMetricsServiceRequest()
    of_resource = message.resource_metrics.add()
    set_attributes(of_resource.resource, {"service.name": service, "service.instance.id": str(chance.randrange(3))})
    scoped = of_resource.scope_metrics.add()
    for _ in range(chance.randrange(1, 5)):
        kind = chance.choice(["gauge", "sum", "histogram", "exponential_histogram", "summary"])
        names = GAUGES if kind == "gauge" else SUMS if kind == "sum" else HISTOGRAMS
        metric = scoped.metrics.add(name=chance.choice(names))
        data = getattr(metric, kind)
        if kind not in ("gauge", "summary"):
            data.aggregation_temporality = chance.randrange(1, 3)
        if kind == "sum":
            data.is_monotonic = chance.random() < 0.9
        for n in range(chance.randrange(1, 4)):
            point = data.data_points.add(time_unix_nano=at + n * MS, start_time_unix_nano=at - 10**9)
            set_attributes(point, {"engine": n, chance.choice(TEXTS): chance.choice([*TEXTS, 1, 0.5, True, ["a"]])})
            if kind in ("gauge", "sum"):
                setattr(point, *chance.choice([("as_int", chance.randrange(99)), ("as_double", chance.random())]))
                continue
            point.count, point.sum = 3, 0.5
            if kind == "histogram":
                point.explicit_bounds.extend([0.1, 0.5, 1])
                point.bucket_counts.extend([1, 1, 1, 0])
            elif kind == "exponential_histogram":
                point.scale, point.positive.offset = chance.randrange(-2, 8), chance.randrange(-20, 20)
                point.positive.bucket_counts.extend([1, 0, 2])
            else:
                point.quantile_values.add(quantile=0.5, value=1)
    return message


def logs(chance, number, at, service="fuzz"):
    """A record of a request of Dynamo, or something like it."""
    return _log(
        number, at, service, chance.choice([None, *PAYLOADS]), chance.choice(["request_end"] * 3 + ["request", ""])
    )


def log_witness(number, at):
    """A record with a known row: 7 prompt tokens, 3 output tokens, TTFT 20 ms, E2E 100 ms."""
    return _log(number, at, "witness-log")


def _log(number, at, service, payload=None, event="request_end"):
    message = ExportLogsServiceRequest()
    of_resource = message.resource_logs.add()
    set_attributes(of_resource.resource, {"service.name": service, "tokentrail.variant": service})
    scoped = of_resource.scope_logs.add()
    scoped.scope.name = "dynamo.request_trace"
    values = {"input_tokens": 7, "output_tokens": 3, "ttft_ms": 20, "total_time_ms": 100}
    rid = f"00000000-0000-4000-8000-{number:012x}"
    payload = json.dumps({"request": {"request_id": rid} | values}) if payload is None else payload
    record = scoped.log_records.add(time_unix_nano=at, observed_time_unix_nano=at)
    set_attributes(record, {"event_type": event, "rid": rid, "payload": payload})
    record.body.string_value = "x"
    return message
