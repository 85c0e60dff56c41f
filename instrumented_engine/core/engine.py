"""The engine: each step is schedule → run → postprocess."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from typing import Protocol

from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Plan, Scheduled, Scheduler
from instrumented_engine.core.sequence import Output, Sequence
from tokentrail import Status, now_ns


class Runner(Protocol):
    """Computes a batch: the model, or a stand-in for it in tests."""

    def run(self, batch: Seq[Scheduled]) -> list[list[int]]:
        """Compute the scheduled tokens of each sequence, and return the tokens that follow them, in batch order.

        A sequence gets none unless `Scheduled.samples`; then it gets one, or several from a runner that speculates.
        Such a runner has stored the keys and values of all but the last of them in the sequence's blocks.
        """
        ...


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

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.scheduler.add(sequence)

    def step(self) -> list[Output]:
        """Run one iteration and return its outputs. Raises StepError when the forward pass fails."""
        start = self._clock()
        plan = self.scheduler.schedule()
        self._observer.scheduled(plan, self.steps, start)
        token_ids = self._run(plan)
        end = self._clock()
        return self._postprocess(plan, token_ids, start, end)

    def abort(self, sequences: Seq[Sequence], status: Status, *, error_type: str = "") -> None:
        """End sequences before their time: free their blocks and close their trails."""
        now = self._clock()
        for sequence in sequences:
            self.scheduler.finish(sequence)
            self._observer.aborted(sequence, now, status, error_type=error_type)

    def _run(self, plan: Plan) -> list[list[int]]:
        try:
            return self._runner.run(plan.batch)
        except Exception as error:
            sequences = [item.sequence for item in plan.batch]
            self.abort(sequences, Status.ERROR, error_type=type(error).__name__)
            raise StepError(sequences, error) from error

    def _postprocess(self, plan: Plan, token_ids: list[list[int]], start: int, end: int) -> list[Output]:
        outputs = []
        for item, sampled in zip(plan.batch, token_ids, strict=True):
            sequence = item.sequence
            sequence.num_computed_tokens += item.num_scheduled_tokens
            if not sampled:
                continue
            if not sequence.decoding:
                sequence.decoding = True
                self._observer.decode_started(sequence, end)
            outputs.append(sequence.extend(sampled, self._eos_ids))
        self._observer.stepped(plan, outputs, self.scheduler, step=self.steps, start_ns=start, end_ns=end)
        self.steps += 1
        for output in outputs:
            if output.final:
                self.scheduler.finish(output.sequence)
                self._observer.finished(output, end)
        return outputs


class StepError(Exception):
    """A forward pass failed. `sequences` were in its batch and have been aborted."""

    def __init__(self, sequences: Seq[Sequence], cause: Exception) -> None:
        super().__init__(f"engine step failed: {type(cause).__name__}: {cause}")
        self.sequences = sequences
