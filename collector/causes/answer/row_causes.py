"""Where the time of listed requests went, by what people call the causes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from collector.ask.template import part
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.causes.answer.answer import Level
from collector.causes.answer.request_times import Explained, read_explained
from collector.causes.split.names import PARTS, load_causes
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.sql.fragment import Fragment


class RowCause(Answer):
    """What a request spent on the causes of one name."""

    group: str
    colour: str
    ttft_s: float
    """Before the first token, or before the end where none came."""
    rest_s: float


class RowCauses(Answer):
    """How far a request is explained, and its causes: their times add up to its E2E, to a few microseconds."""

    level: Level
    causes: list[RowCause]
    """The largest first."""


def causes_of_rows(reader: Reader, rows: Sequence[Mapping[str, Any]]) -> list[RowCauses | None]:
    """The causes of each of these rows of the query `requests`; None: it is not explained yet."""
    if not rows:
        return []
    ends = [int(row["ended_ns"]) for row in rows]
    keys_of_rows = {"row_ends": sorted({*ends}), "row_keys": sorted({row["key"] for row in rows})}
    theirs = Fragment(part("given_rows", {}).sql, keys_of_rows)
    window = Window(0, max(ends) + 1, theirs)
    known = read_explained(reader, window, window, Cells([]), 1, 1)
    keys = zip(known.rows["end_ns"].tolist(), known.rows["key"].tolist(), strict=True)
    places = {key: place for place, key in enumerate(keys)}
    wanted = (places.get((end, row["key"])) for end, row in zip(ends, rows, strict=True))
    return [None if place is None else _of(known, place) for place in wanted]


def _of(known: Explained, place: int) -> RowCauses:
    named = load_causes()
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    colours = {named[name].group: named[name].colour for name in reversed(PARTS)}
    for i, name in enumerate(PARTS):
        for of, times in enumerate((known.times.ttft, known.times.rest)):
            sums[named[name].group][of] += float(times[i, place]) / 1e6
    causes = [
        RowCause(group=group, colour=colours[group], ttft_s=ttft_s, rest_s=rest_s)
        for group, (ttft_s, rest_s) in sums.items()
        if ttft_s or rest_s
    ]
    level: Level = get_args(Level)[int(known.rows["level"][place])]
    return RowCauses(level=level, causes=sorted(causes, key=lambda one: -(one.ttft_s + one.rest_s)))
