"""The values of the dimensions of requests, with how many requests have each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.reader import Reader
from collector.measure.window import Window
from collector.slo.counts import Number, as_number
from collector.sql.fragment import TRUE, Fragment

DIMENSIONS: Final = (
    "model", "tenant", "variant", "engine", "service", "instance", "slo_class", "operation", "vantage",
    "status", "error_type", "finish_reason",
)  # fmt: skip


class Value(Answer):
    """A value of a dimension."""

    value: str
    requests: Number


class Values(Answer):
    """`/labels`."""

    window: WindowOut
    labels: dict[str, list[Value]]
    """By dimension, the commonest first. An empty value: not given."""


def value_counts(
    reader: Reader, window: Window, columns: Mapping[str, str], selected: Fragment, most: int
) -> list[dict[str, Any]]:
    """The commonest values of columns (SQL of text, by name) among the selected requests and the others."""
    names = [f"of_{name}" for name in columns]
    fragments = {
        "filter": window.filter,
        "selected": selected,
        "names": Fragment(", ".join(names)),
        "columns": Fragment(", ".join(f"{sql} AS of_{name}" for name, sql in columns.items())),
        "sets": Fragment(", ".join(f"({name})" for name in names)),
    }
    found = reader.queries.rows("value_counts", fragments, **window.bounds, most=most)
    by_bits = {(1 << len(columns)) - 1 - (1 << (len(columns) - 1 - i)): name for i, name in enumerate(columns)}
    return [{**row, "name": by_bits[row["dimension"]]} for row in found]


def values(reader: Reader, window: Window, most: int) -> Values:
    """The commonest values of each dimension among the requests that ended in a window."""
    rows = value_counts(reader, window, {name: f"toString({name})" for name in DIMENSIONS}, TRUE, most)
    labels: dict[str, list[Value]] = {name: [] for name in DIMENSIONS}
    for row in rows:
        labels[row["name"]].append(Value(value=row["value"], requests=as_number(row["selected"])))
    return Values(window=WindowOut.of(window, reader.complete_ns), labels=labels)
