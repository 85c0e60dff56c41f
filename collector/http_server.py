"""ASGI applications on threads of their own, on sockets that are bound before they start."""

from __future__ import annotations

import socket
import threading
from typing import Any, Final

import uvicorn

_MAX_CONCURRENT: Final = 512


class HttpServer:
    """A uvicorn server with its own event loop and thread."""

    def __init__(self, app: Any, name: str, host: str, port: int) -> None:
        """Bind at once; raises OSError when the address cannot be had."""
        self.name = name
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            msg = f"cannot listen on {host}:{port} for {name}: {error.strerror or error}"
            raise OSError(msg) from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._socket.getsockname()[1]}"
        """The address that it listens on, with the real port."""
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", limit_concurrency=_MAX_CONCURRENT
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name=name, daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Take nothing new and let the requests in progress be answered; False when some were not in time."""
        self._server.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]  # a float works, too
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._socket.close()
        return not self._thread.is_alive() and not self._server.cut_off


class _Server(uvicorn.Server):
    """Remembers whether it had to cut requests off."""

    cut_off = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does: a request that is still there afterwards has been cancelled."""
        await super().shutdown(sockets)
        self.cut_off = bool(self.server_state.tasks)
