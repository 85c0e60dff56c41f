"""The options that several commands have: where the API is, which time, which requests."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Annotated, Any, Final, get_args

import typer
from typer.models import ArgumentInfo

from tokentrail.cli.questions import given, named_values
from tokentrail.shared import query
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


_Line = Annotated[
    str | None,
    typer.Argument(
        metavar="[QUERY]",
        help="The options and filters in one line: 'tenant:globex -model:llama ttft>2s 14:00-15:00 slo:chat'.",
    ),
]


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each filter, and an argument that is a line of filters and of its options.

    Its own argument `wanted` may be a line too; with another argument it takes none. All filters that were given are
    its argument `filters`: parameters of the API.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "filters"]
    has_argument = any(isinstance(part, ArgumentInfo) for one in own for part in get_args(one.annotation))
    line = {} if has_argument else {"query": _Line}
    added = dict(_filters())

    @wraps(command)
    def called(context: typer.Context, **options: Any) -> None:
        chosen = {name: options.pop(name) for name in added}
        refused = named_values("not", chosen.pop("without_these") or [], "model=llama")
        filters = given(**chosen) | refused
        if text := options.pop("query", None):
            _read(text, options, filters, context)
        elif (text := options.get("wanted")) and not query.is_id(text):
            _read(text, options, filters, context)
            options["wanted"] = None
        command(**options, filters=filters)

    def parameters(kinds: Mapping[str, Any]) -> list[inspect.Parameter]:
        return [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in kinds.items()
        ]

    ordered = [*parameters(line), *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    last = next((i for i, one in enumerate(ordered) if one.name in ("as_json", "junit")), len(ordered))
    ordered[last:last] = parameters(added)
    ordered += [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    called.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in ordered}
    return called


def _read(text: str, options: dict[str, Any], filters: dict[str, Any], context: typer.Context) -> None:
    """Put what a line says to the options and filters of a command. Raises typer.BadParameter."""
    try:
        read = query.parse(text, options)
    except query.WrongWord as error:
        raise typer.BadParameter(str(error)) from None
    for name, value in read.items():
        if name not in options:
            filters[name] = [*filters.get(name, []), *value]
        elif getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
            raise typer.BadParameter(f"--{name.replace('_', '-')} is an option of this call, and {text!r} has it too")
        else:
            options[name] = in_zone(value) if name in ("start", "end") else value


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
