"""What was usual in a day, in blocks of ten minutes, and the stretches that were not: of requests and of processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from statistics import median, median_low
from typing import Final, Literal

from collector.ask.slices import slices
from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.process import Process
from collector.count.reader import Reader
from collector.engines.siblings import Beside, bounds
from collector.incidents.stretches import Counts, Stretch, runs, unusual

OddKind = Literal["slow", "cancelled", "failed", "process"]
BLOCK_NS: Final = 600 * SECOND_NS
"""incidents/queries/odd_requests.sql"""
_NO_TTFT: Final = 255
_OCTAVE: Final = 4
"""Buckets of TTFT in an octave."""
_ABOVE: Final = 2 * _OCTAVE
_FEWEST: Final = 10
"""Requests with a TTFT in a block whose P95 says what is usual."""
_FEWEST_TPOT: Final = 5
"""Requests of a process in a block whose median says how quick it is."""
_SLOWER: Final = 1.5
"""A block of a process is high where its tokens take so many times as long as those of its siblings."""
_ERROR: Final = 0.05
_STATUSES: Final[tuple[OddKind, ...]] = ("cancelled", "failed")

Buckets = Mapping[int, int]
"""Requests by the quarter of an octave of their TTFT."""


@dataclass(frozen=True)
class Unusual:
    """An unusual stretch of requests, or of one process."""

    stretch: Stretch
    kind: OddKind
    others: Counts = (0, 0)
    """How many of the requests at other times are of that kind, and how many these are."""
    model: str | None = None
    slow_us: int = 0
    """From this TTFT on a request is slow."""
    p99_s: tuple[float, float] | None = None
    """Of the TTFT in the stretch and at other times, as exact as a quarter of an octave."""
    process: Process | None = None
    beside: Beside | None = None


def unusual_of_day(reader: Reader, day: Window) -> list[Unusual]:
    """All unusual stretches of a day, the latest first."""
    names = ("block", "bucket", "n", "cancelled", "failed", "with_tpot", "tpot_p50_ns", "grouping_of", "of_model")
    models: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    ended: dict[OddKind, dict[int, Counts]] = {kind: defaultdict(lambda: (0, 0)) for kind in _STATUSES}
    tpot: dict[Process, dict[int, float]] = defaultdict(dict)
    for part in slices([day.end_ns, day.start_ns]):
        asked = part.packed(reader.queries, "odd_requests", {}, day.filter)
        if not len(asked):
            continue
        rows = zip(*(asked[name].tolist() for name in (*names, *Process._fields)), strict=True)
        for block, bucket, n, cancelled, failed, with_tpot, tpot_ns, is_process, model, *process in rows:
            if not is_process:
                models[model][block][bucket] += n
                for kind, of_kind in zip(_STATUSES, (cancelled, failed), strict=True):
                    before, of = ended[kind][block]
                    ended[kind][block] = before + of_kind, of + n
            elif with_tpot >= _FEWEST_TPOT:
                tpot[Process(*process)][block] = tpot_ns
    found = [*slow_requests(models), *slow_processes(tpot)]
    found += [
        Unusual(one, kind, outside(one, blocks))
        for kind, blocks in ended.items()
        for one in unusual(blocks, len(_STATUSES))
    ]
    return sorted(
        found, key=lambda one: (-one.stretch.last, one.stretch.first, one.kind, one.model or "", one.process or ())
    )


def outside(stretch: Stretch, blocks: Mapping[int, Counts]) -> Counts:
    """The sums of the blocks outside of a stretch."""
    rest = [counts for block, counts in blocks.items() if not stretch.has(block)]
    return sum(n for n, _ in rest), sum(of for _, of in rest)


def slow_requests(models: Mapping[str, Mapping[int, Buckets]]) -> Iterator[Unusual]:
    """Stretches in which many requests of a model waited for their first token four times the usual P95, or longer.

    The usual P95 is that of the middle block.
    """
    for model, blocks in models.items():
        known = {block: {bucket: n for bucket, n in of.items() if bucket != _NO_TTFT} for block, of in blocks.items()}
        usual = [p95 for of in known.values() if (p95 := quantile(of, 0.95, _FEWEST)) is not None]
        if not usual:
            continue
        edge = median_low(usual) + 1 + _ABOVE
        counts = {at: (sum(n for b, n in of.items() if b >= edge), sum(of.values())) for at, of in known.items()}
        for one in unusual(counts, len(models)):
            sides = [
                quantile(_together(of for at, of in known.items() if one.has(at) == is_in), 0.99)
                for is_in in (True, False)
            ]
            then, usually = (None if side is None else 2 ** ((side + 0.5) / _OCTAVE) / SECOND_NS for side in sides)
            p99_s = None if then is None or usually is None else (then, usually)
            slow_us = ceil(2 ** (edge / _OCTAVE) / 1000)
            yield Unusual(one, "slow", outside(one, counts), model=model, slow_us=slow_us, p99_s=p99_s)


def _together(many: Iterable[Buckets]) -> Buckets:
    sums: dict[int, int] = defaultdict(int)
    for of in many:
        for bucket, n in of.items():
            sums[bucket] += n
    return sums


def quantile(of: Buckets, q: float, fewest: int = 1) -> int | None:
    """The bucket of a quantile; None with fewer than so many requests."""
    total = sum(of.values())
    if total < fewest:
        return None
    sums = accumulate(n for _, n in sorted(of.items()))
    return next(bucket for bucket, n in zip(sorted(of), sums, strict=True) if n >= q * total)


def slow_processes(tpot: Mapping[Process, Mapping[int, float]]) -> Iterator[Unusual]:
    """Stretches in which the tokens of a process took 1.5 times as long as those of its siblings, or longer.

    `tpot` is the median time of a token after the first by block, in any unit.
    """
    services: dict[tuple[str, str], list[Process]] = defaultdict(list)
    for process in tpot:
        services[process.service, process.process_tenant].append(process)
    compared = [of for of in services.values() if len(of) > 1]
    for of in compared:
        ratios = {process: _ratios(process, of, tpot) for process in of}
        high = {process: {at for at, ratio in its.items() if ratio >= _SLOWER} for process, its in ratios.items()}
        all_high, total = (sum(map(len, its.values())) for its in (high, ratios))
        for process, its in ratios.items():
            for one in runs(high[process], its, all_high, total, sum(map(len, compared))):
                inside = sorted(ratio for at, ratio in its.items() if one.has(at))
                low, up = bounds(inside, _ERROR)
                beside = Beside(ratio=median(inside), low=low, high=up, siblings=len(of) - 1, is_slow=True)
                yield Unusual(one, "process", process=process, beside=beside)


def _ratios(one: Process, of: Sequence[Process], tpot: Mapping[Process, Mapping[int, float]]) -> dict[int, float]:
    """The time of a token of a process ÷ that of the middle one of its siblings, by block that has both."""
    return {
        block: own / median_low(others)
        for block, own in tpot[one].items()
        if (others := [time for other in of if other != one and (time := tpot[other].get(block))])
    }
