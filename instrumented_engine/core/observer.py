"""Tells the trail what happens in the engine. No other module of this package calls the trail."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from instrumented_engine.core.scheduler import Plan, Scheduler
from instrumented_engine.core.sequence import Output, Sequence
from tokentrail import ColdStart, KvEvent, Phase, RequestTrail, Status, Trail, TrailStats


class Observer:
    """One method per event, in the order of a request's life. All stamps are unix ns and come from the caller."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def cold_start(self, model: str) -> ColdStart:
        """The engine loads; each phase of the returned context manager becomes a span."""
        return self._trail.cold_start(model)

    def arrived(
        self,
        at_ns: int,
        *,
        operation: str,
        model: str,
        request_id: str,
        headers: Mapping[str, str],
        attributes: Mapping[str, str | int | float | bool],
    ) -> RequestTrail:
        """A request arrived; it starts in the phase `queued`."""
        return self._trail.start_request(
            operation=operation,
            model=model,
            request_id=request_id,
            carrier=headers,
            arrival_ns=at_ns,
            tenant=headers.get("x-tokentrail-tenant", ""),
            slo_class=headers.get("x-tokentrail-slo-class", ""),
            attributes=attributes,
        )

    def waits_for_model(self, request: RequestTrail, at_ns: int) -> None:
        """A request came before the model was loaded."""
        request.phase(Phase.COLD_START, at_ns)

    def model_loaded(self, request: RequestTrail, at_ns: int) -> None:
        """The model that a request waited for is loaded, or could not be."""
        request.phase(Phase.QUEUED, at_ns)

    def rejected(self, request: RequestTrail, at_ns: int, status: Status, *, error_type: str = "") -> None:
        """A request ended before the engine had it."""
        request.end(at_ns, status=status, error_type=error_type)

    def scheduled(self, plan: Plan, step: int, start_ns: int) -> None:
        """The scheduler planned a step: some sequences were preempted, others admitted."""
        for victim, blocks in plan.preempted:
            victim.trail.phase(Phase.PREEMPTED, start_ns)
            self._trail.kv_event(
                KvEvent.EVICT, blocks=blocks, reason="preemption", step=step, start_ns=start_ns, request=victim.trail
            )
        for sequence in plan.admitted:
            sequence.trail.phase(Phase.PREFILL, start_ns)

    def decode_started(self, sequence: Sequence, at_ns: int) -> None:
        """A sequence got its first token, or its first one after a preemption."""
        sequence.trail.phase(Phase.DECODE, at_ns)

    def stepped(
        self, plan: Plan, outputs: Seq[Output], scheduler: Scheduler, *, step: int, start_ns: int, end_ns: int
    ) -> None:
        """A step ended. `scheduler` still holds the sequences that ended in it, and their blocks."""
        self._trail.step(
            step,
            start_ns,
            end_ns,
            [output.sequence.trail for output in outputs],
            counts=[output.num_tokens for output in outputs],
            prefill_tokens=plan.prefill_tokens,
            decode_tokens=plan.decode_tokens,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preempted=len(plan.preempted),
            kv_used=scheduler.block_manager.num_used_blocks,
            kv_total=scheduler.block_manager.num_blocks,
            kv_evicted=plan.evicted_blocks,
        )

    def finished(self, output: Output, at_ns: int) -> None:
        """A sequence met a stop condition in the step that ended at `at_ns`."""
        sequence = output.sequence
        sequence.trail.end(at_ns, finish_reason=output.finish_reason, input_tokens=sequence.num_prompt_tokens)

    def aborted(self, sequence: Sequence, at_ns: int, status: Status, *, error_type: str = "") -> None:
        """A sequence was ended before a stop condition was met; one that has ended already stays as it is."""
        sequence.trail.end(at_ns, status=status, error_type=error_type, input_tokens=sequence.num_prompt_tokens)

    @property
    def stats(self) -> TrailStats:
        """Spans accepted, exported, dropped and queued so far."""
        return self._trail.stats

    def close(self) -> bool:
        """Send the spans that are left; False when some could not be delivered in time."""
        return self._trail.shutdown()
