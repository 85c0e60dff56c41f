"""The engine: each step is schedule → run → postprocess."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import cast

from instrumented_engine.core.beams import Beams
from instrumented_engine.core.handover import Prefilled
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.plan import Plan
from instrumented_engine.core.request import Request
from instrumented_engine.core.retry import Attempt, CachingRunner, Runner, attempt
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.core.sequence import Output, Sequence
from instrumented_engine.core.waits import account
from tokentrail import Status, now_ns

logger = logging.getLogger(__name__)


class Engine:
    """Owns the scheduler and the runner. Belongs to one thread; call `step` only while `busy`."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        observer: Observer,
        *,
        eos_ids: Collection[int],
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.scheduler = scheduler
        self.steps = 0
        self._runner = runner
        self._observer = observer
        self._eos_ids = frozenset(eos_ids)
        self._clock = clock

    @property
    def busy(self) -> bool:
        """Whether a sequence is waiting or running."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, request: Request) -> None:
        """Queue a request."""
        if request.prefilled is not None:
            self._take_in(request.sequences[0], request.prefilled)
            request.prefilled = None  # its bytes are on the host already, or of no use
        self.scheduler.add(request)

    def step(self) -> list[Output]:
        """Run one iteration and return its outputs: an error for a request if its tokens cannot be computed.

        Raises when the device can compute nothing at all, and when nothing can be scheduled.
        """
        start = self._clock()
        plan = self.scheduler.schedule()
        if not plan.batch and not plan.preempted:
            raise RuntimeError("no sequence can be scheduled, so no step would ever change anything")
        plan.waiting = account(self.scheduler, plan, start)
        self._observer.scheduled(plan, self.steps, start)
        self._transfer(plan)
        done = attempt(self._runner, plan)
        if done.failed and not done.plan.batch:
            self._probe()
        end = self._clock()
        return [*self._fail(done), *self._postprocess(done, start, end)]

    def abort(self, requests: Iterable[Request], status: Status, *, error_type: str = "") -> None:
        """End requests before their time: free their blocks and close their trails."""
        now = self._clock()
        for request in requests:
            for sequence in request.sequences:
                self.scheduler.finish(sequence)
                sequence.waits_for(None, now)
            self._observer.aborted(request, now, status, error_type=error_type)
            for sequence in request.sequences:
                sequence.finish_reason = sequence.finish_reason or "abort"

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended."""
        sequences = [*self.scheduler.running, *self.scheduler.waiting]
        return list(dict.fromkeys(sequence.request for sequence in sequences))

    @property
    def _cache(self) -> CachingRunner:
        """The runner of a model with a KV cache. Nothing is scheduled to move for others."""
        return cast("CachingRunner", self._runner)

    def _take_in(self, sequence: Sequence, prefilled: Prefilled) -> None:
        """Keep the keys and values that another engine computed, if the host has room for them."""
        taken = self.scheduler.take_in(sequence, prefilled.num_tokens)
        if taken:
            self._cache.write(sequence.host_blocks, prefilled.contents)
            sequence.num_cached_tokens = prefilled.cached_tokens
        self._observer.taken_in(sequence, prefilled, taken=taken, step=self.steps)

    def _hand_over(self, sequence: Sequence, computed_ns: int) -> None:
        """Read the keys and values of a prompt, for the engine that asked for them."""
        request = sequence.request
        began = self._clock()
        blocks = sequence.block_table[: -(-sequence.num_prompt_tokens // self.scheduler.block_manager.block_size)]
        request.prefilled = Prefilled(
            sequence.num_prompt_tokens,
            self._cache.read(blocks),
            started_ns=request.scheduled_ns,
            computed_ns=computed_ns,
            cached_tokens=request.num_cached_tokens,
        )
        self._observer.handed_over(request, len(blocks), step=self.steps, start_ns=began, end_ns=self._clock())

    def _transfer(self, plan: Plan) -> None:
        """Move blocks between device and host, before the step overwrites or reads them."""
        for one in (*plan.offloads, *plan.restores):
            sources, targets = one.device_blocks, one.host_blocks
            if not one.to_host:
                sources, targets = targets, sources
            began = self._clock()
            moved = self._cache.transfer(sources, targets, to_host=one.to_host)
            self._observer.transferred(one, moved, step=self.steps, start_ns=began, end_ns=self._clock())

    def _probe(self) -> None:
        """Raise if the device cannot compute anything. One that has no memory left may have some again later."""
        try:
            self._runner.warm_up()
        except MemoryError as error:
            logger.warning("the device has no memory left: %s", error)

    def _fail(self, done: Attempt) -> list[Output]:
        """End these requests with an error: their tokens could not be computed."""
        for request, error in done.failed.items():
            self.abort([request], Status.ERROR, error_type=type(error).__name__)
        return [Output(request.sequences[0], error=error) for request, error in done.failed.items()]

    def _postprocess(self, done: Attempt, start: int, end: int) -> list[Output]:
        outputs = []
        plan, result = done.plan, done.result
        for item, sampled in zip(plan.batch, result.token_ids, strict=True):
            sequence = item.sequence
            if (prompt := result.prompt_logprobs.get(sequence)) is not None:
                sequence.prompt_logprobs[sequence.num_computed_tokens :] = prompt
            sequence.num_computed_tokens += item.num_scheduled_tokens
            if sampled:
                sequence.num_drafted_tokens += len(item.draft)
                sequence.num_accepted_tokens += len(sampled) - 1
                if not sequence.decoding:
                    self._start_decoding(sequence, end)
                if sequence.beams is not None:
                    sequence.beams.found(sequence, result.logprobs[sequence][0].top)
                else:
                    outputs.append(sequence.extend(sampled, self._eos_ids, result.logprobs.get(sequence, ())))
            elif (embedding := result.embeddings.get(sequence)) is not None:
                outputs.append(sequence.encoded(embedding))
            self.scheduler.computed(sequence)
        for beams in dict.fromkeys(item.sequence.beams for item in plan.batch):
            if beams is not None and beams.ready:
                outputs += self._advance(beams)
        self._observer.stepped(done, outputs, self.scheduler, step=self.steps, start_ns=start, end_ns=end)
        self.steps += 1
        final = [output.sequence for output in outputs if output.final]
        for sequence in final:
            if sequence.request.hands_over:
                self._hand_over(sequence, end)
            self.scheduler.finish(sequence)
        for request in dict.fromkeys(sequence.request for sequence in final):
            if request.ended:
                self._observer.finished(request, end)
        return outputs

    def _advance(self, beams: Beams) -> list[Output]:
        eos_ids = frozenset() if beams.live[0].params.ignore_eos else self._eos_ids
        outputs = beams.advance(self.scheduler.block_manager, eos_ids)
        self.scheduler.run(beams.live)
        return outputs

    def _start_decoding(self, sequence: Sequence, at_ns: int) -> None:
        sequence.decoding = True
        self._observer.decode_started(sequence, at_ns)
        if not sequence.num_output_tokens and sequence.beams is None:
            self.scheduler.add_followers(sequence)
