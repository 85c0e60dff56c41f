"""Components that the pages share: problems, empty states, metrics, refreshing bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st

from dashboard.api import Problem, Unanswered, api_url
from tokentrail.formatting import plain
from dashboard.help_texts import HELP

STYLE = """
<style>
  [data-testid="stMainBlockContainer"] {padding: 2.6rem 2.5rem 3rem; max-width: 1680px}
  [data-testid="stMetricLabel"] {opacity: .72}
  [data-testid="stMetricValue"] {font-variant-numeric: tabular-nums}
  .st-key-firing [class*="st-key-incident-"] {border-left: 4px solid #ef4444; background: rgba(239,68,68,.07)}
  .tt-bar {height: 6px; border-radius: 3px; background: rgba(128,136,150,.22); overflow: hidden; margin: .1rem 0 .3rem}
  .tt-bar div {height: 100%; border-radius: 3px}
</style>
"""


def style() -> None:
    """Apply the styles that Streamlit's theme cannot express."""
    st.html(STYLE)


def problem(found: Problem) -> None:
    """Show a problem and its remedy in place of the missing content."""
    with st.container(key="problem"):
        st.error(f"**{plain(found.title)}**\n\n{plain(found.detail)}", icon=":material/cloud_off:")


@contextmanager
def or_problem() -> Iterator[None]:
    """Show the problem when a section lacks its answer. The sections after it are still drawn."""
    try:
        yield
    except Unanswered as missing:
        problem(missing.problem)


def metric(name: str, value: str, *, quantile: str = "", note: str | None = None) -> None:
    """Show a number with the help text of its `name`, and a smaller `note` below. The label is `TTFT` or `TTFT p99`."""
    with st.container(gap=None):
        st.metric(f"{name} {quantile}".rstrip(), value, help=HELP[name])
        if note is not None:
            st.caption(note)


def no_data() -> None:
    """Say that the collector has no data, and how to send some."""
    with st.container(key="no-data", border=True):
        st.subheader("No data yet")
        st.markdown(
            f"The collector at `{plain(api_url())}` answers, but no engine has sent anything. Send it traces:\n\n"
            "- vLLM: start it with `--otlp-traces-endpoint http://<collector>:4317`\n"
            "- an engine with tokentrail's SDK, or any instrumentation with OpenTelemetry's GenAI conventions: set "
            "`OTEL_EXPORTER_OTLP_ENDPOINT=http://<collector>:4318` (HTTP) or `:4317` (gRPC)\n"
            "- no engine yet: `tokentrail demo` runs one and sends it requests"
        )


def refreshed(body: Callable[[], None], every_s: float | None) -> None:
    """Draw `body`, and redraw it every `every_s` seconds without the rest of the page. None: draw it once."""
    st.fragment(body, run_every=every_s)()


def bar(share: float | None, colour: str) -> None:
    """A thin bar filled to `share`, which is clamped to 0…1."""
    filled = 0.0 if share is None else min(1.0, max(0.0, share))
    st.html(f'<div class="tt-bar"><div style="width:{filled:.1%};background:{colour}"></div></div>')
