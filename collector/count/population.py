"""The requests of a window, counted in cells by band of time. Every number about them is added up from these cells.

With one SLO of two thresholds, and buckets of a time series as bands, one request in flight and a lost one:

    band        cell    n     judged as
    10:00:00    0       90    ok, all thresholds met: good
    10:00:00    4       3     ok, TTFT missed: bad
    10:00:10    0       88    good
    10:00:10    -       1     in flight, and past a threshold
    10:00:00    -       1     lost
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.queries import Queries
from collector.ask.slices import Arrays, Slice
from collector.count.in_flight import InFlight
from collector.slo.cells import Cells
from collector.slo.counts import Number
from collector.slo.judged import Bools, Ints, Judged
from collector.sql.fragment import Fragment

Floats = npt.NDArray[np.float64]

NO_SUMS: Final[Mapping[str, str]] = MappingProxyType({})
NOTHING: Final = Fragment("0")
"""In place of a column of arrays, which costs a millisecond to read for each 2,000 cells."""
_ALL_TOGETHER: Final = Fragment("''")


@dataclass(frozen=True)
class Population:
    """One value for each cell of each band. `sampled`: requests were, so that `n` and the sums are estimates."""

    judged: Judged
    """Of the different cells: all flags are theirs."""
    cell: Ints
    """The place among the different cells."""
    band: Ints
    group: npt.NDArray[np.object_]
    """The value by which cells were told apart; '' where they were not."""
    n: Floats
    variance: Floats
    """Of `n`, when every request was kept on its own: Σ w(w - 1)."""
    of_sampled: Floats
    """The rows of sampled requests."""
    sums: Mapping[str, Floats]
    """NaN where none of the values is known."""
    others: Sequence[Any]
    sampled: bool

    def where(self, chosen: Bools) -> Population:
        """These values alone."""
        return replace(
            self,
            cell=self.cell[chosen],
            band=self.band[chosen],
            group=self.group[chosen],
            n=self.n[chosen],
            variance=self.variance[chosen],
            of_sampled=self.of_sampled[chosen],
            sums={name: values[chosen] for name, values in self.sums.items()},
            others=[*compress(self.others, chosen)],
            sampled=bool(self.of_sampled[chosen].any()),
        )

    def having(self, flags: Bools, band: int | None = None) -> Bools:
        """The values of the cells with this flag; of all bands, or of one."""
        flagged = flags[self.cell]
        return flagged if band is None else flagged & (self.band == band)

    def count(self, flags: Bools, band: int | None = None) -> Number:
        """The requests in the cells with this flag."""
        return self._number(self.n[self.having(flags, band)].sum())

    def total(self, name: str, flags: Bools, band: int | None = None) -> Number | None:
        """A sum over the cells with this flag; None when none of its values is known."""
        known = self.sums[name][self.having(flags, band)]
        known = known[~np.isnan(known)]
        return self._number(known.sum()) if known.size else None

    def by_band(self, flags: Mapping[str, Bools]) -> dict[int, dict[str, Any]]:
        """For each band that has requests, in ascending order: those with each flag, and all sums."""
        bands, place = np.unique(self.band, return_inverse=True)

        def added(values: Floats) -> list[Number]:
            return [*map(self._number, np.bincount(place, values, len(bands)))]

        counts = {name: added(self.n * flag[self.cell]) for name, flag in flags.items()}
        for name, values in self.sums.items():
            known = np.bincount(place, ~np.isnan(values), len(bands))
            totals = added(np.nan_to_num(values))
            counts[name] = [total if n else None for total, n in zip(totals, known, strict=True)]  # type: ignore[misc]
        return {band: {name: of[i] for name, of in counts.items()} for i, band in enumerate(bands.tolist())}

    def with_open(self, requests: InFlight, band: Ints, column: str = "tenant") -> Population:
        """These cells, and behind them each of the requests that have not ended, as a cell of one in a band.

        They are told apart by a column.
        """
        nothing = np.zeros(requests.size)
        return replace(
            self,
            judged=requests.judged_behind(self.judged),
            cell=np.append(self.cell, len(self.judged) + np.arange(requests.size)),
            band=np.append(self.band, band),
            group=np.append(self.group, np.array(requests.values(column), object)),
            n=np.append(self.n, nothing + 1),
            variance=np.append(self.variance, nothing),
            of_sampled=np.append(self.of_sampled, nothing),
            sums={name: np.append(values, nothing + np.nan) for name, values in self.sums.items()},
        )

    def _number(self, value: Any) -> Number:
        return float(value) if self.sampled else int(value)


def read_ended(
    queries: Queries,
    matching: Fragment,
    cells: Cells,
    parts: Iterable[Slice],
    *,
    sums: Mapping[str, str] = NO_SUMS,
    others: Fragment = NOTHING,
    group: Fragment | None = None,
) -> Population:
    """Count the requests of these slices. They are counted when all stand for themselves; else their weights are added.

    `sums` are columns to add up, as SQL, and `others` is one more column. Cells tell apart the values of `group`.
    """
    asked, parts = [*sums.values()], [*parts]
    counted = {"n": Fragment("count()"), "variance": Fragment("0."), "sums": _sums_of(asked)}
    weighed = {
        "n": Fragment("sum(weight)"),
        "variance": Fragment("sum(weight * (weight - 1))"),
        "sums": _sums_of(f"weight * ({value})" for value in asked),
    }
    always = {"cell": cells.cell, "tenant_group": _ALL_TOGETHER if group is None else group, "others": others}

    def read(numbers: Mapping[str, Fragment]) -> list[Arrays]:
        packed = (one.packed(queries, "cells", {**always, **numbers, "by": one.band}, matching) for one in parts)
        return [columns for columns in packed if columns]

    of_parts = read(counted)
    sampled = any(columns["sampled"].any() for columns in of_parts)
    of_parts = read(weighed) if sampled else of_parts

    def column(name: str, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        parts = [columns[name].ravel() for columns in of_parts]
        return np.concatenate([np.empty(0, kind), *parts], dtype=kind, casting="unsafe")

    different, cell = np.unique(column("cell", np.uint64), return_inverse=True)
    return Population(
        judged=cells.judged(different),
        cell=cell,
        band=column("band", np.int64),
        group=column("tenant_group", object),
        n=column("n", np.float64),
        variance=column("variance", np.float64),
        of_sampled=column("sampled", np.float64),
        sums=dict(zip(sums, column("sums", np.float64).reshape(-1, len(sums) or 1).T, strict=False)),
        others=[one for columns in of_parts for one in columns["others"].tolist()],
        sampled=sampled,
    )


def _sums_of(values: Iterable[str]) -> Fragment:
    asked = ", ".join(f"sum({value})" for value in values)
    return Fragment(f"[{asked}]") if asked else NOTHING
