"""When burns of error budgets began, and the bad requests that ended since. All burns are looked for together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.measure.population import NOTHING, read_ended
from collector.measure.reader import Reader
from collector.measure.slices import ARRIVED, Arrays, slices
from collector.measure.times import DAY_NS
from collector.measure.window import Window
from collector.slo import last_burn
from collector.slo.burn import BurnRule
from collector.slo.cells import Cells
from collector.slo.last_burn import PER_WINDOW, burn_began
from collector.slo.model import Slo
from collector.sql.fragment import Fragment

_ROW: Final = np.dtype(
    [
        ("stretch", "<i8"), ("cell", "<u8"), ("tenant_group", "u1"), ("n", "<f8"), ("variance", "u1"), ("sums", "u1"),
        ("rows", "<u8"), ("first_ns", "<i8"), ("sampled", "<u8"),
    ]
)  # fmt: skip
"""The columns of sql/queries/cells.sql, as they are asked for here."""
_NEVER_NS: Final = 2**62


@dataclass(frozen=True)
class Burn:
    """A budget that burns: an SLO's, or one of its tenants'. The slowest rule that fires tells when it began."""

    slo: Slo
    slowest: BurnRule
    tenant: str | None

    @property
    def stretch_ns(self) -> int:
        """The length of the stretches of time in which its beginning is looked for."""
        return self.slowest.short_ns // PER_WINDOW


@dataclass(frozen=True)
class EndedOfBurn:
    """Bad requests of a burn that ended: when the first did (None without any), and the rows of those since then."""

    first_ns: int | None
    rows: int


def ended_of_burns(reader: Reader, window: Window, burns: Sequence[Burn]) -> list[EndedOfBurn]:
    """The bad requests of each burn. Requests burn when they arrive; lists have those that ended since a time."""
    first_ns: dict[int, int] = {}
    for stretch_ns in sorted({burn.stretch_ns for burn in burns}):
        places = [place for place, burn in enumerate(burns) if burn.stretch_ns == stretch_ns]
        began = _began(reader, window, [burns[place] for place in places], stretch_ns)
        first_ns |= {place: ns for place, ns in zip(places, began, strict=True) if ns < _NEVER_NS}
    since_ns = sorted({*first_ns.values()}, reverse=True)
    if not since_ns:
        return [EndedOfBurn(None, 0) for _ in burns]
    parts = slices([window.end_ns, *since_ns])
    ended = read_ended(reader.queries, window.filter, _cells(burns), parts, others=Fragment("count()"))

    def rows(place: int, ns: int) -> int:
        since = ended.having(ended.judged.outcomes(place).bad) & (ended.band <= 1 + since_ns.index(ns))
        return sum(compress(ended.others, since))

    found = {place: EndedOfBurn(ns, rows(place, ns)) for place, ns in first_ns.items()}
    return [found.get(place, EndedOfBurn(None, 0)) for place in range(len(burns))]


def _cells(burns: Sequence[Burn]) -> Cells:
    return Cells([burn.slo for burn in burns], tenants=[burn.tenant for burn in burns])


def _began(reader: Reader, window: Window, burns: Sequence[Burn], stretch_ns: int) -> list[int]:
    """When the first bad request of each burn ended; `_NEVER_NS` when none did.

    Looks back over more and more days until each burn has a calm before it; at most over the SLO's window.
    """
    oldest_ns = max(0, window.end_ns - max(burn.slo.window for burn in burns)) // stretch_ns * stretch_ns
    read: list[Arrays] = []
    found: dict[int, int] = {}
    for start_ns, end_ns in days_back(oldest_ns, window.end_ns):
        read = [*_read(reader, window, (start_ns, end_ns), burns, stretch_ns), *read]
        order = np.argsort(np.concatenate([one["stretch"] for one in read]), kind="stable")
        counts = {name: np.concatenate([one[name] for one in read], axis=-1)[..., order] for name in read[0]}
        for place in {*range(len(burns))} - found.keys():
            own = {name: values if name == "stretch" else values[place] for name, values in counts.items()}
            ns = _first_bad_ns(burns[place], own, start_ns, window.end_ns)
            found |= {} if ns is None else {place: ns}
        if len(found) == len(burns):
            break
    return [found[place] for place in range(len(burns))]  # the oldest stretch ends every search


def _first_bad_ns(burn: Burn, counts: Arrays, since_ns: int, end_ns: int) -> int | None:
    """From counts since a time; None when the burn is older."""
    apart_ns = burn.stretch_ns
    first = max(0, end_ns - burn.slo.window) // apart_ns
    known = (counts["stretch"] >= first) & (counts["judged"] > 0)
    of = {name: values[known] for name, values in counts.items()}
    place = burn_began(
        last_burn.Cells(
            max(first, -(-since_ns // apart_ns)), (end_ns - 1) // apart_ns, of["stretch"].astype(np.int64),
            of["judged"].astype(np.float64), of["bad"].astype(np.float64),
        ),
        share=float(burn.slowest.threshold * burn.slo.budget),
        most_apart=burn.slowest.long_ns // apart_ns,
        is_all=since_ns <= first * apart_ns,
    )  # fmt: skip
    return None if place is None else int(of["first_bad_ns"][place:].astype(np.int64).min(initial=_NEVER_NS))


def days_back(start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """Stretches that reach back to a start or farther: the present day, then 1, 2, 4, … whole days before."""
    midnight, days = end_ns // DAY_NS * DAY_NS, 1
    yield max(start_ns, midnight), end_ns
    while midnight > start_ns:
        earlier = max(midnight - days * DAY_NS, start_ns // DAY_NS * DAY_NS)
        yield earlier, midnight
        midnight, days = earlier, 2 * days


def _read(
    reader: Reader, window: Window, between_ns: tuple[int, int], burns: Sequence[Burn], stretch_ns: int
) -> list[Arrays]:
    """The counts by stretch, numbered since 1970, of each slice. A stretch lies in one hour, so in one slice.

    The counts are remembered, and not the cells, of which a stretch may have as many as it has requests.
    """
    cells = _cells(burns)
    stretch = f"intDiv(toUnixTimestamp64Nano(toDateTime64({ARRIVED}, 9)), {{stretch_ns:Int64}})"
    fragments = {
        "by": Fragment(stretch, {"stretch_ns": stretch_ns}),
        "cell": Fragment(f"toUInt64({cells.cell.sql})", cells.cell.parameters),
        "tenant_group": Fragment("''"),
        "n": Fragment("sum(weight)"),
        "others": Fragment("(count(), toUnixTimestamp64Nano(min(end)))"),
        **dict.fromkeys(("variance", "sums"), NOTHING),
    }

    def counted(found: npt.NDArray[Any]) -> Arrays:
        return _by_stretch(cells, len(burns), found)

    judged_by = tuple((burn.slo.hash, burn.tenant) for burn in burns)
    parts = slices([*reversed(between_ns)], column=ARRIVED, now_ns=window.end_ns)
    return [one.arrays(reader.queries, "cells", fragments, window.filter, _ROW, (counted, judged_by)) for one in parts]


def _by_stretch(cells: Cells, burns: int, found: npt.NDArray[Any]) -> Arrays:
    """For each stretch, the judged and the bad requests of each burn, and when the first bad one of them ended."""
    different, cell = np.unique(found["cell"], return_inverse=True)
    stretches, at = np.unique(found["stretch"], return_inverse=True)
    judged, bad = np.zeros((2, burns, len(stretches)))
    first_bad_ns = np.full((burns, len(stretches)), _NEVER_NS)
    of_cells = cells.judged(different)
    for place in range(burns):
        outcomes = of_cells.outcomes(place)
        is_bad = outcomes.bad[cell]
        bad[place] = np.bincount(at, found["n"] * is_bad, len(stretches))
        judged[place] = bad[place] + np.bincount(at, found["n"] * outcomes.good[cell], len(stretches))
        np.minimum.at(first_bad_ns[place], at[is_bad], found["first_ns"][is_bad])
    return {"stretch": stretches, "judged": judged, "bad": bad, "first_bad_ns": first_bad_ns}
