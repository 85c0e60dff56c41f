"""Incidents, cold starts, and the table of engine processes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from dashboard.help_texts import HELP
from dashboard.transform import Json
from tokentrail.formatting import UNDEFINED, clock, count, duration, instant, percent, plain

SEVERITY_COLOURS: dict[str, Any] = {"page": "red", "ticket": "orange", "info": "blue"}
SEVERITIES = tuple(SEVERITY_COLOURS)
MOST_IN_VIEW = 3
"""Incidents above the numbers of the page; the others are one click away."""


def firing(answer: Json) -> None:
    """The incidents that fire now, or the sentence that none does, and how many fire outside of the filters."""
    now, outside = worst_first([i for i in answer["incidents"] if i["firing"]]), answer["firing_outside"]
    with st.container(key="firing"):
        if outside:
            fire = "incident fires" if outside == 1 else "incidents fire"
            st.warning(
                f"{outside} {fire} outside of these filters. Clear them to see all.", icon=":material/filter_alt:"
            )
        elif not now:
            st.success("Nothing is firing.", icon=":material/check_circle:")
        for number, incident in enumerate(now[:MOST_IN_VIEW]):
            with st.container(border=True, key=f"incident-{number}"):
                row(incident)
        if rest := now[MOST_IN_VIEW:]:
            with st.expander(f"{len(rest)} more"):
                for number, incident in enumerate(rest, MOST_IN_VIEW):
                    with st.container(border=True, key=f"incident-{number}"):
                        row(incident)


def worst_first(incidents: list[Json]) -> list[Json]:
    """Pages before tickets before the rest; of the same severity, the ones that touch more requests first."""
    return sorted(incidents, key=lambda i: (SEVERITIES.index(i["severity"]), -(i["requests_affected"] or 0)))


def row(incident: Json) -> None:
    """One firing incident."""
    severity = incident["severity"]
    colour = SEVERITY_COLOURS.get(severity, "gray")
    lasted = ((instant(incident["end"]) or datetime.now(UTC)) - instant(incident["start"])).total_seconds()
    facts = [f"for {duration(lasted)}, since {clock(incident['start'])}", incident.get("instance") or ""]
    if incident["requests_affected"] is not None:
        facts.append(f"requests affected: {count(incident['requests_affected'])}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(severity.upper(), color=colour, icon=":material/notifications_active:")
        st.markdown(f"**{plain(incident['title'])}**", width="content")
        st.caption(plain(" · ".join(fact for fact in facts if fact)), width="content")
    st.markdown(plain(incident["detail"]))


def tables(incidents: list[Json], cold_starts: list[Json]) -> None:
    """Incidents and cold starts of the window."""
    left, right = st.columns(2)
    with left:
        st.subheader("Incidents")
        _table([incident_row(incident) for incident in incidents], "No incidents in this range.", "incidents")
    with right:
        st.subheader("Cold starts", help=HELP["Cold starts"])
        _table(
            [cold_start_row(start) for start in cold_starts], "No engine process started in this range.", "cold-starts"
        )


def _table(rows: list[dict[str, str]], empty: str, key: str) -> None:
    with st.container(key=key):
        if rows:
            st.dataframe(rows, hide_index=True, placeholder=UNDEFINED)
        else:
            st.caption(empty)


def incident_row(incident: Json) -> dict[str, str]:
    """An incident as a table row."""
    end = instant(incident["end"])
    lasted = duration((end - instant(incident["start"])).total_seconds()) if end else "ongoing"
    return {
        "severity": incident["severity"],
        "what": incident["title"],
        "started": clock(incident["start"]),
        "lasted": lasted,
        "requests": count(incident["requests_affected"]),
        "where": incident.get("instance") or incident.get("slo") or UNDEFINED,
        "detail": incident["detail"],
    }


def cold_start_row(start: Json) -> dict[str, str]:
    """A cold start as a table row, its sub-phases longest first."""
    phases = sorted(start["phases"], key=lambda phase: -phase["duration_s"])
    return {
        "started": clock(start["start"]),
        "took": duration(start["duration_s"]),
        "service": start["service"] or start["engine"],
        "model": start["model"] or UNDEFINED,
        "result": start["error_type"] or start["status"],
        "spent on": ", ".join(f"{phase['name']} {duration(phase['duration_s'])}" for phase in phases) or UNDEFINED,
    }


def processes(known: list[Json], caches: list[Json], end: datetime) -> None:
    """The table of engine processes, with the KV cache of those that report one.

    A process that is scraped has its address as instance, and its spans another one. They are one when their service
    has one process.
    """
    by_instance = {(cache["service"], cache["instance"]): cache for cache in caches}
    of_service = Counter(row["service"] for row in known)
    scraped = Counter(cache["service"] for cache in caches if cache.get("source") == "samples")
    by_service = {cache["service"]: cache for cache in caches if scraped[cache["service"]] == 1}
    rows = []
    for process in known:
        alone = by_service.get(process["service"], {}) if of_service[process["service"]] == 1 else {}
        cache = by_instance.get((process["service"], process["instance"]), alone)
        ago = max(0.0, (end - instant(process["last_seen"])).total_seconds())
        blocks = (
            f"{count(cache['blocks_used'])} of {count(cache['blocks_total'])}"
            if cache.get("blocks_total")
            else UNDEFINED
        )
        rows.append(
            {
                "service": process["service"],
                "instance": process["instance"],
                "engine": process["engine"],
                "variant": process["variant"] or UNDEFINED,
                "models": ", ".join(process["models"]) or UNDEFINED,
                "last seen": f"{duration(ago)} ago",
                "requests": count(process["requests"]),
                "running": count(cache.get("running")),
                "waiting": count(cache.get("waiting")),
                "KV blocks": blocks,
                "KV used": percent(cache.get("usage")),
                "evicted blocks": count(cache.get("evicted_blocks")),
            }
        )
    _table(rows, "No engine process has sent anything in the last 30 days.", "engines")
