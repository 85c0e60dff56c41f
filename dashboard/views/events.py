"""Cold starts, and the table of engines."""

from __future__ import annotations

from datetime import tzinfo

import streamlit as st

from dashboard import components
from dashboard.filters import View
from dashboard.help_texts import HELP
from dashboard.transform import Json
from tokentrail.shared.formatting import UNDEFINED, clock, duration, of_tenant, plain


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


def untold(known: list[Json]) -> None:
    """How to see what engines do not tell, in one line each."""
    ways = [
        f"{of_tenant(engine['service'], engine)}, {told['what']}: {told['reason']}; {', or '.join(told['ways'])}"
        for engine in known
        for told in engine["tells"]
        if told["told"] == "none" and told["ways"]
    ]
    if ways:
        with st.expander("How to see what is missing"):
            st.markdown("\n".join(f"- {plain(line)}" for line in ways))
