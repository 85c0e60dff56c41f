"""Formats numbers and times for people. An undefined number is `–`, never 0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from math import floor, isfinite, log10
from typing import Any, overload

UNDEFINED = "–"
MINUS = "−"


def duration(seconds: float | None) -> str:
    """Three significant digits in the unit that fits: `480 µs`, `21.3 ms`, `1.25 s`; then `2 min 5 s`, `12 d 4 h`."""
    if seconds is None or not isfinite(seconds):
        return UNDEFINED
    if seconds < 0:
        return MINUS + duration(-seconds)
    if seconds == 0:
        return "0 s"
    for unit, size in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if float(f"{seconds / size:.3g}") < (60 if unit == "s" else 1000):
            return f"{significant(seconds / size)} {unit}"
    seconds = round(seconds)
    for (large, size), (small, part) in pairwise(_LONG):
        if seconds >= size:
            first, rest = divmod(round(seconds / part), size // part)
            return f"{first} {large}" + (f" {rest} {small}" if rest else "")
    raise AssertionError(seconds)


def tpot(request: Mapping[str, Any]) -> str:
    """TPOT of a request of the API, or what it cannot exceed where it is not known: `21.3 ms`, `≤ 48.0 ms`."""
    known, at_most = request["tpot_s"], request.get("tpot_at_most_s")
    return f"≤ {duration(at_most)}" if known is None and at_most is not None else duration(known)


def whole_answers(summary: Mapping[str, Any]) -> str:
    """How many TTFTs of `/summary` are an E2E, as a sentence; empty where none is."""
    at_end, of = summary["ttft_is_e2e"], summary["ttft_s"]["count"]
    if not at_end:
        return ""
    return (
        f"{count(at_end)} of {count(of)} TTFTs are the E2E: these answers were not streamed, or had one token. "
        "label.stream=true leaves out what was not streamed."
    )


THRESHOLDS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "E2E",
    "gap": "longest gap",
    "first_visible": "first visible token",
}
"""What an SLO can promise, in words, by the name of the threshold."""
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "gap": "longest gap"}
"""Latencies that have percentiles."""
MAPPED = {**THRESHOLDS, "queue": "queue"}
"""Latencies that a heatmap can be of."""
WAITS = {
    "batch": "the batch was full",
    "tokens": "the steps had no tokens left to compute",
    "kv": "too few KV blocks were free",
    "priority": "a later request had a higher priority",
    "step": "a step was under way",
}


def wait_reasons(detail: Mapping[str, Any]) -> str:
    """Why a request of the API waited for its steps, `the batch was full (250 ms)`; undefined when nobody tells it."""
    reasons = [f"{WAITS[wait['reason']]} ({duration(wait['time_s'])})" for wait in detail["waits"]]
    return ", ".join(reasons) or UNDEFINED


def prefill_interference(detail: Mapping[str, Any]) -> str:
    """The steps that prefilled other prompts while a request of the API waited for a token, in words; '' for none.

    Where the request is explained, also the part of these steps that the prompts took: the steps are those after its
    first token.
    """
    interference = detail["interference"]
    if not interference or not interference["steps"]:
        return ""
    causes = (detail.get("explained") or {}).get("causes") or ()
    theirs_s = sum(one["time_s"] for one in causes if one["cause"] == "others_prompts" and one["of"] == "rest")
    return (
        f"Prefill interference: {counted(interference['steps'], 'step')}, "
        f"{duration(interference['time_s'])} in all, prefilled "
        f"{count(interference['prefill_tokens'])} prompt tokens of other requests while this one waited for a token"
    ) + (f"; these prompts took {duration(theirs_s)} of it" if 0 < theirs_s <= interference["time_s"] else "")


_LONG = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent: 0.0712, 21.3, 480, 12000."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - floor(log10(abs(float(f"{value:.{digits}g}")))))
    return f"{value:.{places}f}"


def percent(ratio: float | None) -> str:
    """A ratio with up to two decimals (none from 200 % on), cut and not rounded: 100 % means every single one."""
    if ratio is None or not isfinite(ratio):
        return UNDEFINED
    hundredths = floor(abs(ratio) * 10_000 + 1e-9)
    if hundredths >= 20_000:
        hundredths -= hundredths % 100
    text = f"{hundredths // 100}.{hundredths % 100:02d}".rstrip("0").rstrip(".")
    return f"{MINUS if ratio < 0 and hundredths else ''}{text} %"


def estimate(text: str, error: str | None) -> str:
    """A number with its standard error, where there is one: `≈ 95 % ± 0.4 %`."""
    return text if error is None or UNDEFINED in (text, error) else f"≈ {text} ± {error}"


def count(value: float | None) -> str:
    """A whole number with narrow spaces between thousands: `12 345`."""
    return UNDEFINED if value is None else f"{round(value):,}".replace(",", "\u202f")


def counted(n: float, noun: str, plural: str | None = None) -> str:
    """A number of things: `1 request`, `12 345 requests`, and with a plural of its own `2 processes`."""
    return f"{count(n)} {noun if n == 1 else plural or f'{noun}s'}"


def rate(value: float | None, unit: str) -> str:
    """A rate with three significant digits and its unit: `0.0712 /s`."""
    if value is None or not isfinite(value):
        return UNDEFINED
    return f"{significant(value) if value < 1000 else count(value)} {unit}"


def pace(per_second: float | None) -> str:
    """A rate per second, minute, hour or day, the first that makes it 1 or more: `2.10 /s`, `5.20 /min`, `1.37 /d`."""
    if not per_second:
        return rate(per_second, "/s")
    for unit, seconds in (("/s", 1), ("/min", 60), ("/h", 3600)):
        if per_second * seconds >= 1:
            return rate(per_second * seconds, unit)
    return rate(per_second * 86400, "/d")


@overload
def instant(text: str) -> datetime: ...
@overload
def instant(text: None) -> None: ...
@overload
def instant(text: str | None) -> datetime | None: ...
def instant(text: str | None) -> datetime | None:
    """An API time (RFC 3339) as an aware UTC datetime, to the microsecond; None stays None."""
    if text is None:
        return None
    fraction = re.sub(r"(\.\d{6})\d+", r"\1", text.replace("Z", "+00:00"))
    return datetime.fromisoformat(fraction).astimezone(UTC)


def clock(text: str | None, zone: tzinfo = UTC) -> str:
    """An API time as `2026-11-21 10:15:03 UTC`, or in another zone."""
    moment = instant(text)
    return UNDEFINED if moment is None else f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def clock_text(ns: int, now_ns: int, zone: tzinfo = UTC) -> str:
    """A time in a sentence: `12:02 UTC`, with the day if that is not today's, and with the year if it is another."""
    moment, now = (datetime.fromtimestamp(at // 10**9, UTC).astimezone(zone) for at in (ns, now_ns))
    day = "" if moment.date() == now.date() else f"{moment.day} {moment:%b} "
    year = "" if moment.year == now.year else f"{moment.year} "
    return f"{day}{year}{moment:%H:%M %Z}"


def on_clock(sentence: str, times_ns: Iterable[int | None], now_ns: int, zone: tzinfo) -> str:
    """A sentence of the collector with these of its times on the clock of a zone.

    Since 12:02 UTC.
    Since 13:02 CET.
    """
    local = {clock_text(ns, now_ns): clock_text(ns, now_ns, zone) for ns in times_ns if ns is not None}
    texts = "|".join(re.escape(text) for text in sorted(local, key=len, reverse=True))
    return re.sub(rf"(?<![\w:])(?:{texts})", lambda found: local[found[0]], sentence) if local else sentence


def data_until(window: Mapping[str, Any], zone: tzinfo = UTC) -> str:
    """How far an answer of the API about a window is complete: `data until 14:03:10 UTC`. Empty if it is up to its end.

    With the day, if the window ends on another one.
    """
    until, end = (instant(window[name]).astimezone(zone) for name in ("complete_until", "end"))
    day = "" if until.date() == end.date() else f"{until:%Y-%m-%d} "
    return f"data until {day}{until:%H:%M:%S %Z}" if until < end else ""


def age(window: Mapping[str, Any], now: datetime) -> str:
    """How old the newest data of an answer is: `12 min old`. Empty below a minute.

    Of a window that ended before, how long ago that was.
    """
    until, end = instant(window["complete_until"]), instant(window["end"])
    seconds = (now - min(until, end)).total_seconds()
    return f"{duration(seconds // 60 * 60)} old" if seconds >= _OLD_S else ""


_OLD_S = 60


def without_user(url: str) -> str:
    """An address without the user and the password in it: logs and outputs are pasted into chats and issues.

    http://user:secret@collector:4318
    http://…@collector:4318

    What stands before the last `@` is left out, also where that is in a query.
    """
    return _USER.sub("…@", url)


_USER = re.compile(r"(?<=//).*@|^[^/]*@")
"""A password that was not encoded may hold a slash."""


def one_line(text: str) -> str:
    r"""Text of others for one line of a terminal, a page or a figure: what draws nothing is an escape.

    Control characters move a terminal's cursor or change its colours, marks of direction turn the text after them,
    and invisible characters make two names look alike. A name that has a line break becomes `a\nb`, with a backslash.
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""The categories Cc, Cf, Cs, Zl and Zp of Unicode, and letters and marks that are drawn as nothing or as a space:
Hangul fillers, the empty Braille pattern, variation selectors and tags."""


def named(text: str, longest: int = 80) -> str:
    """A name of others in a sentence: on one line, and not longer than so many characters."""
    flat = one_line(text)
    return flat if len(flat) <= longest else f"{flat[: longest - 1]}…"


def cell(text: str) -> str:
    """Text of others for a cell of a table, which may be downloaded as CSV. A spreadsheet takes `=1+1` for a formula.

    "=1+1" becomes "'=1+1", which it shows as text.
    """
    flat = one_line(text)
    return f"'{flat}" if flat.startswith(("=", "+", "-", "@")) else flat


def plain(text: str) -> str:
    """Escape text of others, so that Markdown shows it as it is: no links, images, icons, HTML or formatting.

    Streamlit makes a link of an address, an icon of `:material/x:`, an emoji of `:x:` and an arrow of `->` even when
    they are escaped, so a zero-width space is put into each. Characters that draw nothing become escapes.
    """
    flat = one_line(" ".join(text.split()))[:400]
    broken = _REPLACED.sub("\u200b\\g<0>", flat)
    broken = _SIGNS.sub(lambda found: f"{found[0][0]}\u200b{found[0][1:]}", broken)
    return re.sub(r"([\\`*_{}\[\]()<>#+!|$~:&-])", r"\\\1", broken) + ("…" if len(flat) == 400 else "")


_REPLACED = re.compile(r"://|www\.|@|(?<=:)\w[\w/+-]*:", flags=re.IGNORECASE)
_SIGNS = re.compile(r"(?<!\S)(<->|->|<-|--|>=|<=|~=)(?!\S)")
"""What Streamlit makes one sign of, where spaces stand around it."""


def of_tenant(name: str, row: Mapping[str, Any]) -> str:
    """The name of an engine or a process with the tenant to which it belongs: `chat`, or `chat of acme`."""
    tenant = row.get("process_tenant")
    return f"{name} of {tenant}" if tenant else name


def kind_of_group(group: Mapping[str, Any]) -> str:
    """The model of a group of `/timeouts`, and what divides its requests."""
    part = f", {group['split']} {group['value'] or 'not given'}" if group["split"] else ""
    return f"{group['model'] or 'model not given'}{part}"


def share_interval(share: float | None, low: float, high: float) -> str:
    """A share with its interval: `0.1 % (0.05 to 0.2 %)`."""
    if share is None:
        return f"at most {percent(high)}"
    return f"{percent(share)} ({percent(low).removesuffix(' %')} to {percent(high)})"


def timeout_cells(point: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A time-out of `/timeouts` as cells: its time, the healthy ones cut, the dead ones caught, seconds saved."""
    caught, saved = point["dead_caught"], point["saved_s"]
    return (
        duration(point["timeout_s"]),
        share_interval(**point["healthy_cut"]),
        UNDEFINED if caught is None else share_interval(**caught),
        UNDEFINED if saved is None else duration(saved),
    )
