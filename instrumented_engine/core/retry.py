"""Computes a plan although parts of it fail: in halves, until the request at fault stands alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol

from instrumented_engine.core.plan import Plan, Scheduled, StepResult
from instrumented_engine.core.request import Request

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes plans: the model, or a stand-in for it in tests."""

    def run(self, plan: Plan) -> StepResult:
        """Compute the scheduled tokens of each sequence, and sample those that follow them.

        Raises MemoryError when the device has too little memory for the plan. A plan that failed can be run again.
        """
        ...

    def warm_up(self) -> None:
        """Compute some tokens that belong to no sequence. The contents of the cache stay as they are."""
        ...


class CachingRunner(Runner, Protocol):
    """A runner of a model with a KV cache."""

    def transfer(self, sources: Seq[int], targets: Seq[int], *, to_host: bool) -> int:
        """Copy blocks of the KV cache from the device to the host, or back; return the bytes."""
        ...

    def read(self, blocks: Seq[int]) -> bytes:
        """The contents of blocks of the device, for another engine."""
        ...

    def write(self, host_blocks: Seq[int], contents: bytes) -> None:
        """Fill blocks of the host with the contents of blocks of another engine."""
        ...


@dataclass(slots=True)
class Attempt:
    """The part of a plan that was computed, with its result, and the requests that failed.

    `retries` is the number of forward passes that failed.
    """

    plan: Plan
    result: StepResult
    failed: dict[Request, Exception] = field(default_factory=dict)
    retries: int = 0


# A batch of a, b, c and d, where c cannot be computed: {a b c d} fails, {a b} is computed, {c d} fails, {c} fails
# alone and so c's request does, {d} is computed. With too little memory for more than 512 tokens at once, a prompt of
# 2,000 fails, then its first 1,000, then 500 are computed. The next steps schedule the rest.
def attempt(runner: Runner, plan: Plan) -> Attempt:
    """Run a plan. The parts that fail are tried again in halves."""
    done = Attempt(plan, StepResult([]))
    computed: list[Scheduled] = []
    parts = [plan]
    while parts:
        part = parts.pop()
        try:
            result = runner.run(part)
        except Exception as error:
            failure = _without_frames(error, part)
        else:
            computed += part.batch
            done.result.add(result)
            continue
        done.retries += 1
        if smaller := _smaller(part.batch, failure):
            parts += [plan.part(batch) for batch in reversed(smaller)]
        else:
            done.failed[part.batch[0].sequence.request] = failure
    if done.retries:
        kept = [item.sequence.request not in done.failed for item in computed]
        done.plan = plan.part(list(compress(computed, kept)))
        done.result.token_ids[:] = compress(done.result.token_ids, kept)
    return done


def _smaller(batch: list[Scheduled], error: Exception) -> list[list[Scheduled]]:
    """The parts in which a batch that failed is tried next; none if it cannot be smaller.

    Only a lack of memory can be cured by fewer tokens of one sequence: its draft goes first.
    """
    if len(batch) > 1:
        half = len(batch) // 2
        return [batch[:half], batch[half:]]
    [item] = batch
    if not isinstance(error, MemoryError) or item.num_rows == 1:
        return []
    tokens = item.num_scheduled_tokens if item.draft else item.num_scheduled_tokens // 2
    return [[Scheduled(item.sequence, tokens)]]


def _without_frames(error: Exception, part: Plan) -> Exception:
    """Log a failure; return it without its traceback: the frames would keep its tensors during the next attempt."""
    alone = len(part.batch) == 1
    logger.warning("%d tokens could not be computed: %r", part.num_tokens, error, exc_info=error if alone else None)
    return error.with_traceback(None)
