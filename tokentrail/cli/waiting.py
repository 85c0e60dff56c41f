"""The command that tells how long to wait: timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from tokentrail.cli.options import API_URL, ApiUrl, AsJson, End, Start, filtered, told
from tokentrail.cli.output import console, fail, note, print_json
from tokentrail.cli.questions import ask, of_our_version, tell_end

Client = Literal["openai", "anthropic", "litellm", "envoy", "nginx", "ai-sdk"]


@filtered
@of_our_version()
def timeouts(
    *,
    api: ApiUrl = API_URL,
    start: Start = "-1d",
    end: End = "now",
    kill: Annotated[str, typer.Option(help=told("kill", of="timeouts"))] = "0.1%",
    at: Annotated[list[str] | None, typer.Option(help=told("at", of="timeouts"))] = None,
    settings: Annotated[
        Client | None, typer.Option(help="Print the chosen time-outs as settings of this client; name a --model.")
    ] = None,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Tell how long to wait: the healthy requests that each time-out cuts, the dead ones it catches, and hedging."""
    from tokentrail.cli import timeouts as timeouts_

    asked: dict[str, Any] = {"start": start, "end": end, "kill": kill} | ({"at": at} if at else {})
    answer = ask(api, lambda client: client.get("timeouts", **asked, **filters))
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    if settings is None:
        timeouts_.show(console(), answer, asked=bool(at))
    else:
        _print_settings(answer, settings)


def _print_settings(answer: Mapping[str, Any], client: Client) -> None:
    from tokentrail.cli import timeouts as timeouts_
    from tokentrail.cli.timeout_settings import SETTINGS, Chosen

    models = list(dict.fromkeys(group["model"] for group in answer["groups"]))
    if len(models) != 1:
        fail(RuntimeError(f"--settings is for one model: name one of {', '.join(models) or 'none'} with --model"))
    hedging = [one for group in answer["groups"] for one in group["hedging"]]
    others = [one["to"] for one in hedging if one["to"] not in ("same process", "another process")]
    one = Chosen.of(models[0], timeouts_.chosen(answer, models[0]), list(dict.fromkeys(others)))
    for sentence in timeouts_.undecided(answer, models[0]):
        note(sentence)
    if one.read_s is None and one.whole_s is None:
        fail(RuntimeError("no time-out is decided; take a longer time with --start, or more of --kill"))
    typer.echo(SETTINGS[client](one), nl=False)
