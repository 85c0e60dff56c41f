"""The page Tail: where the time of the slow requests went, and what each cause costs."""

from __future__ import annotations

import streamlit as st

from dashboard import components
from dashboard.api import ask, fetch
from dashboard.filters import View, selected
from tokentrail.shared.formatting import UNDEFINED, count, duration, percent, plain


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    components.refreshed(body, selected())


def body(view: View) -> None:
    """Ask for the causes, and draw them."""
    answer = components.last_known("tail", fetch(ask("explain", view.params, slo=view.slo)), view)
    if answer is None:
        return
    components.span(answer["window"], view.zone)
    st.markdown(plain(answer["sentence"]))
    if answer["parts"]:
        components.table(
            [
                {
                    "cause": part["cause"],
                    "time": duration(part["time_s"]),
                    "share": percent(part["share"]),
                    "requests": count(part["requests"]),
                    "attainment without it": percent(part["without"]["attainment"]) if part["without"] else UNDEFINED,
                    "advice": part["advice"],
                }
                for part in answer["parts"]
            ],
            placeholder=UNDEFINED,
        )
    if answer["note"]:
        st.caption(plain(answer["note"]))
