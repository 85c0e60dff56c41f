"""One admitted request, between its handler and the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from instrumented_engine.core.request import Request
from instrumented_engine.core.sequence import Output
from instrumented_engine.model.tokenizer import Tokenizer
from instrumented_engine.server import errors
from tokentrail import RequestTrail


class Generation:
    """One admitted request. Its handler iterates `outputs` and always calls `close`, which calls `on_close` once."""

    def __init__(self, request_id: str, trail: RequestTrail, on_close: Callable[[Generation, str], None]) -> None:
        self.request_id = request_id
        self.trail = trail
        self.request: Request | None = None
        self.tokenizer: Tokenizer  # set with the request
        self.ended = False
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._on_close: Callable[[Generation, str], None] | None = on_close

    @property
    def headers(self) -> dict[str, str]:
        """Response headers with the ids that find the trace."""
        headers = {"traceparent": self.trail.traceparent, "x-request-id": self.request_id}
        return {name: value for name, value in headers.items() if value}

    def put(self, output: Output) -> None:
        """Receive an output; the service calls this for each one of the request."""
        self._queue.put_nowait(output)

    async def outputs(self) -> AsyncIterator[Output]:
        """Iterate the outputs, one per step and sequence. Raises ApiError when the engine fails."""
        assert self.request is not None
        running = len(self.request.sequences)
        while running:
            output = await self._queue.get()
            running -= output.final
            self.ended = not running or output.error is not None
            if output.error is not None:
                raise errors.step_failed(output.error)
            yield output

    def close(self, error_type: str = "") -> None:
        """Nobody iterates any more: unless it has ended, the request is cancelled, or fails with an `error_type`."""
        if self._on_close is not None:
            self._on_close(self, error_type)
            self._on_close = None
