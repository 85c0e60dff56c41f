"""From how many requests have each value to the differences: candidates, the best of them, and what they tell together.

It knows no store. A number is counted by its class, of how many edges it is not below:

    edges 100, 900    classes 0: < 100, 1: < 900, 2: others    candidates: at least 100, less than 100, at least 900, …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from collector.measure.arrivals import UNKNOWN
from collector.measure.chance import Bools, Floats, Ints
from collector.measure.telling import Difference, Sides, Table, Trait, chosen, is_significant, rank
from tokentrail.shared.formatting import count as digits
from tokentrail.shared.formatting import duration, percent

NO_CLASS: Final = "-1"
"""The class of a number that is not known."""
SIDES: Final = ("selected", "others", "selected_squares", "others_squares")
"""Σ weight and Σ weight² of both sides, in the order of `Met`."""
_WRITTEN: Final = {"cached_share": percent, "kv_usage_at_arrival": percent, "idle_time": duration}
"""How a bound is written that is no count."""
_MOST_OF_ONE: Final = 3
_MOST_CONDITIONS: Final = 14


@dataclass(frozen=True)
class Candidate:
    """A value, or the requests above or below an edge."""

    condition: Trait
    sign: Literal["=", ">=", "<"]
    bound: str | float
    selected: float
    others: float
    among: Sides
    """The requests of which the dimension is known."""


@dataclass(frozen=True)
class Met:
    """Groups of requests by which candidates they meet."""

    met: Bools
    """Shape (groups, candidates)."""
    selected: Floats
    others: Floats
    selected_squares: Floats
    others_squares: Floats
    block: Ints | None = field(default=None, kw_only=True)
    """The block of time of each group; None: not asked."""

    def table(self, together: float) -> Table:
        """The groups as so many requests as stand for themselves: sampled ones that stand for others are fewer.

        `together`: how many times as much chance moves the selected requests, since those of a session go together.
        """
        sides = ((self.selected, self.selected_squares), (self.others, self.others_squares))
        selected, others = (n * min(n.sum() / max(squares.sum(), 1e-9), 1.0) / together for n, squares in sides)
        return Table(self.met, selected, others, self.block)


def told(
    rows: Sequence[Mapping[str, Any]],
    edges: Mapping[str, Sequence[float]],
    count_met: Callable[[Sequence[Candidate]], Met],
    together: float = 1.0,
) -> tuple[list[Difference], Sides, int]:
    """The differences, all requests, and how many values and pairs were tried.

    `rows`: by `name` and `value`, of numbers the class, the `selected` requests and the `others`. `count_met`: counts
    the requests by which of some candidates they meet. `together`: as in `Met.table`.
    """
    everything = _sides([row for row in rows if row["name"] == "model"])
    # Of those that the same requests meet one is told: which, its dimension decides, and not how its value is spelled.
    every = sorted(candidates(rows, edges), key=lambda one: (rank(one.condition), one.condition.dimension))
    best = _best(every, everything)
    tried = len(every) + len(best) * (len(best) - 1) // 2
    if not best:
        return [], everything, tried
    met = count_met(best)
    counts = {"selected": met.selected, "others": met.others}
    return chosen(met.table(together), counts, [one.condition for one in best], tried), everything, tried


def _sides(rows: Sequence[Mapping[str, Any]]) -> Sides:
    return Sides(sum(row["selected"] for row in rows), sum(row["others"] for row in rows))


def candidates(rows: Sequence[Mapping[str, Any]], edges: Mapping[str, Sequence[float]]) -> Iterator[Candidate]:
    """All values that are known, with how many requests have each."""
    known = [row for row in rows if row["value"] != (NO_CLASS if row["name"] in edges else UNKNOWN)]
    among = {name: _sides([row for row in known if row["name"] == name]) for name in {row["name"] for row in known}}
    for row in known:
        name, value = row["name"], row["value"]
        if name not in edges:
            trait = Trait(dimension=name, value=value)
            yield Candidate(trait, "=", value, row["selected"], row["others"], among[name])
    for name, of in edges.items():
        counts = {int(row["value"]): (row["selected"], row["others"]) for row in known if row["name"] == name}
        classes = np.array([counts.get(i, (0.0, 0.0)) for i in range(len(of) + 1)])
        for i, edge in enumerate(of, 1) if counts else ():
            bound = _WRITTEN.get(name, digits)(edge)
            sides: tuple[tuple[str, Literal[">=", "<"], Floats], ...] = (
                ("at least", ">=", classes[i:]),
                ("less than", "<", classes[:i]),
            )
            for word, sign, part_of in sides:
                one, rest = part_of.sum(axis=0).tolist()
                yield Candidate(Trait(dimension=name, value=f"{word} {bound}"), sign, edge, one, rest, among[name])


def _best(every: Sequence[Candidate], everything: Sides) -> list[Candidate]:
    """The candidates that differ most, a few of each dimension."""
    if not (everything.selected and everything.others):
        return []
    z = everything.z(*(np.array([getattr(one, name) for one in every]) for name in ("selected", "others")))
    for i, one in enumerate(every):
        if one.among != everything:  # what is not known is never blamed: it must differ among those that are, too
            z_known = float(one.among.z(np.array([one.selected]), np.array([one.others]))[0])
            z[i] = min(z[i], z_known) if is_significant(z_known, len(every)) else 0.0
    taken: list[Candidate] = []
    for place in np.argsort(-z, kind="stable"):
        one = every[int(place)]
        same = [other for other in taken if other.condition.dimension == one.condition.dimension]
        if z[place] <= 0 or len(taken) == _MOST_CONDITIONS:
            break
        of_kind = [other for other in taken if other.condition.kind == one.condition.kind]
        if len(same) < _MOST_OF_ONE and (not one.condition.kind or len(of_kind) < _MOST_CONDITIONS // 3):
            taken.append(one)
    return taken
