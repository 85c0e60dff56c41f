"""The values of the dimensions and labels of requests, with how many requests have each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from collector.ask.template import part
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.slo.counts import Number, as_number
from collector.slo.judge import text_of
from collector.sql.fragment import TRUE, Fragment, merged
from tokentrail.shared.parameters import LABEL

DIMENSIONS: Final = (
    "model", "tenant", "variant", "engine", "service", "instance", "slo_class", "operation", "vantage",
    "status", "error_type", "finish_reason",
)  # fmt: skip


MOST_LABELS: Final = 32
"""Labels that have their values counted: those that most requests carry."""


class Value(Answer):
    """A value of a dimension."""

    value: str
    requests: Number


class Values(Answer):
    """`/labels`."""

    window: WindowOut
    labels: dict[str, list[Value]]
    """By dimension, and by `label.NAME` for the labels that most requests carry; the commonest value first. An empty
    value: not given.
    """


def value_counts(
    reader: Reader,
    window: Window,
    columns: Mapping[str, Fragment],
    selected: Fragment,
    most: int,
    requests: Fragment | None = None,
) -> list[dict[str, Any]]:
    """The commonest values of columns (SQL of text, by name) among the selected requests and the others.

    `requests`: SQL that reads them with more columns.
    """
    names = [f"of_{i}" for i in range(len(columns))]
    fragments = {
        "filter": window.filter,
        "rows": requests or part("rows_of_requests", {}),
        "selected": selected,
        "names": Fragment(", ".join(names)),
        "columns": Fragment(
            ", ".join(f"{part.sql} AS {name}" for name, part in zip(names, columns.values(), strict=True)),
            merged([*columns.values()]),
        ),
        "sets": Fragment(", ".join(f"({name})" for name in names)),
    }
    rows = reader.queries.rows("value_counts", fragments, **window.bounds, most=most)
    by_bits = {(1 << len(columns)) - 1 - (1 << (len(columns) - 1 - i)): name for i, name in enumerate(columns)}
    return [{**row, "name": by_bits[row["dimension"]]} for row in rows]


def dimensions(reader: Reader, window: Window, most_labels: int) -> dict[str, Fragment]:
    """SQL of the text of each dimension and of the commonest labels, by name."""
    named = reader.queries.rows("label_names", {"filter": window.filter}, **window.bounds, most=most_labels)
    labels = [f"{LABEL}{row['name']}" for row in named]
    return {name: text_of(name, f"by_{i}") for i, name in enumerate((*DIMENSIONS, *labels))}


def values(reader: Reader, window: Window, most: int) -> Values:
    """The commonest values of each dimension among the requests that ended in a window."""
    columns = dimensions(reader, window, MOST_LABELS)
    rows = value_counts(reader, window, columns, TRUE, most)
    labels: dict[str, list[Value]] = {name: [] for name in columns}
    for row in rows:
        labels[row["name"]].append(Value(value=row["value"], requests=as_number(row["selected"])))
    return Values(window=WindowOut.of(window, reader.complete_ns), labels=labels)
