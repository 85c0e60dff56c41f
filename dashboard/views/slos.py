"""One card per SLO: attainment, error budget left, goodput, burn rates."""

from __future__ import annotations

import streamlit as st

from dashboard import components, palette
from dashboard.components import bar, metric
from dashboard.help_texts import HELP
from dashboard.transform import Json, NotEnded, idle_last, slo_state
from tokentrail.shared.formatting import UNDEFINED, count, duration, estimate, pace, percent, plain, significant

STATES = {
    "page": ("Page", "red", ":material/notifications_active:"),
    "ticket": ("Ticket", "orange", ":material/confirmation_number:"),
    "exhausted": ("Budget spent", "orange", ":material/battery_alert:"),
    "ok": ("Kept", "green", ":material/check:"),
    "unjudged": ("Not judged", "gray", ":material/help:"),
    "idle": ("No requests", "gray", ":material/hourglass_empty:"),
}
CARDS_A_ROW = 3


def cards(slos: list[Json], engines: list[Json] | None) -> None:
    """The cards of all SLOs, three in a row, those without requests last.

    `engines` say whether requests in flight are known; None: not asked.
    """
    if not slos:
        st.info("No SLO is defined: start the collector with `--slos FILE` to see attainment and error budgets.")
        return
    st.subheader("SLOs", help="Each SLO is judged over its own window. The filters do not apply.")
    across, ordered = min(CARDS_A_ROW, len(slos)), idle_last(slos)
    for start in range(0, len(slos), CARDS_A_ROW):
        for column, slo in zip(st.columns(across), ordered[start : start + CARDS_A_ROW], strict=False):
            with column.container(border=True, key=f"slo-{slo['name']}", height="stretch"):
                card(slo, engines)


def card(slo: Json, engines: list[Json] | None) -> None:
    """The card of one SLO."""
    text, colour, icon = STATES[slo_state(slo)]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"**{plain(slo['name'])}**", width="content")
        st.badge(text, color=colour, icon=icon)  # type: ignore[arg-type] # STATES holds Streamlit's colour names
    st.caption(f"{plain(slo['description'])} {thresholds(slo)}")
    # On a screen of 1,280 pixels, no label of these is cut in two.
    attainment, budget, goodput = st.columns([6, 5, 5], gap="xxsmall")
    window = duration(slo["window_s"])
    with attainment:
        attained = estimate(percent(slo["attainment"]), slo["errors"] and percent(slo["errors"]["attainment"]))
        metric(
            "Attainment",
            attained,
            note=f"objective {percent(float(slo['objective']))} over {window}",
        )
    with budget:
        metric("Budget left", percent(slo["budget_left"]), note=f"of {window}")
    with goodput:
        metric(
            "Goodput",
            pace(slo["goodput_rps"]),
            note=f"{count(None if slo['goodput_rps'] is None else slo['requests']['good'])} good in {window}",
        )
    left = slo["budget_left"]
    bar(left, palette.GOOD if (left or 0) > 0.5 else palette.WARN if (left or 0) > 0 else palette.BAD)
    requests = slo["requests"]
    open_ones = NotEnded.of(requests, engines, slo["select"])
    unknown = f" + {count(requests['unknown'])} of unknown end" if requests["unknown"] else ""
    st.caption(
        f"{count(requests['total'])} ended = {count(requests['ok'])} ok + {count(requests['failed'])} failed + "
        f"{count(requests['cancelled'])} cancelled{unknown} · {count(requests['undetermined'])} undetermined · "
        f"{count(open_ones.in_flight)} in flight ({count(open_ones.late)} late) · {count(open_ones.lost)} lost"
    )
    with st.expander("Burn rates"):
        st.caption(HELP["Burn rate"])
        components.table([burn_row(window) for window in slo["burn"]], placeholder=UNDEFINED)


def thresholds(slo: Json) -> str:
    """The thresholds in words: `TTFT ≤ 500 ms, TPOT ≤ 100 ms.`"""
    limits = [(name, slo["thresholds"].get(f"{name}_s")) for name in ("ttft", "tpot", "e2e")]
    return plain(", ".join(f"{name.upper()} ≤ {duration(limit)}" for name, limit in limits if limit is not None)) + "."


def burn_row(window: Json) -> dict[str, str]:
    """One burn-rate rule, with its two windows, as a table row."""
    times = [
        UNDEFINED if burn is None else f"{significant(burn)}×" for burn in (window["short_burn"], window["long_burn"])
    ]
    return {
        "alert": window["name"],
        "severity": window["severity"],
        "short": f"{times[0]} over {duration(window['short_s'])}",
        "long": f"{times[1]} over {duration(window['long_s'])}",
        "fires above": f"{significant(window['threshold'])}×",
        "firing": "yes" if window["firing"] else "no",
    }
