"""What a process's steps usually take: the law of their work, its scatter, and where it was seen to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from collector.causes.split.columns import Floats, Ints
from collector.causes.split.fit import LEAST_R2, MOST_SIGMA

FEATURES: Final = (
    "step", "some_prompt", "prompts", "prompt_tokens", "long_prompt_tokens", "attention", "sequences", "context",
    "drafted_tokens",
)  # fmt: skip
"""The work of a step. Its duration is the sum of these numbers, each times a coefficient (ns) that is not negative:
1 · whether there are prompt tokens · the requests that they are of · their number · how many are beyond LONG · for each
chunk of a prompt, its tokens times the context that they attend to · decoding sequences · tokens of their context ·
drafted tokens."""
RANGES: Final = ("attention", "context", "drafted_tokens")
"""Features that grow without the number of sequences or of prompt tokens."""
LONG: Final = 256
"""Tokens of a step from which on a device's arithmetic takes longer than reading the weights (H100: about 300), so that
more tokens take more time where fewer do not."""
LEAST_STEPS: Final = 50
"""Fewer steps make no law."""
LEAST_OF_CELL: Final = 8
"""Fewer steps say nothing about the work of a cell."""
_ARRAYS: Final = ("coefficients", "xtx", "xty", "most", "anchor")
_SURE_SIGMA: Final = 0.1
"""Steps that scatter no more than this need no R²: where all have the same work, there is nothing to explain."""


@dataclass(frozen=True)
class StepModel:
    """The law of a process's steps. All its numbers stand in a row of the table `step_models`."""

    start_ns: int
    """Of the first step that it knows, unix ns."""
    end_ns: int
    """Of the last one."""
    n: float
    """Steps that it knows; older ones count less."""
    sigma: float
    """Scatter of a step's duration around the law, as a share (1.4826 × the median absolute deviation)."""
    r2: float
    """Share of the variance of durations that the law explains."""
    coefficients: tuple[float, ...]
    """By FEATURES, ns."""
    xtx: tuple[float, ...]
    """Upper triangle of the weighted sums of products of features, row by row: 45 numbers."""
    xty: tuple[float, ...]
    """Weighted sums of features times duration: 9 numbers."""
    cells: Mapping[int, float] = field(default_factory=dict)
    """The median ratio of durations to the law by cell (`cells_of`)."""
    cell_steps: Mapping[int, float] = field(default_factory=dict)
    """Steps behind each of them."""
    most: tuple[float, ...] = (0.0,) * len(FEATURES)
    """By FEATURES, in one step that it knows: beyond, nobody saw the law hold. By `most_of`."""
    anchor: tuple[float, ...] = ()
    """The fastest coefficients that the process had within a week: what it is compared with when it gets slower."""
    anchor_ns: int = 0
    """When it had them, unix ns."""
    tokens_a_step: float = 1.0
    """Of a decoding sequence; more than 1 where drafts are accepted."""
    gap_ns: float = 0.0
    """The longest ordinary gap between two steps of a busy engine: the 99th percentile."""
    refused: int = 0
    """Windows in a row from which nothing was learned because most of their steps differ from the law."""
    by_itself: bool = False
    """It was made of the very steps that it judges."""

    def most_of(self, feature: str) -> float:
        """The most of a feature in one step that it knows."""
        return self.most[FEATURES.index(feature)]

    @property
    def holds(self) -> bool:
        """Whether the law tells a step's duration well enough to blame anything."""
        return self.sigma <= MOST_SIGMA and (self.r2 >= LEAST_R2 or self.sigma <= _SURE_SIGMA)

    def calibration(self, features: Floats) -> tuple[Floats, Floats]:
        """The ratio of durations to the law in each step's cell, 1 where it is not known, and the steps behind it."""
        cells, place = np.unique(cells_of(features), return_inverse=True)
        count = np.array([self.cell_steps.get(int(cell), 0.0) for cell in cells])
        ratio = np.array([self.cells.get(int(cell), 1.0) for cell in cells])
        return np.where(count >= LEAST_OF_CELL, ratio, 1.0)[place], count[place]

    def row(self) -> dict[str, Any]:
        """Columns of a row of `step_models`: lists of float64, maps, numbers. `own` models are not stored."""
        numbers = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "by_itself"}
        return numbers | {name: list(numbers[name]) for name in _ARRAYS}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StepModel:
        """The model of a row with the columns of `row`; others are ignored."""
        numbers = {one.name: row[one.name] for one in fields(cls) if one.name != "by_itself"}
        numbers |= {name: tuple(map(float, row[name])) for name in _ARRAYS}
        for name in ("cells", "cell_steps"):
            numbers[name] = {int(cell): float(value) for cell, value in dict(row[name]).items()}
        return cls(**numbers)


def ranges(features: Floats) -> tuple[Floats, ...]:
    """The numbers of RANGES: context and drafts of one sequence, since a sequence more brings its own with it."""
    number = {name: features[:, index] for index, name in enumerate(FEATURES)}
    sequences = np.maximum(number["sequences"], 1.0)
    return number["attention"], number["context"] / sequences, number["drafted_tokens"] / sequences


def most_of(features: Floats) -> Floats:
    """The largest work of steps, by FEATURES; of RANGES as these count."""
    most: Floats = features.max(0, initial=0.0)
    most[[FEATURES.index(name) for name in RANGES]] = [one.max(initial=0.0) for one in ranges(features)]
    return most


def cells_of(features: Floats) -> Ints:
    """The kind of work of each step: prompts by the quarter octave of their tokens, from 1000 on; else its sequences.

    Steps of one kind share what the law misses, such as batches that are padded to certain sizes.
    """
    prompt, sequences = (np.nan_to_num(features[:, FEATURES.index(name)]) for name in ("prompt_tokens", "sequences"))
    octave = 1000 + (4 * np.log2(np.maximum(prompt, 1))).astype(np.int64)
    return np.where(prompt > 0, octave, np.minimum(sequences, 999).astype(np.int64))
