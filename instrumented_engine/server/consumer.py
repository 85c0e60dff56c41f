"""The decode engine's side of the hand-over: it asks a prefill engine for the keys and values of prompts."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Sequence as Seq

from instrumented_engine.core.handover import KvLayout, Prefilled
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.request import Request
from instrumented_engine.server.frames import Answer, FrameError, Question, read_frame, write_frame
from instrumented_engine.settings import Settings
from tokentrail import RequestTrail, now_ns

logger = logging.getLogger(__name__)

BACK_OFF_S = 5.0
"""Seconds in which nobody asks a prefill engine that could not be reached, was too slow, or broke off."""


class NoHelp(Exception):
    """The prefill engine does not compute this prompt, for the reason of the message."""


class Consumer:
    """Asks the engine at `--kv-ip` and `--kv-port`, for at most `--max-seqs` prompts at a time."""

    def __init__(self, settings: Settings, observer: Observer) -> None:
        self._address = settings.kv_ip, settings.kv_port
        self._timeout_s = settings.kv_timeout_s
        self._observer = observer
        self._places = asyncio.Semaphore(settings.max_seqs)
        self._silent_until_s = 0.0

    async def prefill(self, request: Request, layout: KvLayout, *, step: int) -> Prefilled | None:
        """The keys and values of all tokens of a prompt but the last, behind which the first token is sampled here.

        None when the other engine could not help: then this one computes the prompt. The trace says why. Nobody is
        asked for a request with several prompts or with log-probabilities of its prompt, and for a prompt of one token.
        """
        trail, [leader, *others] = request.trail, request.leaders
        tokens = leader.token_ids[:-1]
        if others or not tokens or request.params.prompt_logprobs is not None:
            return None
        asked_ns = now_ns()
        try:
            if time.monotonic() < self._silent_until_s:
                raise NoHelp("backing_off")
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(tokens, trail, layout, asked_ns)
        except NoHelp as error:
            reason = str(error)
        except TimeoutError:
            reason = "timeout"
        except (OSError, EOFError, FrameError) as error:
            logger.warning("the prefill engine's answer cannot be used: %s", error)
            reason = "broken"
        if reason in ("timeout", "unreachable", "broken"):
            self._silent_until_s = time.monotonic() + BACK_OFF_S
        self._observer.hand_over_failed(trail, reason, step=step, start_ns=asked_ns, end_ns=now_ns())
        return None

    async def _ask(self, tokens: Seq[int], trail: RequestTrail, layout: KvLayout, asked_ns: int) -> Prefilled:
        question = Question(fingerprint=layout.fingerprint, handle=self._observer.lend(trail))
        nbytes = layout.nbytes(len(tokens))
        async with self._places:
            try:
                reader, writer = await asyncio.open_connection(*self._address)
            except OSError as error:
                logger.warning("the prefill engine cannot be reached: %s", error)
                raise NoHelp("unreachable") from error
            try:
                await write_frame(writer, question, array("I", tokens).tobytes())
                answer, contents = await read_frame(reader, Answer, nbytes)
            finally:
                writer.close()
        if answer.error:
            logger.warning("the prefill engine refuses a prompt: %s", answer.error)
            raise NoHelp("refused")
        if len(contents) != nbytes:
            raise FrameError(f"{len(contents)} bytes came, and {nbytes} were expected")
        return _within(answer, contents, len(tokens), asked_ns, now_ns())


def _within(answer: Answer, contents: bytes, num_tokens: int, asked_ns: int, received_ns: int) -> Prefilled:
    """The answer, with the stamps of another machine's clock moved into the time between question and answer."""
    started = min(max(answer.started_ns, asked_ns), received_ns)
    computed = min(max(answer.computed_ns, started), received_ns)
    return Prefilled(num_tokens, contents, started, computed, received_ns, answer.cached_tokens)
