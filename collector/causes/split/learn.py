"""Makes the model of a process's step times, and brings it up to date without the former steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from collector.causes.split.columns import Columns, Floats, Traffic, traffic
from collector.causes.split.fit import not_negative, r_squared, robust, scatter, sums
from collector.causes.split.model import FEATURES, LEAST_OF_CELL, LEAST_STEPS, StepModel, cells_of, most_of
from collector.causes.split.slower import always, anchored
from collector.causes.split.steps import OUTLIER, copied, lasting, law_of
from collector.causes.split.timeline import Steps, line_up
from collector.causes.split.work import Work, work

_KEPT: Final = 0.98
"""What a window leaves of the weight of former ones: after 34 windows of ten minutes it is half."""
_PATIENCE: Final = 6
"""Windows that differ from the law, in a row, after which they are what is usual: an hour."""
_FAR_GAP: Final = 4.0
"""Gaps that are so many times as long as the longest ordinary one teach nothing."""
_UPPER: Final = np.triu_indices(len(FEATURES))


def learn(
    requests: Columns, phases: Columns, steps: Columns, *, kv_events: Columns | None = None, former: StepModel | None
) -> StepModel | None:
    """The model after these steps, to judge the steps that follow. Columns as `explain_process` takes them.

    Steps that the former model calls slow teach nothing, so a fault does not become what is usual, unless it lasts for
    six windows. None: there is no former model, and too few steps for a new one.

    Raises ValueError when columns of a table differ in length.
    """
    recorded = traffic(requests, phases, steps, kv_events or {})
    lined = line_up(recorded)
    model = updated(recorded, lined, work(recorded, lined), former) if len(lined) else former
    return model and replace(model, by_itself=False)


def updated(recorded: Traffic, steps: Steps, done: Work, former: StepModel | None) -> StepModel | None:
    """The model after these steps."""
    usable = np.isfinite(done.features).all(1) & (steps.duration > 0) & (copied(recorded, steps) == 0)
    features, duration = done.features[usable], steps.duration[usable]
    sequences = done.features[:, FEATURES.index("sequences")]

    def new() -> StepModel | None:
        made = _fitted(features, duration, recorded.origin_ns, steps, _longest_gap(steps, sequences))
        return made and replace(made, tokens_a_step=_tokens_a_step(done)[0])

    if former is None:
        made = new()
        return made and _with_anchor(made, None)
    law, _ = law_of(former, features)
    ratio = duration / law
    ordinary = (np.abs(ratio - 1) <= OUTLIER * former.sigma) & (lasting(ratio, former.sigma) == 1)
    if 2 * ordinary.sum() < len(ordinary) or always(former, features, duration) == "faster":
        # No fault makes steps faster: a fault has ended that was taken for what is usual, or something better came.
        another = former.refused + 1 >= _PATIENCE or (len(ratio) and np.median(ratio) < 1)
        made = new() if another else None
        return _with_anchor(made, former) if made else replace(former, refused=former.refused + 1)
    gap = _longest_gap(steps, sequences, _FAR_GAP * former.gap_ns or np.inf)
    end_ns = recorded.origin_ns + int(steps.end[-1])
    went_on = _added(former, features[ordinary], duration[ordinary], law[ordinary], end_ns, gap)
    tokens, told = _tokens_a_step(done)
    share = told / max(_KEPT * former.n + told, 1)
    tokens_a_step = (1 - share) * former.tokens_a_step + share * tokens
    return _with_anchor(replace(went_on, tokens_a_step=tokens_a_step), former)


def _with_anchor(model: StepModel, former: StepModel | None) -> StepModel:
    anchor, anchor_ns = anchored(model, former)
    return replace(model, anchor=anchor, anchor_ns=anchor_ns)


def _tokens_a_step(done: Work) -> tuple[float, int]:
    """The tokens that a decoding sequence usually gets in a step, and the steps that tell it."""
    told = np.isfinite(done.tokens_a_step)
    return (float(np.median(done.tokens_a_step[told])) if told.any() else 1.0), int(told.sum())


def _longest_gap(steps: Steps, sequences: Floats, most: float = np.inf) -> float:
    """The 99th percentile of the gaps before steps in which a sequence decodes, since then the engine was busy."""
    gaps = (steps.start[1:] - steps.end[:-1])[steps.follows[1:] & (np.nan_to_num(sequences[1:]) > 0)]
    gaps = gaps[gaps <= most]
    return float(np.quantile(gaps, 0.99)) if len(gaps) else 0.0


def _fitted(features: Floats, duration: Floats, origin_ns: int, steps: Steps, gap_ns: float) -> StepModel | None:
    """The law of these steps alone; None if they are too few."""
    if len(duration) < LEAST_STEPS:
        return None
    fit = robust(features, duration)
    cells, counts = _cells(features, duration / fit.expected)
    model = StepModel(
        start_ns=origin_ns + int(steps.start[0]),
        end_ns=origin_ns + int(steps.end[-1]),
        n=float(len(duration)),
        sigma=0.0,
        r2=0.0,
        coefficients=tuple(fit.coefficients.tolist()),
        xtx=tuple(fit.xtx[_UPPER].tolist()),
        xty=tuple(fit.xty.tolist()),
        cells=cells,
        cell_steps=counts,
        gap_ns=gap_ns,
        by_itself=True,
    )
    law, _ = law_of(model, features)
    sigma = scatter(duration / law)
    known = features[np.abs(duration / law - 1) <= OUTLIER * sigma]
    return replace(
        model,
        sigma=sigma,
        r2=r_squared(duration, law),
        most=tuple(most_of(known).tolist()),
    )


def _added(former: StepModel, features: Floats, duration: Floats, law: Floats, end_ns: int, gap_ns: float) -> StepModel:
    xtx, xty = sums(features, duration, 1 / law**2)
    both = _KEPT * np.array(former.xtx) + xtx[_UPPER], _KEPT * np.array(former.xty) + xty
    square = np.zeros((len(FEATURES), len(FEATURES)))
    square[_UPPER] = both[0]
    coefficients = not_negative(np.triu(square) + np.triu(square, 1).T, both[1])
    cells, counts = _cells(features, duration / np.maximum(features @ coefficients, 1.0))
    before, now = _KEPT * former.n, len(duration)
    share = now / (before + now)
    kept_steps = {cell: _KEPT * count for cell, count in former.cell_steps.items()}
    merged = {
        cell: (kept_steps.get(cell, 0) * former.cells.get(cell, 1.0) + counts.get(cell, 0) * cells.get(cell, 1.0))
        / (kept_steps.get(cell, 0) + counts.get(cell, 0))
        for cell in kept_steps.keys() | counts.keys()
    }
    return replace(
        former,
        end_ns=end_ns,
        n=before + now,
        sigma=(1 - share) * former.sigma + share * scatter(duration / law),
        r2=(1 - share) * former.r2 + share * r_squared(duration, law),
        coefficients=tuple(coefficients.tolist()),
        xtx=tuple(both[0].tolist()),
        xty=tuple(both[1].tolist()),
        cells=merged,
        cell_steps={cell: kept_steps.get(cell, 0) + counts.get(cell, 0) for cell in merged},
        most=tuple(most_of(features).clip(min=former.most).tolist()),
        gap_ns=(1 - share) * former.gap_ns + share * gap_ns,
        refused=0,
        by_itself=False,
    )


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
