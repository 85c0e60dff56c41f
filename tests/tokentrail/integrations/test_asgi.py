"""The middleware tells the recorder about each request, and changes nothing for the client."""

import asyncio

import httpx
import pytest

from tests.tokentrail.support import MS, T0
from tokentrail import semconv
from tokentrail.integrations import asgi, recorder
from tokentrail.integrations.asgi import RequestMiddleware
from tokentrail.integrations.recorder import EngineRecorder, incoming
from tokentrail.testing import ManualClock, MemoryTrail

HEADERS = {"x-tokentrail-tenant": "acme", "x-tokentrail-slo-class": "gold"}


@pytest.fixture
def engine(monkeypatch):
    clock = ManualClock()
    trail = MemoryTrail(clock=clock)
    made = EngineRecorder("vllm", "m", lambda _: trail, clock)
    monkeypatch.setattr(asgi, "now_ns", clock)
    recorder.activate(made)
    yield made, trail, clock
    recorder.activate(None)


def serve(status, seen, clock=None, error=None, take=False):
    """An application that notes the request of its task and answers with a status or an error."""

    async def app(scope, receive, send):
        found = incoming.get()
        seen.append(found)
        if clock is not None:
            clock.advance(4 * MS)
        if found is not None:
            found.recorded = take
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"answer"})

    return RequestMiddleware(app)


def post(app, path="/v1/chat/completions", method="POST"):
    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            return await client.request(method, path, headers=HEADERS)

    return asyncio.run(ask())


def test_a_request_carries_its_arrival_headers_tenant_and_class(engine):
    seen = []
    answer = post(serve(200, seen))
    assert (answer.status_code, answer.content, answer.headers["x-own"]) == (200, b"answer", "1")
    [found] = seen
    assert (found.arrival_ns, found.operation, found.tenant, found.slo_class) == (T0, "chat", "acme", "gold")
    assert (b"x-tokentrail-tenant", b"acme") in found.headers
    assert incoming.get() is None


@pytest.mark.parametrize("status", [400, 404, 503])
def test_a_refused_request_is_recorded(engine, status):
    _, trail, clock = engine
    post(serve(status, [], clock))
    [row] = trail.spans("chat m")
    assert (row.attributes[semconv.ERROR_TYPE], row.attributes[semconv.TENANT]) == (str(status), "acme")
    assert row.duration_ns == 4 * MS


@pytest.mark.parametrize(
    ("status", "take", "path", "method"),
    [
        (200, False, "/v1/chat/completions", "POST"),
        (500, True, "/v1/chat/completions", "POST"),
        (404, False, "/v1/models", "POST"),
        (405, False, "/v1/chat/completions", "GET"),
    ],
)
def test_others_are_not(engine, status, take, path, method):
    post(serve(status, [], take=take), path, method)
    assert engine[1].spans() == []


def test_an_exception_passes_and_counts_as_500(engine):
    with pytest.raises(KeyError):
        post(serve(0, [], error=KeyError("theirs")))
    [row] = engine[1].spans("chat m")
    assert row.attributes[semconv.ERROR_TYPE] == "500"
    assert incoming.get() is None


def test_a_client_whose_task_is_cancelled_was_not_refused(engine):
    with pytest.raises(asyncio.CancelledError):
        post(serve(0, [], error=asyncio.CancelledError()))
    [row] = engine[1].spans("chat m")
    assert (row.attributes[semconv.STATUS], row.attributes.get(semconv.ERROR_TYPE)) == ("cancelled", None)


BODY, GONE = {"type": "http.request", "body": b"{"}, {"type": "http.disconnect"}
START = {"type": "http.response.start", "status": 200, "headers": []}
PART, END = {"type": "http.response.body", "body": b"x", "more_body": True}, {"type": "http.response.body"}


def talk(*steps, recorded=False):
    """Serves a request whose application hears and says these messages."""

    async def app(scope, receive, send):
        incoming.get().recorded = recorded
        for step in steps:
            if step in (BODY, GONE):
                assert await receive() == step
            else:
                await send(step)

    heard = iter(step for step in steps if step in (BODY, GONE))
    said = []

    async def receive():
        return next(heard)

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    asyncio.run(RequestMiddleware(app)(scope, receive, send))
    assert said == [step for step in steps if step not in (BODY, GONE)]


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ((BODY, GONE), "cancelled"),
        ((BODY, GONE, START | {"status": 400}, END), "cancelled"),
        ((BODY, GONE, START, END), "cancelled"),
        ((BODY, START, GONE), "cancelled"),
        ((BODY, START, PART, GONE), "cancelled"),
        ((BODY, START, PART, END, GONE), None),
        ((BODY, START | {"status": 400}, END, GONE), "error"),
        ((BODY, START, END), None),
    ],
)
def test_a_client_that_leaves_before_the_engine_has_its_request_is_cancelled(engine, steps, status):
    """vLLM answers half a body with 400, and a client that leaves at once with `null`."""
    talk(*steps)
    assert [row.attributes[semconv.STATUS] for row in engine[1].spans("chat m")] == [status] * (status is not None)


def test_a_client_that_leaves_later_is_the_engines_affair(engine):
    talk(BODY, START, GONE, recorded=True)
    assert engine[1].spans() == []


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/completions", "text_completion"),
        ("/prefix/v1/embeddings", "embeddings"),
        ("/generate", "generate_content"),
    ],
)
def test_the_path_says_the_operation(engine, path, operation):
    seen = []
    post(serve(200, seen), path)
    assert seen[0].operation == operation


def test_the_request_is_forgotten_in_a_task_that_serves_several(engine):
    async def two():
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}

        async def ignore(_):
            pass

        await serve(200, [])(scope, None, ignore)
        return incoming.get()

    assert asyncio.run(two()) is None


def test_without_a_recorder_nothing_is_looked_at():
    seen = []
    assert post(serve(503, seen)).status_code == 503
    assert seen == [None]


def test_other_protocols_pass(engine):
    calls = []

    async def app(scope, receive, send):
        calls.append(scope["type"])

    asyncio.run(RequestMiddleware(app)({"type": "lifespan"}, None, None))
    assert calls == ["lifespan"]


def test_a_fault_in_the_middleware_switches_off_and_the_answer_stands(engine, monkeypatch):
    made, _, _ = engine
    monkeypatch.setattr(made, "refused", lambda *_: 1 / 0)
    assert post(serve(503, [])).status_code == 503
    assert not made.on


def test_headers_that_are_no_text_do_not_fail_the_request(engine):
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"x-tokentrail-tenant", b"\xff\xfe")],
    }
    assert asgi._incoming(scope).tenant == "ÿþ"
