"""`/slos`: attainment, error budget and burn rates of the SLOs in the SLO file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from collector.api.answers import ThresholdsOut
from collector.api.context import Context
from collector.api.evaluation import Burn, burn_windows, burns, count_by_window, find_slo
from collector.api.parameters import Window, WindowQuery
from collector.api.times import SECOND_NS
from collector.slo.burn import BurnRule, budget_left, burn_rules
from collector.slo.counts import Counts
from collector.slo.estimate import Errors
from collector.slo.model import Slo
from collector.slo.severity import SEVERITIES, BurnSeverity


class BurnOut(BaseModel):
    """One multi-window burn-rate rule."""

    name: str
    severity: BurnSeverity
    short_s: float
    long_s: float
    threshold: float
    short_burn: float | None
    long_burn: float | None
    firing: bool


class SloOut(BaseModel):
    """One SLO over its own window."""

    name: str
    description: str
    objective: float
    window_s: float
    select: dict[str, list[str]]
    thresholds: ThresholdsOut
    requests: Counts
    attainment: float | None
    estimated: bool
    errors: Errors | None
    goodput_rps: float
    budget_left: float | None
    burn: list[BurnOut]
    firing: BurnSeverity | None


class Slos(BaseModel):
    """`/slos`."""

    slos: list[SloOut]


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["SLOs"])

    @routes.get("/slos")
    def get_slos(query: Annotated[WindowQuery, Query()]) -> Slos:
        """Every SLO of the SLO file, over its own window."""
        window = query.window(ctx.clock())
        return Slos(slos=_evaluated(ctx, ctx.slos, window))

    @routes.get("/slos/{name}")
    def get_slo(name: Annotated[str, Path(max_length=63)], query: Annotated[WindowQuery, Query()]) -> SloOut:
        """One SLO."""
        (slo,) = _evaluated(ctx, [find_slo(ctx.slos, name)], query.window(ctx.clock()))
        return slo

    return routes


def _evaluated(ctx: Context, slos: Sequence[Slo], asked: Window) -> list[SloOut]:
    """The SLOs' numbers at the end of the window that was asked about, all from counts of the same rows."""
    rules = {slo.name: burn_rules(slo, ctx.windows) for slo in slos}
    lengths = {slo.name: {slo.window, *burn_windows(rules[slo.name])} for slo in slos}
    counted = count_by_window(ctx, slos, asked, lengths)
    return [_slo_out(slo, rules[slo.name], counted[slo.name]) for slo in slos]


def _slo_out(slo: Slo, rules: Sequence[BurnRule], by_window: Mapping[int, tuple[Counts, Errors | None]]) -> SloOut:
    requests, errors = by_window[slo.window]
    burn = burns(slo, rules, {length: counts for length, (counts, _) in by_window.items()})
    return SloOut(
        name=slo.name,
        description=slo.description,
        objective=float(slo.objective),
        window_s=slo.window / SECOND_NS,
        select={key: list(values) for key, values in slo.select.items()},
        thresholds=ThresholdsOut.of(slo.thresholds),
        requests=requests,
        attainment=requests.attainment,
        estimated=errors is not None,
        errors=errors,
        goodput_rps=requests.good / (slo.window / SECOND_NS),
        budget_left=budget_left(requests.tally, slo.budget),
        burn=[_burn_out(b) for b in burn],
        firing=min((b.rule.severity for b in burn if b.firing), key=SEVERITIES.index, default=None),
    )


def _burn_out(burn: Burn) -> BurnOut:
    return BurnOut(
        name=burn.rule.name,
        severity=burn.rule.severity,
        short_s=burn.rule.short_ns / SECOND_NS,
        long_s=burn.rule.long_ns / SECOND_NS,
        threshold=float(burn.rule.threshold),
        short_burn=burn.short,
        long_burn=burn.long,
        firing=burn.firing,
    )
