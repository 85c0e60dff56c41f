"""Names that are too long: cut before the log, told apart, counted, and nowhere in the store."""

import itertools
import json
import re
from concurrent.futures import Future
from unittest.mock import Mock

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from collector.access.limits import Limiter
from collector.base.status import IngestStatus
from collector.otlp import logs
from collector.otlp.checked import ItemLimits
from collector.otlp.names import COLUMNS, LONGEST, cut
from collector.otlp.signals import LOGS, TRACES
from collector.otlp.validate import Reason, check, check_if_uniform
from collector.pipeline.chain import Chain
from collector.pipeline.settings import Settings
from collector.receive.ingest import Ingest
from collector.store.definitions import read_schema
from collector.store.insert import insert_otlp
from tests.support.otlp import T0, Request, set_attributes
from tokentrail import semconv

LONG = "n" * (LONGEST + 1)
LIMITS = ItemLimits()
NO_COLUMNS = {
    "ai.model.provider", "ai.operationId", "ai.response.finishReason",
    "code.module.name", "gen_ai.request.stream", "gen_ai.system", "logfire.span_type",
    "dynamo.request.terminal.outcome", "event_type", "http.route", "langfuse.observation.level",
    "langfuse.observation.metadata.object", "langfuse.observation.type",
    "litellm.call_id", "litellm.call_type", "llm.is_streaming", "module", "openai.api.type",
    "openinference.span.kind", "phase",
    "output.mime_type", "request.outcome", "rpc.method", "status", "thread_label",
    "langsmith.span.kind", "traceloop.span.kind", "span.type", "error",
    "tokentrail.disaggregation", "tokentrail.scraper", "tokentrail.status", "uri", "workers",
    # JSON, of which a part is read, and that must stay whole
    "gen_ai.output.messages", "hidden_params", "metadata.usage_object",
    "langfuse.observation.input", "langfuse.observation.usage_details", "llm.invocation_parameters",
    "output.value", "payload",
    # 64 characters of it, three digits, a time, a UUID or a trace id at most
    "anthropic.message.stop_reason", "stop_reason", "gen_ai.response.finish_reason", "gen_ai.response.finish_reasons",
    "langfuse.observation.status_message",
    "langfuse.observation.completion_start_time", "rid", "tokentrail.kv.beneficiary",
    # labels, which are cut shorter
    "gen_ai.conversation.id", "gen_ai.openai.request.reasoning_effort", "gen_ai.prompt.name", "gen_ai.prompt.version",
    "gen_ai.request.previous_response.id", "gen_ai.request.reasoning.level", "gen_ai.request.reasoning_effort",
    # the resource's tenant, which was cut, under the name that it has in spans that are held
    "process_tenant",
}  # fmt: skip
"""Attributes that the views read and that are conditions, or of which a part becomes a column."""


def parsed(checked):
    return ExportTraceServiceRequest.FromString(checked.payload)


def only_span(checked):
    return parsed(checked).resource_spans[0].scope_spans[0].spans[0]


def texts(holder):
    return {attribute.key: attribute.value.string_value for attribute in holder.attributes}


def one_span(attributes=None, **fields):
    request = Request()
    request.span("chat", attributes=attributes, **fields)
    return request.body()


def test_a_cut_name_is_as_long_as_a_name_may_be_and_tells_the_whole():
    assert cut("n" * LONGEST) == "n" * LONGEST
    assert cut("é" * LONGEST) == "é" * LONGEST
    first, second = cut("n" * 5000 + "1"), cut("n" * 5000 + "2")
    assert re.fullmatch("n{1007}…[0-9a-f]{16}", first)
    assert (len(first), len(second)) == (LONGEST, LONGEST)
    assert first != second
    assert cut(first) == first


def test_the_attributes_that_become_columns_are_those_of_the_sql():
    sql = " ".join(read_schema().views.values())
    read = set(re.findall(r"(?:text|resource)\['([^']+)'\]", sql))
    assert read - NO_COLUMNS == COLUMNS


@pytest.mark.parametrize("key", sorted(COLUMNS))
def test_the_text_of_a_column_is_cut_in_a_span_and_in_its_resource(key):
    checked = check(one_span({key: LONG, "other": 1}), LIMITS)
    assert checked.cut == {key: 1}
    assert texts(only_span(checked)) == {key: cut(LONG), "other": ""}
    request = Request(**{key: LONG})
    request.span("chat")
    checked = check(request.body(), LIMITS)
    assert checked.cut == {key: 1}
    assert texts(parsed(checked).resource_spans[0].resource)[key] == cut(LONG)


