"""The commands that ask a collector: requests, request, explain, tail, compare, differences, check, spans, doctor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tokentrail.cli.options import (
    API_URL,
    ApiUrl,
    AsJson,
    AtLeast,
    AtMost,
    CauseName,
    End,
    MetricName,
    SloName,
    Start,
    StatusName,
    ThresholdName,
    VerdictName,
    filtered,
    told,
)
from tokentrail.cli.output import USAGE, console, fail, note, print_json
from tokentrail.cli.questions import ask, given, named_values, of_our_version, tell_end
from tokentrail.shared.formatting import instant, one_line
from tokentrail.shared.parameters import Ended, Sort, Threshold, Verdict

if TYPE_CHECKING:
    from tokentrail.cli.api import Api

_INTERRUPTED: Final = 130
"""As shells have it: 128 and SIGINT."""


@of_our_version()
def spans(
    name: Annotated[str | None, typer.Argument(help="Print the newest spans of this name.")] = None,
    api: ApiUrl = API_URL,
    start: Annotated[str, typer.Option(help="Only spans since then: -1h, RFC 3339, or unix seconds.")] = "-1h",
    service: Annotated[str | None, typer.Option(help="Only spans of this service.")] = None,
    scope: Annotated[str | None, typer.Option(help="Only spans of this instrumentation scope.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most spans to print.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List the spans that no engine's mapping recognises, by name; or print those of one name."""
    from tokentrail.cli import spans as spans_

    params = given(start=start, service=service, scope=scope, name=name)
    answer = ask(
        api,
        lambda client: client.get("spans", **params, limit=limit) if name else client.get("spans/names", **params),
    )
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    if name and answer["spans"]:
        spans_.show(console(), answer["spans"])
    elif name:
        note(f"no span since {one_line(start)} has the name {one_line(name)}; tokentrail spans lists the names")
    elif answer["names"]:
        console().print(spans_.names(answer["names"]))
    else:
        note(f"no span since {one_line(start)} is of an unknown engine; --start -1d looks further back")


