"""`observe` yields the same chunks, stamps each, and always ends the request."""

import asyncio
import contextlib
import copy
import gc
from types import SimpleNamespace

import httpx
import openai
import pytest

import tokentrail
from tests.tokentrail.proxy.support import request_span
from tests.tokentrail.support import MS
from tokentrail import observe, semconv
from tokentrail.testing import MemoryTrail

CHUNKS = [
    {"id": "c-1", "model": "m-2", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}},
]


def ticking(chunks, clock):
    for chunk in chunks:
        clock.advance(10 * MS)
        yield chunk


async def aticking(chunks, clock):
    for chunk in chunks:
        clock.advance(10 * MS)
        yield chunk


async def collect(stream):
    return [chunk async for chunk in stream]


def ended(trail):
    request, tokens = request_span(trail)
    return request.attributes[semconv.STATUS], request.attributes.get(semconv.ERROR_TYPE), len(tokens)


@pytest.mark.parametrize("way", ["sync", "async", "function", "coroutine"])
def test_a_stream_is_a_request_of_the_client(way, trail, clock):
    async def send():
        return aticking(CHUNKS, clock)

    async def run():
        return await collect(await observe(send(), model="m", trail=trail))

    if way == "sync":
        got = list(observe(ticking(CHUNKS, clock), model="m", trail=trail))
    elif way == "function":
        got = list(observe(lambda: ticking(CHUNKS, clock), model="m", trail=trail))
    elif way == "async":
        got = asyncio.run(collect(observe(aticking(CHUNKS, clock), model="m", trail=trail)))
    else:
        got = asyncio.run(run())
    assert all(one is other for one, other in zip(got, CHUNKS, strict=True))
    request, tokens = request_span(trail)
    given = request.attributes
    assert (request.name, request.message.kind, request.duration_ns) == ("chat m", 3, 40 * MS)
    assert [token.duration_ns for token in tokens] == [20 * MS, 10 * MS]
    assert (given[semconv.INPUT_TOKENS], given[semconv.OUTPUT_TOKENS], given[semconv.ARRIVALS]) == (3, 9, 2)
    assert (given[semconv.RESPONSE_MODEL], given[semconv.RESPONSE_ID]) == ("m-2", "c-1")
    assert (given[semconv.STATUS], given[semconv.FINISH_REASON]) == ("ok", "stop")
    assert semconv.PROVIDER_NAME not in given
    assert phases_of(trail) == []


def test_the_chunks_within_the_events_of_mistrals_client_are_read(trail, clock):
    """The first one has a role, and no output."""
    events = [SimpleNamespace(data=SimpleNamespace(**chunk)) for chunk in CHUNKS]
    assert list(observe(ticking(events, clock), trail=trail)) == events
    request, tokens = request_span(trail)
    given = request.attributes
    assert [token.duration_ns for token in tokens] == [20 * MS, 10 * MS]
    assert (given[semconv.OUTPUT_TOKENS], given[semconv.FINISH_REASON], given[semconv.STATUS]) == (9, "stop", "ok")


class Either:
    """A stream that can be read in both ways, as LiteLLM's."""

    def __init__(self, clock):
        self._stream, self._async_stream = ticking(CHUNKS, clock), aticking(CHUNKS, clock)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._stream)

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await anext(self._async_stream)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_stream_for_both_ways_of_reading_is_read_in_either(way, trail, clock):
    stream = observe(lambda: Either(clock), model="m", trail=trail)
    assert (list(stream) if way == "sync" else asyncio.run(collect(stream))) == CHUNKS
    assert ended(trail) == ("ok", None, 2)


def test_a_list_is_a_whole_answer_and_stays_a_list(trail):
    """As of transformers' pipeline, or of vLLM's `generate`."""
    answers = [{"generated_text": "a"}]
    assert observe(lambda: answers, model="m", trail=trail) is answers
    assert ended(trail) == ("ok", None, 1)


def phases_of(trail):
    """Phases are the engine's: neither spans nor times of them."""
    spans = trail.spans()
    times = [key for span in spans for key in span.attributes if key.startswith(semconv.PHASE_TIME_PREFIX)]
    return times + [span.name for span in spans if span.name == semconv.PHASE_SPAN]


