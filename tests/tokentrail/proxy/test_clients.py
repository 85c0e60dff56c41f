"""The official clients through the proxy, and `observe` around them; and our own engine behind it."""

import asyncio
import json

import httpx
import openai
import pytest

from tests.instrumented_engine.server_support import MODEL, served, tiny_loader
from tests.tokentrail.proxy.support import (
    DONE,
    END,
    STREAMED,
    USAGE,
    Upstream,
    chunked,
    delta,
    proxied,
    request_span,
)  # fmt: skip
from tokentrail import now_ns, observe, semconv
from tokentrail.testing import MemoryTrail

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
CHAT = [delta(), delta("Hel"), delta("lo"), delta(finish="stop"), USAGE, DONE]
EVENTS = [
    {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "c-2", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]  # fmt: skip
MESSAGES = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in EVENTS]
ASK = [{"role": "user", "content": "hi"}]


def through(parts, talk, **settings):
    """`talk` with the address of a proxy before an upstream that sends these events; its result and the trail."""

    async def run():
        async with Upstream(STREAMED, *chunked(*parts), END) as upstream, proxied(upstream, **settings) as proxy:
            return await talk(proxy.url), proxy.trail, upstream.requests

    return asyncio.run(run())


def numbers(trail):
    request, tokens = request_span(trail)
    given = request.attributes
    return (
        given[semconv.STATUS], given[semconv.FINISH_REASON], given[semconv.INPUT_TOKENS], given[semconv.OUTPUT_TOKENS],
        len(tokens),
    )  # fmt: skip


def openai_client(url):
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-secret", max_retries=0)


def anthropic_client(url):
    import anthropic  # late: it takes 2 s, and each worker of pytest imports each file

    return anthropic.AsyncAnthropic(base_url=url, api_key="sk-secret", max_retries=0)


def test_openais_client_and_its_observed_stream_agree_with_the_proxy():
    client_trail = MemoryTrail(clock=now_ns)

    async def talk(url):
        async with openai_client(url) as client:
            stream = await observe(
                client.chat.completions.create(model="m", messages=ASK, stream=True), model="m", trail=client_trail
            )
            return [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]

    texts, trail, [(head, _)] = through(CHAT, talk)
    assert texts == ["", "Hel", "lo", ""]
    assert numbers(trail) == numbers(client_trail) == ("ok", "stop", 7, 40, 2)
    assert b"authorization: bearer sk-secret" in head.lower()
    assert b"sk-secret" not in b"".join(trail.transport.bodies)
    served_span, sent_span = request_span(trail)[0], request_span(client_trail)[0]
    assert served_span.attributes[semconv.RESPONSE_ID] == sent_span.attributes[semconv.RESPONSE_ID] == "chatcmpl-1"
    assert sent_span.start_ns <= served_span.start_ns


@pytest.mark.parametrize("way", ["create", "stream", "text_stream", "final"])
def test_anthropics_client_and_its_observed_stream_agree_with_the_proxy(way):
    client_trail = MemoryTrail(clock=now_ns)

    async def talk(url):
        async with anthropic_client(url) as client:
            asked = {"model": "c", "max_tokens": 9, "messages": ASK}
            if way == "create":
                stream = await observe(client.messages.create(**asked, stream=True), model="c", trail=client_trail)
                return "".join([e.delta.text async for e in stream if e.type == "content_block_delta"])
            async with observe(client.messages.stream(**asked), model="c", trail=client_trail) as stream:
                if way == "final":
                    return (await stream.get_final_message()).content[0].text
                if way == "text_stream":
                    return "".join([text async for text in stream.text_stream])
                return "".join([event.text async for event in stream if event.type == "text"])

    text, trail, _ = through(MESSAGES, talk)
    assert text == "Hello"
    assert numbers(trail) == numbers(client_trail) == ("ok", "end_turn", 10, 7, 2)


def test_the_synchronous_clients_are_observed():
    trails = [MemoryTrail(clock=now_ns) for _ in range(2)]

    def chat(url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
        call = observe(
            lambda: client.chat.completions.create(model="m", messages=ASK, stream=True), model="m", trail=trails[0]
        )
        with call as stream:
            return [chunk.id for chunk in stream]

    def message(url):
        import anthropic

        client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
        with observe(client.messages.stream(model="c", max_tokens=9, messages=ASK), trail=trails[1]) as stream:
            return "".join(stream.text_stream)

    assert len(through(CHAT, lambda url: asyncio.to_thread(chat, url))[0]) == 5
    assert through(MESSAGES, lambda url: asyncio.to_thread(message, url))[0] == "Hello"
    assert [numbers(trail) for trail in trails] == [("ok", "stop", 7, 40, 2), ("ok", "end_turn", 10, 7, 2)]


ONE = {"id": "chatcmpl-1", "object": "chat.completion", "model": "m-2", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 40, "total_tokens": 47}}  # fmt: skip
WHOLE = (JSON % (len(json.dumps(ONE)), json.dumps(ONE).encode()),)
STREAM = (STREAMED, *chunked(*CHAT), END)


