"""The pages: Streamlit runs this script for each visitor (dashboard/app.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import streamlit as st

from dashboard import address, components, filters, line, login
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
page = st.navigation([*PAGES.values()], position="top")
components.title(page.title)
st.session_state["pages"] = PAGES
with st.spinner("Waiting for the collector", show_time=True):
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="header"):
        view = st.session_state["view"] = filters.header(page.url_path)
        line.draw(page.url_path, view)
        keys.draw(view)
    if wanted := line.wanted():
        st.switch_page(PAGES["request"], query_params={"trace_id": wanted})
    components.explained(page.run)
