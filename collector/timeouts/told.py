"""The sentences of `/timeouts`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from collector.timeouts.answer import OF, EvidentTimeout, Hedging, ShareOut, TimeoutGroup, TimeoutPoint, WaitOut
from collector.timeouts.waits import SILENT
from tokentrail.shared.formatting import count, duration, percent, share_interval

_HELPS: Final = 0.95
"""A second request that leaves more of the P99 does not help."""


def told(
    wait: WaitOut, kill: float, nearest: tuple[float, TimeoutPoint] | None, present: Sequence[TimeoutPoint]
) -> str:
    """What is suggested for a wait, or why nothing is, and what its clients have set.

    `nearest`: a larger share for which a time-out is decided, with that one. `present`: what those in use do.
    """
    parts = [_undecided(wait, kill, nearest) if wait.suggested is None else _does(wait, wait.suggested)]
    parts += [text for old, is_set in zip(present, wait.evident, strict=True) for text in _set(wait, old, is_set)]
    return f"{OF[wait.wait]}: {'; '.join(parts)}"


def _does(wait: WaitOut, point: TimeoutPoint) -> str:
    text = f"{duration(point.timeout_s)} cuts {_interval(point.healthy_cut)} of the healthy requests"
    if point.dead_caught is not None:
        text += f" and catches {percent(point.dead_caught.share or 0.0)} of {_of_dead(wait)}"
    return text


def _of_dead(wait: WaitOut) -> str:
    return "the one dead" if wait.dead == 1 else f"{count(wait.dead)} dead ones"


def _interval(share: ShareOut) -> str:
    return share_interval(share.share, share.low, share.high)


def _undecided(wait: WaitOut, kill: float, nearest: tuple[float, TimeoutPoint] | None) -> str:
    if not wait.answered:
        others = {"were given up or go on": wait.censored, "are dead": wait.dead}
        told = ", ".join(f"{count(n)} {what}" for what, n in others.items() if n)
        why = f"no request was answered ({told or 'errors came at once'})"
    elif wait.more_requests:
        why = f"{count(wait.more_requests)} more requests would tell ({count(wait.answered)} were answered)"
    else:
        why = f"the longest waits were broken off ({count(wait.censored)} were), and none tells how long they would be"
    text = f"not decided which time-out cuts {percent(kill)}: {why}"
    if nearest is not None:
        text += f"; for {percent(nearest[0])}, {_does(wait, nearest[1])}"
    return text


def _set(wait: WaitOut, old: TimeoutPoint, is_set: EvidentTimeout) -> Iterator[str]:
    text = f"{count(is_set.requests)} requests were given up at {duration(is_set.timeout_s)}, a client's time-out"
    if is_set.would_have is None and wait.longest_s is not None and is_set.timeout_s > SILENT * wait.longest_s:
        yield f"{text}: they count as dead, for no other waited half as long and was answered"
    elif is_set.would_have is None:
        yield f"{text}: too few others waited longer to tell what would have become of them"
    else:
        text += f": {_interval(is_set.would_have)} of them would have been answered"
        yield f"{text}, most within {duration(is_set.within_s)}" if is_set.within_s is not None else text
    if (new := wait.suggested) is not None and old.dead_caught is not None and new.timeout_s < is_set.timeout_s:
        costs = duration(is_set.timeout_s - new.timeout_s)
        yield f"that catches {percent(old.dead_caught.share or 0.0)} of the dead, and costs {costs} more for each"


def told_of_hedging(one: Hedging) -> str:
    """What a second request does."""
    whom = one.to if one.to in ("same process", "another process") else f"model {one.to}"
    whom = whom.replace("same process", "the same process")
    before, after, low, high = map(_s, (one.p99.before_s, one.p99.after_s, one.p99_low_s, one.p99_high_s))
    text = f"a second request to {whom} after {duration(one.after_s)}"
    if not helps(one):
        text += f" would not help: P99 of the {OF[one.wait]} {before} → {after}"
    else:
        text += f": P99 of the {OF[one.wait]} {before} → {after} ({low} to {high})"
    return f"{text} for {percent(one.more_requests)} more requests; {percent(one.shared)} of the slowness is shared"


def helps(one: Hedging) -> bool:
    """Whether the P99 falls, and not by chance."""
    before, after, high = one.p99.before_s, one.p99.after_s, one.p99_high_s
    if after is None:
        return False
    return before is None or (after < _HELPS * before and high is not None and high < before)


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else duration(seconds)


def summary_of(groups: Sequence[TimeoutGroup]) -> str:
    """The sentence of the whole answer."""
    if not groups:
        return "no request began in this time"
    waits = [wait for group in groups for wait in group.waits]
    decided = sum(wait.suggested is not None for wait in waits)
    kinds = "one kind" if len(groups) == 1 else f"{len(groups)} kinds"
    text = f"{kinds} of requests: {decided} of {len(waits)} waits have a time-out that is decided"
    is_set = sum(len(wait.evident) for wait in waits)
    return f"{text}; {is_set} that clients evidently use" if is_set else text