def test_any_iterator_of_texts_has_its_number_of_arrivals_and_no_number_of_tokens(trail, clock):
    assert list(observe(iter(["a", "", "b"]), trail=trail)) == ["a", "", "b"]
    request, tokens = request_span(trail)
    assert len(tokens) == 2
    assert semconv.OUTPUT_TOKENS not in request.attributes


def test_a_request_that_was_sent_before_counts_from_then(trail, clock):
    sent = clock.now
    clock.advance(5 * MS)
    list(observe(ticking(["a"], clock), trail=trail, arrival_ns=sent))
    assert [token.duration_ns for token in request_span(trail)[1]] == [15 * MS]


def test_an_exception_goes_through_and_ends_the_request_as_an_error(trail, clock):
    def broken():
        yield "a"
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(observe(broken(), trail=trail))
    assert ended(trail) == ("error", "ValueError", 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_that_fails_before_its_stream_is_an_error_with_its_http_status(asynchronous, trail):
    class Refused(Exception):
        status_code = 429

    def fail():
        raise Refused

    async def afail():
        raise Refused

    with pytest.raises(Refused):
        asyncio.run(observe(afail(), trail=trail)) if asynchronous else observe(fail, trail=trail)
    assert ended(trail) == ("error", "429", 0)


REQUEST = httpx.Request("POST", "http://a.example")


def of_anthropic(body):
    import anthropic  # it takes 1.8 s of CPU

    return anthropic.APIStatusError("no", response=httpx.Response(200, request=REQUEST), body=body)


def of_openai(body):
    return openai.APIError("no", REQUEST, body=body)


@pytest.mark.parametrize(
    ("make", "body", "kind"),
    [
        (of_anthropic, {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, "overloaded_error"),
        (of_anthropic, None, "APIStatusError"),
        (of_openai, {"type": "server_error", "message": "no"}, "server_error"),
        (of_openai, {"code": 502, "message": "no"}, "502"),
        (of_openai, "no", "APIError"),
    ],
)
def test_an_error_within_a_success_has_the_type_that_it_told(make, body, kind, trail, clock):
    """The clients raise it in the middle of a stream. The status of anthropic's error is that of the success."""
    error = make(body)

    def broken():
        yield CHUNKS[1]
        raise error

    with pytest.raises(type(error)):
        list(observe(broken(), trail=trail))
    assert ended(trail) == ("error", kind, 1)


def test_an_error_whose_fields_raise_goes_through(trail):
    class OwnError(Exception):
        @property
        def body(self):
            raise LookupError

    def broken():
        yield "a"
        raise OwnError

    with pytest.raises(OwnError):
        list(observe(broken(), trail=trail))
    assert ended(trail)[:2] == ("error", f"{OwnError.__qualname__}"[:64])


@pytest.mark.parametrize("way", ["break", "close", "with", "collected"])
def test_a_stream_that_is_left_is_cancelled(way, trail, clock):
    stream = observe(ticking(["a", "b"], clock), trail=trail)
    if way == "with":
        with stream:
            next(stream)
    elif way == "collected":
        next(stream)
        del stream
        gc.collect()
    elif way == "close":
        next(stream)
        stream.close()
    else:
        del stream
        for _ in observe(ticking(["a", "b"], clock), trail=trail):
            break
    statuses = [s.attributes[semconv.STATUS] for s in trail.spans() if semconv.STATUS in s.attributes]
    assert set(statuses) == {"cancelled"}


@pytest.mark.parametrize("name", ["close", "aclose"])
def test_closing_closes_the_stream_inside(name, trail):
    """OpenAI's asynchronous stream has `close`, a generator `aclose`."""
    closed = []

    class Source:
        def __iter__(self):
            return iter("ab")

        def close(self):
            closed.append("sync")

    async def close(_):
        closed.append("async")

    asynchronous = type("AsyncSource", (), {"__aiter__": lambda self: self, name: close})
    observe(Source(), trail=trail).close()
    asyncio.run(observe(asynchronous(), trail=trail).close())
    assert closed == ["sync", "async"]


def test_a_stream_that_is_left_after_its_end_was_told_is_a_success(trail, clock):
    for chunk in observe(ticking(CHUNKS, clock), trail=trail):
        if chunk is CHUNKS[2]:
            break
    assert ended(trail) == ("ok", None, 2)


@pytest.mark.parametrize("way", ["cancel", "close", "error"])
def test_an_asynchronous_stream_that_is_left_is_ended(way, trail, clock):
    async def endless():
        yield "a"
        if way == "error":
            raise ValueError
        await asyncio.Event().wait()

    async def run():
        stream = observe(endless(), trail=trail)
        if way == "close":
            async with stream:
                await anext(stream)
            return
        async with asyncio.timeout(0.05):
            await collect(stream)

    with pytest.raises(ValueError if way == "error" else TimeoutError) if way != "close" else _nothing():
        asyncio.run(run())
    assert ended(trail) == (("error", "ValueError", 1) if way == "error" else ("cancelled", None, 1))


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_an_answer_that_is_not_streamed_ends_its_request(trail, clock):
    whole = {"id": "c", "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "length"}],
             "usage": {"prompt_tokens": 1, "completion_tokens": 2}}  # fmt: skip

    def send():
        clock.advance(30 * MS)
        return whole

    assert observe(send, model="m", trail=trail) is whole
    request, tokens = request_span(trail)
    assert (request.duration_ns, [token.duration_ns for token in tokens]) == (30 * MS, [30 * MS])
    assert request.attributes[semconv.FINISH_REASON] == "length"
    assert request.attributes[semconv.REQUEST_STREAM] is False


class Raw:
    """A raw response of a client, whose body is read already when it has a `body`."""

    def __init__(self, clock, body=None):
        self.clock, self.is_closed, self.http_response = clock, body is not None, SimpleNamespace(json=self._json)
        self._body = body

    def _json(self):
        if isinstance(self._body, Exception):
            raise self._body
        return self._body

    def parse(self):
        return ticking(CHUNKS, self.clock)

    def iter_lines(self):
        return ticking(["data: {}", "", "data: [DONE]"], self.clock)

    async def iter_bytes(self):
        for line in self.iter_lines():
            yield line.encode()

    def read(self):
        raise TimeoutError


def test_the_stream_of_a_raw_response_is_the_request(trail, clock):
    assert list(observe(lambda: Raw(clock), trail=trail).parse()) == CHUNKS
    assert ended(trail) == ("ok", None, 2)
    assert request_span(trail)[0].attributes[semconv.REQUEST_STREAM] is True


def test_a_raw_response_with_its_body_is_a_whole_answer(trail, clock):
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}}
    raw = Raw(clock, body)
    assert observe(raw, trail=trail) is raw
    request, tokens = request_span(trail)
    assert (request.attributes[semconv.OUTPUT_TOKENS], len(tokens)) == (9, 1)
    assert request.attributes[semconv.REQUEST_STREAM] is False


