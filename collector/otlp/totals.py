"""Totals that a page has beside their parts. SGLang has `priority=""` for all requests, `priority="1"` for some."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from collector.otlp.exposition import Labels

_DIVIDES: Final = frozenset({"priority"})
"""Labels that divide a total which has none of them: a Collector leaves empty labels out."""


def parts_of_totals(series: Collection[Labels]) -> set[Labels]:
    """Series of one metric, by their labels, that another one contains: its value of a label is empty.

    {a="1", priority=""} {a="1", priority="0"} {a="1", priority="1"}    the last two
    {a="1"} {a="1", priority="0"}                                       the last one
    {a="1", priority="0"} {a="2", priority=""}                          none
    """
    totals: dict[frozenset[str], set[Labels]] = {}
    for labels in series:
        names = frozenset(key for key, value in labels if not value)
        names |= _DIVIDES - {key for key, _ in labels}
        if names:
            totals.setdefault(names, set()).add(_without(labels, names))
    return {
        labels
        for labels in series
        for names, rests in totals.items()
        if any(value and key in names for key, value in labels) and _without(labels, names) in rests
    }


def _without(labels: Labels, names: frozenset[str]) -> Labels:
    return tuple(label for label in labels if label[0] not in names)
