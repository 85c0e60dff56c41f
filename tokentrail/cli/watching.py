"""The commands that say how the promises stand: status, slos, incidents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from tokentrail.cli.options import API_URL, ApiUrl, AsJson, End, Start, filtered, in_zone
from tokentrail.cli.output import console, fail, note, print_json
from tokentrail.cli.questions import ask, of_our_version, tell_end
from tokentrail.shared.formatting import one_line


@filtered
@of_our_version()
def status(
    *,
    api: ApiUrl = API_URL,
    start: Start = "-15m",
    end: End = "now",
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Say whether the SLOs are kept (status 0), are not or soon will not be (3), or nobody knows (4)."""
    from tokentrail.cli import status as status_

    answer = ask(api, lambda client: client.get("verdict", start=start, end=end, **filters))
    if as_json:
        print_json(answer)
    else:
        tell_end(answer)
        status_.show(console(), answer)
    raise typer.Exit(status_.EXIT[answer["state"]])


@filtered
@of_our_version()
def slos(
    *,
    action: Annotated[
        Literal["init"] | None,
        typer.Argument(
            metavar="[init]", help="init: print a starter SLO file from what was seen, with P95 × 1.3 as thresholds."
        ),
    ] = None,
    api: ApiUrl = API_URL,
    start: Annotated[str, typer.Option(callback=in_zone, help="init: look at requests since then.")] = "-1d",
    end: End = "now",
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """List the SLOs over their own windows: attainment, budget, burn. `tokentrail slos init` prints a starter file."""
    from tokentrail.cli import slos_init
    from tokentrail.cli import status as status_

    if action == "init":
        try:
            typer.echo(ask(api, lambda client: slos_init.starter(client, start, end)), nl=False)
        except ValueError as error:
            fail(error)
        return
    answer = ask(api, lambda client: client.get("slos", start="1970-01-01T00:00:00Z", end=end, **filters))
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    if problem := answer["file_problem"]:
        note(f"{status_.NOT_IN_USE}: {one_line(problem)}")
    if not answer["slos"]:
        note("the collector has no SLOs: start it with --slos FILE, docs/slos.md describes the file")
        return
    console().print(status_.slos(answer["slos"]))
    for slo in answer["slos"]:
        if slo["warning"]:
            note(f"{slo['name']}: {slo['warning']}")


@filtered
@of_our_version()
def incidents(
    *,
    api: ApiUrl = API_URL,
    start: Annotated[str, typer.Option(help="Start of the window: -1d, RFC 3339, or unix seconds.")] = "-1d",
    end: End = "now",
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """List what fires, then what is over, each newest first, with the commands that list the requests."""
    from tokentrail.cli import status as status_

    answer = ask(api, lambda client: client.get("incidents", start=start, end=end, **filters))
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    if not answer["incidents"]:
        note(f"no incident since {start}")
    else:
        status_.show_incidents(console(), answer["incidents"])
    if outside := answer["firing_outside"]:
        note(f"{outside} more {'fires' if outside == 1 else 'fire'}, which the filters leave out")
    for cause, n in answer["left_out"].items():
        note(f"{n} more of {cause} are not listed: a shorter window lists them")
