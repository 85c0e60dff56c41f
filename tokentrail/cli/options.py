"""The options that several commands have: where the API is, which time, which requests."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, Final

import typer

from tokentrail.cli.questions import given, named_values
from tokentrail.shared.moments import needs_zone
from tokentrail.shared.parameters import FILTERS, MEANING, Cause, Latency, Status, Threshold, Verdict

TZ: Final = "TOKENTRAIL_TZ"
API_URL: Final = "http://127.0.0.1:8080"


def in_zone(text: str) -> str:
    """A time that an option gives, in the zone of `--tz` if it names none of its own. The collector reads UTC else."""
    zone = os.environ.get(TZ)
    return f"{text} {zone}" if zone and needs_zone(text) else text


def seen(dimension: str) -> Callable[[typer.Context, str], list[str]]:
    """Completes a value that requests of the last day had, or the name of an SLO; nothing if nobody answers at once."""

    def values(context: typer.Context, incomplete: str) -> list[str]:
        from tokentrail.cli.api import Api

        url = context.params.get("api") or os.environ.get("TOKENTRAIL_API_URL") or API_URL
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


def told(parameter: str, *, of: str = "") -> str:
    """What a parameter of a question does, as the help of its option."""
    text = MEANING[f"{of}.{parameter}" if of else parameter]
    text = re.sub(r"`(\w+)`", lambda found: f"--{found[1]}" if found[1] in MEANING else found[1], text).replace("`", "")
    return f"{text[:1].upper()}{text[1:]}."


def _filters() -> Iterator[tuple[str, Any]]:
    """The options of `filtered`, by the name of their parameter."""
    for name, text in FILTERS.items():
        of_name = typer.Option(help=f"Only {text}; may be repeated.", autocompletion=seen(name))
        yield name, Annotated[list[str] | None, of_name]
    of_label = typer.Option(metavar="NAME=VALUE", help="Only requests with this label: region=eu; may be repeated.")
    yield "label", Annotated[list[str] | None, of_label]
    of_others = typer.Option(
        "--not", metavar="NAME=VALUE", help="No requests of this one: model=llama, label.region=eu; may be repeated."
    )
    yield "without_these", Annotated[list[str] | None, of_others]


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each filter. What was given is its argument `filters`: parameters of the API."""
    signature = inspect.signature(command, eval_str=True)
    added = dict(_filters())
    own = [one for one in signature.parameters.values() if one.name != "filters"]

    @wraps(command)
    def called(**options: Any) -> None:
        chosen = {name: options.pop(name) for name in added}
        refused = named_values("not", chosen.pop("without_these") or [], "model=llama")
        command(**options, filters=given(**chosen) | refused)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    ordered = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    last = next((i for i, one in enumerate(ordered) if one.name in ("as_json", "junit")), len(ordered))
    called.__signature__ = signature.replace(parameters=[*ordered[:last], *options, *ordered[last:]])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in [*ordered, *options]}
    return called


def _one(parameter: str, *, of: str = "") -> Any:
    return typer.Option(help=told(parameter, of=of))


StatusName = Annotated[Status | None, _one("status")]
SloName = Annotated[str | None, typer.Option("--slo", help=told("slo"), autocompletion=seen("slo"))]
VerdictName = Annotated[Verdict | None, _one("verdict")]
CauseName = Annotated[Cause | None, _one("cause")]
MetricName = Annotated[Latency | None, _one("metric")]
AtLeast = Annotated[str | None, _one("at_least")]
AtMost = Annotated[str | None, _one("at_most")]
ThresholdName = Annotated[Threshold | None, _one("missed")]
