"""The parameters of questions to a collector: their names, values and meanings, for the API, commands, tools and pages.

A filter narrows a question to some requests. It is a dimension with a value (`model=llama`), or a label with one
(`label.region=eu`); `not.model=llama` leaves these out. Behind `a.`, a filter is about one side of a comparison alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal

Dimension = Literal["model", "tenant", "variant", "engine", "slo_class", "vantage"]
"""The columns of requests by which SLOs select."""
LABEL: Final = "label."
"""`label.NAME` stands for a label wherever a dimension can stand."""
NOT: Final = "not."
"""Before a dimension or a label: requests that have another value."""
FILTERS: Final[Mapping[str, str]] = {
    "model": "requests of this model",
    "tenant": "requests of this tenant",
    "variant": "requests of this variant",
    "engine": "requests that this product answered: tokentrail, vllm, …",
    "slo_class": "requests of this SLO class",
    "vantage": "requests measured there: server, client",
    "service": "requests to processes of this service",
    "instance": "requests to this engine process",
}
"""What a filter of each dimension selects, and of the names of engine processes."""

Threshold = Literal["ttft", "tpot", "e2e", "gap", "first_visible"]
Latency = Literal["ttft", "tpot", "e2e", "queue", "gap", "first_visible"]
Sort = Literal["end", "ttft", "tpot", "e2e", "gap", "first_visible"]
Ended = Literal["ok", "error", "cancelled", "unknown"]
"""How a request ended; `unknown`: nobody tells whether well."""
Status = Literal["ok", "error", "cancelled", "unknown", "in_flight", "lost"]
Verdict = Literal["good", "bad", "undetermined", "excused", "unselected", "pending"]
"""`excused`: not judged, as the client cancelled it in time or the SLO excludes its error. `unselected`: not judged, as
no SLO selects it. `pending`: in flight, and not past a threshold."""
Cause = Literal["kv_eviction", "kv_wait", "cold_start"]

MEANING: Final[Mapping[str, str]] = {
    "start": "start of the window: RFC 3339, `14:00`, `2026-11-21 14:00`, a date (in UTC without a zone), "
    "unix seconds, or relative: `-15m`, `-1h30m`, `now`. A relative start counts before now, or before an `end` that "
    "is a time",
    "end": "as `start`. Alone, the window ends then",
    "sort": "order, the largest first",
    "status": "only requests that ended so (`unknown`: nobody tells whether well), or that had not ended at the "
    "window's end, oldest first; without it, all that ended in the window",
    "slo": "only requests that this SLO selects",
    "verdict": "only requests with this verdict of `slo`, or without it of all SLOs together",
    "missed": "only requests that missed this threshold of `slo`, or without it of any SLO",
    "cause": "only requests that lost KV-cache blocks while they ran; that ended in the time and had waited for such "
    "blocks for half of the time until their first token; or that ended, had waited for a cold start and overlap the "
    "time",
    "explain.slo": "bad for this SLO; without it and without thresholds, for any SLO",
    "explain.metric": "in place of bad requests: those in the tail of this metric",
    "explain.quantile": "where the tail of `metric` begins, 0.99 without it; 0: all that have it",
    "explain.without": "causes, joined by commas: the attainment without all of them; may be repeated",
    "explain.replay": "let the requests come again without each cause, where a simulation of the scheduler can tell; "
    "of one SLO, or of thresholds. It takes up to 20 s. `auto`: where it can be had; a note says why there is none",
    "differences.verdict": "select this verdict; without any selection, `bad`, beside `good` ones alone",
    "differences.status": "select what ended so",
    "metric": "select by this latency",
    "at_least": "select a latency of so much or more, such as `500ms`",
    "at_most": "select a latency of so much or less",
    "at": "A is the time before this moment, and B the time after it",
    "span": "the time before and after `at`",
    "compare.relevant": "differences of up to this share are called the same",
    "check.slo": "the SLO that judges",
    "check.objective": "in place of the SLO's own",
    "check.relevant": "the smallest difference that matters, as a share",
    "check.quantile": "the percentile of latencies that is compared",
    "check.least_time": "good needs requests of so long a time: a fault may come by times",
    "timeouts.kill": "the share of healthy requests that a time-out may cut, such as `0.1%` or `0.001`",
    "timeouts.at": "what this time-out would do, such as `60s`; may be repeated",
}
"""What a parameter does; behind the name of a question where it does something else there."""


def share_of(value: Any) -> Any:
    """`0.1%` or `0.001` as a share; what is no text as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{value!r} is not a share: write 0.1% or 0.001") from None
    return number / 100 if text.endswith("%") else number


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as the end of a sentence about an unknown one; '' for none."""
    near = get_close_matches(name, [*known], 3, 0.5)
    return f": did you mean {' or '.join(near)}?" if near else ""
