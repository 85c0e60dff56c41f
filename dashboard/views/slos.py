"""The table of SLOs: now, over the window, the budget, its history, tenants and burn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import log10
from typing import Final

import streamlit as st

from dashboard.filters import View
from dashboard.links import anchor, text, to
from dashboard.times import written
from dashboard.transform import Json, slo_state, worst_first
from tokentrail.shared.formatting import THRESHOLDS, UNDEFINED, count, duration, estimate, instant, percent, significant

STATES = {
    "page": ("bad", "✕ page"), "ticket": ("warn", "! ticket"), "exhausted": ("warn", "! budget spent"),
    "ok": ("quiet", "✓ kept"), "unjudged": ("quiet", "? not judged"), "idle": ("quiet", "– no requests"),
}  # fmt: skip
"""By state: the look, and the sign and word for who sees no colours."""
HOUR_S: Final = 3600.0
CELLS = 84
"""Cells of the history at most: one for two hours of a week."""
STEPS_H = (1, 2, 4, 8, 12, 24, 48, 168)
MOST_TENANTS = 4
MOST_OVERSPENT = 10.0
"""The bar of a budget ends at this many budgets; its length is the logarithm, so that one and seven look different."""


def table(slos: Sequence[Json], history: Mapping[str, Json], view: View) -> None:
    """All SLOs, the worst first. `history` has the answers to `history_query`, by SLO."""
    if not slos:
        st.info("No SLO is defined: start the collector with `--slos FILE` to see attainment and error budgets.")
        return
    head = "".join(
        f"<th>{name}</th>" for name in ("SLO", "last hour", "window", "budget left", "history", "tenants", "burn")
    )
    rows = "".join(row(slo, history.get(slo["name"]), view) for slo in worst_first(slos))
    st.html(f'<table class="tt-slos"><tr class="head">{head}</tr>{rows}</table>')


def row(slo: Json, history: Json | None, view: View) -> str:
    """One SLO."""
    look, word = STATES[slo_state(slo)]
    window = duration(slo["window_s"])
    name = anchor(slo["name"], to("explore", view, {"slo": slo["name"]}))
    told = text(f"{slo['description']} {thresholds(slo)}", 300)
    objective, left = float(slo["objective"]), slo["budget_left"]
    attained = estimate(percent(slo["attainment"]), slo["errors"] and percent(slo["errors"]["attainment"]))
    warning = f'<div class="tt-warn">{text(slo["warning"], 300)}</div>' if slo["warning"] else ""
    return (
        f'<tr><td title="{told}"><b>{name}</b> <span class="tt-state {look}">{word}</span><br>'
        f"<small>{text(thresholds(slo))}</small>{warning}</td>"
        f'<td class="n" data-name="last hour">{percent(last_hour(slo))}</td>'
        f'<td class="n">{attained} <small>of {percent(objective)} in {window}</small></td>'
        f'<td class="n" data-name="budget left">{percent(left)} <small>{ends(slo)}</small>{budget(left)}</td>'
        f"<td>{cells(history, objective, view) if history else ''}</td>"
        f'<td class="wide">{tenants(slo, view)}</td><td class="n" data-name="burn">{burn(slo)}</td></tr>'
    )


def thresholds(slo: Json) -> str:
    """The thresholds in words: `TTFT ≤ 500 ms, TPOT ≤ 100 ms`."""
    limits = [(name, slo["thresholds"].get(f"{key}_s")) for key, name in THRESHOLDS.items()]
    return ", ".join(f"{name} ≤ {duration(limit)}" for name, limit in limits if limit is not None)


def last_hour(slo: Json) -> float | None:
    """Attainment of the last hour, from the burn rate over it: that is the bad share ÷ the budget."""
    rates = [(rule[f"{of}_s"], rule[f"{of}_burn"]) for rule in slo["burn"] for of in ("long", "short")]
    rate_of_hour = next((rate for length, rate in rates if length == HOUR_S), None)
    return None if rate_of_hour is None else max(0.0, 1 - rate_of_hour * (1 - float(slo["objective"])))


def ends(slo: Json) -> str:
    """When the budget is gone, in words."""
    left = slo["exhausted_in_s"]
    if slo["budget_left"] is None or left is None:
        return ""
    return "gone" if left <= 0 else f"gone in {duration(left)}"


def budget(left: float | None) -> str:
    """A bar from the middle: to the right what is left, to the left what is overspent, by its logarithm."""
    if left is None:
        return ""
    if left >= 0:
        colour, start, width = ("#64748b" if left > 0.25 else "#f59e0b"), 50.0, 50 * min(1.0, left)
    else:
        width = 50 * min(1.0, log10(1 - left) / log10(1 + MOST_OVERSPENT))
        colour, start = "#e1323c", 50 - width
    said = f"budget left: {percent(left)}"
    return (
        f'<div class="tt-budget" role="img" aria-label="{said}"><i style="left:{start:.1f}%;width:{width:.1f}%;'
        f'background:{colour}"></i></div>'
    )


def history_step_h(slo: Json) -> int:
    """Hours of a cell of an SLO's history: its window in 84 cells or fewer."""
    hours = slo["window_s"] / 3600
    return next((step for step in STEPS_H if hours / step <= CELLS), STEPS_H[-1])


