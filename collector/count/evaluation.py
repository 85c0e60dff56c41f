"""Counts of requests in windows, and the numbers that follow from them. Several endpoints use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from collector.ask.slices import ARRIVED, is_short, slices
from collector.ask.template import part
from collector.ask.times import HOUR_NS
from collector.ask.window import Window
from collector.count.answers import Covered
from collector.count.hops import counted_once
from collector.count.in_flight import InFlight, read_in_flight
from collector.count.population import Population, read_ended
from collector.count.reader import Reader
from collector.count.summing import WITH_VARIANCE, SloCounts, Summing, counts_of
from collector.slo.burn import BurnRule, burn_rules, fires
from collector.slo.cells import Cells
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.judge import column_of, selected
from collector.slo.model import Promise, Slo
from collector.sql.fragment import TRUE, Fragment, all_of

_NO_TENANTS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
OUTPUT_TOKENS: Final = {"tokens_out": "output_tokens"}
"""These sums leave out a request when its tokens are not known."""


@dataclass(frozen=True)
class Counted:
    """Requests of a window, the other sums that were asked for, and the cells from which both are added up."""

    window: Window
    """Its filter counts each request once, although two processes may have reported it."""
    first_ns: int | None
    """When the first of its ended requests began, in a short window that has one."""
    requests: Counts
    sums: Mapping[str, Any]
    covered: Covered
    """The part of the window that is complete."""
    complete_ns: int
    errors: Errors | None
    """None: every request stands for itself, so nothing is estimated."""
    population: Population


def count(
    reader: Reader,
    window: Window,
    vantage: Sequence[str],
    promises: Sequence[Promise],
    summands: Mapping[str, str] = OUTPUT_TOKENS,
) -> Counted:
    """Requests of a window by how they ended, and those in flight that are bad already.

    Each request counts once, by the row of its server if that reported it too. Only several vantages need the costly
    filter, and a caller that asks for a `vantage` gets its rows as they are.

    `summands` are columns to add up, as SQL. `tokens_good` is the part of `tokens_out` that belongs to good requests,
    and `missed_{name}` the number of requests that missed the threshold of that name and are not lost, where there is
    one promise.
    """
    read = _read(reader, window, vantage, Cells(promises), summands)
    return _counted(read, promises, summands)


def count_by(
    reader: Reader,
    window: Window,
    vantage: Sequence[str],
    promises: Sequence[Promise],
    column: str,
    chosen: int | Sequence[str],
    summands: Mapping[str, str] = OUTPUT_TOKENS,
) -> Groups:
    """What `count` gives, for so many of the values of a column, those with the most requests, or for these values."""
    read = _read(reader, window, vantage, Cells(promises), summands, column)
    population = read.population
    sizes: Counter[str] = Counter()
    for value, n in zip(population.group, population.n * population.having(population.judged.ended), strict=True):
        sizes[value] += n
    place = {value: i for i, value in enumerate(sizes)}
    places = np.array([place[value] for value in population.group], int)
    by_value = {}
    if isinstance(chosen, int):
        chosen = sorted(sizes, key=lambda value: (-sizes[value], value))[:chosen]
    for value in filter(sizes.__contains__, chosen):
        alone = replace(read.window, filter=all_of(read.window.filter, selected({column: [value]}, "group")))
        of_group = replace(read, window=alone, population=population.where(places == place[value]))
        by_value[value] = _counted(of_group, promises, summands)
    listed = all_of(read.window.filter, selected({column: [*by_value]}, "group"))
    return Groups(replace(read.window, filter=listed), by_value, len(sizes))


@dataclass(frozen=True)
class Groups:
    """Requests by the value of a column, those with the most first; `total` is the number of all values."""

    window: Window
    """Its filter selects the requests of all these groups, each once."""
    by_value: Mapping[str, Counted]
    total: int


@dataclass(frozen=True)
class _Read:
    """The requests of a window, each once."""

    window: Window
    complete_ns: int
    band: int
    """The oldest band, which is complete. Requests that have not ended are in it."""
    population: Population


def _read(
    reader: Reader,
    window: Window,
    vantage: Sequence[str],
    cells: Cells,
    summands: Mapping[str, str],
    column: str | None = None,
) -> _Read:
    complete_ns = reader.complete_ns
    covered, others = window.complete(complete_ns), _vantages_and_first(window)
    moments = [window.end_ns, window.start_ns]
    if window.start_ns < covered.end_ns < window.end_ns:
        moments.insert(1, covered.end_ns)
    group = None if column is None else column_of(column, "group_by")

    def ended() -> Population:
        return read_ended(
            reader.queries, window.filter, cells, slices(moments), sums=summands, others=others, group=group
        )

    population = ended()
    if not vantage and len({vantage for vantages, _ in population.others for vantage in vantages}) > 1:
        window = counted_once(window)
        population = ended()
    band, in_flight = len(moments) - 1, open_requests(reader, window)
    population = population.with_open(in_flight, np.full(in_flight.size, band), column or "tenant")
    return _Read(window, complete_ns, band, population)


def _counted(read: _Read, promises: Sequence[Promise], summands: Mapping[str, str]) -> Counted:
    population = read.population
    outcomes = population.judged.of_all_slos()

    def summed(band: int | None) -> tuple[dict[str, Any], dict[str, Number | None]]:
        counts = {name: population.count(flags, band) for name, flags in outcomes.items().items()}
        totals = {name: population.total(name, outcomes.total, band) for name in summands}
        return counts, {**totals, "tokens_good": population.total("tokens_out", outcomes.good, band)}

    counts, totals = summed(None)
    of_covered = (counts, totals) if read.band == 1 else summed(read.band)
    for name in WITH_VARIANCE:
        counts[f"{name}_variance"] = population.variance[population.having(getattr(outcomes, name))].sum().item()
    if len(promises) == 1:
        for name, ns in promises[0].thresholds.given().items():
            totals[f"missed_{name}"] = population.count(population.judged.missed(name, ns) & ~outcomes.lost)
    requests, errors = counts_of(counts, sampled=population.sampled)
    seconds, of_covered_counts = read.window.complete(read.complete_ns).seconds, counts_of(of_covered[0], sampled=False)
    rates = Covered(seconds, of_covered_counts[0], of_covered[1])
    first_ns = min((first_ns for _, first_ns in population.others), default=0)
    return Counted(read.window, first_ns or None, requests, totals, rates, read.complete_ns, errors, population)


def _vantages_and_first(window: Window) -> Fragment:
    """SQL: the vantages of a cell and, in a window that is read at once, when the first of its requests began."""
    first = "toUnixTimestamp64Nano(min(start))" if is_short(window.start_ns, window.end_ns) else "0"
    return Fragment(f"(groupUniqArray(vantage), {first})")


def open_requests(reader: Reader, window: Window) -> InFlight:
    """The requests of a window that had not ended at its end, without those that were lost before its start.

    The parts of an answer share them, so the part with the longest window comes first.
    """
    asked = repr((window.filter, window.end_ns))
    if asked not in reader.not_ended or reader.not_ended[asked][0] > window.start_ns:
        in_flight = read_in_flight(
            reader.queries,
            window.filter,
            **window.bounds,
            lost_after_ns=reader.lost_after_ns,
            heard_until_ns=reader.heard_until_ns,
        )
        reader.not_ended[asked] = window.start_ns, in_flight
    start_ns, in_flight = reader.not_ended[asked]
    return in_flight if start_ns == window.start_ns else in_flight.where(in_flight.lost_at_ns >= window.start_ns)


def burn_windows(rules: Sequence[BurnRule]) -> set[int]:
    """The lengths of the windows that burn-rate rules look at, in nanoseconds."""
    return {ns for rule in rules for ns in (rule.short_ns, rule.long_ns)}


def count_burns(
    reader: Reader,
    slos: Sequence[Slo],
    asked: Window,
    *,
    in_flight: InFlight | None = None,
    tenants: Mapping[str, Sequence[str]] = _NO_TENANTS,
) -> Mapping[str, SloCounts]:
    """Count for every SLO over an hour and the windows of its burn-rate rules, by the time at which requests arrived.

    The counters of `/metrics` count them then. By the ends that it tells, a sender whose clock is ten minutes behind
    has no request in the last five. All who count ask the same question.
    """
    lengths = {slo.name: {HOUR_NS, *burn_windows(burn_rules(slo, reader.windows))} for slo in slos}
    return count_by_window(reader, slos, asked, lengths, column=ARRIVED, in_flight=in_flight, tenants=tenants).slos


@dataclass(frozen=True)
class AllCounts:
    """The counts of SLOs by name, and by window length the requests of all that ended, selected or not."""

    slos: Mapping[str, SloCounts]
    ended: Mapping[int, Number]


def count_by_window(
    reader: Reader,
    slos: Sequence[Slo],
    asked: Window,
    lengths: Mapping[str, set[int]],
    *,
    column: str = "end",
    in_flight: InFlight | None = None,
    tenants: Mapping[str, Sequence[str]] = _NO_TENANTS,
) -> AllCounts:
    """Count for every SLO over windows of the given lengths (nanoseconds, by the SLO's name).

    All windows end when the asked one does. The rows are read once for all SLOs. `column` is the time that puts a
    request into a window. `in_flight` are the requests of the longest window that had not ended, if they are known.
    `tenants` are those that are counted alone; without them, those with the most requests.
    """
    ends = sorted(set().union(*lengths.values()))
    if not ends:
        return AllCounts({}, {})
    moments = [asked.end_ns, *(max(0, asked.end_ns - length) for length in ends)]
    cells = Cells(slos)
    ended = read_ended(
        reader.queries, asked.filter, cells, slices(moments, column=column), group=cells.fragments["tenant_group"]
    )
    if in_flight is None:
        in_flight = open_requests(reader, replace(asked, start_ns=moments[-1]))
    # A lost request belongs to the window in which it was given up, a request in flight to every window.
    given_up = 1 + np.searchsorted(ends, asked.end_ns - in_flight.lost_at_ns)
    summing = Summing(ended.with_open(in_flight, np.where(in_flight.is_lost, given_up, 1)), ends)
    return AllCounts(
        {slo.name: summing.of(i, slo, sorted(lengths[slo.name]), tenants.get(slo.name)) for i, slo in enumerate(slos)},
        dict(zip(ends, Summing(ended, ends).total(), strict=True)),
    )


@dataclass(frozen=True)
class Burn:
    """How many times as fast as allowed an SLO's budget burns over the two windows of a rule; None without requests."""

    rule: BurnRule
    short: float | None
    long: float | None
    firing: bool


def burns(slo: Slo, rules: Sequence[BurnRule], by_window: Mapping[int, Counts]) -> list[Burn]:
    """The burn of every rule, in the order of the rules."""
    tallies = {ns: by_window[ns].tally for ns in burn_windows(rules)}
    rates = {ns: tally.burn(slo.budget) for ns, tally in tallies.items()}
    floats = {ns: None if rate is None else float(rate) for ns, rate in rates.items()}
    return [
        Burn(
            rule,
            floats[rule.short_ns],
            floats[rule.long_ns],
            fires(rule, rates[rule.short_ns], rates[rule.long_ns], bad=tallies[rule.long_ns].bad),
        )
        for rule in rules
    ]


def process_filter(window: Window) -> Fragment:
    """The filter for rows that belong to an engine process and not to a request: the process has matching requests."""
    if window.filter == TRUE:
        return TRUE
    serves = part("serves_requests", {"filter": window.filter})
    return Fragment(serves.sql, {**serves.parameters, **window.bounds})
