"""Cold starts, and the table of engines."""

from __future__ import annotations

from datetime import datetime, tzinfo

import streamlit as st

from dashboard import components
from dashboard.filters import View
from dashboard.help_texts import HELP
from dashboard.transform import Json
from tokentrail.shared.formatting import UNDEFINED, clock, count, duration, instant, of_tenant, percent, plain


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
