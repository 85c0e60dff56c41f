"""Entry point: `streamlit run dashboard/app.py`. TOKENTRAIL_API_URL is the address of the collector's API,
TOKENTRAIL_API_KEY the key that it asks for, and TOKENTRAIL_ALLOWED_HOSTS has the names under which a browser may ask,
beside loopback names and addresses. TOKENTRAIL_LOGIN asks for a login (dashboard/login.py)."""

from __future__ import annotations

from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from dashboard import login
from dashboard.first_html import FirstHtml
from dashboard.linked import LinkedLines
from tokentrail.shared.hosts import AllowedHosts, allowed_names

_login = login.from_environment()
app = App(
    Path(__file__).with_name("pages.py"),
    secrets=_login.secrets if _login else None,
    middleware=[
        Middleware(AllowedHosts, names=allowed_names()),
        Middleware(LinkedLines),
        Middleware(FirstHtml),
    ],
)
