"""Counts of requests in windows, and the numbers that follow from them. Several endpoints use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from collector.measure.answers import Covered
from collector.measure.hops import counted_once
from collector.measure.in_flight import InFlight, read_in_flight
from collector.measure.reader import Reader
from collector.measure.summing import WITH_VARIANCE, SloCounts, Summing, counts_of, number_of
from collector.measure.sums import ARRIVED, Sums, is_short, slices
from collector.measure.times import HOUR_NS
from collector.measure.window import Window
from collector.query.template import part
from collector.slo.burn import BurnRule, burn_rules, fires
from collector.slo.cells import Bools, Cells
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.model import Promise, Slo
from collector.sql.fragment import TRUE, Fragment

_NO_SUMS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_TENANTS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
_NONE: Final = Fragment("0")
"""In place of a column of arrays, which costs a millisecond to read for each 2,000 cells."""
OUTPUT_TOKENS: Final = {"tokens_out": "output_tokens"}
"""These sums leave out a request when its tokens are not known."""


@dataclass(frozen=True)
class Counted:
    """Requests of a window, the other sums that were asked for, and the requests in flight that were looked at."""

    window: Window
    """Its filter counts each request once, although two processes may have reported it."""
    first_ns: int | None
    """When the first of its ended requests began, in a short window that has one."""
    requests: Counts
    sums: Sums
    covered: Covered
    """The part of the window that is complete."""
    complete_ns: int
    errors: Errors | None
    """None: every request stands for itself, so nothing is estimated."""
    in_flight: InFlight


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
    and `missed_{name}` the number of ended requests that missed the threshold of that name, where there is one promise.
    """
    cells, complete_ns = Cells(promises), reader.complete_ns
    covered = window.complete(complete_ns)
    others, moments = _vantages_and_first(window), [window.end_ns, window.start_ns]
    if window.start_ns < covered.end_ns < window.end_ns:
        moments.insert(1, covered.end_ns)
    columns, sampled = _read_cells(reader, window.filter, cells, moments, summands, others)
    if not vantage and len({vantage for vantages, _ in columns["others"] for vantage in vantages}) > 1:
        window = counted_once(window)
        columns, sampled = _read_cells(reader, window.filter, cells, moments, summands, others)
    judged = cells.judged(columns)
    outcomes = judged.together()
    n = np.array(columns["n"], np.float64 if sampled else np.int64)
    variance = np.array(columns["variance"], np.float64)
    by_name = dict(zip(summands, zip(*columns["sums"], strict=True), strict=False)) if summands else {}

    def summed(inside: Bools) -> tuple[dict[str, Any], dict[str, Number | None]]:
        ended = {name: (n * (flags & inside)).sum().item() for name, flags in outcomes.items().items()}
        totals = {name: _total(compress(values, inside)) for name, values in by_name.items()}
        good = _total(compress(by_name["tokens_out"], outcomes.good & inside)) if by_name else None
        return ended, {**totals, "tokens_good": good}

    everything = np.ones(len(n), bool)
    ended, totals = summed(everything)
    band = len(moments) - 1  # the oldest one is complete, or there are no rates
    of_covered = (ended, totals) if band == 1 else summed(np.array(columns["band"], np.int64) == band)
    ended |= {f"{name}_variance": (variance * getattr(outcomes, name)).sum().item() for name in WITH_VARIANCE}
    if len(promises) == 1:
        for name, ns in promises[0].thresholds.given().items():
            totals[f"missed_{name}"] = (n * judged.missed(name, ns)).sum().item()
    in_flight = open_requests(reader, window)
    ended["unselected"] += number_of(in_flight.is_lost & ~in_flight.selected_by_any(promises))
    not_ended = {
        "in_flight": number_of(~in_flight.is_lost),
        "in_flight_violations": number_of(in_flight.bad_for_any(promises)),
        "lost": number_of(in_flight.is_lost),
    }
    requests, errors = counts_of(ended, not_ended, sampled=sampled)
    counts, _ = counts_of(of_covered[0], not_ended, sampled=False)
    first_ns = min((first_ns for _, first_ns in columns["others"]), default=0)
    rates = Covered(covered.seconds, counts, of_covered[1])
    return Counted(window, first_ns or None, requests, totals, rates, complete_ns, errors, in_flight)


def _vantages_and_first(window: Window) -> Fragment:
    """SQL: the vantages of a cell and, in a window that is read at once, when the first of its requests began."""
    first = "toUnixTimestamp64Nano(min(start))" if is_short(window.start_ns, window.end_ns) else "0"
    return Fragment(f"(groupUniqArray(vantage), {first})")


def _total(values: Iterable[Number | None]) -> Number | None:
    """The sum of the values that are known; None without one."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def open_requests(reader: Reader, window: Window) -> InFlight:
    """The requests of a window that had not ended at its end, without those that were lost before its start."""
    start_ns = min(window.start_ns, reader.open_since_ns)
    found = read_in_flight(
        reader.queries,
        window.filter,
        start_ns=start_ns,
        end_ns=window.end_ns,
        lost_after_ns=reader.lost_after_ns,
        heard_until_ns=reader.heard_until_ns,
    )
    return found if start_ns == window.start_ns else found.where(found.lost_at_ns >= window.start_ns)


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
    columns, sampled = _read_cells(reader, asked.filter, cells, moments, column=column)
    order = np.argsort(columns["band"], kind="stable")
    by_band: Mapping[str, Any] = {
        name: np.array(columns[name])[order] for name in ("band", "cell", "tenant_group", "n", "variance", "sampled")
    }
    if in_flight is None:
        in_flight = open_requests(reader, replace(asked, start_ns=moments[-1]))
    summing = Summing(cells.judged(by_band), by_band, sampled, ends, asked.end_ns, in_flight)
    return AllCounts(
        {slo.name: summing.of(i, slo, sorted(lengths[slo.name]), tenants.get(slo.name)) for i, slo in enumerate(slos)},
        dict(zip(ends, summing.ended(), strict=True)),
    )


def _read_cells(
    reader: Reader,
    matching: Fragment,
    cells: Cells,
    moments: Sequence[int],
    summands: Mapping[str, str] = _NO_SUMS,
    others: Fragment = _NONE,
    column: str = "end",
) -> tuple[Mapping[str, Sequence[Any]], bool]:
    """The cells of every band, as columns; and whether requests were sampled, so that `n` is a sum of weights."""
    counted = {"n": Fragment("count()"), "variance": Fragment("0."), "sums": _sums_of(summands.values())}
    weighed = {
        "n": Fragment("sum(weight)"),
        "variance": Fragment("sum(weight * (weight - 1))"),
        "sums": _sums_of(f"weight * ({value})" for value in summands.values()),
    }

    def read(sums: Mapping[str, Fragment]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = defaultdict(list)
        for one in slices(moments, column=column):
            fragments = {**cells.fragments, "by": one.band, "others": others, **sums}
            for name, values in one.columns(reader.queries, "cells", fragments, matching).items():
                columns[name] += values
        return columns

    found = read(counted)
    sampled = any(found["sampled"])
    return (read(weighed) if sampled else found), sampled


def _sums_of(values: Iterable[str]) -> Fragment:
    asked = ", ".join(f"sum({value})" for value in values)
    return Fragment(f"[{asked}]") if asked else _NONE


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
