"""Keys of all pages (`?` lists them), and the button that copies a link with absolute times."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import address
from dashboard.filters import View
from tokentrail.shared.formatting import instant

_HTML = """
<button title="Copy a link to this" aria-label="Copy a link to this"><svg viewBox="0 0 24 24" aria-hidden="true"><path
d="M10 14a4 4 0 0 0 6 .4l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6-.4l-3 3a4 4 0 0 0 6 6l1-1"/></svg></button>
<div class="help" role="dialog" aria-label="Keys" hidden></div>
"""
_CSS = """
button {all: unset; cursor: pointer; padding: .3rem .45rem; border-radius: .4rem; font: .9rem var(--st-font)}
button:hover {background: var(--st-secondary-background-color)}
svg {width: 1.1rem; height: 1.1rem; vertical-align: middle; fill: none; stroke: var(--st-text-color); stroke-width: 2}
button:focus-visible {outline: 2px solid var(--st-primary-color)}
button[data-said]::after {content: " " attr(data-said); color: var(--st-text-color)}
.help {position: fixed; right: 2rem; top: 4.5rem; z-index: 999999; grid-template-columns: auto 1fr;
  gap: .35rem 1rem; padding: .9rem 1.1rem; font: .85rem var(--st-font); color: var(--st-text-color);
  background: var(--st-background-color); border: 1px solid var(--st-border-color); border-radius: .5rem;
  box-shadow: 0 6px 24px rgba(0, 0, 0, .18)}
.help:not([hidden]) {display: grid}
kbd {font: .85rem var(--st-code-font); padding: 0 .35rem}
kbd {border: 1px solid var(--st-border-color); border-radius: .3rem}
"""
_keys = st.components.v2.component(
    "tokentrail_keys", html=_HTML, css=_CSS, js=Path(__file__).with_name("keys.js").read_text(encoding="utf-8")
)


def draw(view: View) -> None:
    """The button, and the keys behind it. `r` draws the page anew."""
    shown = view.at(address.moment())
    try:
        seconds = (instant(shown.end) - instant(shown.start)).total_seconds() if view.end == "now" else None
    except ValueError:  # the API says what is wrong with it
        seconds = None
    with st.container(key="keys", width="content"):
        _keys(
            key="keyboard",
            data={"seconds": seconds, "start": shown.start, "end": shown.end},
            width="content",
            on_refresh_change=lambda: None,
        )
