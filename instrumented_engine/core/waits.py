"""Names the lack of each waiting sequence, and adds up its times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from instrumented_engine.core.plan import Plan
from tokentrail.semconv import Wait

if TYPE_CHECKING:
    from instrumented_engine.core.scheduler import Scheduler
    from instrumented_engine.core.sequence import Sequence


def account(scheduler: Scheduler, plan: Plan, now_ns: int) -> Counter[Wait]:
    """Book the wait of each sequence up to a plan that was made at `now_ns`; count those that wait, by reason.

    step 0, at 10 ms: "a" is admitted, "b" waits for a place in the batch
    step 1, at 30 ms: "b" waits for blocks             "b" has waited 20 ms for the batch
    step 2, at 70 ms: "b" is admitted                  … and 40 ms for blocks
    """
    for sequence in plan.admitted:
        sequence.waits_for(None, now_ns)
    waits: Counter[Wait] = Counter()
    for sequence, reason in _reasons(scheduler, plan):
        if sequence.wait is not reason:
            sequence.waits_for(reason, now_ns)
        waits[reason] += 1
    return waits


def _reasons(scheduler: Scheduler, plan: Plan) -> Iterator[tuple[Sequence, Wait]]:
    """Each waiting sequence and its reason: a later arrival goes first, or else the reason of the queue's first."""
    if plan.wait is None:
        return
    first = scheduler.waiting[0]
    ahead = [sequence.arrival for sequence in scheduler.running if sequence.order < first.order]
    newest = max(ahead, default=first.arrival)
    for sequence in scheduler.waiting:
        yield sequence, Wait.PRIORITY if newest > sequence.arrival else plan.wait
        newest = max(newest, sequence.arrival)