def cells(history: Json, objective: float, view: View) -> str:
    """One cell for each step of the SLO's window, with its numbers on hover: the lower, the more requests were bad."""
    values = {instant(point["t"]): point["value"] for point in history["points"]}
    step, end = timedelta(seconds=history["step_s"]), instant(history["window"]["end"])
    at, drawn, worst = instant(history["window"]["start"]), [], None
    while at < end:
        value = values.get(at)
        drawn.append(_cell(value, objective, f"{at.astimezone(view.zone):%b %d %H:%M}: {percent(value)}"))
        worst = value if worst is None or (value is not None and value < worst) else worst
        at += step
    said = f"attainment of {len(drawn)} times {duration(history['step_s'])}: the lowest {percent(worst)}"
    return f'<div class="tt-history" role="img" aria-label="{said}">{"".join(drawn)}</div>'


def _cell(value: float | None, objective: float, title: str) -> str:
    """Grey where the promise was kept, amber up to three times the bad requests that are allowed, red beyond."""
    if value is None:
        return f'<i title="{title}" style="height:2px;background:rgba(128,136,150,.35)"></i>'
    over = (1 - value) / (1 - objective)
    colour = "#94a3b8" if over <= 1 else "#f59e0b" if over <= 3 else "#e1323c"
    height = 100 if over <= 1 else max(18, round(100 / over**0.5))
    return f'<i title="{title}" style="height:{height}%;background:{colour}"></i>'


def tenants(slo: Json, view: View) -> str:
    """The tenants of an SLO with `group_by`, the worst first: `globex 73 % ✕`."""
    known = [group for group in slo["groups"] if group["attainment"] is not None]
    known.sort(key=lambda group: group["attainment"])
    said = []
    for group in known[:MOST_TENANTS]:
        kept = group["attainment"] >= float(slo["objective"])
        begin = instant(view.end) - timedelta(seconds=slo["window_s"])
        params = {"slo": slo["name"], "tenant": group["tenant"], "start": written(begin)}  # the time of the number
        link = anchor(group["tenant"] or "(none)", to("explore", view, params))
        sign = '<span title="kept">✓</span>' if kept else '<span title="not kept" style="color:#e1323c">✕</span>'
        said.append(f'<span class="n">{link} {percent(group["attainment"])} {sign}</span>')
    more = slo["groups_total"] - min(len(known), MOST_TENANTS)
    return " &nbsp; ".join(said) + (f" <small>and {count(more)} more</small>" if said and more > 0 else "")


def burn(slo: Json) -> str:
    """How fast the budget is spent: by the rule that fires, or over the last hour."""
    firing = next((rule for rule in slo["burn"] if rule["firing"]), None)
    if firing is not None:
        title = f"{firing['name']} fires above {significant(firing['threshold'])}× over {duration(firing['long_s'])}"
        times = f"<b>{significant(firing['long_burn'], 2)}×</b>"
        return f'<span title="{text(title)}">{times} {text(firing["severity"])}</span>'
    attained = last_hour(slo)
    if attained is None:
        return UNDEFINED
    return f"{significant((1 - attained) / (1 - float(slo['objective'])), 2)}×"
