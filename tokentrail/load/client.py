"""Sends planned requests and times their responses with the client's own clock.

The collector's numbers are checked against these observations.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import openai

from tokentrail.load.workload import PlannedRequest


@dataclass(slots=True)
class Observation:
    """One request, timed by its client. Times are unix nanoseconds of the client's clock. Tokens are None when the
    answer did not tell them.

    `chunks_ns`: arrival of each chunk that carried text, or ended the output. `status`: ok, error or cancelled.
    """

    slo_class: str
    sent_ns: int
    request_id: str = ""
    chunks_ns: list[int] = field(default_factory=list)
    ended_ns: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    status: str = "ok"
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first chunk; None when there was none."""
        return (self.chunks_ns[0] - self.sent_ns) / 1e9 if self.chunks_ns else None

    @property
    def e2e_s(self) -> float:
        """Seconds to the last chunk, or to the failure."""
        return ((self.chunks_ns[-1] if self.chunks_ns else self.ended_ns) - self.sent_ns) / 1e9

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for fewer than two tokens."""
        if self.output_tokens is None or self.output_tokens < 2 or not self.chunks_ns:
            return None
        return (self.chunks_ns[-1] - self.chunks_ns[0]) / 1e9 / (self.output_tokens - 1)

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types, for a log with one object per line."""
        return asdict(self)


async def observe(
    client: openai.AsyncOpenAI, model: str, planned: PlannedRequest, *, cancel_after: int | None = None
) -> Observation:
    """Send one streaming chat request and time its chunks. An error of server or network becomes status `error`, and
    so does an answer that is broken or tells no end.

    A cancellation of the task ends the request and becomes status `cancelled`; it is not raised again.
    `cancel_after` closes the connection after that many chunks, as a user does who stops an answer.
    """
    seen = Observation(slo_class=planned.slo_class, sent_ns=time.time_ns())
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": planned.prompt}],
            max_tokens=planned.max_tokens,
            temperature=planned.temperature,
            seed=planned.seed,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-tokentrail-slo-class": planned.slo_class},
            extra_body={"ignore_eos": True} if planned.ignore_eos else None,
        )
        async with stream:
            async for chunk in stream:
                now = time.time_ns()
                seen.request_id = chunk.id or seen.request_id
                if chunk.usage:
                    seen.input_tokens, seen.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                for choice in chunk.choices:
                    if choice.delta.content or choice.finish_reason:
                        seen.chunks_ns.append(now)
                    seen.finish_reason = choice.finish_reason or seen.finish_reason
                if cancel_after is not None and len(seen.chunks_ns) >= cancel_after:
                    seen.status = "cancelled"
                    break
        if seen.status == "ok" and not seen.finish_reason:
            seen.status, seen.error = "error", "the answer ended without a finish reason"
    except Exception as failure:  # openai's errors, and others where an event is no JSON or no chunk
        seen.status, seen.error = "error", f"{type(failure).__name__}: {failure}"
    except asyncio.CancelledError:
        seen.status = "cancelled"
    seen.ended_ns = time.time_ns()
    return seen


async def run(
    base_url: str,
    model: str,
    requests: Iterable[PlannedRequest],
    *,
    on_observation: Callable[[Observation], None],
    send: Callable[[openai.AsyncOpenAI, str, PlannedRequest], Awaitable[Observation]] = observe,
) -> None:
    """Send each request at its time, also while earlier ones are unanswered (an open loop, as independent users are).

    Returns when all are answered. Cancelling it cancels the requests in flight, which are observations too.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with (
        openai.DefaultAsyncHttpxClient(trust_env=False) as http,  # no proxy: the server is on this machine
        openai.AsyncOpenAI(
            base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=600, http_client=http
        ) as client,
        asyncio.TaskGroup() as group,
    ):

        async def one(planned: PlannedRequest) -> None:
            on_observation(await send(client, model, planned))

        for planned in requests:
            await asyncio.sleep(max(0.0, start + planned.at_s - loop.time()))
            group.create_task(one(planned))
