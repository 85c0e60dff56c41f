"""`python -m instrumented_engine` serves one model until SIGINT or SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import FrameType

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp, SettingsError

from instrumented_engine import nvml
from instrumented_engine.core.observer import Observer
from instrumented_engine.model.download import local_path
from instrumented_engine.model.errors import ModelError
from instrumented_engine.server.http import create_config
from instrumented_engine.server.service import Service
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load
from tokentrail import Trail, semconv
from tokentrail.shared import log_lines, open_files
from tokentrail.shared.folders import words_of

OTHER_FILES = 256
"""Files that are no connections of requests: torch's, and connections of clients that ask nothing."""


class _Server(uvicorn.Server):
    """Prints its address once it listens, and stops when the engine has failed: a new process may do better."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"listening on http://{shown}:{port}", flush=True)  # noqa: T201  # the line that callers wait for

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.give_up_loading()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._service.failure is not None


def main() -> int:
    """Serve; 0 after a clean stop, 1 if the engine failed, 2 for bad settings or an address that cannot be used."""
    log_lines.begin()
    settings = read_settings(sys.argv[1:])
    if settings is None or (listener := listen(settings.host, settings.port, "--host and --port")) is None:
        return 2
    kv_listener = None
    if settings.kv_role == "kv_producer":
        kv_listener = listen(settings.kv_ip, settings.kv_port, "--kv-ip and --kv-port")
        if kv_listener is None:
            return 2
    open_files.allow(settings.max_waiting + settings.max_seqs + OTHER_FILES)
    # uvicorn raises the signal again once it has stopped; by then it only has to unwind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _unwind)
    trail = Trail.from_env(service_name="instrumented-engine", variant=settings.label, resource=_device(settings))
    service = Service(settings, Observer(trail), load)
    try:
        _Server(create_config(service, kv_listener), service).run(sockets=[listener])
    finally:
        if not service.close():
            os._exit(0)  # the engine's thread is still inside torch, which Python's own exit would tear down under it
    if service.failure is not None:
        print(f"error: the engine failed: {service.failure}", file=sys.stderr)  # noqa: T201
    return int(service.failure is not None)


def read_settings(arguments: list[str]) -> Settings | None:
    """Read flags and environment. Invalid values are printed, field by field, and the answer is None."""
    try:
        settings = CliApp.run(Settings, cli_args=arguments)
        for model in filter(None, (settings.model, settings.speculative_model)):
            local_path(model)  # a missing model is reported before the server starts
        return settings
    except ValidationError as error:
        for problem in error.errors():
            field = "".join(f"--{str(part).replace('_', '-')}: " for part in problem["loc"])
            print(f"error: {field}{problem['msg'].removeprefix('Value error, ')}", file=sys.stderr)  # noqa: T201
    except (SettingsError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
    return None


def listen(host: str, port: int, flags: str) -> socket.socket | None:
    """Bind the address before anything is loaded; None after printing why it cannot be had, and the `flags` for it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
        reason = words_of(error)
        print(f"error: cannot listen on {host}:{port}: {reason}. {flags} set another address", file=sys.stderr)  # noqa: T201
        return None


def _device(settings: Settings) -> dict[str, str | int]:
    """The device as resource attributes, read before torch is loaded."""
    gpus = [] if settings.device == "cpu" else nvml.devices()
    return {semconv.DEVICE_NAME: gpus[0].name if gpus else "cpu", semconv.DEVICE_COUNT: 1}


def _unwind(number: int, frame: FrameType | None) -> None:  # the signature of a signal handler
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
