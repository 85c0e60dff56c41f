"""The prefill engine's side of the hand-over: it computes prompts and sends their keys and values."""

from __future__ import annotations

import asyncio
import logging
import socket
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from instrumented_engine.core.handover import Prefilled
from instrumented_engine.server.errors import ApiError
from instrumented_engine.server.frames import Answer, FrameError, Question, read_frame, write_frame

logger = logging.getLogger(__name__)

QUESTION_S = 10.0
"""Seconds that a consumer has to send its question."""
MAX_CONNECTIONS = 1024
MAX_QUESTION_BYTES = 4 << 20
MAX_QUESTIONS_BYTES = 64 << 20
"""Of all questions that arrive, wait or are answered. A thousand of the largest would be 4 GiB."""

T = TypeVar("T")
Compute = Callable[[list[int], str, str], Awaitable[Prefilled]]
"""`compute(tokens, fingerprint, handle)`; raises ApiError when the prompt is refused."""


class Producer:
    """Listens for consumers. A consumer that closes its connection cancels its prompt."""

    def __init__(self, listener: socket.socket, compute: Compute, *, places: int, timeout_s: float) -> None:
        """At most so many prompts as there are `places` are computed or sent at a time, and each is sent in time."""
        self._listener = listener
        self._compute = compute
        self._places = asyncio.Semaphore(places)
        self._timeout_s = timeout_s
        self._room = MAX_QUESTIONS_BYTES
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to accept connections."""
        self._server = await asyncio.start_server(self._accept, sock=self._listener)
        logger.info("consumers of keys and values connect to %s:%d", *self._listener.getsockname()[:2])

    async def stop(self) -> None:
        """Close all connections."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MAX_CONNECTIONS:
                await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError) as error:
            if not isinstance(error, asyncio.CancelledError):  # then it was `stop`
                logger.info("a consumer left: %r", error)
            writer.transport.abort()  # `close` would keep what was not sent for as long as a consumer does not read
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        error: str | None = None
        with ExitStack() as held:
            try:
                async with asyncio.timeout(QUESTION_S):
                    question, payload = await read_frame(
                        reader, Question, MAX_QUESTION_BYTES, admit=lambda size: held.enter_context(self._taking(size))
                    )
                await self._answer(reader, writer, question, payload)
            except FrameError as refused:
                error = str(refused)
            except ApiError as refused:
                error = str(refused.detail)
        if error is not None:
            await self._send(writer, Answer(error=error))

    @contextmanager
    def _taking(self, size: int) -> Iterator[None]:
        """Hold so many bytes of the room for questions; raises FrameError when it is taken."""
        if size > self._room:
            raise FrameError(f"the prefill engine has questions of {MAX_QUESTIONS_BYTES >> 20} MiB already")
        self._room -= size
        try:
            yield
        finally:
            self._room += size

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Question, payload: bytes
    ) -> None:
        await self._unless_gone(reader, self._places.acquire())
        try:
            tokens = _ids(payload)  # here, since a list has nine times the bytes
            blocks = await self._unless_gone(reader, self._compute(tokens, question.fingerprint, question.handle))
            answer = Answer(
                started_ns=blocks.started_ns, computed_ns=blocks.computed_ns, cached_tokens=blocks.cached_tokens
            )
            await self._send(writer, answer, blocks.contents)
        finally:
            self._places.release()

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer, contents: bytes = b"") -> None:
        async with asyncio.timeout(self._timeout_s):
            await write_frame(writer, answer, contents)

    @staticmethod
    async def _unless_gone(reader: asyncio.StreamReader, work: Awaitable[T]) -> T:
        """Await `work`; raises EOFError, and cancels it, when the consumer is gone. It has nothing more to say."""
        working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise EOFError
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)


def _ids(payload: bytes) -> list[int]:
    if len(payload) % 4:
        raise FrameError("the token ids are not 32-bit numbers")
    return array("I", payload).tolist()
