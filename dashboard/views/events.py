"""Incidents, cold starts, and the table of engines."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

import streamlit as st

from dashboard import address, components
from dashboard.filters import View
from dashboard.help_texts import HELP
from dashboard.transform import Json
from tokentrail.shared.formatting import UNDEFINED, clock, count, duration, instant, of_tenant, percent, plain

SEVERITY_COLOURS: dict[str, Any] = {"page": "red", "ticket": "orange", "info": "blue"}
MOST_IN_VIEW = 3
"""Incidents above the numbers of the page; the others are one click away."""
MOST_DRAWN = 30
"""Firing incidents that are drawn at most: with 450, a page was 45,000 pixels long."""


def firing(answer: Json, view: View, at: datetime, *, is_heard: bool, is_judged: bool) -> None:
    """The incidents that fire at the range's end, or that none does, and how many fire outside of the filters.

    Unless engines and the collector are heard of now (`is_heard`), nothing is drawn for none: that is no good news. Nor
    is it when no SLO judges the requests.
    """
    now, outside = worst_first([i for i in answer["incidents"] if i["firing"]]), answer["firing_outside"]
    with st.container(key="firing"):
        if outside:
            fire = "incident fires" if outside == 1 else "incidents fire"
            st.warning(
                f"{outside} {fire} outside of these filters. Clear the filters to see all.",
                icon=":material/filter_alt:",
            )
        elif not now and is_heard and is_judged:
            st.success("Nothing is firing.", icon=":material/check_circle:")
        elif not now and is_heard:
            st.info(
                "Nothing is firing, but no SLO selects any request that ended in this range, so none is judged. Give "
                "an SLO a `select` that fits them.",
                icon=":material/rule:",
            )
        for number, incident in enumerate(now[:MOST_IN_VIEW]):
            with st.container(border=True, key=f"incident-{number}"):
                row(incident, view, at)
        if rest := now[MOST_IN_VIEW:]:
            with st.expander(f"{count(len(rest))} more"):
                for number, incident in enumerate(now[MOST_IN_VIEW:MOST_DRAWN], MOST_IN_VIEW):
                    with st.container(border=True, key=f"incident-{number}"):
                        row(incident, view, at)
                if not_drawn := now[MOST_DRAWN:]:
                    st.caption(
                        f"Not drawn: {count(len(not_drawn))} that are less severe or touch fewer requests. "
                        "`/api/v1/incidents` lists them, and for a key of all tenants the table *Incidents* below."
                    )


def worst_first(incidents: list[Json]) -> list[Json]:
    """Pages before tickets before the rest; of the same severity, the ones that touch more requests first.

    A severity of a newer collector comes last.
    """
    ranks = {severity: rank for rank, severity in enumerate(SEVERITY_COLOURS)}
    return sorted(incidents, key=lambda i: (ranks.get(i["severity"], len(ranks)), -(i["requests_affected"] or 0)))


def row(incident: Json, view: View, at: datetime) -> None:
    """One firing incident, with its runbook and the requests behind it."""
    severity = incident["severity"]
    colour = SEVERITY_COLOURS.get(severity, "gray")
    facts = [f"for {lasted(incident, at)}, since {clock(incident['start'], view.zone)}", incident.get("instance") or ""]
    if incident["requests_affected"] is not None:
        facts.append(f"requests affected: {count(incident['requests_affected'])}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(severity.upper(), color=colour, icon=":material/notifications_active:")
        st.markdown(f"**{plain(incident['title'])}**", width="content")
        st.caption(plain(" · ".join(fact for fact in facts if fact)), width="content")
    links = [f"[{text}]({url})" for text, url in behind(incident, view)] + [f"[Runbook]({incident['runbook_url']})"]
    st.markdown(f"{plain(incident['detail'])} {' · '.join(links)}")
    if top := incident.get("top_cause"):
        st.markdown(f"**Why:** {plain(top['sentence'])}")


def lasted(incident: Json, at: datetime) -> str:
    """How long an incident lasted until its end, or until `at`, the end of the range."""
    return duration(((instant(incident["end"]) or at) - instant(incident["start"])).total_seconds())


def behind(incident: Json, view: View) -> list[tuple[str, str]]:
    """Texts and URLs, relative to the page, of the lists of the requests that an incident touches.

    A list has as many rows as its text says. Where no filter finds the requests, one link leads to those of its time.
    """
    order = {"sort": _SORTED.get(incident["cause"], "newest")}
    lists = incident["requests"]
    # The filters of the page cannot ask for requests that say no tenant, service or instance.
    if not lists or "" in {name: v for name, v in lists[0]["parameters"].items() if name != "process_tenant"}.values():
        times = {"start": incident["start"], "end": incident["end"] or view.end}
        return [("Requests of that time", _url(times | order, view))]
    return [
        (f"{count(one['total'])} {_STATES[one['parameters'].get('status')]}", _url(one["parameters"] | order, view))
        for one in lists
    ]


def _url(parameters: Json, view: View) -> str:
    labels = [(name, value) for name, value in view.labels if name not in parameters]
    return address.link("explore", [("range", "custom"), *parameters.items(), *labels])


_STATES = {None: "that ended", "in_flight": "in flight", "lost": "lost"}
_SORTED = {"kv_eviction": "E2E", "cold_start": "TTFT"}
"""By cause, the order in which its requests are listed: by the latency that it made worse."""


def table(answer: Json, view: View) -> None:
    """Incidents of the window, and how many of them the table leaves out."""
    st.subheader("Incidents")
    rows = [incident_row(incident, view.zone) for incident in answer["incidents"]]
    _table(rows, "No incidents in this range.", "incidents")
    if left_out := answer["left_out"]:
        st.caption(f"Not listed: {', '.join(f'{count(n)} of {plain(cause)}' for cause, n in left_out.items())}.")


def cold_starts(starts: list[Json], view: View) -> None:
    """Cold starts of the window."""
    st.subheader("Cold starts", help=HELP["Cold starts"])
    _table(
        [cold_start_row(start, view.zone) for start in starts],
        "No engine process started in this range.",
        "cold-starts",
    )


def _table(rows: list[dict[str, str]], empty: str, key: str) -> None:
    with st.container(key=key):
        if rows:
            components.table(rows, placeholder=UNDEFINED)
        else:
            st.caption(empty)


def incident_row(incident: Json, zone: tzinfo) -> dict[str, str]:
    """An incident as a table row."""
    return {
        "severity": incident["severity"],
        "what": incident["title"],
        "started": clock(incident["start"], zone),
        "lasted": lasted(incident, instant(incident["end"])) if incident["end"] else "ongoing",
        "requests": count(incident["requests_affected"]),
        "where": incident.get("instance") or incident.get("slo") or UNDEFINED,
        "detail": incident["detail"],
    }


def cold_start_row(start: Json, zone: tzinfo) -> dict[str, str]:
    """A cold start as a table row, its sub-phases longest first."""
    phases = sorted(start["phases"], key=lambda phase: -phase["duration_s"])
    return {
        "started": clock(start["start"], zone),
        "took": duration(start["duration_s"]),
        "service": of_tenant(start["service"] or start["engine"], start),
        "model": start["model"] or UNDEFINED,
        "result": f"{start['status']} {start['error_type']}".rstrip(),
        "spent on": ", ".join(f"{phase['name']} {duration(phase['duration_s'])}" for phase in phases) or UNDEFINED,
    }


def engines(known: list[Json], caches: list[Json], end: datetime) -> None:
    """The table of engines, one line each, with its processes' KV caches and the numbers that it does not tell."""
    rows = []
    for engine in known:
        tenant = engine["process_tenant"]
        processes = {(process["service"], process["instance"], tenant) for process in engine["processes"]}
        # A process that is scraped has its address as instance, and its spans another one.
        own = [
            cache
            for cache in caches
            if (cache["service"], cache["instance"], cache["process_tenant"]) in processes
            or (
                cache["source"] == "samples"
                and (cache["service"], cache["process_tenant"]) == (engine["service"], tenant)
            )
        ]
        ago = max(0.0, (end - instant(engine["last_seen"])).total_seconds())
        missing = [told["what"] for told in engine["tells"] if told["told"] == "none"]
        rows.append(
            {
                "service": of_tenant(engine["service"], engine),
                "engine": engine["engine"],
                "variant": ", ".join(engine["variants"]) or UNDEFINED,
                "models": ", ".join(engine["models"]) or UNDEFINED,
                "processes": count(engine["processes_total"]),
                "last seen": f"{duration(ago)} ago",
                "requests": count(engine["requests"]),
                "running": _sum(own, "running"),
                "waiting": _sum(own, "waiting"),
                "KV used": percent(max((cache["usage"] for cache in own if cache["usage"] is not None), default=None)),
                "evicted blocks": _sum(own, "evicted_blocks"),
                "does not tell": ", ".join(missing) or UNDEFINED,
            }
        )
    _table(rows, "No engine has sent anything in the last 30 days.", "engines")
    missing_ways = [
        f"{of_tenant(engine['service'], engine)}, {told['what']}: {told['reason']}; {', or '.join(told['ways'])}"
        for engine in known
        for told in engine["tells"]
        if told["told"] == "none" and told["ways"]
    ]
    if missing_ways:
        with st.expander("How to see what is missing"):
            st.markdown("\n".join(f"- {plain(line)}" for line in missing_ways))


def _sum(caches: list[Json], field: str) -> str:
    """A count summed over the processes that report it."""
    known = [cache[field] for cache in caches if cache[field] is not None]
    return count(sum(known) if known else None)
