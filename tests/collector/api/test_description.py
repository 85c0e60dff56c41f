"""The API's OpenAPI document, its page, and the words of its errors."""

import re

import pytest
from fastapi.testclient import TestClient
from openapi_spec_validator import validate
from pydantic import BaseModel

from collector.api.problems import ParameterProblem, ProblemDocument
from collector.base.answer import Answer
from collector.base.store_errors import StoreError
from collector.receive.http import BodyLimits, create_otlp_app
from collector.store.store import Store
from tests.collector.receive.test_otlp_http import Receiver

PROBLEM = "application/problem+json"
PYTHON = re.compile(r"Error\b|Exception|Traceback|object at 0x|<class|NoneType|'(int|str|list|dict)'|\[Errno|\bNone\b")
"""Words of Python, or of its libraries, that mean nothing to a client."""


def references(node):
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from references(item)


def test_the_openapi_document_is_valid_and_every_reference_leads_somewhere(api):
    document = api.client.get("/openapi.json").json()
    validate(document)
    found = set(references(document))
    assert "#/components/schemas/ProblemDocument" in found
    for reference in found:
        target = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_the_document_says_how_a_key_is_sent_and_what_needs_none(api):
    document = api.client.get("/openapi.json").json()
    (scheme,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
    assert document["security"] == [{scheme: []}, {}]
    operations = {path: operation for path, by_method in document["paths"].items() for operation in by_method.values()}
    assert {path for path, operation in operations.items() if "security" in operation} == {"/healthz", "/readyz"}
    assert operations["/healthz"]["security"] == operations["/readyz"]["security"] == []


@pytest.mark.parametrize(
    ("method", "path", "answers"),
    [
        ("get", "/metrics", {"200": "text/plain", "401": PROBLEM, "403": PROBLEM, "421": PROBLEM}),
        ("get", "/readyz", {"200": "application/json", "503": "application/json"}),
        ("post", "/api/v1/backup", {"200": "application/x-tar", "401": PROBLEM, "409": PROBLEM, "421": PROBLEM}),
        ("get", "/api/v1/summary", {"200": "application/json", "403": PROBLEM, "421": PROBLEM, "429": PROBLEM}),
    ],
)
def test_the_document_has_the_answers_that_are_not_a_models(api, method, path, answers):
    found = api.client.get("/openapi.json").json()["paths"][path][method]["responses"]
    assert [
        status for status, kind in answers.items() if kind not in found.get(status, {"content": ()})["content"]
    ] == []


def test_the_document_has_every_refusal_of_an_endpoint_as_a_problem(api):
    paths = api.client.get("/openapi.json").json()["paths"]
    answers = paths["/api/v1/requests/{trace_id}"]["get"]["responses"]
    assert answers.keys() == {"200", "400", "401", "403", "404", "421", "429", "503"}
    assert {status for status, answer in answers.items() if list(answer["content"]) == [PROBLEM]} == answers.keys() - {
        "200"
    }


def test_each_docstring_of_a_field_is_in_the_document(api):
    fields = api.client.get("/openapi.json").json()["components"]["schemas"]
    told = fields["WindowOut"]["properties"]["complete_until"]["description"]
    assert told.startswith("What ended before is in the answer")
    plain = {model for model in _models(BaseModel) if model.__name__ in fields and not issubclass(model, Answer)}
    problems = {ParameterProblem, ProblemDocument}
    assert {model for model in plain if model.__module__.startswith("collector.")} == problems


def _models(base):
    for model in base.__subclasses__():
        yield from (model, *_models(model))


@pytest.mark.parametrize("path", ["/docs", "/docs/oauth2-redirect"])
def test_the_page_of_the_api_needs_nothing_from_elsewhere(api, path):
    page = api.client.get(path)
    assert page.status_code == 200
    assert not re.search(r"""(?:src|href|url)\s*[=:(]\s*["']?(?:https?:)?//""", page.text)


def test_the_page_of_the_api_has_its_own_assets(api):
    page = api.client.get("/docs").text
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) == 3
    for asset in assets:
        answer = api.client.get(asset)
        assert (answer.status_code, len(answer.content) > 500) == (200, True)
        # Swagger UI shows a badge of an external validator only for addresses that the internet can reach.
        assert b"@import" not in answer.content


def test_there_is_no_second_page_that_loads_from_elsewhere(api):
    assert api.client.get("/redoc").status_code == 404


@pytest.mark.parametrize("path", ["/api/v1/summary", "/api/v1/requests/0", "/metrics", "/healthz", "/nowhere"])
def test_head_is_answered_as_get_without_the_body(api, path):
    got, head = api.client.get(path), api.client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize("path", ["/api/v1/summary", "/api/v1/requests/0", "/metrics", "/healthz"])
def test_a_wrong_method_says_which_are_right(api, path):
    answer = api.client.delete(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_a_wrong_method_at_the_receiver_says_which_is_right(tmp_path):
    receiver = Receiver(tmp_path)
    client = TestClient(create_otlp_app([receiver.ingest], BodyLimits(1000, 1000)))
    answer = client.get("/v1/traces")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    receiver.commit.stop(1)


@pytest.mark.parametrize(
    "path",
    [
        "summary?start=x",
        "summary?start=-99999999999999999999d",
        "summary?nothing=1",
        "requests?limit=x",
        "requests?cursor=x",
        "requests?sort=cost",
        "requests?limit=1e9",
        "requests/zz",
        "requests/" + "0" * 32,
        "goodput",
        "goodput?ttft=none",
        "slos/none",
        "tail?metric=x",
        "timeseries?metric=x",
        "timeseries?metric=ttft&step=1ns",
        "spans?limit=0",
    ],
)
def test_errors_are_in_the_words_of_the_api(api, path):
    answer = api.client.get(f"/api/v1/{path}")
    assert answer.status_code in (400, 404)
    assert not PYTHON.search(answer.text), answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 3000,
        b"\xff",
        b'{"resourceSpans": 1}',
        b'{"resourceSpans": [1]}',
        b'{"\\ud800": 1}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 5}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": null, "name": 5}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": 1e400}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key": []}]}]}]}]}',
    ],
)
def test_a_json_body_that_is_not_otlp_is_told_its_mistake(tmp_path, body):
    receiver = Receiver(tmp_path)
    answer = receiver.post(body, content_type="application/json")
    assert answer.status_code == 400
    assert answer.json()["message"].startswith("the body is not OTLP/JSON: ")
    assert not PYTHON.search(answer.json()["message"]), answer.text
    receiver.commit.stop(1)


def test_a_field_that_does_not_fit_is_named(tmp_path):
    receiver = Receiver(tmp_path)
    body = b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 5}]}]}]}'
    message = receiver.post(body, content_type="application/json").json()["message"]
    assert "resourceSpans.scopeSpans.spans.name has a value that does not fit its type" in message
    receiver.commit.stop(1)


def test_a_store_that_is_away_is_described_in_the_words_of_the_operating_system():
    with pytest.raises(StoreError, match=r"^cannot open the store http://127.0.0.1:1/x: Connection refused$"):
        Store.open("http://127.0.0.1:1/x")


def test_a_query_of_a_store_that_is_away_is_described_so_too():
    with pytest.raises(StoreError, match=r"does not answer: Connection refused$"):
        Store("http://127.0.0.1:1/x").query("SELECT 1")
