"""The line of the header: what is shown as one text, which can be changed."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import address, filters, links
from dashboard.components.heat import Selection
from dashboard.filters import View
from dashboard.views import explore
from tokentrail.shared import query
from tokentrail.shared.formatting import plain

_WRONG = "wrong line"


def text(page: str, view: View) -> str:
    """What a page shows, as a line. Values of the URL that no word has are left out: no page reads them."""
    params: dict[str, Any] = {"start": view.start, "end": view.end, "slo": view.slo}
    if page == "explore":
        params |= {name: address.get(name) for name in links.OF_EXPLORE}
        if chosen := Selection.of_url(view.start, view.end):
            start, end = chosen.times()
            params |= {"start": start, "end": end, **chosen.bounds(explore.latency(view.slo))}
    if params["end"] == "now":
        del params["end"]
    for name, value in view.labels:
        params[name] = [*params.get(name, ()), value]
    return query.written({name: value for name, value in params.items() if value is not None and _is_word(name, value)})


def _is_word(name: str, value: Any) -> bool:
    try:
        query.written({name: value})
    except query.WrongWord:
        return name in links.BOUNDED  # one needs the other
    return True


def draw(page: str, view: View) -> None:
    """Draw the line into the row that is open. Enter shows what it says, or the request whose id it is."""
    shown = text(page, view)
    typed, told = shown, ""
    if linked := address.get(links.LINE):
        typed, told = linked, _wrong(linked, page)
    elif (wrong := st.session_state.get(_WRONG)) and wrong[0] == (page, shown):
        _, typed, told = wrong
    st.session_state["go"] = typed
    st.text_input(
        "Requests in words, or an id",
        key="go",
        placeholder="tenant:globex ttft>2s 14:00-15:00, or an id",
        label_visibility="collapsed",
        width="stretch",
        on_change=_entered,
        args=(page, shown),
        help="What is shown, to change or to copy: `tenant:globex -model:llama ttft>2s 14:00-15:00 slo:chat`. "
        "Or an id: a trace id, its first eight digits or more, or a request id as the client saw it",
    )
    if told:
        st.error(plain(told))


def _wrong(line: str, page: str) -> str:
    try:
        query.parse(line, links.takes(page))
    except query.WrongWord as error:
        return str(error)
    return ""


def _entered(page: str, shown: str) -> None:
    typed = st.session_state["go"].strip()
    address.put(**{links.LINE: None})
    st.session_state.pop(_WRONG, None)
    if query.is_id(typed):
        st.session_state["wanted"] = typed
    elif told := _wrong(typed, page):
        st.session_state[_WRONG] = (page, shown), typed, told
    else:
        _show(page, query.parse(typed, links.takes(page)))


def _show(page: str, params: dict[str, Any]) -> None:
    """Show what a line says; without a time in it, of the range that is shown."""
    address.let_go()
    if "start" in params or "end" in params:
        filters.set_times(params.pop("start", "-15m"), params.pop("end", "now"))
    st.session_state["slo"] = params.pop("slo", None)
    filters.write(
        [(name, value) for name in params if query.is_filter(name.removeprefix("not.")) for value in params[name]]
    )
    if page == "explore":
        params |= links.latencies(params)
        address.put(**{name: params.get(name) for name in (*links.OF_EXPLORE, "metric", "lo", "hi")})


def wanted() -> str | None:
    """The id that was typed into the header in this run."""
    typed_id: str | None = st.session_state.pop("wanted", None)
    return typed_id or None
