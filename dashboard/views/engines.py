"""The page Engines: which processes there are, their state, and how they started."""

from __future__ import annotations

from dashboard import components
from dashboard.api import ask, fetch
from dashboard.filters import View, selected
from dashboard.views import events
from tokentrail.shared.formatting import instant


def page() -> None:
    """Draw the page. It refreshes itself while its range ends now."""
    components.refreshed(body, selected())


def body(view: View) -> None:
    """Ask for the processes and their caches, and draw them."""
    answer = components.last_known("engines", fetch(ask("overview", view.params, slo=view.slo)), view)
    if answer is None:
        return
    window = answer["summary"]["window"]
    components.span(window, view.zone)
    if answer["engines"] is None:
        components.for_one_tenant()
        return
    events.engines(answer["engines"]["engines"], answer["kv"]["engines"], instant(window["end"]))
    events.cold_starts(answer["cold_starts"]["cold_starts"], view)