@pytest.mark.parametrize("error", [ValueError("no JSON"), RecursionError(), httpx.ResponseNotRead()])
def test_a_raw_response_of_another_form_has_arrived(error, trail, clock):
    observe(Raw(clock, error), trail=trail)
    assert ended(trail) == ("ok", None, 1)


@pytest.mark.parametrize("way", ["lines", "bytes"])
def test_lines_and_bytes_of_a_raw_response_tell_its_end_and_no_tokens(way, trail, clock):
    """The first line has a role, and no output."""
    response = observe(Raw(clock), trail=trail)
    got = list(response.iter_lines()) if way == "lines" else asyncio.run(collect(response.iter_bytes()))
    assert len(got) == 3
    assert ended(trail) == ("ok", None, 0)
    assert request_span(trail)[0].duration_ns == 30 * MS
    assert semconv.REQUEST_STREAM not in request_span(trail)[0].attributes, "a body may be read so, too"


def test_the_lines_of_a_stream_of_httpx_tell_its_end_and_no_tokens(trail, clock):
    @contextlib.contextmanager
    def stream():
        yield SimpleNamespace(iter_lines=Raw(clock).iter_lines, text="so far")

    with observe(lambda: stream(), trail=trail) as response:
        assert len(list(response.iter_lines())) == 3
        assert response.text == "so far"
    assert ended(trail) == ("ok", None, 0)


