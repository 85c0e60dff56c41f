"""What an answer of `/explain` lacks, and why."""

from __future__ import annotations

from collections.abc import Sequence

from collector.causes.answer.answer import LevelOut
from collector.causes.answer.holders import Held
from collector.causes.answer.request_times import Rows
from collector.causes.answer.typical import TypicalOfModels
from tokentrail.shared.formatting import percent

_LATE = "it takes up to two minutes, and longer after an outage; a collector with --explain false explains none"


def missing(chosen: int, explained: int, levels: Sequence[LevelOut]) -> str | None:
    """Of how many chosen requests the causes are not known, of so many whose causes were read."""
    if explained and all(level.level == "none" for level in levels):
        more = f". {levels[0].more}" if levels[0].more else ""
        return f"the engines tell neither phases nor steps of these requests{more}"
    if not (n := chosen - explained):
        return None
    if explained:
        return f"{n} of {chosen} requests are not explained yet: {_LATE}"
    return f"none of these {chosen} requests is explained yet: {_LATE}"


def compared(rows: Rows, typical: TypicalOfModels | None, *, with_good: bool) -> str | None:
    """What typical requests are not as usual."""
    if not rows.n:
        return None
    if typical is None:
        kind = "good request of the time and of the day before it" if with_good else "request"
        return f"no {kind} is explained, so nothing is known of what is typical"
    others = round(float(rows.weight[~typical.knows(rows.rows["model"])].sum()))
    if not others:
        return None
    return f"{others} requests are compared with other models, since no good one of their own is known"


def places(held: Held) -> str | None:
    """Of whom nobody tells when they got a place, where tenants are named that had places."""
    if not held.tenants or not held.not_told:
        return None
    of = f"of {percent(held.not_told)} of the requests that ran meanwhile nobody tells when they got a place"
    return f"{of}: each counts from its first token on"
