"""Spans of OpenTelemetry's GenAI conventions that no other mapping claims."""

import itertools

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.otlp import MS, Request
from tests.support.recordings import requests

TRACE = itertools.count(1)


def insert(store, *spans, scope="any", again=()):
    """Insert spans of one trace (id, parent, kind, attributes) and return the rows by span id."""
    trace, request = next(TRACE), Request(scope=scope)
    for span, parent, kind, attributes in spans:
        said = {"gen_ai.operation.name": "chat"} | attributes
        added = request.span("chat m", trace=trace, span=span, parent=parent, ns=600 * MS, kind=kind, attributes=said)
        added.attributes.extend(again)
    insert_otlp(store, TRACES, request.body(), f"genai-{trace}")
    rows = requests(store, f"trace_id = unhex('{trace:032x}')")
    return {int.from_bytes(row["span_id"], "big"): row for row in rows}


@pytest.mark.parametrize(
    ("operation", "is_request"),
    [("chat", 1), ("text_completion", 1), ("generate_content", 1), ("embeddings", 0), ("invoke_agent", 0), ("", 0)],
)
def test_generations_are_requests(module_store, operation, is_request):
    assert len(insert(module_store, (1, None, 3, {"gen_ai.operation.name": operation}))) == is_request


def test_a_wrapper_in_the_same_process_is_not_a_second_request(module_store):
    rows = insert(module_store, (0x0100, None, 3, {}), (2, 0x0100, 1, {}), (3, 2, 3, {}), (4, 0x0100, 3, {}))
    assert sorted(rows) == [3, 4]


def test_a_server_below_its_client_is_another_vantage(module_store):
    rows = insert(module_store, (1, None, 3, {}), (2, 1, 2, {}))
    assert {span: row["vantage"] for span, row in rows.items()} == {1: "client", 2: "server"}


def test_processes_do_not_wrap_each_other(module_store):
    first, second = Request(scope="any"), Request(scope="any", **{"service.instance.id": "i-2"})
    trace = next(TRACE)
    for request, span, parent in ((first, 1, None), (second, 2, 1)):
        request.span("chat m", trace=trace, span=span, parent=parent, attributes={"gen_ai.operation.name": "chat"})
    insert_otlp(module_store, TRACES, first.body() + second.body(), f"genai-{trace}")
    assert len(requests(module_store, f"trace_id = unhex('{trace:032x}')")) == 2


@pytest.mark.parametrize("hostile", [-1, "12", 1e30, 2**32, float("nan"), ["1"]], ids=str)
def test_a_count_that_is_none_is_not_known(module_store, hostile):
    (row,) = insert(
        module_store, (1, None, 3, {"gen_ai.usage.output_tokens": hostile, "gen_ai.usage.input_tokens": 7})
    ).values()
    assert (row["input_tokens"], row["output_tokens"], row["tpot_ns"]) == (7, None, None)


def test_of_a_repeated_key_the_first_value_counts(module_store):
    again = KeyValue(key="gen_ai.usage.output_tokens", value=AnyValue(int_value=9))
    (row,) = insert(module_store, (1, None, 3, {again.key: 5}), again=[again]).values()
    assert row["output_tokens"] == 5


@pytest.mark.parametrize(("seconds", "ttft"), [(0.2, 200 * MS), (0.7, None), (-1.0, None), ("0.2", None)])
def test_ttft_lies_within_the_request(module_store, seconds, ttft):
    said = {"gen_ai.response.time_to_first_chunk": seconds, "gen_ai.usage.output_tokens": 5}
    (row,) = insert(module_store, (1, None, 3, said)).values()
    assert row["ttft_ns"] == ttft


@pytest.mark.parametrize("reasons", [["stop", "length"], '["stop", "length"]', "stop"], ids=str)
def test_finish_reasons_in_every_form(module_store, reasons):
    (row,) = insert(module_store, (1, None, 3, {"gen_ai.response.finish_reasons": reasons})).values()
    assert row["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("error", "status"),
    [("asyncio.exceptions.CancelledError", "cancelled"), ("CancelledError", "cancelled"),
     ("GeneratorExit", "cancelled"),
     ("NotCancelledError", "error"), ("TimeoutError", "error"), ("500", "error")],
)  # fmt: skip
def test_a_client_that_stopped_waiting_cancelled(module_store, error, status):
    (row,) = insert(module_store, (1, None, 3, {"error.type": error})).values()
    assert (row["status"], row["error_type"]) == (status, "" if status == "cancelled" else error)


def test_only_an_instrumentation_that_is_known_for_it_tells_an_abandoned_stream(module_store):
    said = {"gen_ai.request.stream": True}
    (other,) = insert(module_store, (1, None, 3, said)).values()
    (known,) = insert(module_store, (1, None, 3, said), scope="opentelemetry.instrumentation.genai.openai").values()
    assert (other["status"], known["status"]) == ("ok", "cancelled")
