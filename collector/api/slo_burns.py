"""Finds the SLOs that burn their error budgets, when each burn began, and its bad requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from collector.api.context import Context
from collector.api.evaluation import burn_windows, burns, count_by_window, open_requests
from collector.api.incident import Incident, incident, request_list
from collector.api.parameters import Window
from collector.api.verdicts import open_wanted
from collector.slo.burn import BurnRule, burn_rules
from collector.slo.durations import format_duration
from collector.slo.judge import selects, verdict
from collector.slo.last_burn import PER_WINDOW, Cells, burn_began
from collector.slo.model import Promise, Slo
from collector.sql.fragment import all_of, any_of


def slo_burns(ctx: Context, window: Window) -> Iterator[Incident]:
    """An incident for each SLO of which a rule fires at the window's end; its text is about the most urgent rule.

    Without a bad request that ended, a burn began when the oldest one arrived that is bad and has not ended.
    """
    rules = {slo.name: burn_rules(slo, ctx.windows) for slo in ctx.slos}
    counted = count_by_window(ctx, ctx.slos, window, {name: burn_windows(of_slo) for name, of_slo in rules.items()})
    for slo in ctx.slos:
        by_window = {length: counts for length, (counts, _) in counted.slos[slo.name].windows.items()}
        burn = next((burn for burn in burns(slo, rules[slo.name], by_window) if burn.firing), None)
        if burn is None:
            continue
        rule, tally = burn.rule, by_window[burn.rule.long_ns].tally
        ended = _read_ended(ctx, window, slo, rule)
        since = replace(window, start_ns=ended.first_ns or window.end_ns - rule.long_ns)
        in_flight = open_requests(ctx, since)
        bad = open_wanted(in_flight, ctx.slos, slo, "bad")
        asked = {"slo": slo.name, "verdict": "bad"}
        yield incident(
            "slo_burn",
            severity=rule.severity,
            title=f"{slo.name} burns its error budget {burn.long:.1f} times too fast",
            detail=f"{tally.bad / tally.judged * 100:.3g}% of the requests of the last {format_duration(rule.long_ns)} "
            f"were bad; {1 - slo.objective:%} may be ({rule.name}: more than {float(rule.threshold):.4g} times, "
            f"also over the last {format_duration(rule.short_ns)}).",
            start_ns=ended.first_ns or int(in_flight.began_ns[bad].min(initial=window.end_ns)),
            end_ns=None,
            slo=slo.name,
            requests_affected=round(ended.bad) + int(np.count_nonzero(bad)),
            requests=[
                *request_list(since, ended.rows, **asked),
                *request_list(since, int(np.count_nonzero(bad & ~in_flight.is_lost)), **asked, status="in_flight"),
                *request_list(since, int(np.count_nonzero(bad & in_flight.is_lost)), **asked, status="lost"),
            ],
        )


@dataclass(frozen=True)
class _Ended:
    """Bad requests of a burn that ended: when the first did (None without any), rows, and the sum of their weights."""

    first_ns: int | None
    rows: int
    bad: float


def _read_ended(ctx: Context, window: Window, slo: Slo, rule: BurnRule) -> _Ended:
    """Looks back twice as far until a calm is found; at most the SLO's window."""
    judged = verdict([Promise.to_all(slo.thresholds).model_copy(update={"errors": slo.errors})])
    fragments = {
        "filter": all_of(window.filter, selects(slo, "slo")),
        "good": judged.good,
        "unjudged": any_of(judged.undetermined, judged.excused),
    }
    cell_ns, back_ns = rule.short_ns // PER_WINDOW, rule.long_ns
    while True:
        back_ns = min(2 * back_ns, slo.window)
        start_ns = max(0, window.end_ns - back_ns) // cell_ns * cell_ns
        found = ctx.queries.columns("burn_cells", fragments, start_ns=start_ns, end_ns=window.end_ns, cell_ns=cell_ns)
        bad, rows = np.array(found["bad"], np.float64), np.array(found["bad_rows"], np.int64)
        place = burn_began(
            Cells(
                start_ns // cell_ns, (window.end_ns - 1) // cell_ns, np.array(found["cell"], np.int64),
                np.array(found["judged"], np.float64), bad,
            ),
            share=float(rule.threshold * slo.budget),
            most_apart=rule.long_ns // cell_ns,
            is_all=back_ns == slo.window,
        )  # fmt: skip
        if place is not None:
            first_ns = found["first_bad_ns"][place] if place < len(bad) else None
            return _Ended(first_ns, int(rows[place:].sum()), float(bad[place:].sum()))
