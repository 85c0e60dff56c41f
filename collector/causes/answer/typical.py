"""The typical requests beside which slow ones are explained: the middle half of each model's requests.

Of bad requests, typical are good ones: the middle half of all would be bad ones in an outage, and then nothing would
be beyond it. Of a model with few good ones in the window, those of the hour or the day before count too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from collector.ask.times import DAY_NS, HOUR_NS
from collector.ask.window import Window
from collector.causes.answer.beyond import Bools, Floats, Typical
from collector.causes.answer.request_times import FIRST_TOKEN_KNOWN, Explained
from collector.causes.split.names import PARTS
from collector.slo.cells import Cells
from collector.slo.judged import Judged

LEAST: Final = 20
"""Of a model with fewer good requests, earlier ones are looked for: the middle half of less says little."""
_BEFORE_NS: Final = (HOUR_NS, DAY_NS)
_QUARTILES: Final = (0.25, 0.75)
Models = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TypicalOfModels:
    """Typical times by model. Ranges are µs, over all of the models."""

    models: Models
    """Sorted. The first column of `each` is of all together, and each model has one behind it."""
    each: Typical
    n: int
    """Requests in the middle half by TTFT."""
    ttft: tuple[float, float]

    def like(self, models: Models) -> Typical:
        """A typical request in place of one of each of these models; of a model without any, one of all models."""
        place = np.where(self.knows(models), 1 + np.searchsorted(self.models, models), 0)
        return Typical(self.each.ttft[:, place], self.each.rate[:, place])

    def knows(self, models: Models) -> Bools:
        """Which of these models have a typical request of their own."""
        known: Bools = np.isin(models, self.models)
        return known


def typical_of(pool: Explained) -> TypicalOfModels | None:
    """The middle half of these requests, of each model; None where none of them has a known first token."""
    first_known, rest_known = pool.rows["first_token"] == FIRST_TOKEN_KNOWN, ~np.isnan(pool.tpot_us)
    if not first_known.any():
        return None
    model, weight = pool.rows["model"], pool.rows["weight"]
    models = np.unique(model[first_known])
    firsts: list[Floats] = []
    rates: list[Floats] = []
    first = np.zeros(pool.n, bool)
    for of_model in (np.ones(pool.n, bool), *(model == number for number in models)):
        of_first, of_rest = (
            _middle(values, weight, of_model & known)
            for values, known in ((pool.ttft_us, first_known), (pool.tpot_us, rest_known))
        )
        later = float(weight[of_rest] @ pool.times.later[of_rest])
        if later:
            rates.append(pool.times.rest[:, of_rest] @ weight[of_rest] / later)
        else:
            rates.append(rates[0] if rates else np.zeros(len(PARTS)))
        if firsts:
            first[of_first] = True
        firsts.append(pool.times.ttft[:, of_first] @ weight[of_first] / weight[of_first].sum())
    each = Typical(np.stack(firsts, 1), np.stack(rates, 1))
    ttft_us = pool.ttft_us[first]
    return TypicalOfModels(models, each, int(first.sum()), (float(ttft_us.min()), float(ttft_us.max())))


def good_ones(
    read: Callable[[Window], Explained],
    window: Window,
    pool: Explained,
    cells: Cells,
    judge: Callable[[Judged], Bools],
    models: Models,
) -> tuple[Explained, int]:
    """The good requests of a pool, and since when they ended, unix ns. `read` reads those of another window.

    Of these models' requests that ended before the window, those of the hour before it join them, else of the day, if
    the pool has fewer than `LEAST`.
    """

    def good(of: Explained) -> Explained:
        different, cell = np.unique(of.rows["cell"], return_inverse=True)
        return of.at(np.flatnonzero(judge(cells.judged(different))[cell]))

    of_pool = chosen = good(pool)
    since_ns = window.start_ns
    for before_ns in _BEFORE_NS:
        few = [model for model in models.tolist() if (chosen.rows["model"] == model).sum() < LEAST]
        if not few or not window.start_ns:
            break
        before = Window(max(0, window.start_ns - before_ns), window.start_ns, window.filter)
        earlier = good(read(before))
        earlier = earlier.at(np.flatnonzero(np.isin(earlier.rows["model"], few)))
        if earlier.n:
            chosen, since_ns = Explained.of(np.concatenate([of_pool.rows, earlier.rows])), before.start_ns
    return chosen, since_ns


def _middle(values: Floats, weight: Floats, of: Bools) -> npt.NDArray[np.int64]:
    """The places of those between the quartiles, which are values that occur, by weight if these differ."""
    places = np.flatnonzero(of)
    if not len(places):
        return places
    some, weights = values[places], weight[places]
    if (weights == weights[0]).all():
        low, high = np.quantile(some, _QUARTILES[0], method="lower"), np.quantile(some, _QUARTILES[1], method="higher")
    else:
        order = np.argsort(some)
        until = weights[order].cumsum()
        low, high = some[order][np.searchsorted(until, until[-1] * np.array(_QUARTILES))]
    inside: npt.NDArray[np.int64] = places[(some >= low) & (some <= high)]
    return inside
