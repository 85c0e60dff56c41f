"""`/summary` and `/goodput`: what happened in a window, judged by the SLO file or by thresholds given now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from collector.api.models import Distribution, GoodputAnswer, Summary, Throughput, Violations
from collector.api.parameters import GoodputQuery, Window, WindowQuery
from collector.api.problems import bad_parameter
from collector.api.questions import (
    Context,
    attainment,
    counts,
    distribution,
    goodput,
    nothing,
    thresholds_out,
    window_out,
)
from collector.api.surface import surface
from collector.slo.judge import FALSE, bad_already, bad_already_for_any, good, good_for_all, missed, missed_already
from collector.slo.model import Thresholds


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/summary")
    def get_summary(query: Annotated[WindowQuery, Query()]) -> Summary:
        """Counts, exact percentiles, throughput, goodput and attainment of a window."""
        window = query.window(ctx.clock())
        requests, tokens = counts(ctx, window, good_for_all(ctx.slos), bad_already_for_any(ctx.slos))
        latencies = ctx.queries.ask_one("latencies", {"filter": window.filter}, **window.bounds)
        return Summary(
            window=window_out(window),
            requests=requests,
            ttft_s=distribution(latencies, "ttft"),
            tpot_s=distribution(latencies, "tpot"),
            itl_s=_itl(ctx, window),
            e2e_s=distribution(latencies, "e2e"),
            queue_s=distribution(latencies, "queue"),
            throughput=Throughput(
                requests_per_s=requests.total / window.seconds,
                output_tokens_per_s=tokens["tokens_out"] / window.seconds,
                total_tokens_per_s=tokens["tokens_all"] / window.seconds,
            ),
            goodput=goodput(requests, tokens, window),
            attainment=attainment(requests),
        )

    @routes.get("/goodput", response_model_exclude_unset=True)
    def get_goodput(query: Annotated[GoodputQuery, Query()]) -> GoodputAnswer:
        """The same judgement for thresholds given now; at least one."""
        window = query.window(ctx.clock())
        thresholds = Thresholds.model_construct(ttft=query.ttft, tpot=query.tpot, e2e=query.e2e)
        if not thresholds.given():
            raise bad_parameter("ttft", "give at least one of ttft, tpot and e2e, such as ttft=500ms")
        requests, tokens = counts(ctx, window, good(thresholds, "asked"), bad_already(thresholds, "asked"))
        answer = GoodputAnswer(
            window=window_out(window),
            thresholds=thresholds_out(thresholds),
            requests=requests,
            goodput=goodput(requests, tokens, window),
            attainment=attainment(requests),
            violations=_violations(ctx, window, thresholds),
        )
        if query.surface == "1":
            answer.surface = surface(ctx, window, thresholds)
        return answer

    return routes


def _itl(ctx: Context, window: Window) -> Distribution:
    """Per token. To know whose a token is takes all requests of the window, so first: is there any?"""
    if not ctx.queries.ask("itl_any", {"filter": window.filter}, **window.bounds):
        return nothing()
    return distribution(ctx.queries.ask_one("itl", {"filter": window.filter}, **window.bounds), "itl")


def _violations(ctx: Context, window: Window, thresholds: Thresholds) -> Violations:
    ended, open_ = missed(thresholds, "asked"), missed_already(thresholds, "asked")
    names = ("ttft", "tpot", "e2e")
    a = ctx.queries.ask_one(
        "violations", {"filter": window.filter, **{n: ended.get(n, FALSE) for n in names}}, **window.bounds
    )
    b = ctx.queries.ask_one(
        "in_flight_violations",
        {"filter": window.filter, **{n: open_.get(n, FALSE) for n in names}},
        **window.bounds,
        lost_after_ns=ctx.lost_after_ns,
    )
    return Violations.model_validate({key: a[key] + b[key] for key in a})
