"""Tells the trail of the engine's events. No other module of this package calls the trail."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from statistics import fmean

from instrumented_engine.core.handover import Prefilled
from instrumented_engine.core.latencies import Latencies
from instrumented_engine.core.plan import Plan, Transfer
from instrumented_engine.core.request import Request
from instrumented_engine.core.retry import Attempt
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.core.sequence import Output, Sequence
from tokentrail import ColdStart, KvEvent, Phase, RequestTrail, Status, Trail, TrailStats, semconv

MOST_NATS = 40.0
"""The largest mean surprise that is told; its perplexity is still within the numbers that a collector reads."""


class Observer:
    """One method per event, in the order of a request's life. All stamps are unix ns and come from the caller."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self.latencies = Latencies()
        self.hand_overs: Counter[str] = Counter()
        """Prompts that were sent to another engine, or asked of one, by the outcome."""
        self.hand_over_bytes = 0
        self._transferring: set[Request] = set()

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
        offloaded = {transfer.sequence for transfer in plan.offloads}
        for victim, blocks, beneficiary in plan.preempted:
            request = victim.request
            if not any(sequence.decoding for sequence in request.sequences):
                request.trail.phase(Phase.PREFILL if _running(request) else Phase.PREEMPTED, start_ns)
            if victim not in offloaded:
                self._trail.kv_event(
                    KvEvent.EVICT,
                    blocks=blocks,
                    reason="preemption",
                    step=step,
                    start_ns=start_ns,
                    request=request.trail,
                    beneficiary=beneficiary.request.trail,
                )
        if plan.dropped_blocks:
            self._trail.kv_event(
                KvEvent.EVICT, blocks=plan.dropped_blocks, reason="cache_full", step=step, start_ns=start_ns
            )
        for request in dict.fromkeys(sequence.request for sequence in plan.admitted):
            if _running(request) <= set(plan.admitted):
                if any(transfer.sequence.request is request for transfer in plan.restores):
                    self._transferring.add(request)
                    request.trail.phase(Phase.KV_TRANSFER, start_ns)
                else:
                    request.trail.phase(Phase.PREFILL, start_ns, tokens=_computed_again(request))
            request.scheduled_ns = request.scheduled_ns or start_ns
        self.latencies.cached_tokens += plan.cached_prompt_tokens
        self.latencies.preemptions += len(plan.preempted)

    def transferred(self, transfer: Transfer, moved_bytes: int, *, step: int, start_ns: int, end_ns: int) -> None:
        """Blocks of a preempted sequence went to the host, or came back: then it computes its newest token."""
        request, beneficiary = transfer.sequence.request, transfer.beneficiary
        self._trail.kv_event(
            KvEvent.OFFLOAD if transfer.to_host else KvEvent.RESTORE,
            blocks=len(transfer.host_blocks),
            reason="preemption" if transfer.to_host else "resumed",
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            request=request.trail,
            beneficiary=None if beneficiary is None else beneficiary.request.trail,
            moved_bytes=moved_bytes,
        )
        if not transfer.to_host and request in self._transferring:
            self._transferring.remove(request)
            request.trail.phase(Phase.PREFILL, end_ns, tokens=_computed_again(request))

    def taken_in(self, sequence: Sequence, prefilled: Prefilled, *, taken: bool, step: int) -> None:
        """Another engine computed a prompt; its keys and values arrived, and were kept unless the host had no room."""
        trail = sequence.request.trail
        trail.phase(Phase.PREFILL, prefilled.started_ns)
        trail.phase(Phase.KV_TRANSFER, prefilled.computed_ns)
        trail.phase(Phase.QUEUED, prefilled.received_ns)
        self.hand_overs["ok" if taken else "no_room"] += 1
        self.hand_over_bytes += len(prefilled.contents)
        self._trail.kv_event(
            KvEvent.RESTORE,
            blocks=len(sequence.host_blocks),
            reason="handed_over" if taken else "hand_over_no_room",
            step=step,
            start_ns=prefilled.computed_ns,
            end_ns=prefilled.received_ns,
            request=trail,
            moved_bytes=len(prefilled.contents),
        )

    def hand_over_failed(self, request: RequestTrail, reason: str, *, step: int, start_ns: int, end_ns: int) -> None:
        """Another engine was asked for a prompt from `start_ns` on, and this one computes it after all."""
        request.phase(Phase.KV_TRANSFER, start_ns)
        request.phase(Phase.QUEUED, end_ns)
        self.hand_overs[reason] += 1
        self._trail.kv_event(
            KvEvent.RESTORE,
            blocks=0,
            reason=f"hand_over_{reason}",
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            request=request,
        )

    def handed_over(self, request: Request, blocks: int, *, step: int, start_ns: int, end_ns: int) -> None:
        """A prompt was computed for another engine, which owns the request."""
        contents = b"" if request.prefilled is None else request.prefilled.contents
        self.hand_overs["sent"] += 1
        self.hand_over_bytes += len(contents)
        self._trail.kv_event(
            KvEvent.OFFLOAD,
            blocks=blocks,
            reason="handed_over",
            step=step,
            start_ns=start_ns,
            end_ns=end_ns,
            beneficiary=request.trail,
            moved_bytes=len(contents),
        )

    def lend(self, request: RequestTrail) -> str:
        """Text with which another engine names the request in its events."""
        return self._trail.lend(request)

    def borrow(self, handle: str) -> RequestTrail:
        """The request of another engine, by the text that its `lend` returned. It records nothing here."""
        return self._trail.take_over(handle)

    def decode_started(self, sequence: Sequence, at_ns: int) -> None:
        """A sequence got its first token, or its first one after a preemption."""
        sequence.request.trail.phase(Phase.DECODE, at_ns)

    def stepped(
        self, done: Attempt, outputs: Seq[Output], scheduler: Scheduler, *, step: int, start_ns: int, end_ns: int
    ) -> None:
        """A step ended. `scheduler` still holds the sequences that ended in it, and their blocks."""
        plan, manager = done.plan, scheduler.block_manager
        emitting = [output for output in outputs if output.num_tokens]
        for output in emitting:
            self.latencies.emitted(output, end_ns)
            _note_first_visible(output.sequence, end_ns)
        self._trail.step(
            step,
            start_ns,
            end_ns,
            [output.sequence.recipient for output in emitting],
            counts=[output.num_tokens for output in emitting],
            prefill_tokens=plan.prefill_tokens,
            decode_tokens=plan.decode_tokens,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preempted=len(plan.preempted),
            kv_used=manager.num_used_blocks if manager.num_blocks else None,
            kv_total=manager.num_blocks or None,
            kv_evicted=plan.evicted_blocks + plan.dropped_blocks,
            **_details(done),
        )

    def finished(self, request: Request, at_ns: int) -> None:
        """The last sequence of a request met a stop condition in the step that ended at `at_ns`."""
        self.latencies.ended(request, at_ns)
        request.trail.end(
            at_ns,
            finish_reasons=[sequence.finish_reason for sequence in request.sequences if sequence.num_output_tokens],
            input_tokens=request.num_prompt_tokens,
            cached_tokens=request.num_cached_tokens,
            reasoning_tokens=request.num_reasoning_tokens,
            attributes=_history(request),
        )

    def aborted(self, request: Request, at_ns: int, status: Status, *, error_type: str = "") -> None:
        """A request was ended before its time; one that has ended already stays as it is."""
        if not request.ended:
            self.latencies.finished["abort"] += 1
        request.trail.end(
            at_ns,
            status=status,
            error_type=error_type,
            input_tokens=request.num_prompt_tokens,
            cached_tokens=request.num_cached_tokens,
            reasoning_tokens=request.num_reasoning_tokens,
            attributes=_history(request),
        )

    @property
    def stats(self) -> TrailStats:
        """Spans accepted, exported, dropped and queued so far."""
        return self._trail.stats

    def close(self) -> bool:
        """Send the spans that are left; False when some could not be delivered in time."""
        return self._trail.shutdown()


