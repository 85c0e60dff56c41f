"""`/incidents`: conditions worth a look, judged by the same data files as the Prometheus rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from collector.api.parameters import Window, WindowQuery
from collector.api.questions import Context, of_engines
from collector.api.records import Incident, Incidents
from collector.api.slos import burn_of, tally, window_counts, windows_of
from collector.api.times import SECOND_NS, rfc3339
from collector.slo.burn import burn_rules
from collector.slo.conditions import Conditions, load_conditions
from collector.slo.durations import format_duration
from collector.slo.judge import both, good, selected

MOST_OF_A_KIND = 500


def router(ctx: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["incidents"])

    @routes.get("/incidents")
    def get_incidents(query: Annotated[WindowQuery, Query()]) -> Incidents:
        """What fires at the window's end, first, and what happened in the window, newest first."""
        window = query.window(ctx.clock())
        conditions = load_conditions()
        found = [
            *_slo_burns(ctx, window),
            *_engines_in_trouble(ctx, window, conditions),
            *_evictions(ctx, window, conditions),
            *_cold_starts(ctx, window, conditions),
        ]
        newest_first = sorted(found, key=lambda i: i.start, reverse=True)
        return Incidents(incidents=sorted(newest_first, key=lambda i: not i.firing))

    return routes


def _incident(
    cause: Literal["kv_eviction", "cold_start", "slo_burn", "engine_lost", "engine_hung"],
    severity: Literal["page", "ticket", "info"],
    *,
    start_ns: int,
    end_ns: int | None,
    **fields: Any,
) -> Incident:
    end = None if end_ns is None else rfc3339(end_ns)
    fields = {"slo": None, "instance": None, "firing": end is None, **fields}
    return Incident(cause=cause, severity=severity, start=rfc3339(start_ns), end=end, **fields)


def _slo_burns(ctx: Context, window: Window) -> Iterator[Incident]:
    for slo in ctx.slos:
        rules = burn_rules(slo, ctx.windows)
        by_window = window_counts(ctx, slo, window, windows_of(rules))
        firing = [(rule, burn) for rule in rules if (burn := burn_of(rule, slo, by_window)).firing]
        if not firing:
            continue
        rule, burn = firing[0]
        judged = tally(by_window[rule.long_ns])
        bounds = {"start_ns": window.end_ns - rule.long_ns, "end_ns": window.end_ns}
        chosen = both(window.filter, selected(slo.select, "slo"))
        first = ctx.queries.ask_one("first_bad", {"filter": chosen, "good": good(slo.thresholds, "slo")}, **bounds)
        yield _incident(
            "slo_burn",
            rule.severity,
            title=f"{slo.name} burns its error budget {burn.long_burn:.1f} times too fast",
            detail=f"{judged.bad} of {judged.judged} requests of the last {format_duration(rule.long_ns)} were bad; "
            f"{1 - slo.objective:%} may be ({rule.name}: more than {rule.threshold:.4g} times, "
            f"also over the last {format_duration(rule.short_ns)}).",
            start_ns=first["first_ns"] or window.end_ns,
            end_ns=None,
            slo=slo.name,
            requests_affected=judged.bad,
        )


def _engines_in_trouble(ctx: Context, window: Window, conditions: Conditions) -> Iterator[Incident]:
    rows = ctx.queries.ask(
        "engines_in_trouble",
        {"filter": window.filter},
        **window.bounds,
        lost_after_ns=ctx.lost_after_ns,
        limit=MOST_OF_A_KIND,
    )
    for row in rows:
        where, n = f"{row['service']} {row['instance']}".strip(), row["victims"]
        common = {"start_ns": row["since_ns"], "instance": row["instance"], "requests_affected": n}
        if row["is_lost"]:
            over_ns = row["given_up_ns"] + conditions.engine_lost.shown
            yield _incident(
                "engine_lost",
                conditions.engine_lost.severity,
                title=f"{where} went silent",
                detail=f"{n} requests in flight were not heard of in {format_duration(ctx.lost_after_ns)}: lost.",
                end_ns=over_ns if over_ns <= window.end_ns else None,
                **common,
            )
        else:
            yield _incident(
                "engine_hung",
                conditions.engine_hung.severity,
                title=f"{where} makes no progress",
                detail=f"{n} requests are open, and no step in {format_duration(ctx.lost_after_ns)} or longer.",
                end_ns=None,
                **common,
            )


def _evictions(ctx: Context, window: Window, conditions: Conditions) -> Iterator[Incident]:
    shown = conditions.kv_eviction.shown
    rows = ctx.queries.ask("eviction_runs", of_engines(window), **window.bounds, quiet_ns=shown, limit=MOST_OF_A_KIND)
    for row in rows:
        yield _incident(
            "kv_eviction",
            conditions.kv_eviction.severity,
            title=f"{row['service']} {row['instance']} takes KV-cache blocks from running requests",
            detail=f"{row['evictions']} preemptions took {row['blocks_lost']} blocks, to be computed again.",
            start_ns=row["began_ns"],
            end_ns=row["last_ns"] if row["last_ns"] + shown <= window.end_ns else None,
            instance=row["instance"],
            requests_affected=row["victims"],
        )


def _cold_starts(ctx: Context, window: Window, conditions: Conditions) -> Iterator[Incident]:
    for row in ctx.queries.ask("cold_starts", of_engines(window), **window.bounds, limit=MOST_OF_A_KIND):
        if row["duration_ns"] < conditions.cold_start.longer_than:
            continue
        end_ns = row["began_ns"] + row["duration_ns"]
        failed = f" and failed ({row['error_type'] or 'no reason given'})" if row["status"] == "error" else ""
        yield _incident(
            "cold_start",
            conditions.cold_start.severity,
            title=f"{row['service']} {row['instance']} started",
            detail=f"The cold start took {row['duration_ns'] / SECOND_NS:.3g} s{failed}.",
            start_ns=row["began_ns"],
            end_ns=end_ns,
            firing=end_ns + conditions.cold_start.shown > window.end_ns,
            instance=row["instance"],
            requests_affected=row["waited"],
        )
