"""The commands and their options. Each command calls the module of its name."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import tokentrail
from tokentrail.cli import backup as backup_
from tokentrail.cli import demo as demo_
from tokentrail.cli import up as up_
from tokentrail.cli.processes import ProcessFailed, terminated
from tokentrail.cli.stack import PORTS

app = typer.Typer(
    name="tokentrail",
    help="SLO monitoring for LLM inference that keeps the trail of every token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_console = Console()


def _version(wanted: bool) -> None:
    if wanted:
        _console.print(tokentrail.__version__)
        raise typer.Exit


def _terminated(*_: object) -> None:
    """SIGTERM does the same as Ctrl-C: the child processes are stopped in order, and none is left behind."""
    terminated.set()
    signal.raise_signal(signal.SIGINT)


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """SLO monitoring for LLM inference that keeps the trail of every token."""
    signal.signal(signal.SIGTERM, _terminated)


SlosFile = Annotated[
    Path | None, typer.Option("--slos", help="SLO file in place of the one in alerts/.", exists=True, dir_okay=False)
]


def _port(listener: str) -> Any:
    return typer.Option(
        min=1, max=65535, help=f"Port of {listener}; {PORTS[listener]} if it is free.", show_default=False
    )


OtlpHttpPort = Annotated[int | None, _port("OTLP/HTTP")]
OtlpGrpcPort = Annotated[int | None, _port("OTLP/gRPC")]
ApiPort = Annotated[int | None, _port("API")]
DashboardPort = Annotated[int | None, _port("dashboard")]
EnginePort = Annotated[int | None, _port("engine")]
PrometheusPort = Annotated[int | None, _port("Prometheus")]


@app.command()
def up(
    data_dir: Annotated[Path, typer.Option(help="Folder for the trail and the logs.")] = Path("tokentrail-data"),
    slos: SlosFile = None,
    port_otlp_http: OtlpHttpPort = None,
    port_otlp_grpc: OtlpGrpcPort = None,
    port_api: ApiPort = None,
    port_dashboard: DashboardPort = None,
) -> None:
    """Run the collector, with its embedded store, and the dashboard until Ctrl-C."""
    ports = {"OTLP/HTTP": port_otlp_http, "OTLP/gRPC": port_otlp_grpc, "API": port_api, "dashboard": port_dashboard}
    try:
        up_.run(_console, data_dir=data_dir, slos=slos, ports=ports)
    except ProcessFailed as failure:
        _fail(failure)


@app.command()
def demo(
    seconds: Annotated[
        float | None, typer.Option(min=40, help="Stop after about this many seconds and check the numbers.")
    ] = None,
    home: Annotated[
        Path, typer.Option(help="Folder for data and logs. An earlier demo's recording in it is deleted.")
    ] = Path(".demo"),
    slos: SlosFile = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload: the same seed sends the same requests.")] = 7,
    port_otlp_http: OtlpHttpPort = None,
    port_otlp_grpc: OtlpGrpcPort = None,
    port_api: ApiPort = None,
    port_dashboard: DashboardPort = None,
    port_engine: EnginePort = None,
    port_prometheus: PrometheusPort = None,
) -> None:
    """Run everything on this machine: an engine with a real model, load, collector, dashboard, Prometheus."""
    ports = {"OTLP/HTTP": port_otlp_http, "OTLP/gRPC": port_otlp_grpc, "API": port_api, "dashboard": port_dashboard}
    ports |= {"engine": port_engine, "Prometheus": port_prometheus}
    try:
        problems = demo_.run(_console, seconds=seconds, home=home, slos=slos, seed=seed, ports=ports)
    except ProcessFailed as failure:
        _fail(failure)
    if problems:
        raise typer.Exit(1)


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="File to write, or a folder for a file with the time in its name.")],
    url: Annotated[str, typer.Option(help="Address of the collector's API.")] = "http://127.0.0.1:8080",
) -> None:
    """Back up the embedded store of a collector that runs, and check the file."""
    try:
        backup_.backup(_console, target=target, url=url)
    except ProcessFailed as failure:
        _fail(failure)


@app.command()
def restore(
    archive: Annotated[
        Path, typer.Argument(help="A file that `tokentrail backup` wrote.", exists=True, dir_okay=False)
    ],
    data_dir: Annotated[Path, typer.Argument(help="A new folder, to start a collector with.")],
) -> None:
    """Make a new data folder from a backup."""
    try:
        backup_.restore(archive=archive, data_dir=data_dir)
    except ProcessFailed as failure:
        _fail(failure)


def _fail(failure: ProcessFailed) -> None:
    Console(stderr=True).print(f"[bold red]error:[/] {failure}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
