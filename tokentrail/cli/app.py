"""The command line: the commands that start parts, and with them those of `asking`, `waiting`, `watching`
and `keeping`.

A command imports the module of its name when it runs: `tokentrail --help` and shell completion load none of them.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tokentrail.cli import asking, keeping, parts, waiting, watching
from tokentrail.cli.keeping import data_folder
from tokentrail.cli.options import API_URL, TZ, ApiUrl
from tokentrail.cli.output import HELP, TakesLine, WrongUse, console, fail
from tokentrail.cli.processes import PORTS, ProcessFailed, terminated
from tokentrail.cli.proxy import proxy
from tokentrail.version import told as version_told

app = typer.Typer(
    name="tokentrail",
    help="SLO monitoring for LLM inference that keeps the trail of every token.",
    pretty_exceptions_enable=False,
    **HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_told())
        raise typer.Exit


def _terminated(*_: object) -> None:
    """SIGTERM does the same as Ctrl-C: the child processes are stopped in order, and none is left behind."""
    terminated.set()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script started in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Print without colours; NO_COLOR does the same.")
    ] = False,
    tz: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Zone of times without one: Europe/Berlin. TOKENTRAIL_TZ does the same."),
    ] = None,
) -> None:
    """SLO monitoring for LLM inference that keeps the trail of every token."""
    if tz:
        os.environ[TZ] = tz
    if no_color:
        os.environ["NO_COLOR"] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 has no dash and no arrow
    signal.signal(signal.SIGTERM, _terminated)


SlosFile = Annotated[
    Path | None,
    typer.Option("--slos", help="SLO file; without it, the one that tokentrail ships.", exists=True, dir_okay=False),
]
SlosOfFolder = Annotated[
    Path | None,
    typer.Option(
        "--slos",
        help="SLO file; without it, that of the last `up` on this folder, or the one that tokentrail ships.",
        exists=True,
        dir_okay=False,
    ),
]


def _port(listener: str) -> Any:
    return typer.Option(
        min=1, max=65535, help=f"Port of {listener}. Without it {PORTS[listener]}, or a free one.", show_default=False
    )


OtlpHttpPort = Annotated[int | None, _port("OTLP/HTTP")]
OtlpGrpcPort = Annotated[int | None, _port("OTLP/gRPC")]
ApiPort = Annotated[int | None, _port("API")]
DashboardPort = Annotated[int | None, _port("dashboard")]
EnginePort = Annotated[int | None, _port("engine")]
PrometheusPort = Annotated[int | None, _port("Prometheus")]


@app.command()
def up(
    data_dir: Annotated[
        Path, typer.Option(parser=data_folder, metavar="<path>", help="Folder for the collected data and the logs.")
    ] = Path("tokentrail-data"),
    slos: SlosOfFolder = None,
    port_otlp_http: OtlpHttpPort = None,
    port_otlp_grpc: OtlpGrpcPort = None,
    port_api: ApiPort = None,
    port_dashboard: DashboardPort = None,
) -> None:
    """Run the collector, with its embedded store, and the dashboard until Ctrl-C.

    Its folder may be a restored backup, and remembers --slos.
    """
    ports = {"OTLP/HTTP": port_otlp_http, "OTLP/gRPC": port_otlp_grpc, "API": port_api, "dashboard": port_dashboard}
    from tokentrail.cli import up as up_

    try:
        up_.run(console(), data_dir=data_dir, slos=slos, ports=ports)
    except ProcessFailed as failure:
        fail(failure)


@app.command()
def demo(
    seconds: Annotated[
        float | None, typer.Option(min=40, help="Stop after about this many seconds and check the numbers.")
    ] = None,
    home: Annotated[
        Path,
        typer.Option(
            parser=data_folder,
            metavar="<path>",
            help="Folder for data and logs. An earlier demo's recording in it is deleted.",
        ),
    ] = Path(".demo"),
    slos: SlosFile = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload: the same seed sends the same requests.")] = 7,
    day: Annotated[
        bool,
        typer.Option("--day", help="Show a synthetic day with five faults instead, without an engine and a model."),
    ] = False,
    port_otlp_http: OtlpHttpPort = None,
    port_otlp_grpc: OtlpGrpcPort = None,
    port_api: ApiPort = None,
    port_dashboard: DashboardPort = None,
    port_engine: EnginePort = None,
    port_prometheus: PrometheusPort = None,
) -> None:
    """Run everything on this machine: an engine with a real model, load, collector, dashboard, Prometheus.

    At its end, print the phases of the slowest requests.
    """
    ports = {"OTLP/HTTP": port_otlp_http, "OTLP/gRPC": port_otlp_grpc, "API": port_api, "dashboard": port_dashboard}
    ports |= {"engine": port_engine, "Prometheus": port_prometheus}
    try:
        if day:
            from tokentrail.cli.day import show

            show.run(console(), seconds=seconds, home=home, slos=slos, seed=seed, ports=ports)
            return
        from tokentrail.cli import demo as demo_

        problems = demo_.run(console(), seconds=seconds, home=home, slos=slos, seed=seed, ports=ports)
    except ProcessFailed as failure:
        fail(failure)
    if problems:
        raise typer.Exit(1)


_OF_PART = {"allow_extra_args": True, "ignore_unknown_options": True}
"""A part reads its own options: `tokentrail collector --help` is the collector's help."""


