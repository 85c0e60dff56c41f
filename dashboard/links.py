"""Links of the collector's answers as addresses of pages, and times and texts as a page writes them in HTML."""

from __future__ import annotations

import html
from datetime import UTC, datetime

from dashboard import address
from dashboard.filters import CUSTOM, View
from dashboard.transform import Json
from tokentrail.shared.formatting import instant, one_line

_LONGEST = 160


def text(value: str | None, longest: int = _LONGEST) -> str:
    """Text of others in HTML: on one line, short, without markup."""
    flat = one_line(value or "")
    return html.escape(flat if len(flat) <= longest else f"{flat[: longest - 1]}…")


def anchor(title: str, href: str, *, outside: bool = False) -> str:
    """A link. One to another site opens in a tab of its own."""
    target = 'target="_blank" rel="noreferrer"' if outside else 'target="_self"'
    return f'<a href="{html.escape(href)}" {target}>{text(title)}</a>'


def labels_but(view: View, *names: str) -> list[tuple[str, str]]:
    """The page's filters without those of some labels, which a link has of its own."""
    return [(name, value) for name, value in view.labels if name not in names]


def of_answer(link: Json, view: View) -> str:
    """A link of `/verdict`: to a page with what it says and the page's own filters, or to a runbook."""
    if link["url"]:
        return anchor(link["title"], link["url"], outside=True) if link["url"].startswith("https://") else ""
    given = dict(link["params"])
    if "at" in given:  # a page of a moment has times of its own
        return anchor(link["title"], address.link(link["page"], given.items()))
    times = {"range": CUSTOM, "start": given.pop("start", view.start), "end": given.pop("end", view.end)}
    if "at_least" in given:  # a part of the map
        seconds = {name: f"{instant(times[of]).timestamp():.3f}" for name, of in (("t0", "start"), ("t1", "end"))}
        given |= {**seconds, "lo": f"{int(given.pop('at_least').removesuffix('us')) / 1e6:.6f}"}
    if link["page"] == "engines" and "instance" in given:
        given = {"sel": process_id(given)}
    pairs = [*times.items(), *given.items(), *labels_but(view, *given)]
    return anchor(link["title"], address.link(link["page"], pairs))


def process_id(process: Json) -> str:
    """A process as the URL names it: `service/instance`, and the tenant to whom it belongs behind them."""
    names = [process["service"], process["instance"], process.get("process_tenant") or ""]
    return "/".join(name.replace("%", "%25").replace("/", "%2F") for name in names if name or name is names[0])


def from_ns(ns: int) -> datetime:
    """A time of the API in unix nanoseconds."""
    return datetime.fromtimestamp(ns / 1e9, UTC)


def hour(at: datetime, view: View) -> str:
    """`13:02`, with the day if it is another one than that of the range's end: `Nov 25 13:02`."""
    local, end = at.astimezone(view.zone), instant(view.end).astimezone(view.zone)
    return f"{local:%H:%M}" if local.date() == end.date() else f"{local:%b} {local.day} {local:%H:%M}"
