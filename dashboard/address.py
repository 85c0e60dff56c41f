"""What the URL holds, and links to pages with it. A selection that is made on a page is there too, so a link shows it.

Widgets with `bind="query-params"` keep their values there themselves (dashboard/filters.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import urlencode

import streamlit as st

SELECTION = ("t0", "t1", "lo", "hi", "metric", "status", "sel")
"""Parameters of what is selected on a page: a time, a range of latencies, a row. A page in which one of the first four
or the last is set does not refresh. Another page forgets them all."""
HOLDS = ("t0", "t1", "lo", "hi", "sel")
_HELD = "held at"


def get(name: str) -> str | None:
    """A parameter of the URL; None without it, or where it is empty."""
    return st.query_params.get(name) or None


def number(name: str) -> float | None:
    """A parameter of the URL as a number; None unless it is one."""
    try:
        return float(get(name) or "")
    except ValueError:
        return None


def put(**values: object) -> bool:
    """Write parameters into the URL; None takes one out. Returns whether any of them changed."""
    changed = False
    for name, value in values.items():
        text = "" if value is None else str(value)
        if text == st.query_params.get(name, ""):
            continue
        changed = True
        if text:
            st.query_params[name] = text
        else:
            del st.query_params[name]
    return changed


def choose(**values: object) -> None:
    """Write what the reader has selected into the URL, and draw the whole page with it. Nothing happens if it is there.

    A body that `components.refreshed` draws calls it, not a callback: Streamlit draws no page anew from a callback.
    """
    if put(**values):
        st.rerun()


def held() -> datetime | None:
    """The moment at which the reader began to look at something selected; None: nothing is selected, and time goes on.

    The page keeps the range that it had then.
    """
    if not any(get(name) for name in HOLDS):
        st.session_state.pop(_HELD, None)
        return None
    at: datetime = st.session_state.setdefault(_HELD, moment())
    return at


def let_go() -> None:
    """Forget what is selected, so that the page refreshes again."""
    put(**dict.fromkeys(SELECTION))


def moment() -> datetime:
    """Now, in whole even seconds: pages that are drawn within two seconds ask the same, and share the answers."""
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() // 2 * 2, UTC)


def link(page: str, params: Iterable[tuple[str, object]] = (), /, **more: object) -> str:
    """The path of a page and its parameters, from the root. Parameters that are None are left out."""
    given = [(name, value) for name, value in (*params, *more.items()) if value is not None]
    return f"/{page}" + (f"?{urlencode(given)}" if given else "")
