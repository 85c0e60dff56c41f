"""Where single slow requests spent their time, those of each model, and all by what people call the causes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from collector.ask.times import rfc3339
from collector.ask.window import Window
from collector.causes.answer.answer import Group, OfModel, Part, Slow, WithoutOut
from collector.causes.answer.beyond import Beyond, Floats
from collector.causes.answer.culprits import find_named
from collector.causes.answer.request_times import Rows
from collector.causes.split.names import PARTS, load_causes
from collector.count.reader import Reader
from collector.slo.counts import Number

_MOST_MODELS: Final = 100
_OUTSIDE: Final = 0.05
_COMPUTED: Final = ("alone", "batch", "others_prompts", "recompute")
"""The causes that are time of steps, by what they usually take."""


def slowest(reader: Reader, rows: Rows, beyond: Beyond, most: int) -> list[Slow]:
    """The requests with the longest time, the longest first, without those that the store has no more."""
    total = beyond.time.sum(0)
    order = np.argsort(-total, kind="stable")[:most].tolist()
    keys = {i: (int(rows.rows["end_ns"][i]), int(rows.rows["key"][i])) for i in order}
    known = find_named(reader, keys.values())
    return [
        Slow(
            trace_id=row["trace_id_hex"],
            span_id=row["span_id_hex"],
            model=row["model"],
            tenant=row["tenant"],
            end=rfc3339(keys[i][0]),
            time_s=float(total[i]) / 1e6,
            parts=_parts(beyond.time[:, i]),
        )
        for i in order
        if (row := known.get(keys[i]))
    ]


def by_model(reader: Reader, window: Window, rows: Rows, beyond: Beyond, *, whole: bool) -> list[OfModel]:
    """Sums by model, those with the longest time first. `whole`: each request stands for itself."""
    if not rows.n:
        return []
    names: Mapping[int, str] = {
        row["number"]: row["name"]
        for row in reader.queries.rows(
            "explain_models_of", {"filter": window.filter}, **window.bounds, limit=_MOST_MODELS
        )
    }
    models = []
    for number in np.unique(rows.requests["model"]).tolist():
        if number not in names:
            continue
        of = rows.requests["model"] == number
        weight = rows.weight[of]
        sums = (beyond.time[:, of] * weight).sum(1)
        n = float(weight.sum())
        models.append(
            OfModel(
                model=names[number],
                requests=round(n) if whole else round(n, 3),
                time_s=float(sums.sum()) / 1e6,
                parts=_parts(sums),
            )
        )
    return sorted(models, key=lambda one: (-one.time_s, one.model))


def by_group(
    parts: Sequence[Part], rows: Rows, beyond: Beyond, without: Callable[[Collection[str]], WithoutOut]
) -> list[Group]:
    """The sums of causes that share a name. `without` is asked where several do, and their part has an answer."""
    parts_of: defaultdict[str, list[Part]] = defaultdict(list)
    for part in sorted(parts, key=lambda part: PARTS.index(part.cause)):
        parts_of[part.group].append(part)
    groups = [
        Group(
            group=name,
            colour=load_causes()[of[0].cause].colour,
            causes=[part.cause for part in of],
            time_s=sum(part.time_s for part in of),
            typical_s=_sum([part.typical_s for part in of]),
            excess_s=_sum([part.excess_s for part in of]),
            share=_sum([part.share for part in of]),
            requests=_sum([part.requests for part in of]),
            without=of[0].without if len(of) == 1 or not of[0].without else without([part.cause for part in of]),
            factor=_factor(rows) if of[0].cause == "drift" else None,
            **_when(rows, beyond, [PARTS.index(part.cause) for part in of]),
        )
        for name, of in parts_of.items()
    ]
    return sorted(groups, key=lambda one: (-((one.without and one.without.points) or 0.0), -one.time_s))


def _when(rows: Rows, beyond: Beyond, causes: Sequence[int]) -> dict[str, str | None]:
    """Between which ends of requests the middle 90 % of what they lost to these causes is."""
    lost = np.maximum(np.round(beyond.excess[causes].sum(0), 3), 0) * rows.weight
    whole = float(lost.sum())
    if not whole:
        return {"start": None, "end": None}
    ends = rows.rows["end_ns"]
    order = np.argsort(ends, kind="stable")
    first, last = np.searchsorted(np.cumsum(lost[order]), [_OUTSIDE * whole, (1 - _OUTSIDE) * whole]).tolist()
    return {"start": rfc3339(int(ends[order][first])), "end": rfc3339(int(ends[order][min(last, rows.n - 1)]))}


def _factor(rows: Rows) -> float | None:
    """How many times as long steps took on a slow device, of the requests with most of it: after their first token, all
    of a request's time is in steps, but for pauses and stalls.

    A request that decoded for 2 s, of which 1 s is drift, had steps twice as long; one that decoded for 4 s, of which
    1 s is drift, was there before or after.
    """
    rest, weight = rows.times.rest, rows.weight
    drift = rest[PARTS.index("drift")]
    usual = rest[[PARTS.index(name) for name in _COMPUTED]].sum(0)
    some = (drift > 0) & (usual > 0)
    if not some.any():
        return None
    factors, weights = 1 + drift[some] / usual[some], (drift * weight)[some]
    order = np.argsort(factors)
    return float(factors[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])


def _sum(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _parts(us: Floats | Collection[float]) -> dict[str, float]:
    return {name: float(value) / 1e6 for name, value in zip(PARTS, us, strict=True) if value}
