"""Tells which of a collector's listeners is at an address, for commands that were given the wrong one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Final

import httpx

from tokentrail.cli.processes import PORTS
from tokentrail.shared.connection import (
    PROTOBUF,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    client,
    remedy_of_a_close,
    send_otlp,
)
from tokentrail.shared.formatting import without_user

TIMEOUT_S: Final = 5.0
_ASKS_FOR_A_KEY: Final = re.compile(r" answered (UNAUTHENTICATED|PERMISSION_DENIED): ")
_NO_GRPC: Final = re.compile(r"parsing HTTP/2|missing selected ALPN|answered UNIMPLEMENTED")
_OWN_WORDS: Final = re.compile(r"^ answered (UNAVAILABLE: (.*last error: \w+: (ipv[46]:\S+: )?)?)?|^: |^ (?=cannot)")
"""The words of grpcio and of our transport before the reason: a status, and each address that was tried."""
_UNREACHED: Final = re.compile(r"failed to connect|errors resolving|create channel|DEADLINE_EXCEEDED|cannot be called")
_CLOSED: Final = re.compile(r"Socket closed|Connection reset|recvmsg")


class GrpcError(RuntimeError):
    """A call of OTLP/gRPC failed. `way_out` is the remedy; empty where no remedy is likely."""

    def __init__(self, told: str, way_out: str) -> None:
        super().__init__(told)
        self.way_out = way_out


def send_nothing(address: str) -> bool:
    """Export an empty request over gRPC, which stores nothing. True when it was taken, False when a key is needed.

    `address` may lack http://. Raises GrpcError, and ModuleNotFoundError without the package grpcio.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpcio writes a failed handshake to the terminal
    from tokentrail._send.grpc import OtlpGrpc
    from tokentrail._send.http import GRPC, Endpoint
    from tokentrail._send.transport import SendStatus

    ca, cert, key = (os.environ.get(name, "").strip() for name in (TLS_CA, TLS_CERT, TLS_KEY))
    url = _with_scheme(address)
    to = Endpoint.to(url, protocol=GRPC, timeout_s=TIMEOUT_S, certificate=ca, client_certificate=cert, client_key=key)
    result = OtlpGrpc(to)(b"")
    if result.status is SendStatus.DELIVERED:
        return True
    if _ASKS_FOR_A_KEY.search(result.detail):
        return False
    told = _OWN_WORDS.sub("", result.detail.removeprefix(without_user(url)))
    raise GrpcError(told, _way_out(result.detail, url.partition("://")[0]))


def _with_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def _way_out(told: str, scheme: str) -> str:
    if _CLOSED.search(told) or (_NO_GRPC.search(told) and scheme == "http"):
        return remedy_of_a_close(scheme)
    if _NO_GRPC.search(told):
        return "another server is there"
    return "" if _UNREACHED.search(told) else "see the collector's log"


def misnamed(wanted: str, address: str) -> str:
    """A sentence when another listener of a collector than `wanted`, such as `API`, is at an address; else empty."""
    listener = next(
        (name for name, is_there in _SIGNS.items() if name != wanted and _is(is_there, _with_scheme(address))), ""
    )
    port = f"port {PORTS[wanted]} unless the collector was told otherwise"
    shown = without_user(address)
    return f"{shown} is the address of a collector's {listener}; its {wanted} is on {port}" if listener else ""


def _is(look: Callable[[str], bool], address: str) -> bool:
    with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, ValueError, GrpcError, ModuleNotFoundError):
        return look(address)
    return False


def is_otlp(answer: httpx.Response) -> bool:
    """Whether an OTLP receiver made an answer: other servers do not answer in protobuf."""
    return str(answer.headers.get("content-type", "")).partition(";")[0].strip().lower() == PROTOBUF


def refusal(answer: httpx.Response) -> str:
    """The reason in an answer that is an error."""
    from tokentrail._send.http import reason_in  # loads OpenTelemetry's exporter, which no other answer needs

    return reason_in(answer.content)


def _is_otlp_http(url: str) -> bool:
    return is_otlp(send_otlp(url, "traces", b"", {}, timeout_s=TIMEOUT_S))


def _is_otlp_grpc(address: str) -> bool:
    send_nothing(address)
    return True


def _is_api(url: str) -> bool:
    with client(url, TIMEOUT_S) as http:
        return "version" in http.get("/healthz").json()


_SIGNS: Final[dict[str, Callable[[str], bool]]] = {
    "API": _is_api,
    "OTLP/HTTP": _is_otlp_http,
    "OTLP/gRPC": _is_otlp_grpc,
}
