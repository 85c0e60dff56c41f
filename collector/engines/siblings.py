"""Each engine process beside its siblings: how much longer its steps take than those of the others of its service.

Only steps that decode and compute no prompt are compared, with those of about as many sequences, within one bucket of
time: so neither the prompts, nor the load, nor the hour of a process make it slow. A bucket gives one ratio: the median
over its sizes of batches of the process's median step ÷ the lower median of the siblings'. With one size:

    bucket      1      2      3      4      5      6
    a        40 ms  41 ms  40 ms  44 ms  40 ms  41 ms
    b        40 ms  40 ms  41 ms  43 ms  40 ms  40 ms
    c        78 ms  77 ms  80 ms  84 ms  78 ms  79 ms     c ÷ the faster of a and b: 1.95, of 6 buckets 1.93 to 1.98

The interval of the median ratio is that of its order statistics (the sign test, Conover, Practical Nonparametric
Statistics, 3.2): no shape of a distribution is assumed. Its error is divided by the number of processes that are looked
at, so that of 200 like processes none is called slow by chance in 19 of 20 cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import comb
from statistics import median, median_low
from typing import Final, TypeVar

from collector.base.answer import Answer

RELEVANT: Final = 1.1
"""A process is called slow whose steps take certainly more than so many times as long."""
_ERROR: Final = 0.05

Name = TypeVar("Name", bound=Hashable)
Medians = Mapping[int, Mapping[int, float]]
"""The median decode step of a process by bucket of time and size of its batch, in any unit."""


class Beside(Answer):
    """A process beside the others of its service, by steps that only decode about as many sequences, in the same
    buckets of time."""

    ratio: float
    """Its median step ÷ that of its siblings."""
    low: float | None
    """The bounds of the ratio; null: too few buckets have steps of both."""
    high: float | None
    siblings: int
    """The others of its service that have such steps."""
    is_slow: bool
    """It takes more than 1.1 times as long, beyond chance."""


def beside(services: Mapping[Name, Hashable], steps: Mapping[Name, Medians]) -> dict[Name, Beside]:
    """What is known of each process that has siblings with steps at its times. `services` has the service of each."""
    of_service: dict[Hashable, list[Name]] = defaultdict(list)
    for name, service in services.items():
        if steps.get(name):
            of_service[service].append(name)
    error = _ERROR / max(1, sum(len(names) for names in of_service.values() if len(names) > 1))
    told = {}
    for names in of_service.values():
        alike: dict[tuple[int, int], list[tuple[float, Name]]] = defaultdict(list)
        for name in names:
            for bucket, sizes in steps[name].items():
                for size, step in sizes.items():
                    alike[bucket, size].append((step, name))
        for name in names:
            ratios = sorted(_ratios(name, steps[name], alike))
            if ratios:
                low, high = bounds(ratios, error)
                slow = low is not None and low > RELEVANT
                told[name] = Beside(ratio=median(ratios), low=low, high=high, siblings=len(names) - 1, is_slow=slow)
    return told


def _ratios(
    name: Name, steps: Medians, alike: Mapping[tuple[int, int], Sequence[tuple[float, Name]]]
) -> Iterator[float]:
    """One of each bucket in which a sibling has steps of the same size."""
    for bucket, sizes in steps.items():
        ratios = [
            step / median_low(others)
            for size, step in sizes.items()
            if (others := [of for of, other in alike[bucket, size] if other != name])
        ]
        if ratios:
            yield median(ratios)


def bounds(values: list[float], error: float) -> tuple[float | None, float | None]:
    """The interval of the median of sorted values that misses it with this probability at most; None: too few values.

    It goes from the k-th value to the k-th from the end, for the largest k with 2 · P(Binomial(n, ½) < k) ≤ `error`.
    """
    n, below, k = len(values), 0, 0
    while k < n and 2 * (below + comb(n, k)) <= error * 2**n:
        below += comb(n, k)
        k += 1
    return (values[k - 1], values[n - k]) if k else (None, None)
