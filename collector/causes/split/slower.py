"""Law against law: how many times as long a process's steps take for the same work as those of another law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.causes.split.columns import Bools, Floats
from collector.causes.split.fit import MOST_SIGMA, scatter
from collector.causes.split.model import FEATURES, LEAST_STEPS, RANGES, StepModel, ranges
from collector.causes.split.steps import LEAST_DRIFT, MEDIAN_ERROR, law_of

KINDS: Final = ("none", "version", "earlier", "sister")
"""In the order of the column `slower_than` of the table `causes`. A process is slower than

version  another variant of its service
earlier  itself, at some time of the last week
sister   another process of its service and variant, and always was
"""
_GROUP: Final = 50
"""Steps that scatter together, since slower and faster ones come in groups: so many count as one."""
_QUARTERS: Final = 4
ENOUGH: Final = 400
"""Steps that tell how fast a device is."""
_WEEK_NS: Final = 7 * 86400 * 10**9


@dataclass(frozen=True)
class Slower:
    """How much slower a process is than another law."""

    kind: str
    """One of KINDS."""
    ratio: float
    low: float
    """In 95 of 100 cases the ratio is between this and `high`, by the scatter of the steps that made the laws."""
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether it is slower by more than the least that counts as slow."""
        return self.low > 1 + LEAST_DRIFT


def inside(law: StepModel, features: Floats) -> Bools:
    """The steps whose work is within what a law has seen."""
    most = np.array(law.most) * (1 + 1e-9)
    each = [FEATURES.index(name) for name in FEATURES if name not in RANGES]
    within: Bools = np.all(features[:, each] <= most[each], axis=1)
    for name, work in zip(RANGES, ranges(features), strict=True):
        within &= work <= most[FEATURES.index(name)]
    return within


def slower(kind: str, law: StepModel, other: StepModel, own_ns: Floats, other_ns: Floats) -> Slower | None:
    """The ratio of what two laws expect of the same steps (ns); None: too few steps are within both."""
    if len(own_ns) < LEAST_STEPS:
        return None
    ratio = float(own_ns.sum() / max(other_ns.sum(), 1.0))
    either = 1.96 * float(np.sqrt(_GROUP * (law.sigma**2 / max(law.n, 1) + other.sigma**2 / max(other.n, 1))))
    return Slower(kind, ratio, ratio * (1 - either), ratio * (1 + either))


def than_another(law: StepModel, other: StepModel, features: Floats, kind: str) -> tuple[Slower | None, Floats]:
    """How much slower the law is than that of another process or version, and the share of each step that is due to it.

    Steps whose work the other one has not seen say nothing, and have the share of the others.
    """
    seen = inside(other, features)
    own_ns, _ = law_of(law, features)
    other_ns, _ = law_of(other, features)
    found = slower(kind, law, other, own_ns[seen], other_ns[seen])
    of_others = 1 - 1 / max(found.ratio, 1.0) if found else 0.0
    return found, np.where(seen, np.maximum(1 - other_ns / own_ns, 0.0), of_others)


def has_slowed(law: StepModel) -> bool:
    """Whether a law may be slower than the fastest that the process had, by the work of the steps that made it."""
    return law.anchor not in ((), law.coefficients) and _times(law, law.anchor) >= 1 + LEAST_DRIFT / 2


def than_earlier(law: StepModel, features: Floats) -> tuple[Slower | None, Floats]:
    """How much slower the law is than the fastest that the process had, and the share of each step."""
    own_ns, other_ns = (np.maximum(features @ np.array(one), 1.0) for one in (law.coefficients, law.anchor))
    return slower("earlier", law, law, own_ns, other_ns), np.maximum(1 - other_ns / own_ns, 0.0)


def always(law: StepModel, features: Floats, duration: Floats) -> str:
    """`slower` or `faster` where the steps were so in each quarter of them, compared with a law; else empty.

    A fault begins and ends: a process that never ran at the speed of another one's law has another device.
    """
    if not len(duration):
        return ""
    some = slice(None, None, max(len(duration) // ENOUGH, 1))
    duration, features = duration[some], features[some]
    expected, _ = law_of(law, features)
    middles = [float(np.median(some)) for some in np.array_split(duration / expected, _QUARTERS) if len(some)]
    error = 3 * MEDIAN_ERROR * law.sigma / np.sqrt(max(len(duration) / _QUARTERS, 1))
    least = max(LEAST_DRIFT, float(error))
    return "slower" if min(middles) > 1 + least else "faster" if max(middles) < 1 - least else ""


def scatters(law: StepModel, features: Floats, duration: Floats) -> bool:
    """Whether steps differed from a law in each quarter of them by more than a law that holds may scatter.

    A fault begins and ends: steps that never followed another process's law have another machine.
    """
    if len(duration) < LEAST_STEPS:
        return False
    expected, _ = law_of(law, features)
    return all(scatter(some) > MOST_SIGMA for some in np.array_split(duration / expected, _QUARTERS))


def anchored(law: StepModel, former: StepModel | None) -> tuple[tuple[float, ...], int]:
    """The anchor of a law, and its time: that of the former one, unless the law is faster or that is of a week ago."""
    if former is None or not former.anchor or law.end_ns - former.anchor_ns > _WEEK_NS:
        return law.coefficients, law.end_ns
    return (law.coefficients, law.end_ns) if _times(law, former.anchor) < 1 else (former.anchor, former.anchor_ns)


def _times(law: StepModel, coefficients: tuple[float, ...]) -> float:
    """How many times as long as by other coefficients the steps take that made the law."""
    work = np.array(law.xtx[: len(FEATURES)])  # the first feature is 1: these are the weighted sums of all
    return float(work @ np.array(law.coefficients) / max(work @ np.array(coefficients), 1e-300))
