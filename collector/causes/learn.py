"""Makes the model of a process's step times, and brings it up to date without the former steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from collector.causes.columns import Bools, Columns, Floats, Traffic, traffic
from collector.causes.model import FEATURES, LEAST_OF_CELL, LEAST_STEPS, StepModel, cells_of
from collector.causes.split import OUTLIER, copied, lasting, law_of
from collector.causes.timeline import Steps, line_up
from collector.causes.work import Work, work

_KEPT: Final = 0.98
"""What a window leaves of the weight of former ones: after 34 windows of ten minutes it is half."""
_PATIENCE: Final = 6
"""Windows that differ from the law, in a row, after which they are what is usual: an hour."""
_ROUNDS: Final = 12
_BIWEIGHT: Final = 4.685
_MAD: Final = 1.4826
_UPPER: Final = np.triu_indices(len(FEATURES))


def learn(
    requests: Columns, phases: Columns, steps: Columns, *, kv_events: Columns | None = None, former: StepModel | None
) -> StepModel | None:
    """The model after these steps, to judge the steps that follow. Columns as `explain_process` takes them.

    Steps that the former model calls slow teach nothing, so a fault does not become what is usual, unless it lasts for
    six windows. None: there is no former model, and too few steps for a new one.

    Raises ValueError when columns of a table differ in length.
    """
    found = traffic(requests, phases, steps, kv_events or {})
    lined = line_up(found)
    return updated(found, lined, work(found, lined), former)


def updated(found: Traffic, steps: Steps, done: Work, former: StepModel | None) -> StepModel | None:
    """The model after these steps."""
    usable = np.isfinite(done.features).all(1) & (steps.duration > 0) & (copied(found, steps) == 0)
    features, duration = done.features[usable], steps.duration[usable]
    if former is None:
        return fitted(features, duration, found.origin_ns, steps)
    law, _ = law_of(former, features)
    ratio = duration / law
    ordinary = (np.abs(ratio - 1) <= OUTLIER * former.sigma) & (lasting(ratio, former.sigma) == 1)
    if 2 * ordinary.sum() < len(ordinary):
        if former.refused + 1 >= _PATIENCE and (new := fitted(features, duration, found.origin_ns, steps)) is not None:
            return new
        return replace(former, refused=former.refused + 1)
    return _added(former, features[ordinary], duration[ordinary], law[ordinary], found.origin_ns + int(steps.end[-1]))


def fitted(features: Floats, duration: Floats, origin_ns: int, steps: Steps) -> StepModel | None:
    """The law of these steps alone; None if they are too few.

    Steps whose relative error is large count less and less (Tukey's biweight), so that slow steps do not bend it.
    """
    if len(duration) < LEAST_STEPS:
        return None
    weight = np.where(duration > 6 * np.median(duration), 1e-6, 1.0)
    expected = duration
    former = np.zeros(len(FEATURES))
    for _ in range(_ROUNDS):
        xtx, xty = _sums(features, duration, weight / expected**2)
        coefficients = not_negative(xtx, xty)
        expected = np.maximum(features @ coefficients, 1.0)
        weight = _biweight(duration / expected - 1)
        if np.allclose(coefficients, former, rtol=1e-4):
            break
        former = coefficients
    xtx, xty = _sums(features, duration, weight / expected**2)
    cells, counts = _cells(features, duration / expected)
    prompt, sequences = features[:, FEATURES.index("prompt_tokens")], features[:, FEATURES.index("sequences")]
    model = StepModel(
        start_ns=origin_ns + int(steps.start[0]),
        end_ns=origin_ns + int(steps.end[-1]),
        n=float(len(duration)),
        sigma=0.0,
        r2=0.0,
        coefficients=tuple(coefficients.tolist()),
        xtx=tuple(xtx[_UPPER].tolist()),
        xty=tuple(xty.tolist()),
        cells=cells,
        cell_steps=counts,
        most_prompt_tokens=float(prompt.max()),
        most_sequences=float(sequences.max()),
        own=True,
    )
    law, _ = law_of(model, features)
    return replace(model, sigma=_scatter(duration / law), r2=_r2(duration, law))


def _added(former: StepModel, features: Floats, duration: Floats, law: Floats, end_ns: int) -> StepModel:
    xtx, xty = _sums(features, duration, 1 / law**2)
    both = _KEPT * np.array(former.xtx) + xtx[_UPPER], _KEPT * np.array(former.xty) + xty
    square = np.zeros((len(FEATURES), len(FEATURES)))
    square[_UPPER] = both[0]
    coefficients = not_negative(np.triu(square) + np.triu(square, 1).T, both[1])
    cells, counts = _cells(features, duration / np.maximum(features @ coefficients, 1.0))
    before, now = _KEPT * former.n, len(duration)
    share = now / (before + now)
    own = {cell: _KEPT * count for cell, count in former.cell_steps.items()}
    merged = {
        cell: (own.get(cell, 0) * former.cells.get(cell, 1.0) + counts.get(cell, 0) * cells.get(cell, 1.0))
        / (own.get(cell, 0) + counts.get(cell, 0))
        for cell in own.keys() | counts.keys()
    }
    prompt, sequences = features[:, FEATURES.index("prompt_tokens")], features[:, FEATURES.index("sequences")]
    return replace(
        former,
        end_ns=end_ns,
        n=before + now,
        sigma=(1 - share) * former.sigma + share * _scatter(duration / law),
        r2=(1 - share) * former.r2 + share * _r2(duration, law),
        coefficients=tuple(coefficients.tolist()),
        xtx=tuple(both[0].tolist()),
        xty=tuple(both[1].tolist()),
        cells=merged,
        cell_steps={cell: own.get(cell, 0) + counts.get(cell, 0) for cell in merged},
        most_prompt_tokens=max(former.most_prompt_tokens, float(prompt.max(initial=0))),
        most_sequences=max(former.most_sequences, float(sequences.max(initial=0))),
        refused=0,
        own=False,
    )


def _sums(features: Floats, duration: Floats, weight: Floats) -> tuple[Floats, Floats]:
    weighted = features * weight[:, None]
    return weighted.T @ features, weighted.T @ duration


def _biweight(error: Floats) -> Floats:
    middle = np.median(error)
    scale = max(_MAD * float(np.median(np.abs(error - middle))), 1e-4)
    far = (error - middle) / (_BIWEIGHT * scale)
    return np.where(np.abs(far) < 1, (1 - far**2) ** 2, 0.0)


def _scatter(ratio: Floats) -> float:
    return max(_MAD * float(np.median(np.abs(ratio - np.median(ratio)))), 1e-4)


def _r2(duration: Floats, law: Floats) -> float:
    """Of the steps that are not far from the law: one long stall would hide that it holds."""
    near = _biweight(duration / law - 1)
    mean = np.average(duration, weights=near)
    scatter = float(near @ (duration - mean) ** 2)
    return 1 - float(near @ (duration - law) ** 2) / scatter if scatter > 0 else 0.0


def _cells(features: Floats, ratio: Floats) -> tuple[dict[int, float], dict[int, float]]:
    """The median ratio of each cell with enough steps, and the number of steps of each."""
    cell = cells_of(features)
    order = np.argsort(cell, kind="stable")
    begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
    groups = np.split(order, begins[1:])
    return (
        {int(cell[one[0]]): float(np.median(ratio[one])) for one in groups if len(one) >= LEAST_OF_CELL},
        {int(cell[one[0]]): float(len(one)) for one in groups if len(one) >= LEAST_OF_CELL},
    )


def not_negative(xtx: Floats, xty: Floats) -> Floats:
    """The w ≥ 0 with the least w·xtx·w − 2·w·xty (Lawson and Hanson's active set, on normal equations).

    Columns are scaled to one size first. A feature that never occurs, or that others make up, gets 0 or its share.
    """
    size = np.sqrt(np.maximum(np.diag(xtx), 1e-300))
    square = xtx / np.outer(size, size) + 1e-9 * np.eye(len(xty))
    goal = xty / size
    found, free = np.zeros(len(xty)), np.zeros(len(xty), np.bool_)
    for _ in range(10 * len(xty)):
        slope = np.where(free, -np.inf, goal - square @ found)
        if slope.max() <= 1e-12 * np.abs(goal).max():
            break
        free[slope.argmax()] = True
        found = _feasible(square, goal, found, free)
    result: Floats = found / size
    return result


def _feasible(square: Floats, goal: Floats, found: Floats, free: Bools) -> Floats:
    """Go from `found` towards the best free weights, and give up those that would be negative."""
    while True:
        best = np.zeros(len(goal))
        some = np.flatnonzero(free)
        best[some] = np.linalg.solve(square[np.ix_(some, some)], goal[some])
        below = free & (best <= 0)
        if not below.any():
            return best
        step = np.min(found[below] / np.maximum(found[below] - best[below], 1e-300))
        found = found + step * (best - found)
        free &= found > 1e-15
        found = np.where(free, found, 0.0)
