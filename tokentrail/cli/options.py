"""The options that several commands have: where the API is, which time, which requests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

TZ: Final = "TOKENTRAIL_TZ"
_LOCAL: Final = re.compile(
    r"(?:\d{4}-\d\d-\d\d|\d\d? [A-Z][a-z][a-z](?: \d{4})?)?(?:(?:[Tt ]|^)\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?", re.ASCII
)
"""A date or a time of day without a zone."""


def in_zone(text: str) -> str:
    """A time that an option gives, in the zone of `--tz` if it names none of its own. The collector reads UTC else."""
    zone = os.environ.get(TZ)
    return f"{text} {zone}" if zone and text and _LOCAL.fullmatch(text) else text


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Completes a value that is one of these."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def seen(dimension: str) -> Callable[[typer.Context, str], list[str]]:
    """Completes a value that requests of the last day had, or the name of an SLO; nothing if nobody answers at once."""

    def values(context: typer.Context, incomplete: str) -> list[str]:
        from tokentrail.cli.api import Api

        url = context.params.get("api") or os.environ.get("TOKENTRAIL_API_URL") or "http://127.0.0.1:8080"
        try:
            client = Api(url, timeout_s=_COMPLETION_S)
            if dimension == "slo":
                found = [slo["name"] for slo in client.get("slos")["slos"]]
            else:
                found = [one["value"] for one in client.get("labels", start="-1d")["labels"][dimension]]
        except Exception:  # a shell shows what a completion prints
            return []
        return [value for value in found if value and value.startswith(incomplete)]

    return values


_COMPLETION_S: Final = 2.0
ApiUrl = Annotated[str, typer.Option("--api", envvar="TOKENTRAIL_API_URL", help="Address of the collector's API.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Start = Annotated[
    str,
    typer.Option(
        callback=in_zone,
        help="Start of the window: -15m (before now, or before an --end that is a time), 14:00, a date, RFC 3339.",
    ),
]
End = Annotated[
    str, typer.Option(callback=in_zone, help="End of the window: now, -5m, 14:00, a date, RFC 3339, or unix seconds.")
]


def _filter(name: str, help_text: str) -> Any:
    return typer.Option(f"--{name}", help=help_text, autocompletion=seen(name.replace("-", "_")))


Models = Annotated[list[str] | None, _filter("model", "Only requests of this model; may be repeated.")]
Tenants = Annotated[list[str] | None, _filter("tenant", "Only requests of this tenant; may be repeated.")]
Engines = Annotated[list[str] | None, _filter("engine", "Only requests that this product answered: vllm, …")]
Classes = Annotated[list[str] | None, _filter("slo-class", "Only requests of this SLO class.")]
Variants = Annotated[list[str] | None, _filter("variant", "Only requests of this variant; may be repeated.")]
Vantages = Annotated[list[str] | None, _filter("vantage", "Only requests measured there: server, client.")]
Labelled = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="Only requests with this label: region=eu. May be repeated."),
]
StatusName = Annotated[
    str | None,
    typer.Option(
        "--status",
        help="Only requests of this status: ok, error, cancelled, unknown, in_flight, lost.",
        autocompletion=one_of("ok", "error", "cancelled", "unknown", "in_flight", "lost"),
    ),
]
SloName = Annotated[
    str | None, typer.Option("--slo", help="Only requests that this SLO selects.", autocompletion=seen("slo"))
]
VerdictName = Annotated[
    str | None,
    typer.Option(
        "--verdict",
        help="Only requests of this verdict: good, bad, undetermined, excused, unselected, pending.",
        autocompletion=one_of("good", "bad", "undetermined", "excused", "unselected", "pending"),
    ),
]
CauseName = Annotated[
    str | None,
    typer.Option(
        "--cause",
        help="Only requests that lost KV-cache blocks (kv_eviction), that waited for some (kv_wait), or that waited "
        "for a cold start (cold_start).",
        autocompletion=one_of("kv_eviction", "kv_wait", "cold_start"),
    ),
]
