"""The cause that took most time from the bad requests of each burning SLO, by the numbers of `/explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.causes.names import PARTS, load_causes
from collector.measure.explained import (
    COLUMNS,
    FIRST_TOKEN_KNOWN,
    QUARTILES,
    ROW,
    Bounds,
    Explained,
    of_causes,
    parts_of,
    typical_of,
)
from collector.measure.explanation import beyond_typical, number_of_bad
from collector.measure.incident import Incident, TopCause
from collector.measure.reader import Reader
from collector.measure.tail import Beyond, Bools, Floats, shares
from collector.measure.times import HOUR_NS, parse_moment
from collector.measure.window import Window
from collector.slo.cells import Cells
from collector.sql.fragment import Fragment

MOST_JUDGED: Final = 20_000
_JUDGED: Final = np.dtype([*ROW.descr, ("cell", "<u8")])
_AT_ALL: Final = 1
"""Levels from this one on name causes (`Level`). A client's report of a request that its server explains names none."""


def with_top_causes(reader: Reader, window: Window, incidents: Sequence[Incident]) -> list[Incident]:
    """These incidents, those of SLOs with the top cause of their requests. The store is read once for all of them.

    The requests are those that are explained and ended in the hour before the window's end: bad ones while the incident
    lasted, and as typical ones the middle half of the good ones. That of all requests, as `/explain` has it, would be
    bad ones once a burn lasts. Of very many, some are read.
    """
    slos = {slo.name: slo for slo in reader.slos}
    burning = [place for place, one in enumerate(incidents) if one.slo in slos]
    found = [*incidents]
    if not burning:
        return found
    of_burns = [incidents[place] for place in burning]
    cells = Cells([slos[one.slo or ""] for one in of_burns], tenants=[one.tenant for one in of_burns])
    hour = Window(max(0, window.end_ns - HOUR_NS), window.end_ns, window.filter)
    known, numbers = _read_judged(reader, hour, cells)
    different, cell = np.unique(numbers, return_inverse=True)
    judged, is_told = cells.judged(different), known.rows["level"] >= _AT_ALL
    for number, place in enumerate(burning):
        outcomes, one = judged.outcomes(number), incidents[place]
        until_ns = window.end_ns if one.end is None else parse_moment(one.end).ns
        its_own = (known.rows["end_ns"] >= parse_moment(one.start).ns) & (known.rows["end_ns"] < until_ns)
        bad = outcomes.bad[cell] & is_told & its_own
        top = _top(known, bad, outcomes.good[cell] & is_told) if bad.any() else None
        found[place] = incidents[place].model_copy(update={"top_cause": top})
    return found


def _read_judged(reader: Reader, window: Window, cells: Cells) -> tuple[Explained, npt.NDArray[np.uint64]]:
    """The causes of a window's requests, and their cells. Of more than `MOST_JUDGED`, some stand for the others."""
    fragments = {"times": Fragment(", ".join(COLUMNS)), "filter": of_causes(window), "cell": cells.cell}
    rows = reader.queries.array("explain_judged", fragments, _JUDGED, **window.bounds, most=MOST_JUDGED)
    return Explained.of(rows), rows["cell"]


def _top(known: Explained, bad: Bools, good: Bools) -> TopCause | None:
    """The largest excess of the bad ones. None without typical ones, or where they took no longer than these."""
    population = known.at(np.flatnonzero(good))
    typical = typical_of(population, _bounds(population), 1)
    if typical is None:
        return None
    chosen = known.at(np.flatnonzero(bad))
    weight = chosen.rows["weight"]
    excess = (Beyond.of(chosen.times, typical.typical, parts_of(None)).excess * weight).sum(1)
    by_cause = shares(np.round(excess, 3).tolist())
    place = int(excess.argmax())
    share = by_cause[place]
    if not share:
        return None
    groups = [(load_causes()[name].group, of_all or 0.0) for name, of_all in zip(PARTS, by_cause, strict=True)]
    sentence = beyond_typical(number_of_bad(round(float(weight.sum()))), groups)
    return TopCause(cause=PARTS[place], group=groups[place][0], share=share, sentence=sentence)


def _bounds(population: Explained) -> Bounds:
    """The middle half of good requests, as `explained.read_bounds` finds it."""
    weight = population.rows["weight"]
    has_ttft, has_tpot = population.rows["first_token"] == FIRST_TOKEN_KNOWN, ~np.isnan(population.tpot_us)
    ttft = _middle(population.ttft_us[has_ttft], weight[has_ttft])
    return Bounds(ttft, _middle(population.tpot_us[has_tpot], weight[has_tpot]), None, int(has_ttft.sum()))


def _middle(values: Floats, weight: Floats) -> tuple[float, float] | None:
    """The quartiles, by weight if these differ. None without values."""
    if not len(values):
        return None
    if (weight == weight[0]).all():
        low, high = np.quantile(values, QUARTILES)
    else:
        order = np.argsort(values)
        until = weight[order].cumsum()
        low, high = values[order][np.searchsorted(until, until[-1] * np.array(QUARTILES))]
    return float(low), float(high)
