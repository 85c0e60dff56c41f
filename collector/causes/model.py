"""What a process's steps usually take: the law of their work, its scatter, and where it was seen to hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from collector.causes.columns import Floats

FEATURES: Final = ("step", "some_prompt", "prompt_tokens", "sequences", "context", "attention", "drafted_tokens")
"""The work of a step. Its duration is the sum of these numbers, each times a coefficient (ns) that is not negative:
1 · whether there are prompt tokens · their number · decoding sequences · tokens of their context · for each chunk of a
prompt, its tokens times the context that they attend to · drafted tokens."""
_UPPER: Final = np.triu_indices(len(FEATURES))


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
    """Upper triangle of the weighted sums of products of features, row by row: 28 numbers."""
    xty: tuple[float, ...]
    """Weighted sums of features times duration: 7 numbers."""
    cells: Mapping[int, float] = field(default_factory=dict)
    """The median ratio of durations to the law by cell (`cell_of`)."""
    cell_steps: Mapping[int, float] = field(default_factory=dict)
    """Steps behind each of them."""
    most_prompt_tokens: float = 0.0
    """In one step that it knows."""
    most_sequences: float = 0.0
    refused: int = 0
    """Windows in a row from which nothing could be learned because most of their steps differ from the law."""
    own: bool = False
    """It was made of the very steps that it judges."""

    def row(self) -> dict[str, Any]:
        """Columns of a row of `step_models`: lists of float64, maps, numbers. `own` models are not stored."""
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "own"}
        return numbers | {name: list(numbers[name]) for name in ("coefficients", "xtx", "xty")}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StepModel:
        """The model of a row with the columns of `row`; others are ignored."""
        numbers = {name: row[name] for name in cls.__dataclass_fields__ if name != "own"}
        numbers |= {name: tuple(map(float, row[name])) for name in ("coefficients", "xtx", "xty")}
        for name in ("cells", "cell_steps"):
            numbers[name] = {int(cell): float(value) for cell, value in dict(row[name]).items()}
        return cls(**numbers)


def square(upper: Floats) -> Floats:
    """The symmetric matrix of an upper triangle."""
    matrix = np.zeros((len(FEATURES), len(FEATURES)))
    matrix[_UPPER] = upper
    return np.triu(matrix) + np.triu(matrix, 1).T


def triangle(matrix: Floats) -> Floats:
    """The upper triangle of a symmetric matrix, row by row."""
    return matrix[_UPPER]