async def raw_stream(client, ask, observed):
    response = await observed(client.with_raw_response.create(**ask, stream=True))
    assert response.status_code == 200
    parsed = response.parse()
    del response  # as in `(await observe(…)).parse()`
    return "".join([chunk.choices[0].delta.content or "" async for chunk in parsed if chunk.choices])


async def raw_whole(client, ask, observed):
    response = await observed(client.with_raw_response.create(**ask))
    assert isinstance(response, type(await client.with_raw_response.create(**ask)))
    return response.parse().choices[0].message.content


async def streaming_stream(client, ask, observed):
    async with observed(client.with_streaming_response.create(**ask, stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream"
        return "".join(
            [chunk.choices[0].delta.content or "" async for chunk in await response.parse() if chunk.choices]
        )


async def streaming_whole(client, ask, observed):
    async with observed(client.with_streaming_response.create(**ask)) as response:
        return (await response.json())["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("talk", "script", "arrivals"),
    [(raw_stream, STREAM, 2), (raw_whole, WHOLE, 1), (streaming_stream, STREAM, 2), (streaming_whole, WHOLE, 1)],
)
def test_raw_responses_of_openais_client_are_observed(talk, script, arrivals):
    trail = MemoryTrail(clock=now_ns)

    async def run():
        async with Upstream(*script) as upstream, openai_client(upstream.url) as client:
            ask = {"model": "m", "messages": ASK}
            return await talk(client.chat.completions, ask, lambda source: observe(source, model="m", trail=trail))

    assert asyncio.run(run()) == "Hello"
    assert numbers(trail) == ("ok", "stop", 7, 40, arrivals)


def test_raw_responses_of_anthropics_client_are_observed():
    trail = MemoryTrail(clock=now_ns)

    async def run():
        async with Upstream(STREAMED, *chunked(*MESSAGES), END) as upstream, anthropic_client(upstream.url) as client:
            call = client.messages.with_raw_response.create(model="c", max_tokens=9, messages=ASK, stream=True)
            stream = await (await observe(call, model="c", trail=trail)).parse()
            return [event.type async for event in stream]

    assert asyncio.run(run()) == [event["type"] for event in EVENTS]
    assert numbers(trail) == ("ok", "end_turn", 10, 7, 2)


def test_a_problem_of_the_proxy_reads_well_in_openais_client():
    async def talk(url):
        async with openai_client(url) as client:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * (1 << 20)}])
            return refused.value

    error, _, _ = through(CHAT, talk, max_body_mib=1)
    assert error.status_code == 413
    assert "--max-body-mib" in str(error)


def test_our_engine_behind_the_proxy_is_in_the_same_trace_with_the_same_tokens():
    async def talk(url):
        async with proxied(url, ask_usage=True) as proxy, openai_client(proxy.url) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, stream=True)
            ids = {chunk.id async for chunk in stream}
            async with httpx.AsyncClient() as plain:
                models = await plain.get(f"{proxy.url}/v1/models")
        return ids, models.json(), proxy.trail

    with served(tiny_loader()) as engine:
        (response_id,), models, trail = asyncio.run(talk(engine.url))
        engine.until(lambda: any(semconv.STATUS in span.attributes for span in engine.trail.spans()))
        (inner,) = [span for span in engine.trail.spans() if semconv.STATUS in span.attributes]
    outer, _ = request_span(trail)
    assert models["data"][0]["id"] == MODEL
    assert (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)
    assert outer.start_ns <= inner.start_ns
    assert inner.end_ns <= outer.end_ns
    for name in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.FINISH_REASON, semconv.RESPONSE_ID):
        assert inner.attributes[name] == outer.attributes[name]
    assert outer.attributes[semconv.RESPONSE_ID] == response_id
    assert outer.attributes[semconv.TIME_TO_FIRST_TOKEN] >= inner.attributes[semconv.TIME_TO_FIRST_TOKEN]
