"""The pages: Streamlit runs this script for each visitor (dashboard/app.py)."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import components, filters, login
from dashboard.views import overview, request, requests, variants

HERE = Path(__file__).parent

st.set_page_config(page_icon=str(HERE / "icon.svg"), layout="wide")
st.logo(str(HERE / "logo.svg"), size="large", icon_image=str(HERE / "icon.svg"))
components.style()
login.required()
page = st.navigation(
    [
        st.Page(overview.page, title="Overview", icon=":material/monitoring:", default=True),
        st.Page(requests.page, title="Requests", icon=":material/list:", url_path="requests"),
        st.Page(variants.page, title="Variants", icon=":material/compare_arrows:", url_path="variants"),
        st.Page(request.page, title="Request", icon=":material/waterfall_chart:", url_path="request"),
    ]
)
components.title(page.title)
with st.spinner("Waiting for the collector", show_time=True):
    st.session_state["view"] = filters.sidebar()
    components.explained(page.run)
