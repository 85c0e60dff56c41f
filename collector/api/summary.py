"""`/summary`: the numbers of a window, judged by the SLO file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from collector.api.answers import Distribution, Goodput, WindowOut, tokens_per_s
from collector.api.context import Context
from collector.api.evaluation import count
from collector.api.parameters import Window, WindowQuery
from collector.slo.counts import Counts
from collector.slo.judge import bad_already_for_any, good_for_all


class Throughput(BaseModel):
    """Rates over all requests that ended in the window. Those of tokens are over the requests that report theirs."""

    requests_per_s: float
    output_tokens_per_s: float | None
    output_tokens_known: int
    total_tokens_per_s: float | None
    total_tokens_known: int


class Summary(BaseModel):
    """`/summary`."""

    window: WindowOut
    requests: Counts
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    queue_s: Distribution
    throughput: Throughput
    goodput: Goodput
    attainment: float | None


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["requests"])

    @routes.get("/summary")
    def get_summary(query: Annotated[WindowQuery, Query()]) -> Summary:
        """Counts, exact percentiles, throughput, goodput and attainment of a window."""
        window = query.window(ctx.clock())
        requests, tokens = count(ctx, window, good_for_all(ctx.slos), bad_already_for_any(ctx.slos))
        latencies = ctx.queries.row("latencies", {"filter": window.filter}, **window.bounds)
        return Summary(
            window=WindowOut.of(window),
            requests=requests,
            ttft_s=Distribution.of(latencies, "ttft"),
            tpot_s=Distribution.of(latencies, "tpot"),
            itl_s=_itl(ctx, window),
            e2e_s=Distribution.of(latencies, "e2e"),
            queue_s=Distribution.of(latencies, "queue"),
            throughput=Throughput(
                requests_per_s=requests.total / window.seconds,
                output_tokens_per_s=tokens_per_s(tokens["tokens_out"], requests.total, window),
                output_tokens_known=tokens["known_out"],
                total_tokens_per_s=tokens_per_s(tokens["tokens_all"], requests.total, window),
                total_tokens_known=tokens["known_all"],
            ),
            goodput=Goodput.of(requests, tokens, window),
            attainment=requests.attainment,
        )

    return routes


def _itl(ctx: Context, window: Window) -> Distribution:
    """Per token. The query joins tokens to all requests of the window, so it is not run when there is no token."""
    if not ctx.queries.rows("itl_exists", {"filter": window.filter}, **window.bounds):
        return Distribution.empty()
    return Distribution.of(ctx.queries.row("itl", {"filter": window.filter}, **window.bounds), "itl")