def test_names_of_spans_scopes_events_and_attributes_are_cut():
    event = Span.Event(name=LONG + "e", time_unix_nano=T0)
    set_attributes(event, {"model": LONG, "exception.stacktrace": LONG})
    request = Request(scope=LONG)
    span = request.span(LONG + "s", attributes={LONG + "1": "x", LONG + "2": 2}, status=Status(message=LONG, code=2))
    span.events.append(event)
    request.span("short")
    checked = check(request.body(), LIMITS)
    assert checked.cut == {
        "scope names": 1, "span names": 1, "attribute keys": 2, "status messages": 1, "event names": 1, "model": 1
    }  # fmt: skip
    (scope_spans,) = parsed(checked).resource_spans[0].scope_spans
    span, short = scope_spans.spans
    assert (scope_spans.scope.name, span.name, span.status.message) == (cut(LONG), cut(LONG + "s"), cut(LONG))
    assert texts(span) == {cut(LONG + "1"): "x", cut(LONG + "2"): ""}
    assert (span.status.code, short.name) == (2, "short")
    assert span.events[0].name == cut(LONG + "e")
    assert texts(span.events[0]) == {"model": cut(LONG), "exception.stacktrace": LONG}


def test_an_attribute_that_is_no_column_stays_whole_and_so_does_a_body_without_long_names():
    body = one_span({"gen_ai.input.messages": "p" * 100_000, "gen_ai.request.model": "m" * LONGEST})
    checked = check(body, LIMITS)
    assert (checked.payload, checked.cut) == (body, {})


def test_a_name_is_cut_beside_spans_that_are_left_out():
    request = Request()
    request.span("chat", trace=0)
    request.span("chat", attributes={"error.type": LONG})
    checked = check(request.body(), LIMITS)
    assert (checked.rejected, checked.cut) == ({Reason.TRACE_ID: 1}, {"error.type": 1})
    assert texts(only_span(checked)) == {"error.type": cut(LONG)}


def many(resource=None, scope="s", **attributes):
    request = Request(scope=scope, **resource or {})
    for n in range(64):
        request.span("chat", span=n + 1, attributes=attributes)
    return request.body()


@pytest.mark.parametrize(
    ("body", "cuts"),
    [
        (many(resource={"service.name": LONG}), {"service.name": 1}),
        (many(scope=LONG), {"scope names": 1}),
        (many(**{"gen_ai.response.id": LONG}), {"gen_ai.response.id": 64}),
    ],
)
def test_runs_of_alike_spans_with_a_long_name_are_parsed(body, cuts):
    assert check_if_uniform(body, LIMITS) is None
    assert check(body, LIMITS).cut == cuts


@pytest.mark.parametrize("body", [many(resource={"host": LONG}), many(host=LONG), many(scope="s" * LONGEST)])
def test_runs_of_alike_spans_with_another_long_text_need_not_be_parsed(body):
    assert check_if_uniform(body, LIMITS).items == 64


def test_attributes_that_give_a_tenant_or_a_class_are_names_too(tmp_path):
    settings = Settings(data_dir=tmp_path, tenant_attributes="team", slo_class_attributes="tier,user.tier")
    chain = Chain(TRACES, settings, Mock(embedded=True), IngestStatus(), Limiter())
    assert chain.ingest.limits.names == settings.names == COLUMNS | {"team", "tier", "user.tier"}
    body = one_span({"team": [LONG, "b"], "tier": LONG})
    checked = check(body, ItemLimits(names=settings.names))
    assert checked.cut == {"team": 1, "tier": 1}
    assert only_span(checked).attributes[0].value.array_value.values[0].string_value == cut(LONG)
    assert check(body, LIMITS).payload == body


def log_record(**resource):
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add()
    set_attributes(of_resource.resource, resource)
    scoped = of_resource.scope_logs.add()
    scoped.scope.name = "dynamo.request_trace"
    text = {"event_type": "request_end", "rid": "00000000-0000-4000-8000-000000000001", "payload": "{" * 5000}
    set_attributes(scoped.log_records.add(time_unix_nano=T0), text)
    return request


def test_the_resources_of_log_records_are_cut():
    checked = logs.check(log_record(**{"service.name": LONG, "host": LONG}).SerializeToString(), LIMITS)
    assert checked.cut == {"service.name": 1}
    expected = log_record(**{"service.name": cut(LONG), "host": LONG})
    assert ExportLogsServiceRequest.FromString(checked.payload) == expected


