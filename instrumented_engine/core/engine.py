"""The engine's loop body: schedule → run → postprocess. Telemetry enters here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from typing import Protocol

from instrumented_engine.core.scheduler import Plan, Scheduled, Scheduler
from instrumented_engine.core.sequence import Output, Sequence
from tokentrail import KvEvent, Phase, Status, Trail, now_ns


class Runner(Protocol):
    """What computes a batch: the model, or a stand-in for it."""

    def run(self, batch: Seq[Scheduled]) -> list[int | None]:
        """Compute the scheduled tokens of each sequence and sample where `Scheduled.samples`, else None."""
        ...


class Engine:
    """Owns the scheduler and the model runner; single-threaded. `step` must only be called while `busy`."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        trail: Trail,
        *,
        eos_ids: Collection[int],
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.scheduler = scheduler
        self.steps = 0
        self.preemptions = 0
        self._runner = runner
        self._trail = trail
        self._eos_ids = frozenset(eos_ids)
        self._clock = clock

    @property
    def busy(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.scheduler.add(sequence)

    def step(self) -> list[Output]:
        """Run one iteration and return what it gave to whom; a failed forward pass ends the requests of its batch."""
        start = self._clock()
        plan = self.scheduler.schedule()
        self._note(plan, start)
        try:
            tokens = self._runner.run(plan.batch)
        except Exception as error:
            self.end([item.sequence for item in plan.batch], Status.ERROR, error_type=type(error).__name__)
            raise StepError([item.sequence for item in plan.batch], error) from error
        end = self._clock()
        return self._postprocess(plan, tokens, start, end)

    def end(self, sequences: Seq[Sequence], status: Status, *, error_type: str = "") -> None:
        """End sequences before their time: free their blocks, close their trails."""
        now = self._clock()
        for sequence in sequences:
            self.scheduler.finish(sequence)
            sequence.trail.end(now, status=status, error_type=error_type, input_tokens=sequence.prompt_tokens)

    def _note(self, plan: Plan, start: int) -> None:
        self.preemptions += len(plan.preempted)
        for victim, blocks in plan.preempted:
            victim.trail.phase(Phase.PREEMPTED, start)
            self._trail.kv_event(
                KvEvent.EVICT,
                blocks=blocks,
                reason="preemption",
                step=self.steps,
                start_ns=start,
                request=victim.trail,
            )
        for sequence in plan.admitted:
            sequence.trail.phase(Phase.PREFILL, start)

    def _postprocess(self, plan: Plan, tokens: list[int | None], start: int, end: int) -> list[Output]:
        outputs = []
        for item, token in zip(plan.batch, tokens, strict=True):
            item.sequence.computed += item.count
            if token is not None:
                outputs.append(self._append(item.sequence, token, end))
        self._trail.step(
            self.steps,
            start,
            end,
            [output.sequence.trail for output in outputs],
            prefill_tokens=plan.prefill_tokens,
            decode_tokens=plan.decode_tokens,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            preempted=len(plan.preempted),
            kv_used=self.scheduler.pool.used,
            kv_total=self.scheduler.pool.total,
            kv_evicted=plan.evicted_blocks,
        )
        self.steps += 1
        for output in outputs:
            if output.final:
                sequence = output.sequence
                self.scheduler.finish(sequence)
                sequence.trail.end(end, finish_reason=output.finish_reason, input_tokens=sequence.prompt_tokens)
        return outputs

    def _append(self, sequence: Sequence, token: int, end: int) -> Output:
        if not sequence.decoding:
            sequence.decoding = True
            sequence.trail.phase(Phase.DECODE, end)
        sequence.tokens.append(token)
        params = sequence.params
        may_stop = sequence.generated >= params.min_tokens
        text, stopped = sequence.text.push(token, may_stop=may_stop)
        if stopped:
            return Output(sequence, text, "stop")
        if may_stop and token in self._eos_ids and not params.ignore_eos:
            return Output(sequence, text + sequence.text.flush(), "stop")
        if sequence.generated >= params.max_tokens:
            return Output(sequence, text + sequence.text.flush(), "length")
        return Output(sequence, text)


class StepError(Exception):
    """A forward pass failed: `sequences` were in its batch and have been ended."""

    def __init__(self, sequences: Seq[Sequence], cause: Exception) -> None:
        super().__init__(f"engine step failed: {type(cause).__name__}: {cause}")
        self.sequences = sequences
