"""The pages: Streamlit runs this script for each visitor (dashboard/app.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import streamlit as st

from dashboard import address, components, filters, login
from dashboard.components import keys
from dashboard.views import compare, engines, explore, now, request, tail

HERE = Path(__file__).parent

st.set_page_config(page_icon=str(HERE / "icon.svg"), layout="wide")
st.logo(str(HERE / "logo.svg"), size="large", icon_image=str(HERE / "icon.svg"))
components.style()
login.required()
in_view: Literal["visible", "hidden"] = "visible" if address.get("trace_id") else "hidden"
PAGES = {
    "now": st.Page(now.page, title="Now", icon=":material/monitoring:", default=True),
    "explore": st.Page(explore.page, title="Explore", icon=":material/grid_on:", url_path="explore"),
    "tail": st.Page(tail.page, title="Tail", icon=":material/align_horizontal_left:", url_path="tail"),
    "engines": st.Page(engines.page, title="Engines", icon=":material/memory:", url_path="engines"),
    "compare": st.Page(compare.page, title="Compare", icon=":material/compare_arrows:", url_path="compare"),
    "request": st.Page(
        request.page, title="Request", icon=":material/waterfall_chart:", url_path="request", visibility=in_view
    ),
}
MOVED = {"requests": "explore", "variants": "compare"}  # pages of old links, and those that have their content now


def moved(page: str) -> st.Page:
    """A page that only leads to another one, with all that its link has."""

    def lead() -> None:
        given = [(name, value) for name in st.query_params for value in st.query_params.get_all(name)]
        st.switch_page(PAGES[MOVED[page]], query_params=given)

    return st.Page(lead, title=page.capitalize(), url_path=page, visibility="hidden")


page = st.navigation([*PAGES.values(), *(moved(name) for name in MOVED)], position="top")
if page.url_path in MOVED:
    page.run()
components.title(page.title)
st.session_state["pages"] = PAGES
with st.spinner("Waiting for the collector", show_time=True):
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="header"):
        view = st.session_state["view"] = filters.header(page.url_path)
        keys.draw(view)
    if wanted := filters.wanted():
        st.switch_page(PAGES["request"], query_params={"trace_id": wanted})
    components.explained(page.run)