@pytest.mark.parametrize("of", ["resource", "scope"])
def test_a_resource_and_its_scope_are_no_larger_than_a_span(of):
    request = Request(**({"host": "h" * 5000} if of == "resource" else {}), scope="s" * (5000 if of == "scope" else 1))
    request.span("chat")
    request.span("chat", span=2)
    assert check(request.body(), ItemLimits(max_bytes=6000)).rejected == {}
    checked = check(request.body(), ItemLimits(max_bytes=5000))
    assert checked.rejected == {Reason.RESOURCE_TOO_LARGE: 2}
    assert "larger than TOKENTRAIL_MAX_SPAN_BYTES" in checked.message
    short = Request(host="h" * 2000, **{"service.name": LONG})  # whose runs must be parsed
    short.span("chat")
    assert check(short.body(), ItemLimits(max_bytes=1000)).rejected == {}, "4 KiB are no burden"


@pytest.mark.parametrize(
    ("signal", "body"),
    [(TRACES, many(**{"error.type": LONG, "model": LONG})), (LOGS, log_record(model=LONG).SerializeToString())],
)
def test_cut_names_are_counted_and_logged_once_a_minute(signal, body, caplog):
    durable = Future()
    durable.set_result(False)
    status = IngestStatus()
    ingest = Ingest(signal, Mock(**{"submit.return_value": durable}), status, LIMITS)
    for _ in range(2):
        answer = ingest.accept(body).result()
    assert not answer.HasField("partial_success")
    assert status.snapshot().names_cut == (2 * 128 if signal is TRACES else 2)
    (line,) = caplog.messages
    assert line.startswith(f"a payload of {signal.name} has names of more than 1024 characters, which are cut: ")
    assert line.endswith("64 x error.type, 64 x model" if signal is TRACES else ": 1 x model")


TRACES_OF_TESTS = itertools.count(1)


def hostile(scope, **attributes):
    """Two spans with a megabyte of names, in their resource, too. No two calls give spans of one trace."""
    names = sorted(COLUMNS - {semconv.OPERATION_NAME, semconv.ENGINE, "finish_reason"})
    resource = {key: f"{key} {'r' * 4000}" for key in names if key.startswith(("service", "tokentrail"))}
    request = Request(scope=scope, **resource)
    for trace in (next(TRACES_OF_TESTS), next(TRACES_OF_TESTS)):
        long = {key: f"{key} {'s' * 9000}{trace}" for key in names}
        status = Status(code=Status.STATUS_CODE_ERROR, message="E" * 9000 + ": out of memory")
        span = request.span("n" * 9000, trace=trace, kind=3, attributes=long | attributes, status=status)
        span.events.add(name="e" * 9000, time_unix_nano=T0)
    return request.body()


def test_no_name_in_the_store_is_too_long_and_two_long_names_are_two(module_store):
    document = json.dumps({"id": "i" * 9000, "model": "j" * 9000})
    shapes = {
        "genai": hostile("any", **{semconv.OPERATION_NAME: "chat"}),
        "tokentrail": hostile(semconv.SCOPE_NAME, **{semconv.OPERATION_NAME: "chat"}),
        "openinference": hostile("any", **{"openinference.span.kind": "LLM", "llm.model_name": "",
                                           "output.value": document, "llm.invocation_parameters": document}),
        "langfuse": hostile("any", **{"langfuse.observation.type": "generation"}),
        "sglang": hostile("sglang", module="sglang::request"),
        "": hostile("any"),
    }  # fmt: skip
    for name, body in shapes.items():
        checked = check(body, LIMITS)
        assert checked.cut.total() > 20
        insert_otlp(module_store, TRACES, checked.payload, f"segment of {name}")
    columns = module_store.query(
        "SELECT table, name FROM system.columns WHERE database = currentDatabase()"
        " AND type IN ('String', 'LowCardinality(String)')"
        " AND table IN ('requests', 'open_requests', 'cold_starts', 'spans', 'held_requests', 'held_spans')"
    ).result_rows
    longest = {
        f"{table}.{name}": module_store.query(f"SELECT max(lengthUTF8({name})) FROM {table}").result_rows[0][0]
        for table, name in columns
    }
    assert {name: length for name, length in longest.items() if length > LONGEST} == {}
    assert [name for name, length in longest.items() if length == LONGEST and name.startswith("requests.")]
    engines = module_store.query("SELECT DISTINCT engine FROM requests ORDER BY 1").result_rows
    assert len(engines) == 4, "three engines, and the one that a resource of tokentrail's names"
    models = module_store.query("SELECT uniqExact(model), count() FROM requests WHERE engine IN ('genai', 'langfuse')")
    assert models.result_rows == [(4, 4)]
    of_json = "SELECT DISTINCT request_id, model FROM requests WHERE engine = 'openinference'"
    assert module_store.query(of_json).result_rows == [(cut("i" * 9000), cut("j" * 9000))]
    assert module_store.query("SELECT count() FROM spans").result_rows == [(2,)]
    assert module_store.query("SELECT count() FROM held_requests").result_rows == [(2,)]
