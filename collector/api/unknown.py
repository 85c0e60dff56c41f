"""Names in filters that no request has, and which of the known ones are like them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from collector.ask.window import Window
from collector.count.reader import Reader
from collector.numbers.values import DIMENSIONS, value_counts
from collector.slo.judge import text_of
from collector.sql.fragment import TRUE
from tokentrail.shared.parameters import LABEL, did_you_mean

_MOST: Final = 1000


def unknown_names(reader: Reader, window: Window, asked: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A sentence without a full stop for each value of a dimension or label that no request of the window's time has.

    `asked`: values by dimension, or by `label.NAME`.
    """
    everyone = replace(window, filter=reader.tenant_filter)
    asked = {name: of for name, of in asked.items() if name.startswith(LABEL) or name in {*DIMENSIONS} - {"status"}}
    columns = {name: text_of(name, f"asked_{i}") for i, name in enumerate(asked)}
    known: dict[str, list[str]] = {name: [] for name in asked}
    for row in value_counts(reader, everyone, columns, TRUE, _MOST) if columns else ():
        known[row["name"]].append(row["value"])
    for name, values in asked.items():
        there = [value for value in known[name] if value]
        if name.startswith(LABEL) and not there:
            rows = reader.queries.rows("label_names", {"filter": everyone.filter}, **window.bounds, most=_MOST)
            label = name.removeprefix(LABEL)
            yield f"no request has the label {label}{did_you_mean(label, [row['name'] for row in rows])}"
            continue
        for value in (value for value in values if value and value not in there):
            yield f"no request has the {name} {value}{did_you_mean(value, there)}"