@filtered
@of_our_version()
def requests(
    *,
    api: ApiUrl = API_URL,
    start: Start = "-15m",
    end: End = "now",
    sort: Annotated[Sort, typer.Option(help=told("sort"))] = "end",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most requests to print.")] = 20,
    status: StatusName = None,
    slo: SloName = None,
    verdict: VerdictName = None,
    missed: ThresholdName = None,
    cause: CauseName = None,
    metric: MetricName = None,
    at_least: AtLeast = None,
    at_most: AtMost = None,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """List requests, the newest or the slowest first: the thresholds missed, and what took most of the time."""
    from tokentrail.cli import requests as requests_

    chosen = given(status=status, slo=slo, verdict=verdict, missed=missed, cause=cause)
    chosen |= given(metric=metric, at_least=at_least, at_most=at_most)
    asked = {"start": start, "end": end, "sort": sort, "limit": limit} | chosen
    answer = ask(api, lambda client: client.get("requests", **asked, **filters))
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    if not answer["requests"]:
        note("no request matches. A request belongs to the window in which it ended; --start -1d looks further back")
        return
    terminal = console()
    terminal.print(requests_.table(answer["requests"], terminal.width, sort))
    if (shown := len(answer["requests"])) < answer["total"]:
        note(f"{shown} of {answer['total']} requests; --limit prints more")


@of_our_version()
def request(
    wanted: Annotated[
        str, typer.Argument(metavar="ID", help="Trace id, its first eight digits or more, or the client's request id.")
    ],
    api: ApiUrl = API_URL,
    span_id: Annotated[str | None, typer.Option(help="Span id, where a trace holds several requests.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write the request there as a trace that ui.perfetto.dev opens.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one request: its phases, tokens and events on one time axis."""
    from tokentrail.cli import request as request_
    from tokentrail.shared import perfetto as perfetto_

    detail = ask(api, lambda client: client.request(wanted, **given(span_id=span_id)))
    if perfetto:
        try:
            perfetto.write_text(json.dumps(perfetto_.trace(detail)))
        except OSError as error:
            fail(RuntimeError(f"{perfetto} cannot be written ({error.strerror}): name another file"))
    if as_json:
        print_json(detail)
    else:
        request_.show(console(), detail)


@filtered
@of_our_version()
def explain(
    *,
    wanted: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID|QUERY]",
            help="One request, by the ids that tokentrail request takes; or options and filters: 'tenant:globex -1h'.",
        ),
    ] = None,
    api: ApiUrl = API_URL,
    start: Start = "-15m",
    end: End = "now",
    slo: Annotated[str | None, typer.Option(help=told("slo", of="explain"))] = None,
    metric: Annotated[Threshold | None, typer.Option(help=told("metric", of="explain"))] = None,
    quantile: Annotated[float | None, typer.Option(help=told("quantile", of="explain"))] = None,
    without: Annotated[list[str] | None, typer.Option(help=told("without", of="explain"))] = None,
    replay: Annotated[bool | None, typer.Option("--replay/--no-replay", help=told("replay", of="explain"))] = None,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Say where the time of slow requests went, or that of one request."""
    from tokentrail.cli import explain as explain_

    if wanted is not None:
        detail = ask(api, lambda client: client.request(wanted))
        if as_json:
            print_json(detail["explained"])
        else:
            explain_.show_one(console(), detail)
        return
    asked = given(
        slo=slo, metric=metric, quantile=quantile, without=without, replay=replay if replay is not None else "auto"
    )
    answer = ask(api, lambda client: client.get("explain", start=start, end=end, **asked, **filters))
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    explain_.show(console(), answer, filters)


@filtered
@of_our_version()
def tail(
    *,
    api: ApiUrl = API_URL,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print requests as they end, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most requests to print first.")] = 10,
    status: StatusName = None,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Print the newest requests, a line each, the newest last."""
    from tokentrail.cli import requests as requests_

    chosen = {**filters, **given(status=status)}

    def print_them(client: Api) -> None:
        answer = client.get("requests", start="-1d", limit=limit, **chosen)
        newest = answer["requests"]
        if not (follow or as_json):
            tell_end(answer)
        if not newest:
            note("no request has ended in the last day" + (", waiting for the first" if follow else ""))
        requests_.print_rows(console(), reversed(newest), as_json=as_json)
        if follow:
            known = [(row["trace_id"], row["span_id"]) for row in newest]
            requests_.print_rows(console(), requests_.follow(client, chosen, known), as_json=as_json)

    try:
        ask(api, print_them)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _side(name: str) -> Any:
    return typer.Option(
        name, metavar="NAME=VALUE", help="A filter, start or end of this side: variant=old. May be repeated."
    )


@filtered
@of_our_version()
def compare(
    *,
    a: Annotated[list[str] | None, _side("--a")] = None,
    b: Annotated[list[str] | None, _side("--b")] = None,
    at: Annotated[str | None, typer.Option(help=told("at"))] = None,
    span: Annotated[str, typer.Option(help=told("span"))] = "1h",
    api: ApiUrl = API_URL,
    start: Start = "-1h",
    end: End = "now",
    relevant: Annotated[float, typer.Option(help=told("relevant", of="compare"))] = 0.1,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Compare two sets of requests, like for like, with 95 % intervals."""
    from tokentrail.cli import compare as compare_

    asked = given(at=at, relevant=relevant) | ({"span": span} if at else {"start": start, "end": end})
    sides = named_values("a", a or [], "variant=old") | named_values("b", b or [], "variant=old")
    if not (sides or at):
        raise typer.BadParameter("say how the sides differ: --a variant=old --b variant=new, or --at -1h")
    answer = ask(api, lambda client: client.get("compare", **asked, **filters, **sides))
    if as_json:
        print_json(answer)
    else:
        tell_end(max((answer["a"], answer["b"]), key=lambda side: instant(side["window"]["end"])))
        compare_.show(console(), answer)


@filtered
@of_our_version()
def differences(
    *,
    api: ApiUrl = API_URL,
    start: Start = "-15m",
    end: End = "now",
    slo: SloName = None,
    verdict: Annotated[Verdict | None, typer.Option(help=told("verdict", of="differences"))] = None,
    status: Annotated[Ended | None, typer.Option(help=told("status", of="differences"))] = None,
    metric: MetricName = None,
    at_least: AtLeast = None,
    at_most: AtMost = None,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Tell what the bad requests, or others that you select, have that the rest has not."""
    from tokentrail.cli import differences as differences_

    asked = given(slo=slo, verdict=verdict, metric=metric, at_least=at_least, at_most=at_most)
    asked |= given(**{"select.status": status}) | {"start": start, "end": end}
    answer = ask(api, lambda client: client.get("differences", **asked, **filters))
    if as_json:
        print_json(answer)
        return
    tell_end(answer)
    differences_.show(console(), answer)


@filtered
@of_our_version()
def check(
    *,
    slo: Annotated[str, typer.Option(help=told("slo", of="check"))],
    api: ApiUrl = API_URL,
    since: Annotated[str, typer.Option(help="Start of what is checked: when the release began, or -1h.")] = "-1h",
    against_variant: Annotated[str | None, typer.Option(help="Compare with this variant, at the same time.")] = None,
    against_time: Annotated[
        str | None, typer.Option(metavar="START/END", help="Compare with this time: -2d/-1d, or two of RFC 3339.")
    ] = None,
    objective: Annotated[float | None, typer.Option(help=told("objective", of="check"))] = None,
    relevant: Annotated[float, typer.Option(help=told("relevant", of="check"))] = 0.2,
    quantile: Annotated[float, typer.Option(help=told("quantile", of="check"))] = 0.99,
    least_time: Annotated[str, typer.Option(help=told("least_time", of="check"))] = "40m",
    wait: Annotated[str, typer.Option(help="Ask again for so long while it is not decided: 15m.")] = "0s",
    junit: Annotated[Path | None, typer.Option(help="Write the numbers there as JUnit's XML.")] = None,
    as_json: AsJson = False,
    filters: Mapping[str, Any],
) -> None:
    """Tell whether a release is good (status 0), worse (1), not decided or not answered (2), or without requests (3).

    A name or an option that is wrong has the status 64.
    """
    from tokentrail.cli import check as check_

    asked = {"slo": slo, "relevant": relevant, "quantile": quantile, "least_time": least_time}
    asked |= given(objective=objective, **{"against.variant": against_variant})
    answers: list[Mapping[str, Any]] = []
    status: int | None = None
    try:
        asked |= _against_time(against_time)
        wait_s = _seconds(wait)
        answer = ask(
            api,
            lambda client: check_.until_decided(
                lambda begun: client.get("check", **asked, **filters, start=begun or since, end="now"),
                wait_s,
                keep=answers.append,
                tell=note,
            ),
            wrong=USAGE,
            unknown=USAGE,
            otherwise=check_.EXIT["not decided"],
        )
    except typer.Exit as error:
        status = error.exit_code
        answer = check_.no_answer(slo, str(error.__cause__))
    except KeyboardInterrupt:
        status = _INTERRUPTED
        answer = answers[-1] if answers else check_.no_answer(slo, "it was interrupted before the first answer")
    if junit:
        try:
            check_.write_junit(junit, answer)
        except OSError as error:
            fail(RuntimeError(f"{junit} cannot be written ({error.strerror}): name another file"), USAGE)
    if as_json:
        print_json(answer)
    else:
        check_.show(console(), answer)
    raise typer.Exit(check_.status(answer) if status is None else status)


def _against_time(text: str | None) -> dict[str, str]:
    start, slash, end = (text or "").partition("/")
    if text and not slash:
        fail(RuntimeError(f"--against-time: START/END, such as -2d/-1d, not {text!r}"), USAGE)
    return {"against.start": start, "against.end": end} if text else {}


def _seconds(wait: str) -> float:
    from tokentrail.cli import check as check_

    try:
        return check_.seconds(wait)
    except ValueError as error:
        fail(RuntimeError(f"--wait: {error}"), USAGE)


def doctor(
    api: ApiUrl = API_URL,
    otlp_http: Annotated[
        str | None, typer.Option(help="Address to which engines send OTLP/HTTP; without it, the API tells it.")
    ] = None,
    otlp_grpc: Annotated[
        str | None, typer.Option(help="Address to which engines send OTLP/gRPC; without it, the API tells it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for faults: ports, clocks, disk, engines that send nothing, SLOs that judge nothing."""
    from tokentrail.cli import doctor as doctor_
    from tokentrail.shared.connection import ConnectionSettingError

    try:
        well = doctor_.show(console(), doctor_.examine(api, otlp_http, otlp_grpc), as_json=as_json)
    except ConnectionSettingError as error:
        fail(error)
    if not well:
        raise typer.Exit(1)
