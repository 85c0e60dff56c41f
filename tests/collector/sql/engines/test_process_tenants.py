"""What a tenant's key sends belongs to processes of this tenant, whatever engine or instrumentation sent it."""

import gzip
from collections import defaultdict

import pytest

from collector.access.stamp import stamped
from collector.otlp.checked import ItemLimits
from collector.otlp.signals import LOGS, METRICS, TRACES
from collector.store.insert import insert_otlp
from tests.collector.sql.engines.test_llm_d import decode_leg, prefill_leg
from tests.support.otlp import T0, Request
from tests.support.recordings import DATA, Recording, join
from tokentrail import semconv

RECORDED = {
    "ai_sdk": "ai-sdk-7.0/traces.bin.gz", "dynamo": "dynamo/dynamo-1.6.1-disagg.tar.xz",
    "genai": "genai-openai-1.3/traces.bin.gz", "langfuse": "langfuse-5.0/traces.bin.gz",
    "litellm": "litellm-1.108-otel-v2/traces.bin.gz", "openinference": "openinference-0.1/traces.bin.gz",
    "sglang": "sglang/sglang-0.5.23.tar.xz", "tensorrt_llm": "tensorrt_llm/hand-driven-disagg.tar.xz",
    "tgi": "tgi/traces.bin.gz", "traceloop": "traceloop-0.62/traces.bin.gz", "vllm": "vllm-0.32/traces",
}  # fmt: skip
TABLES = ("requests", "open_requests", "steps", "kv_events", "cold_starts", "samples")


def insert(store, name, signal, body, tenant):
    insert_otlp(store, signal, stamped(body, tenant, signal.request), f"{name}-{signal.name}-{tenant}")


def bodies(file):
    """The signals of a recording, each with its bodies as one."""
    if file.endswith(".tar.xz"):
        recorded = Recording(file).bodies
        return [(signal, b"".join(recorded[signal.name])) for signal in (TRACES, LOGS) if signal.name in recorded]
    path = DATA / file
    if path.is_dir():
        return [(TRACES, b"".join(one.read_bytes() for one in sorted(path.iterdir())))]
    return [(TRACES, gzip.decompress(path.read_bytes()))]


def own_spans():
    """A request with its announcement, a step, an eviction and a cold start, as tokentrail's SDK sends them."""
    request = Request()
    asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    request.span("chat m", trace=7, attributes=asked)
    request.span(semconv.OPEN_SPAN, trace=8, span=2, parent=1, attributes=asked)
    request.span(semconv.STEP_SPAN, trace=9, attributes={semconv.STEP: 1})
    request.span(f"{semconv.KV_SPAN_PREFIX}evict", trace=7, span=3, parent=1, attributes={semconv.KV_BLOCKS: 1})
    request.span(semconv.COLD_START_SPAN, trace=10, attributes=asked)
    return request.body()


def samples():
    request = METRICS.request()
    resource = request.resource_metrics.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "chat"
    metric = resource.scope_metrics.add().metrics.add(name="vllm:num_requests_running")
    metric.gauge.data_points.add(time_unix_nano=T0, as_double=1.0)
    return METRICS.check(request.SerializeToString(), ItemLimits()).payload


@pytest.fixture(scope="module")
def belongs(engine_store):
    """Table → engine → the tenants of its processes."""
    for name, file in RECORDED.items():
        for signal, body in bodies(file):
            insert(engine_store, name, signal, body, name)
    insert(engine_store, "own", TRACES, own_spans(), "tokentrail")
    insert(engine_store, "disaggregated", TRACES, prefill_leg().body() + decode_leg().body(), "llm-d")
    insert(engine_store, "samples", METRICS, samples(), "tokentrail")
    join(engine_store)
    found = defaultdict(set)
    for table in TABLES:
        rows = engine_store.query(f"SELECT DISTINCT process_tenant, '{table}' FROM {table}").result_rows
        found[table] = {tenant for tenant, _ in rows}
    engines = "SELECT DISTINCT engine, process_tenant, tenant FROM requests"
    found["engines"] = {(engine, owner, tenant) for engine, owner, tenant in engine_store.query(engines).result_rows}
    return found


def test_a_span_is_no_wrapper_of_another_tenants_call(engine_store):
    """Two instrumentations of the anthropic client make two spans of a call. They have only the process in common."""

    def sent(scope, trace, tenant):
        request = Request(scope=scope)
        asked = {"gen_ai.operation.name": "chat", "gen_ai.system": "anthropic", "gen_ai.request.model": "m"}
        request.span("chat m", trace=trace, kind=3, attributes=asked)
        return stamped(request.body(), tenant, TRACES.request)

    def rows(first, tenants):
        bodies = zip(("com.anthropic.sdk.python", "opentelemetry.instrumentation.anthropic"), tenants, strict=True)
        body = b"".join(sent(scope, first + n, tenant) for n, (scope, tenant) in enumerate(bodies))
        insert_otlp(engine_store, TRACES, body, f"wrapped-{first}")
        traces = f"trace_id IN (unhex('{first:032x}'), unhex('{first + 1:032x}'))"
        return engine_store.query(f"SELECT count() FROM requests WHERE {traces}").result_rows[0][0]

    assert rows(900, ("one", "one")) == 1
    assert rows(902, ("one", "two")) == 2


def test_the_rows_of_every_engine_have_the_tenant_of_the_key(belongs):
    assert {table: "" in belongs[table] for table in TABLES} == dict.fromkeys(TABLES, False)
    assert {owner for _, owner, _ in belongs["engines"]} >= RECORDED.keys() | {"tokentrail", "llm-d"}
    assert all(owner == tenant for _, owner, tenant in belongs["engines"])
    assert {table: "tokentrail" in belongs[table] for table in TABLES} == dict.fromkeys(TABLES, True)
