"""The caller of a recorded request: its trace, its tenant, its key; and nothing of what it says."""

import json
import logging
from unittest import mock

import pytest

from tests.tokentrail.proxy.support import (
    BODY,
    CHAT,
    DONE,
    END,
    STREAMED,
    chunked,
    delta,
    exchange,
    recorded,
    request_span,
)
from tokentrail import semconv
from tokentrail._host.guard import Throttle
from tokentrail.proxy import tap


def test_the_trace_goes_on_from_the_client_to_the_upstream():
    headers = [("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"), ("tracestate", "x=1")]
    request, _, (head, _) = recorded(STREAMED, *chunked(DONE), END, headers=headers)
    assert (request.trace_id, request.parent_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert head.count(b"traceparent") == 1
    assert f"traceparent: 00-{'a' * 32}-{request.span_id:016x}-01".encode() in head
    assert b"tracestate: x=1" in head


def test_a_trace_state_without_a_trace_goes_no_further():
    request, _, (head, _) = recorded(
        STREAMED, *chunked(DONE), END, headers=[("traceparent", "00-wrong"), ("tracestate", "x=1")]
    )
    assert request.parent_id == 0
    assert f"-{request.span_id:016x}-01".encode() in head
    assert b"x=1" not in head


def test_before_an_engine_that_records_too_the_requests_are_a_clients():
    """So each request counts once, by the engine's row."""
    _, _, trail = exchange(STREAMED, *chunked(DONE), END, vantage="client")
    kinds = {span.name: span.message.kind for span in trail.spans()}
    assert kinds["chat m"] == 3


def test_tenant_and_class_come_from_headers_and_a_key_only_as_a_hash():
    headers = [
        ("X-Tokentrail-Tenant", "acme"),
        ("x-tokentrail-slo-class", "batch"),
        ("Authorization", "Bearer sk-secret"),
    ]
    request, _, _ = recorded(STREAMED, *chunked(DONE), END, headers=headers)
    assert (request.attributes[semconv.TENANT], request.attributes[semconv.SLO_CLASS]) == ("acme", "batch")
    tenants = []
    for salt in ("", "", "s"):
        settings = {"tenant_header": "authorization", "tenant_salt": salt}
        _, _, trail = exchange(STREAMED, *chunked(DONE), END, headers=headers, **settings)
        tenants.append(request_span(trail)[0].attributes[semconv.TENANT])
        assert b"sk-secret" not in b"".join(trail.transport.bodies)
    assert tenants[0] == tenants[1] != tenants[2]
    assert tenants[0].startswith("key-")


def test_headers_that_are_not_utf_8_pass_and_cost_no_record():
    """aiohttp decodes them to halves of surrogate pairs."""
    headers = [("Authorization", b"Bearer \xff"), ("baggage", b"\xff=1"), ("x-tokentrail-slo-class", b"\xff")]
    answer, _, trail = exchange(STREAMED, *chunked(DONE), END, headers=headers, tenant_header="authorization")
    assert answer.status == 200
    request, _ = request_span(trail)
    assert request.attributes[semconv.TENANT].startswith("key-")
    assert request.attributes[semconv.SLO_CLASS] == "ÿ"


@pytest.mark.parametrize("number", ["9" * 400, "1e999", "NaN"])
def test_a_number_that_is_none_passes_and_is_not_known(number):
    body = b'{"model": "m", "temperature": %b, "max_tokens": %b}' % (number.encode(), number.encode())
    request, _, (_, got) = recorded(STREAMED, *chunked(DONE), END, body=body)
    assert got == body
    assert not {semconv.REQUEST_TEMPERATURE, semconv.REQUEST_MAX_TOKENS} & request.attributes.keys()


def test_bodies_that_are_wrong_pass_and_are_recorded():
    for body in (b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"model": 7, "n": -1, "stream": 1, "stream_options": 4}'):
        request, _, (_, got) = recorded(STREAMED, *chunked(DONE), END, body=body, ask_usage=True)
        assert got == body
        assert request.name == "chat "


KEYED = [
    ("Authorization", "Bearer SECRET"),
    ("x-api-key", "SECRET"),
    ("X-Goog-Api-Key", "SECRET"),
    ("Cookie", "k=SECRET"),
]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ([STREAMED, *chunked(delta("a", finish="stop"), DONE), END], 200),
        ([STREAMED, *chunked(b"data: {SECRET\n\n"), END], 200),
        ([b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"], 401),
        ([STREAMED, *chunked(delta("a"))], 200),
        ([b"no HTTP: SECRET\r\n\r\n"], 502),
    ],
    ids=["ok", "malformed", "refused", "broken off", "no HTTP"],
)
def test_keys_are_neither_logged_nor_recorded_nor_counted(script, status, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(tap, "_THROTTLE", Throttle())
    fault = RuntimeError("a fault that quotes SECRET")
    for method in (None, "_event"):
        if method:
            monkeypatch.setattr(tap.Tap, method, mock.Mock(side_effect=fault))
        given = {"path": f"{CHAT}?key=SECRET", "headers": KEYED, "close": True, "tenant_header": "authorization"}
        answer, _, trail = exchange(*script, **given)
        assert answer.status == status
        assert status != 502 or b"SECRET" not in answer.body
        assert b"SECRET" not in b"".join(trail.transport.bodies)
    said = "\n".join(f"{record.getMessage()} {record.exc_text} {record.__dict__}" for record in caplog.records)
    assert "SECRET" not in said


def test_nothing_of_prompts_or_answers_is_recorded():
    _, _, trail = exchange(
        STREAMED, *chunked(delta("SECRET"), DONE), END, path=f"{CHAT}?key=SECRET",
        body={**BODY, "messages": [{"role": "user", "content": "SECRET"}]}, headers=[("x-api-key", "SECRET")],
    )  # fmt: skip
    assert request_span(trail)
    assert b"SECRET" not in b"".join(trail.transport.bodies)


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


@pytest.mark.parametrize(
    ("said", "labels"),
    [
        ({}, {}),
        ({"n": 1, "logprobs": False, "tools": [], "response_format": {"type": "text"}, "priority": None}, {}),
        (
            {"n": 3, "logprobs": True, "tools": [{"type": "function"}], "response_format": SCHEMA, "priority": -1},
            {"n": "3", "logprobs": "true", "tools": "true", "response_format": "json_schema", "priority": "-1"},
        ),
        (
            {"logprobs": 5, "text": {"format": {"type": "json_object"}}},
            {"logprobs": "5", "response_format": "json_object"},
        ),
        (
            {"response_format": "json", "text": "x", "priority": 10**400, "logprobs": [1], "tools": "x"},
            {"tools": "true"},
        ),
        ({"response_format": {"type": ["x"]}, "priority": True}, {"priority": "true"}),
        ({"reasoning_effort": "low", "conversation": "c-1"}, {"reasoning_level": "low", "conversation_id": "c-1"}),
        (
            {
                "reasoning": {"effort": "high"},
                "conversation": {"id": "c-1"},
                "previous_response_id": "r-1",
                "prompt": {"id": "p", "version": "2"},
            },
            {
                "reasoning_level": "high",
                "conversation_id": "c-1",
                "previous_response_id": "r-1",
                "prompt_name": "p",
                "prompt_version": "2",
            },
        ),
        (
            {"reasoning": "x", "conversation": 5, "previous_response_id": None, "output_config": {"effort": "max"}},
            {"reasoning_level": "max"},
        ),
    ],
)
def test_what_is_special_about_a_request_is_a_label(said, labels):
    body = json.dumps({"model": "m", "stream": True, **said}).encode()
    headers = [("X-Region", "eu"), ("authorization", "Bearer sk-secret")]
    named = {"region": "x-region", "key": "authorization", "absent": "x-absent"}
    request, _, _ = recorded(STREAMED, *chunked(DONE), END, body=body, headers=headers, label_headers=named)
    start = semconv.LABEL_PREFIX
    found = {key.removeprefix(start): v for key, v in request.attributes.items() if key.startswith(start)}
    assert found.pop("key").startswith("key-")
    assert found == labels | {"region": "eu"}