@app.command(context_settings=_OF_PART, add_help_option=False)
def collector(context: typer.Context) -> None:
    """Run the collector: OTLP in, API and metrics out.

    Its options: docs/collector.md#settings.
    """
    _become("collector", context)


@app.command(context_settings=_OF_PART, add_help_option=False)
def engine(context: typer.Context) -> None:
    """Run the instrumented engine: one model behind an OpenAI-compatible server.

    Its options: docs/engine.md#settings.
    """
    _become("instrumented_engine", context)


@app.command(context_settings=_OF_PART)
def dashboard(context: typer.Context) -> None:
    """Run the dashboard; TOKENTRAIL_API_URL names the collector's API, options are Streamlit's.

    Needed most: `--server.address`, `--server.port`, `--server.baseUrlPath`. `streamlit run --help` has all of them.
    """
    _become("dashboard", context)


app.command()(proxy)


@app.command()
def mcp(
    api: ApiUrl = API_URL,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve streamable HTTP at http://HOST:PORT/mcp; without it, one client on stdio."
        ),
    ] = None,
) -> None:
    """Let agents ask the collector: a server of the Model Context Protocol that only reads.

    See docs/mcp.md.
    """
    try:
        from tokentrail.mcp import server
    except ImportError as error:
        fail(ProcessFailed(f"{error.name} is not installed; try: pip install 'tokentrail[mcp]'"))
    if http is None:
        server.run_stdio(api)
        return
    host, _, port = http.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 65_536):
        msg = f"--http: HOST:PORT, such as 127.0.0.1:8765, not {http!r}"
        raise typer.BadParameter(msg)
    from tokentrail.shared.connection import in_words

    try:
        server.run_http(api, host.strip("[]"), int(port))
    except OSError as error:
        fail(ProcessFailed(f"cannot listen on {http} ({in_words(error)}): name another address with --http"))


@app.command(context_settings=_OF_PART, add_help_option=False)
def keys(context: typer.Context) -> None:
    """Make, list and revoke the keys of a collector: create, list, revoke.

    See docs/collector.md#keys-and-tenants.
    """
    _become("collector.access", context)


@app.command(context_settings=_OF_PART, add_help_option=False)
def rules(context: typer.Context) -> None:
    """Make and compare the Prometheus rules of an SLO file: generate, check, diff, import.

    See docs/alerts.md.
    """
    _become("alerts", context)


def _become(module: str, context: typer.Context) -> NoReturn:
    """Replace this process by a part's: it gets the signals, and its exit status is the command's."""
    try:
        command = parts.dashboard(*context.args) if module == "dashboard" else parts.command(module, *context.args)
    except ProcessFailed as failure:
        fail(failure)
    os.execve(command[0], command, parts.environment())  # noqa: S606 # our own command


for command in (
    watching.status,
    watching.slos,
    watching.incidents,
    asking.requests,
    asking.request,
    asking.explain,
    asking.tail,
    asking.compare,
    asking.differences,
    waiting.timeouts,
    asking.spans,
    asking.doctor,
    keeping.backup,
    keeping.check_store,
    keeping.restore,
):
    app.command(cls=TakesLine)(command)
app.command(cls=WrongUse)(asking.check)
app.add_typer(keeping.dead_letters, name="dead-letters")