def _computed_again(request: Request) -> int | None:
    """Tokens that the sequences of a request compute that was scheduled before; of the first time, the prompt tells."""
    if not request.scheduled_ns:
        return None
    return sum(len(one.token_ids) - one.num_computed_tokens for one in _running(request))


def _running(request: Request) -> set[Sequence]:
    """The sequences that have blocks."""
    return {sequence for sequence in request.sequences if sequence.block_table}


def _note_first_visible(sequence: Sequence, at_ns: int) -> None:
    """A step gave a sequence tokens: the first that is no reasoning may be among them."""
    request, reasoning = sequence.request, sequence.reasoning
    if reasoning is None or request.first_visible_ns:
        return
    if reasoning.ended and sequence.num_output_tokens > reasoning.num_tokens:
        request.first_visible_ns = at_ns


def _history(request: Request) -> dict[str, int | float]:
    """The request's waits by reason, its drafts, its perplexity and mean entropy, and the time to its first text."""
    waited = request.sequences[0].waited
    history: dict[str, int | float] = {semconv.WAIT_TIME_PREFIX + reason: ns for reason, ns in waited.items() if ns}
    if request.num_drafted_tokens:
        history[semconv.DRAFTED_TOKENS] = request.num_drafted_tokens
        history[semconv.ACCEPTED_TOKENS] = request.num_accepted_tokens
    told = [token for sequence in request.sequences for token in sequence.logprobs]
    if logprobs := [token.logprob for token in told if token.logprob is not None]:
        history[semconv.PERPLEXITY] = math.exp(min(-fmean(logprobs), MOST_NATS))
    if entropies := [token.entropy for token in told if token.entropy is not None]:
        history[semconv.MEAN_ENTROPY] = fmean(entropies)
    if request.first_visible_ns:
        history[semconv.TIME_TO_FIRST_VISIBLE_TOKEN] = (request.first_visible_ns - request.arrival_ns) / 1e9
    return history


def _details(done: Attempt) -> dict[str, int]:
    """Numbers that few steps have: the waiting sequences by reason, work that was saved, and attempts."""
    plan = done.plan
    details = {f"waiting_for_{reason}": count for reason, count in plan.waiting.items()}
    if plan.cached_tokens:
        details["cached_tokens"] = plan.cached_tokens
    if plan.drafted_tokens:
        details["drafted_tokens"] = plan.drafted_tokens
    if done.retries:
        details["retries"] = done.retries
    for name in ("graph_rows", "device_ns", "compute_ns", "memory_ns"):
        if (number := getattr(done.result, name)) is not None:
            details[name] = number
    return details
