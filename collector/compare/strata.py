"""By what, besides their lengths, requests of two sides are compared like for like: tenants, models and labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from collector.ask.window import Window
from collector.count.reader import Reader
from collector.numbers.values import value_counts
from collector.slo.judge import text_of
from collector.sql.fragment import TRUE, Fragment
from tokentrail.shared.parameters import LABEL

_COLUMNS: Final = ("tenant", "model", "operation", "slo_class")
_MOST_LABELS: Final = 8
_MOST_VALUES: Final = 10
_LEAST_SHARE: Final = 0.02
_LEAST_COMMON: Final = 0.1
"""Sides that have less in common than this differ by the dimension, which is no mix then."""
_LITTLE: Final = 0.05
SESSIONS: Final = (
    "session", "session_id", "session.id", "conversation", "conversation_id", "conversation.id",
    "gen_ai.conversation.id", "thread_id", "user", "user_id", "user.id",
)  # fmt: skip
"""Labels whose requests go together, the narrowest first."""


@dataclass(frozen=True)
class Stratum:
    """A dimension that both sides have a mix of."""

    name: str
    column: Fragment
    values: tuple[str, ...]
    """The commonest first; a request with another one has the number 0."""
    shares: tuple[tuple[float, ...], tuple[float, ...]]
    """Of each value on each side."""
    differs: bool
    """By more than chance and by more than a little."""

    @property
    def word(self) -> str:
        """The dimension in a sentence."""
        return "SLO class" if self.name == "slo_class" else self.name

    def most_apart(self) -> tuple[str, float, float]:
        """The value whose shares differ most, and both shares."""
        return max(zip(self.values, *self.shares, strict=True), key=lambda one: abs(one[1] - one[2]))


@dataclass(frozen=True)
class Strata:
    """The dimensions of two sides, and SQL of what tells which requests go together; None: nothing tells."""

    kinds: tuple[Stratum, ...]
    cluster: Fragment | None

    def columns(self) -> list[str]:
        """SQL of a number for each request by each dimension, and of the session."""
        numbers = [
            f"toFloat64(transform({one.column.sql}, {{stratum_{i}:Array(String)}}, "
            f"{[*range(1, len(one.values) + 1)]}::Array(UInt8), 0::UInt8))"
            for i, one in enumerate(self.kinds)
        ]
        if self.cluster is None:
            return numbers
        known = f"{self.cluster.sql} = '', nan, toFloat64(bitShiftRight(cityHash64({self.cluster.sql}), 11))"
        return [*numbers, f"if({known})"]

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters of `columns`."""
        parameters: dict[str, object] = {} if self.cluster is None else {**self.cluster.parameters}
        for i, one in enumerate(self.kinds):
            parameters |= {**one.column.parameters, f"stratum_{i}": [*one.values]}
        return parameters


NO_STRATA: Final = Strata((), None)


def read_strata(reader: Reader, sides: Sequence[Window]) -> Strata:
    """The dimensions of which the sides may have another mix. Those that tell the sides apart are none."""
    labels: dict[str, int] = defaultdict(int)
    for window in sides:
        names = reader.queries.rows("label_names", {"filter": window.filter}, **window.bounds, most=4 * _MOST_LABELS)
        for row in names:
            labels[row["name"]] += 1
    common = [name for name, n in labels.items() if n == len(sides)]
    session = next((name for name in SESSIONS if name in common), None)
    frequent = [f"{LABEL}{name}" for name in common if name not in SESSIONS][:_MOST_LABELS]
    columns = {name: text_of(name, f"mix_{i}") for i, name in enumerate((*_COLUMNS, *frequent))}
    counted = [_counts(reader, window, columns) for window in sides]
    kinds = [
        found for name, column in columns.items() if (found := _stratum(name, column, [of[name] for of in counted]))
    ]
    tenants = [len(of["tenant"]) for of in counted]
    cluster = "tenant" if session is None and min(tenants) >= _MOST_VALUES else session and f"{LABEL}{session}"
    return Strata(tuple(kinds), text_of(cluster, "together") if cluster else None)


def _counts(reader: Reader, window: Window, columns: Mapping[str, Fragment]) -> dict[str, dict[str, float]]:
    counts: dict[str, dict[str, float]] = {name: {} for name in columns}
    for row in value_counts(reader, window, columns, TRUE, 4 * _MOST_VALUES):
        counts[row["name"]][row["value"]] = float(row["selected"])
    return counts


def _stratum(name: str, column: Fragment, counts: Sequence[Mapping[str, float]]) -> Stratum | None:
    """The dimension, unless both sides have one value of it alone, many rare ones, or other ones each."""
    totals = [sum(of.values()) for of in counts]
    if not all(totals):
        return None
    shares = {
        value: tuple(of.get(value, 0.0) / total for of, total in zip(counts, totals, strict=True))
        for value in {*counts[0], *counts[1]}
    }
    often = sorted((v for v, of in shares.items() if max(of) >= _LEAST_SHARE), key=lambda v: (-sum(shares[v]), v))
    often = often[:_MOST_VALUES]
    if not often or (len(often) == 1 and min(shares[often[0]]) > 1 - _LEAST_SHARE):
        return None
    if sum(min(shares[value]) for value in often) < _LEAST_COMMON:
        return None
    apart = max(abs(shares[value][0] - shares[value][1]) for value in often)
    chance = 3 * sqrt(0.25 * sum(1 / total for total in totals))
    each = (tuple(shares[value][0] for value in often), tuple(shares[value][1] for value in often))
    return Stratum(name, column, tuple(often), each, apart > max(_LITTLE, chance))
