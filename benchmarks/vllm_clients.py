"""Loads by the official openai client for a vLLM that is recorded from inside. Each client notes its times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
from httpx import HTTPError
from openai import APIError, APIStatusError, AsyncOpenAI

from tokentrail import now_ns

MODEL: Final = "random-llama"
WORDS: Final = 2_000
LONG_PROMPT: Final = 900
"""Tokens. vLLM computes them in one step, which all that decode then wait for."""
BUSY_PROMPT: Final = 4_000
"""Tokens. vLLM computes them in two steps."""
STOP_S: Final = 2.5
STOP: Final = "stop"
"""The kind of a call that is none: from `sent_ns` on, the engine core stood still for `STOP_S`."""
PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Call:
    """One request as the client saw it. `arrivals`: for each token, the unix ns at which its chunk came."""

    kind: str
    request_id: str = ""
    arrivals: list[int] = field(default_factory=list)
    output_tokens: int | None = None
    input_tokens: int | None = None
    sent_ns: int = 0
    ended_ns: int = 0
    status: str = "ok"
    choices: int = 1


Load = Callable[[str, int], Coroutine[Any, Any, list[Call]]]
"""Sends requests to a URL (the first argument), one of so many (the second), and returns one `Call` for each."""


def _prompt(words: int, rng: random.Random) -> str:
    return " ".join(f"w{rng.randrange(3, WORDS)}" for _ in range(words))


async def _all(calls: Sequence[Awaitable[list[Call]]], at_once: int) -> list[Call]:
    places = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[list[Call]]) -> list[Call]:
        async with places:
            return await call

    return [call for some in await asyncio.gather(*map(one, calls)) for call in some]


async def long_requests(url: str, share: int) -> list[Call]:
    """32 long chats at once: far more than 24 blocks hold."""
    rng = random.Random(1)
    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        chats = [
            _chat(client, "chat", _prompt(rng.randint(100, 400), rng), rng.randint(150, 400))
            for _ in range(32 // share)
        ]
        return await _all(chats, 32)


async def mixed_requests(url: str, share: int) -> list[Call]:
    """60 requests of all kinds, eight at a time."""
    rng = random.Random(2)
    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        kinds = [_chat, _traced, _whole, _two, _stopped, _completion, _prompts, _aborted, _too_long, _chat]
        calls = [
            kind(client, kind.__name__[1:], _prompt(rng.randint(5, 300), rng), rng.randint(1, 60))
            for _ in range(6 // share or 1)
            for kind in kinds
        ]
        return await _all(calls, 8)


async def greedy_requests(url: str, share: int) -> list[Call]:
    """16 greedy chats: a random model soon repeats itself, and so n-grams of its answer foretell the next tokens."""
    rng = random.Random(4)
    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        chats = [
            _chat(client, "chat", _prompt(30, rng), rng.randint(60, 200), temperature=0) for _ in range(16 // share)
        ]
        return await _all(chats, 8)


async def explained_requests(url: str, share: int) -> list[Call]:
    """A prompt of `LONG_PROMPT` tokens while six chats decode, and then more chats than the blocks hold."""
    rng = random.Random(5)
    calls = [Call("chat") for _ in range(6)]
    under_way, arrived = asyncio.Event(), Call("chat")

    def check() -> None:
        if min(len(call.arrivals) for call in calls) >= 4:
            under_way.set()

    async def come_late() -> None:
        await under_way.wait()
        await _stream(client, arrived, _prompt(LONG_PROMPT, rng), 20)

    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        chats = [_stream(client, call, _prompt(20, rng), 120, seen=check) for call in calls]
        await asyncio.gather(come_late(), *chats)
    return [*calls, arrived, *await long_requests(url, share)]


async def busy_requests(url: str, share: int) -> list[Call]:
    """Eight chats at a time while four prompts of `BUSY_PROMPT` tokens are computed, and the core stops as often."""
    rng = random.Random(6)
    cores = _engine_cores(int(url.rpartition(":")[2]))
    calls: list[Call] = []
    running: set[int] = set()
    over, changed = asyncio.Event(), asyncio.Event()

    async def chat() -> None:
        while not over.is_set():
            call = Call("chat")
            calls.append(call)
            running.add(id(call))
            await _stream(client, call, _prompt(rng.randint(10, 100), rng), rng.randint(60, 120), seen=changed.set)
            running.discard(id(call))

    async def under_way(before: set[int]) -> None:
        """Six chats that were not there before have tokens."""
        while sum(id(one) in running - before and len(one.arrivals) >= 4 for one in calls) < 6:
            changed.clear()
            await changed.wait()

    async def events() -> None:
        for _ in range(max(4 // share, 1)):
            await under_way(set())
            calls.append(long := Call("long"))
            await _stream(client, long, _prompt(BUSY_PROMPT, rng), 4)
            await under_way({*running})
            calls.append(stop := Call(STOP, sent_ns=now_ns()))
            for core in cores:
                core.suspend()
            await asyncio.sleep(STOP_S)
            for core in cores:
                core.resume()
            stop.ended_ns = now_ns()
            await under_way({*running})
        over.set()

    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        await asyncio.gather(events(), *(chat() for _ in range(8)))
    return calls


async def killed_requests(url: str, _: int) -> list[Call]:
    """Six long chats. When each of them has tokens, their engine core is killed."""
    rng = random.Random(3)
    calls = [Call("killed") for _ in range(6)]
    under_way = asyncio.Event()

    async def lives(call: Call) -> None:
        try:
            await _stream(client, call, _prompt(20, rng), 800, seen=check)
        except (APIError, HTTPError):
            call.status = "error"
        call.ended_ns = now_ns()

    def check() -> None:
        if min(len(call.arrivals) for call in calls) >= 4:
            under_way.set()

    async def kill() -> None:
        await under_way.wait()
        for core in _engine_cores(int(url.rpartition(":")[2])):
            core.kill()

    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=120) as client:
        await asyncio.gather(kill(), *map(lives, calls))
    return calls


def _engine_cores(port: int) -> list[psutil.Process]:
    """The engine cores below the process that listens on the port."""
    (server,) = {
        one.pid for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr[1:] == (port,)
    }
    return [one for one in psutil.Process(server).children(recursive=True) if "EngineCore" in " ".join(one.cmdline())]


async def _chat(client: AsyncOpenAI, kind: str, prompt: str, tokens: int, **given: Any) -> list[Call]:
    call = Call(kind, choices=given.get("n", 1))
    await _stream(client, call, prompt, tokens, **given)
    return [call]


async def _stream(
    client: AsyncOpenAI, call: Call, prompt: str, tokens: int, seen: Callable[[], object] = bool, **given: Any
) -> None:
    """Reads a chat into `call`, and calls `seen` after each chunk."""
    call.sent_ns = now_ns()
    usage = {"include_usage": True, "continuous_usage_stats": True}
    create: Any = client.chat.completions.create  # vLLM takes more than the official signature
    stream = await create(
        model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=tokens, stream=True,
        stream_options=usage, extra_body={"ignore_eos": True, "return_token_ids": True}, **given,
    )  # fmt: skip
    async for chunk in stream:
        call.request_id = chunk.id
        now = now_ns()
        for choice in chunk.choices:
            call.arrivals += [now] * len(getattr(choice, "token_ids", None) or ())
        if chunk.usage is not None:
            call.output_tokens, call.input_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
        seen()
        if call.kind == "aborted" and len(call.arrivals) >= 3:
            call.status = "cancelled"
            break
    await stream.close()
    call.ended_ns = now_ns()


async def _traced(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    headers = {"traceparent": PARENT, "x-tokentrail-tenant": "acme", "x-tokentrail-slo-class": "chat"}
    return await _chat(client, kind, prompt, tokens, extra_headers=headers)


async def _two(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _chat(client, kind, prompt, tokens, n=2)


async def _stopped(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _chat(client, kind, prompt, 200, stop=[f"w{number}" for number in (1, 12, 123, 50)])


async def _aborted(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _chat(client, kind, prompt, 400)


async def _whole(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    sent = now_ns()
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=tokens, extra_body={"ignore_eos": True}
    )
    assert answer.usage
    return [Call(kind, answer.id, [], answer.usage.completion_tokens, answer.usage.prompt_tokens, sent, now_ns())]


async def _completion(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _complete(client, kind, [prompt], tokens)


async def _prompts(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _complete(client, kind, [prompt, prompt + " w7"], tokens)


async def _complete(client: AsyncOpenAI, kind: str, prompts: list[str], tokens: int) -> list[Call]:
    sent = now_ns()
    answer = await client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=tokens, extra_body={"ignore_eos": True}
    )
    return [Call(kind, answer.id, [], tokens, len(prompt.split()), sent, now_ns()) for prompt in prompts]


async def _too_long(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    call = Call(kind, sent_ns=now_ns(), status="answered")
    try:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "w5 " * 2_000}], max_tokens=9
        )
    except APIStatusError as error:
        call.status = "error" if error.status_code == 400 else f"HTTP {error.status_code}"
    call.ended_ns = now_ns()
    return [call]
