"""`/slos`: attainment, error budget and burn rates of what the SLO file promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated

from fastapi import APIRouter, Path, Query

from collector.api.models import BurnOut, Counts, SloOut, Slos
from collector.api.parameters import Window, WindowQuery
from collector.api.problems import not_found
from collector.api.questions import Context, attainment, thresholds_out
from collector.api.times import SECOND_NS
from collector.slo.burn import BurnRule, Tally, budget_left, burn_rules, fires
from collector.slo.judge import bad_already, both, good, selected
from collector.slo.model import Slo


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["SLOs"])

    @routes.get("/slos")
    def get_slos(query: Annotated[WindowQuery, Query()]) -> Slos:
        """Every SLO of the SLO file, over its own window."""
        window = query.window(ctx.clock())
        return Slos(slos=[state(ctx, slo, window) for slo in ctx.slos])

    @routes.get("/slos/{name}")
    def get_slo(name: Annotated[str, Path(max_length=63)], query: Annotated[WindowQuery, Query()]) -> SloOut:
        """One SLO."""
        return state(ctx, find(ctx.slos, name), query.window(ctx.clock()))

    return routes


def find(slos: Sequence[Slo], name: str) -> Slo:
    """The SLO of that name; raises Problem (404) that lists the names there are."""
    for slo in slos:
        if slo.name == name:
            return slo
    known = ", ".join(slo.name for slo in slos) or "none: the collector was started without an SLO file"
    raise not_found(f"no SLO is named {name!r}; there are: {known}")


def state(ctx: Context, slo: Slo, asked: Window) -> SloOut:
    """An SLO's numbers at the end of the window that was asked about, all from counts of the same rows."""
    rules = burn_rules(slo, ctx.windows)
    by_window = window_counts(ctx, slo, asked, {slo.window, *windows_of(rules)})
    whole = by_window[slo.window]
    burn = [burn_of(rule, slo, by_window) for rule in rules]
    return SloOut(
        name=slo.name,
        description=slo.description,
        objective=float(slo.objective),
        window_s=slo.window / SECOND_NS,
        select={key: list(values) for key, values in slo.select.items()},
        thresholds=thresholds_out(slo.thresholds),
        requests=whole,
        attainment=attainment(whole),
        goodput_rps=whole.good / (slo.window / SECOND_NS),
        budget_left=budget_left(tally(whole), slo.budget),
        burn=burn,
        firing=next(
            (severity for severity in ("page", "ticket") for b in burn if b.firing and b.severity == severity), None
        ),
    )


def windows_of(rules: Sequence[BurnRule]) -> set[int]:
    """The windows that burn-rate rules look at, in nanoseconds."""
    return {ns for rule in rules for ns in (rule.short_ns, rule.long_ns)}


def window_counts(ctx: Context, slo: Slo, asked: Window, lengths: set[int]) -> dict[int, Counts]:
    """An SLO's counts by the length of the window (nanoseconds), all ending when the asked one does, from one pass."""
    windows = sorted(lengths)
    selection = both(asked.filter, selected(slo.select, "slo"))
    bounds = {"start_ns": max(0, asked.end_ns - windows[-1]), "end_ns": asked.end_ns, "windows": windows}
    ended = ctx.queries.ask("slo_bands", {"filter": selection, "good": good(slo.thresholds, "slo")}, **bounds)
    open_ = ctx.queries.ask(
        "in_flight_bands",
        {"filter": selection, "bad_already": bad_already(slo.thresholds, "slo")},
        **bounds,
        lost_after_ns=ctx.lost_after_ns,
    )
    bands = {i: dict.fromkeys(Counts.model_fields, 0) for i in range(1, len(windows) + 1)}
    for row in (*ended, *open_):
        band = bands[row.pop("band")]
        for key, n in row.items():
            band[key] += n
    totals = accumulate(bands.values(), lambda a, b: {key: a[key] + b[key] for key in a})
    return {w: Counts.model_validate(total) for w, total in zip(windows, totals, strict=True)}


def tally(requests: Counts) -> Tally:
    """What of these counts an SLO judges."""
    judged = requests.total - requests.cancelled + requests.in_flight_violations + requests.lost
    return Tally(judged, judged - requests.good)


def burn_of(rule: BurnRule, slo: Slo, by_window: Mapping[int, Counts]) -> BurnOut:
    """How fast the budget burns over a rule's windows."""
    short, long = tally(by_window[rule.short_ns]), tally(by_window[rule.long_ns])
    short_burn, long_burn = short.burn(slo.budget), long.burn(slo.budget)
    return BurnOut(
        name=rule.name,
        severity=rule.severity,
        short_s=rule.short_ns / SECOND_NS,
        long_s=rule.long_ns / SECOND_NS,
        threshold=float(rule.threshold),
        short_burn=None if short_burn is None else float(short_burn),
        long_burn=None if long_burn is None else float(long_burn),
        firing=fires(rule, slo.budget, short, long),
    )