@pytest.mark.parametrize("method", ["iter_lines", "aiter_lines", "aread", ""])
@pytest.mark.parametrize("status", [200, 307, 500])
def test_a_stream_of_httpx_with_another_status_than_success_is_an_error(method, status, trail):
    """`httpx` raises no error for it, whether its body is read or not."""
    answer = httpx.MockTransport(lambda _: httpx.Response(status, content=b"data: {}"))

    async def run():
        client = httpx.AsyncClient(transport=answer)
        async with observe(client.stream("POST", "http://m"), trail=trail) as response:
            await (response.aread() if method == "aread" else collect(response.aiter_lines()))

    if method.startswith("a"):
        asyncio.run(run())
    else:
        with observe(lambda: httpx.Client(transport=answer).stream("POST", "http://m"), trail=trail) as response:
            assert list(response.iter_lines() if method else ()) == (["data: {}"] if method else [])
    assert ended(trail)[:2] == (("ok" if method else "cancelled", None) if status == 200 else ("error", str(status)))


@pytest.mark.parametrize(("status", "told"), [(299, ("ok", None)), (300, ("error", "300")), (500, ("error", "500"))])
def test_an_http_response_with_another_status_than_success_is_an_error(status, told):
    trail = MemoryTrail()
    observe(lambda: httpx.Response(status), trail=trail)
    assert ended(trail)[:2] == told
    refused, trail = type("Refused", (Exception,), {"status_code": status}), MemoryTrail()

    def fail():
        raise refused

    with pytest.raises(refused):
        observe(fail, trail=trail)
    assert ended(trail)[:2] == ("error", "Refused" if status < 300 else str(status))


def test_a_raw_response_that_nobody_reads_is_cancelled(trail, clock):
    response = observe(Raw(clock), trail=trail)
    assert not any(semconv.STATUS in span.attributes for span in trail.spans())
    del response
    gc.collect()
    assert ended(trail) == ("cancelled", None, 0)


def test_a_raw_response_that_breaks_off_is_an_error(trail, clock):
    response = observe(Raw(clock), trail=trail)
    with pytest.raises(TimeoutError):
        response.read()
    assert ended(trail) == ("error", "TimeoutError", 0)


def test_the_request_is_the_current_span_while_it_is_sent(trail):
    from opentelemetry.trace import get_current_span

    [seen] = observe(lambda: [get_current_span().get_span_context().span_id], trail=trail)
    assert seen == request_span(trail)[0].span_id


def test_choices_are_timed_apart(trail, clock):
    chunks = [{"choices": [{"index": index, "delta": {"content": "x"}}]} for index in (0, 1, 0, 1)]
    list(observe(ticking(chunks, clock), choices=2, trail=trail))
    request, tokens = request_span(trail)
    assert [token.attributes[semconv.CHOICE_INDEX] for token in tokens] == [0, 0, 1, 1]
    assert request.attributes[semconv.CHOICE_COUNT] == 2


def test_a_chunk_that_cannot_be_read_passes(trail, clock):
    class Hostile:
        @property
        def choices(self):
            raise RuntimeError("a property of a stranger")

    hostile = Hostile()
    assert list(observe(iter([hostile, "a"]), trail=trail)) == [hostile, "a"]
    assert ended(trail) == ("ok", None, 1)


def test_the_stream_has_the_methods_of_the_one_inside(trail):
    class Source:
        response = "r"

        def __iter__(self):
            return iter("ab")

        def get_final_message(self):
            return "whole"

    stream = observe(Source(), trail=trail)
    assert stream.response == "r"
    assert stream.get_final_message() == "whole"
    assert ended(trail) == ("ok", None, 2)
    with pytest.raises(AttributeError):
        copy.copy(stream)._unknown  # noqa: B018


def test_the_default_trail_is_made_once_and_of_the_environment(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    module = __import__("sys").modules["tokentrail.clients.observe"]
    monkeypatch.setattr(module, "_default", [])
    assert list(tokentrail.observe(iter("ab"))) == ["a", "b"]
    assert observe(lambda: "text") == "text"
    assert len(module._default) == 1


def test_without_a_trail_of_the_environment_the_answers_still_come(monkeypatch, caplog):
    def no_thread(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tokentrail.Trail, "from_env", no_thread)
    module = __import__("sys").modules["tokentrail.clients.observe"]
    monkeypatch.setattr(module, "_default", [])
    assert list(tokentrail.observe(iter("ab"))) == ["a", "b"]
    assert observe(lambda: "text") == "text"
    (record,) = caplog.records
    assert "records nothing: can't start new thread" in record.message


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_task_that_is_cancelled_before_it_began_cancels_the_request(trail):
    async def send():
        raise AssertionError("it never began")

    async def run():
        task = asyncio.create_task(observe(send(), model="m", trail=trail))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert ended(trail) == ("cancelled", None, 0)
