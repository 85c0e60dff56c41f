"""Counts of requests in windows, and the numbers that follow from them. Several endpoints use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from collector.api.context import Context
from collector.api.parameters import Window
from collector.api.problems import not_found
from collector.slo.burn import BurnRule, fires
from collector.slo.counts import Counts
from collector.slo.judge import bad_already, good, selected
from collector.slo.model import Slo
from collector.sql.fragment import TRUE, Fragment, all_of
from collector.sql.queries import part


def count(ctx: Context, window: Window, good: Fragment, bad_already: Fragment) -> tuple[Counts, Mapping[str, Any]]:
    """Requests of a window by how they ended, and the sums of their tokens, as sql/queries/counts.sql names them."""
    ended = ctx.queries.row("counts", {"filter": window.filter, "good": good}, **window.bounds)
    not_ended = ctx.queries.row(
        "in_flight_counts",
        {"filter": window.filter, "bad_already": bad_already},
        **window.bounds,
        lost_after_ns=ctx.lost_after_ns,
    )
    return Counts.model_validate({**ended, **not_ended}), ended


def find_slo(slos: Sequence[Slo], name: str) -> Slo:
    """The SLO of that name; raises Problem (404) that lists the names there are."""
    for slo in slos:
        if slo.name == name:
            return slo
    known = ", ".join(slo.name for slo in slos) or "none: the collector was started without an SLO file"
    raise not_found(f"no SLO is named {name!r}; there are: {known}")


def burn_windows(rules: Sequence[BurnRule]) -> set[int]:
    """The lengths of the windows that burn-rate rules look at, in nanoseconds."""
    return {ns for rule in rules for ns in (rule.short_ns, rule.long_ns)}


def count_by_window(ctx: Context, slo: Slo, asked: Window, lengths: set[int]) -> dict[int, Counts]:
    """An SLO's counts by window length in nanoseconds. All windows end when the asked one does; rows are read once."""
    windows = sorted(lengths)
    matching = all_of(asked.filter, selected(slo.select, "slo"))
    bounds = {"start_ns": max(0, asked.end_ns - windows[-1]), "end_ns": asked.end_ns, "windows": windows}
    ended = ctx.queries.rows("slo_bands", {"filter": matching, "good": good(slo.thresholds, "slo")}, **bounds)
    not_ended = ctx.queries.rows(
        "in_flight_bands",
        {"filter": matching, "bad_already": bad_already(slo.thresholds, "slo")},
        **bounds,
        lost_after_ns=ctx.lost_after_ns,
    )
    bands = {i: dict.fromkeys(Counts.model_fields, 0) for i in range(1, len(windows) + 1)}
    for row in (*ended, *not_ended):
        band = bands[row.pop("band")]
        for key, n in row.items():
            band[key] += n
    totals = accumulate(bands.values(), lambda a, b: {key: a[key] + b[key] for key in a})
    return {w: Counts.model_validate(total) for w, total in zip(windows, totals, strict=True)}


@dataclass(frozen=True)
class Burn:
    """How many times too fast an SLO's budget burns over the two windows of a rule; None without requests."""

    rule: BurnRule
    short: float | None
    long: float | None
    firing: bool


def burns(slo: Slo, rules: Sequence[BurnRule], by_window: Mapping[int, Counts]) -> list[Burn]:
    """The burn of every rule, in the order of the rules."""
    return [_burn(slo, rule, by_window) for rule in rules]


def _burn(slo: Slo, rule: BurnRule, by_window: Mapping[int, Counts]) -> Burn:
    tallies = by_window[rule.short_ns].tally, by_window[rule.long_ns].tally
    short, long = (None if (rate := tally.burn(slo.budget)) is None else float(rate) for tally in tallies)
    return Burn(rule, short, long, fires(rule, slo.budget, *tallies))


def process_filter(window: Window) -> Fragment:
    """The filter for rows that belong to an engine process and not to a request: the process has matching requests."""
    return TRUE if window.filter == TRUE else part("serves_requests", {"filter": window.filter})
