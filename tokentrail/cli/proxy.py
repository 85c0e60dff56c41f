"""`tokentrail proxy`: records the requests of a server that cannot be changed."""

from __future__ import annotations

from typing import Annotated

import typer

from tokentrail.cli.output import fail
from tokentrail.cli.processes import ProcessFailed
from tokentrail.shared import log_lines
from tokentrail.shared.folders import words_of


def proxy(
    upstream: Annotated[str, typer.Option(help="Address of the server, e.g. http://localhost:8000.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT for clients.")] = "127.0.0.1:8001",
    admin: Annotated[str, typer.Option(help="HOST:PORT of /metrics, /healthz and /readyz.")] = "127.0.0.1:9464",
    engine: Annotated[str, typer.Option(help="Product that answers, e.g. vllm. Default: the upstream's host.")] = "",
    vantage: Annotated[
        str, typer.Option(help="server, or client where the server behind the proxy records each request too.")
    ] = "server",
    tenant_header: Annotated[
        str, typer.Option(help="Header with the tenant. Of a header with a key, a hash is kept.")
    ] = "x-tokentrail-tenant",
    class_header: Annotated[str, typer.Option(help="Header with the SLO class.")] = "x-tokentrail-slo-class",
    label_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=HEADER", help="Header with a label's value: region=x-region. May be repeated."),
    ] = None,
    tenant_salt: Annotated[
        str, typer.Option(envvar="TOKENTRAIL_TENANT_SALT", help="Secret that goes into the hashes of keys.")
    ] = "",
    ask_usage: Annotated[
        bool, typer.Option("--ask-usage", help="Ask OpenAI streams for their usage. This changes request and answer.")
    ] = False,
    max_requests: Annotated[int, typer.Option(help="Most requests under way; more get 503.")] = 1024,
    max_body_mib: Annotated[int, typer.Option(help="Largest recorded request, MiB; larger ones get 413.")] = 64,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to connect to the upstream.")] = 5,
    read_timeout: Annotated[float, typer.Option(help="Seconds to wait for the next byte of the upstream.")] = 600,
    write_timeout: Annotated[float, typer.Option(help="Seconds to wait for a client to read a byte.")] = 60,
    drain_timeout: Annotated[float, typer.Option(help="Seconds that requests under way have after SIGTERM.")] = 30,
) -> None:
    """Pass requests to an OpenAI- or Anthropic-compatible server unchanged, and record them.

    See docs/proxy.md.
    """
    try:
        from tokentrail.proxy.server import run
        from tokentrail.proxy.settings import ProxySettings, WrongSetting
    except ImportError as error:
        fail(ProcessFailed(f"{error.name} is not installed; try: pip install 'tokentrail[proxy]'"))
    log_lines.begin("%(levelname)s %(message)s")
    try:
        settings = ProxySettings(
            upstream=upstream,
            listen=listen,
            admin=admin,
            engine=engine,
            vantage=vantage,
            tenant_header=tenant_header,
            class_header=class_header,
            label_headers={name: header for name, _, header in (one.partition("=") for one in label_header or [])},
            tenant_salt=tenant_salt,
            ask_usage=ask_usage,
            max_requests=max_requests,
            max_body_mib=max_body_mib,
            connect_timeout_s=connect_timeout,
            read_timeout_s=read_timeout,
            write_timeout_s=write_timeout,
            drain_timeout_s=drain_timeout,
        )
        finished = run(settings)
    except WrongSetting as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        fail(ProcessFailed(f"{words_of(error)}: --listen and --admin name other addresses"))
    if not finished:
        fail(ProcessFailed("requests were cut off, or not all spans could be sent"))
