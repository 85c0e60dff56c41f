"""Moments in which a service began to have, or no longer had, a model, variant or process, and in which an SLO changed.

A change is one in every window that has it: what is told depends on the requests around a moment and not on the window.

    v1 ──────────────────────┐       v2 is first seen, and gone     ┌─ v1 is back
    v2              ┌────────────────┐
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import sqrt
from operator import itemgetter
from typing import Final, Literal
from urllib.parse import urlencode

from collector.ask.slices import slices
from collector.ask.times import DAY_NS, MINUTE_NS, rfc3339
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.slo.counts import Number
from tokentrail.shared.moments import parse_moment

_LOOK_BACK_NS: Final = DAY_NS
"""The day before the window tells what a service had. Of what is older, one query asks."""
_BLOCK_NS: Final = 600_000_000_000
"""numbers/queries/changes.sql"""
_ABSENT_NS: Final = 6 * _BLOCK_NS
"""A value that a service lacked for so long, while it had other requests, was gone."""
_BEGINNING_NS: Final = MINUTE_NS
"""What a new service has within so long is what it begins with: its second model is no change."""
_LEAST_OF_SHARE: Final = 10
"""Requests in a block that tell which value most have."""
_MOST_BLOCKS: Final = 6
"""Blocks, at most, in which a value shows that it has most requests."""
_BEYOND_CHANCE: Final = 4.0
"""Standard errors of a share of one half."""
_ABOUT_HALF: Final = 0.55
"""What had more of the requests of the hour before has them as it did."""
_DIMENSIONS: Final[dict[int, Literal["model", "variant", "process"]]] = {
    0b011: "model",
    0b101: "variant",
    0b110: "process",
}

Kind = Literal["first seen", "back", "gone", "most", "redefined"]


class Change(Answer):
    """A value of a service that came, went or became that of most requests, or another definition of an SLO."""

    kind: Kind
    """`most`: more than half of the requests have it from then on; `redefined`: an SLO."""
    at: str
    """When its first request began, or its last one if it is gone, or the collector took the SLO file."""
    service: str
    """Empty for an SLO."""
    dimension: Literal["model", "variant", "process", "slo"]
    slo: str | None
    """The name of the SLO."""
    value: str
    """Of an SLO its promise in words, with its hash; empty for one that is gone."""
    requests: Number | None
    """Requests with this value up to the end of the window; null for an SLO."""
    before: list[str]
    """The values of the service up to then; of processes none, since they come and go. Of an SLO the one before."""
    compare: str
    """Parameters of `/compare` for the hour before and the hour after it."""


class Changes(Answer):
    """`/changes`."""

    window: WindowOut
    changes: list[Change]
    """The earliest first."""


@dataclass(frozen=True)
class _Block:
    """The requests of a value in ten minutes."""

    number: int
    first_ns: int
    last_ns: int
    n: int


Blocks = Mapping[str, Sequence[_Block]]
"""By value, in ascending order."""


@dataclass(frozen=True)
class _Moment:
    kind: Kind
    at_ns: int
    value: str


def changes(reader: Reader, window: Window) -> Changes:
    """The changes of a window. The first values of a service that had no request before are none.

    Filters are about requests, so they leave no SLO out.
    """
    found: list[tuple[str, int, _Moment, Blocks]] = []
    for (service, bits), blocks in _read(reader, window).items():
        moments = _processes(blocks) if _DIMENSIONS[bits] == "process" else [*_comings(blocks), *_most(blocks)]
        found += [(service, bits, one, blocks) for one in moments if window.start_ns <= one.at_ns < window.end_ns]
    older = _had_before(reader, window, found)
    services_before = {service for service, _, _ in older}
    all_changes = [*_of_slos(reader, window)]
    for service, bits, one, blocks in found:
        first_ns = min(block[0].first_ns for block in blocks.values())
        is_older = (service, bits, one.value) in older
        is_first = one.kind == "first seen"
        if is_first and service not in services_before and one.at_ns - first_ns < _BEGINNING_NS:
            continue  # the service begins
        if is_first and is_older and one.at_ns == first_ns:
            continue  # it goes on as it was
        if _DIMENSIONS[bits] == "process" and is_older:
            continue
        kind = "back" if one.kind == "first seen" and is_older else one.kind
        all_changes.append(_told(kind, service, bits, one, blocks, window))
    all_changes.sort(key=lambda one: parse_moment(one.at).ns)
    return Changes(window=WindowOut.of(window, reader.complete_ns), changes=all_changes)


def _told(kind: Kind, service: str, bits: int, one: _Moment, blocks: Blocks, window: Window) -> Change:
    at, dimension = rfc3339(one.at_ns), _DIMENSIONS[bits]
    before = sorted(
        (some[0].first_ns, value)
        for value, some in blocks.items()
        if value != one.value and some[0].first_ns < one.at_ns
    )
    return Change(
        kind=kind,
        at=at,
        service=service,
        dimension=dimension,
        slo=None,
        value=one.value,
        requests=sum(block.n for block in blocks[one.value] if block.last_ns >= window.start_ns),
        before=[] if dimension == "process" else [value for _, value in before][-10:],
        compare=urlencode({"at": at, "span": "1h", "service": service}),
    )


def _processes(blocks: Blocks) -> list[_Moment]:
    return [_Moment("first seen", of[0].first_ns, value) for value, of in blocks.items()]


def _comings(blocks: Blocks) -> Iterator[_Moment]:
    """When each value is first seen, gone, and back."""
    latest_ns = max(of[-1].last_ns for of in blocks.values())
    for value, of in blocks.items():
        yield _Moment("first seen", of[0].first_ns, value)
        others = sorted(one.first_ns for other, its in blocks.items() if other != value for one in its)
        for one, after in pairwise(of):
            is_apart = after.first_ns - one.last_ns >= _ABSENT_NS
            if is_apart and any(one.last_ns < at < after.first_ns - _BLOCK_NS for at in others):
                yield _Moment("gone", one.last_ns, value)
                yield _Moment("back", after.first_ns, value)
        if latest_ns - of[-1].last_ns >= _ABSENT_NS:
            yield _Moment("gone", of[-1].last_ns, value)


def _most(blocks: Blocks) -> Iterator[_Moment]:
    """When another value becomes that of more than half of the requests, for more than a block.

    Where it is first seen or back in the block before or in this one, that is told alone.
    """
    totals: dict[int, int] = defaultdict(int)
    for of in blocks.values():
        for one in of:
            totals[one.number] += one.n
    has_most = sorted(
        (one.number, value, one)
        for value, of in blocks.items()
        for one in of
        if totals[one.number] >= _LEAST_OF_SHARE and 2 * one.n > totals[one.number]
    )
    came = {value: [one.at_ns for one in _comings({**blocks}) if one.value == value] for value in blocks}
    had: str | None = None
    for place, (number, value, first) in enumerate(has_most):
        if value == had:
            continue
        same = takewhile(itemgetter(0), ((its == value, one) for _, its, one in has_most[place:][:_MOST_BLOCKS]))
        run = [one for _, one in same]
        if _is_most(run, totals):
            is_new = any(0 <= first.first_ns - at < 2 * _BLOCK_NS for at in came[value])
            before = range(number - _MOST_BLOCKS, number)
            had_n = sum(one.n for one in blocks[value] if one.number in before)
            total = sum(totals.get(earlier, 0) for earlier in before)
            if not is_new and (had is not None or 0 < had_n <= _ABOUT_HALF * total):
                yield _Moment("most", first.first_ns, value)
            had = value


def _is_most(run: Sequence[_Block], totals: Mapping[int, int]) -> bool:
    """Tell whether a value has more than half of the requests of some blocks, for long enough and beyond chance.

    Of two variants with half of the traffic each, one has the most of two blocks by chance each hour.
    """
    n = total = 0
    for one in run:
        n, total = n + one.n, total + totals[one.number]
        if one.last_ns - run[0].first_ns >= _BLOCK_NS and 2 * n - total >= _BEYOND_CHANCE * sqrt(total):
            return True
    return False


def _had_before(
    reader: Reader, window: Window, found: Sequence[tuple[str, int, _Moment, Blocks]]
) -> set[tuple[str, int, str]]:
    """Of values that the day before the window lacks, those that their service had earlier; and its variants."""
    asked = sorted({(service, bits, one.value) for service, bits, one, _ in found if one.kind == "first seen"})
    if not asked:
        return set()
    before_ns = max(0, window.start_ns - _LOOK_BACK_NS)
    services = sorted({service for service, _, _ in asked})
    parameters = {"before_ns": before_ns, "asked": asked, "services": services}
    rows = reader.queries.rows("changes_before", {"filter": window.filter}, **parameters)
    return {(row["service"], row["dimension"], row["value"]) for row in rows}


def _of_slos(reader: Reader, window: Window) -> Iterator[Change]:
    for one in reader.slo_changes(window.start_ns, window.end_ns):
        at = rfc3339(one.at_ns)
        yield Change(
            kind="redefined",
            at=at,
            service="",
            dimension="slo",
            slo=one.name,
            value=one.now,
            requests=None,
            before=[one.before] if one.before else [],
            compare=f"at={at}&span=1h",
        )


def _read(reader: Reader, window: Window) -> dict[tuple[str, int], Blocks]:
    """The blocks of each service and dimension, of the window and the day before it; without empty values."""
    seen: dict[tuple[str, int], dict[str, dict[int, _Block]]] = defaultdict(lambda: defaultdict(dict))
    names = ("service", "dimension", "value", "block", "first_ns", "last_ns", "n")
    for part in slices([window.end_ns, max(0, window.start_ns - _LOOK_BACK_NS)]):
        rows = part.columns(reader.queries, "changes", {}, window.filter)
        for service, bits, value, number, first_ns, last_ns, n in zip(*(rows[name] for name in names), strict=True):
            of = seen[service, bits][value]
            known = of.get(number)
            if known:
                first_ns, last_ns = min(first_ns, known.first_ns), max(last_ns, known.last_ns)
            of[number] = _Block(number, first_ns, last_ns, n + (known.n if known else 0))
    return {
        key: {value: [of[number] for number in sorted(of)] for value, of in values.items() if value}
        for key, values in seen.items()
        if any(values)
    }
