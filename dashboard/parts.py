"""Pieces that pages share: problems, empty states, the refreshing body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st

from dashboard.api import Problem, Unanswered, api_url
from dashboard.formatting import plain
from dashboard.helptexts import HELP

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
    """The little that the theme cannot say."""
    st.html(STYLE)


def problem(found: Problem) -> None:
    """What went wrong and what to do, in place of what could not be shown."""
    with st.container(key="problem"):
        st.error(f"**{plain(found.title)}**\n\n{plain(found.detail)}", icon=":material/cloud_off:")


@contextmanager
def or_problem() -> Iterator[None]:
    """Show the problem where a section lacks its answer; the sections after it are drawn all the same."""
    try:
        yield
    except Unanswered as missing:
        problem(missing.problem)


def metric(label: str, value: str, *, note: str | None = None) -> None:
    """A number with its meaning, and a smaller `note` beneath it. `TTFT p99` is explained as TTFT."""
    with st.container(gap=None):
        st.metric(label, value, help=HELP[label.split(" p")[0]])
        if note is not None:
            st.caption(note)


def no_data() -> None:
    """The collector has never seen an engine."""
    with st.container(key="no-data", border=True):
        st.subheader("No data yet")
        st.markdown(
            f"The collector at `{plain(api_url())}` answers, but no engine has sent anything. Point one at it:\n\n"
            "- an engine with the SDK, vLLM, SGLang or any OTLP exporter: "
            "`OTEL_EXPORTER_OTLP_ENDPOINT=http://<collector>:4318` (HTTP) or `:4317` (gRPC)\n"
            "- or try it out: `tokentrail demo` runs an engine and sends it requests"
        )


def refreshed(body: Callable[[], None], every_s: float | None) -> None:
    """Draw `body`, again every so many seconds without the rest of the page."""
    st.fragment(body, run_every=every_s)()


def bar(share: float | None, colour: str) -> None:
    """A thin bar filled to `share` (0…1, cut to that)."""
    filled = 0.0 if share is None else min(1.0, max(0.0, share))
    st.html(f'<div class="tt-bar"><div style="width:{filled:.1%};background:{colour}"></div></div>')
