"""What all Plotly figures share: names of others in them, axes of seconds, and how they are shown."""

from __future__ import annotations

import html
from typing import Any

from tokentrail.shared.formatting import one_line

CONFIG = {"displayModeBar": False, "responsive": True}
LABEL = 40
"""Characters of a name in a figure."""


def label(text: str) -> str:
    """Text of others as a name in a figure: short, and without the markup and links that Plotly would read in it."""
    return html.escape(one_line(text if len(text) <= LABEL else f"{text[: LABEL - 1]}…"), quote=False)


def seconds(top: float) -> dict[str, str]:
    """The format of an axis of seconds up to `top`: `200ms`, `1.5s`, `3,600s`. Nobody counts in kiloseconds."""
    if top < 1000:
        return {"tickformat": "~s", "hoverformat": ".3~s", "ticksuffix": "s"}
    return {"tickformat": ",~r", "hoverformat": ".3~r", "ticksuffix": "s"}


def show_options() -> dict[str, Any]:
    """Arguments of `st.plotly_chart` for every figure."""
    return {"width": "stretch", "config": CONFIG}
