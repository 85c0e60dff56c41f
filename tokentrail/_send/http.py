"""OTLP over HTTP, one POST at a time."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.util import Retry

from tokentrail._host.guard import logger
from tokentrail._send.transport import SendResult, SendStatus, Transport
from tokentrail.shared.formatting import without_user

RETRYABLE: Final = frozenset({429, 502, 503, 504})
"""The OTLP specification's list of statuses after which a client tries again."""
TOO_LARGE: Final = 413
MAX_ANSWER_BYTES: Final = 65_536
SHOWN_CHARACTERS: Final = 200
"""Length of the part of an answer that a log message quotes."""


def reason_in(answer: bytes) -> str:
    """The reason in an answer that is an error: OTLP has it in a `google.rpc.Status`, other servers in text."""
    try:
        reason: str = Status.FromString(answer).message
    except DecodeError:
        reason = ""
    return (reason or answer.decode(errors="replace"))[:SHOWN_CHARACTERS]


HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a collector and how to send to it. `headers` are all headers; `verify` (a CA file) and `cert` (the
    client's certificate, or that and its key) are those of `requests`. Make one with `Endpoint.to`.
    """

    url: str
    headers: Mapping[str, str]
    timeout_s: float = 10.0
    compression: Compression = Compression.NoCompression
    verify: bool | str = True
    cert: str | tuple[str, str] | None = None
    protocol: str = HTTP

    @classmethod
    def to(
        cls,
        url: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        protocol: str = HTTP,
        timeout_s: float = 10.0,
        compression: Compression | str = Compression.NoCompression,
        certificate: str = "",
        client_certificate: str = "",
        client_key: str = "",
    ) -> Endpoint:
        """An endpoint from the values of the OTEL_EXPORTER_OTLP_… variables of these names. `/v1/traces` is added to a
        URL without a path; with `protocol="grpc"` the URL is an authority such as `https://collector:4317`.
        """
        compression = Compression(compression)
        url = url or f"http://localhost:{4317 if protocol == GRPC else 4318}"
        own_headers: dict[str, str] = {}
        if protocol == HTTP:
            url = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1/traces"
            own_headers = {"content-type": "application/x-protobuf", "user-agent": "tokentrail"}
            if compression is not Compression.NoCompression:
                own_headers["content-encoding"] = compression.value
        cert = (client_certificate, client_key) if client_certificate and client_key else client_certificate or None
        return cls(url, {**own_headers, **(headers or {})}, timeout_s, compression, certificate or True, cert, protocol)


def is_on_this_machine(url: str) -> bool:
    """Whether the host of a URL or of an authority (`host:port`) is this machine. A proxy of the environment does not
    reach that, so no transport uses one.
    """
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_files(endpoint: Endpoint) -> dict[str, str]:
    """The TLS files of an endpoint, by the ends of the names of their variables."""
    cert = (endpoint.cert,) if isinstance(endpoint.cert, str) else endpoint.cert or ()
    named = zip(("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"), (endpoint.verify, *cert), strict=False)
    return {name: path for name, path in named if isinstance(path, str)}


_SUPPRESS: Final[str] = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
"""The key by which instrumentations are told. It is private in OpenTelemetry's API; its older text is read as well."""


@contextmanager
def uninstrumented() -> Iterator[None]:
    """Instrumentations of `requests` and `grpc` pass the calls in this block over, so that the export is not traced.
    OpenTelemetry's own exporters do the same.
    """
    token = context.attach(context.set_value(_SUPPRESS, True))
    try:
        yield
    finally:
        context.detach(token)


class _Reads(io.RawIOBase):
    """The bytes of one answer, all of them within the time-out of their socket. A socket alone allows that time for
    each piece, so a server that sends a byte now and then would hold its reader for ever.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__()
        self._socket, self._file = sock, sock.makefile("rb", buffering=0)
        timeout_s: float | None = sock.gettimeout()
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)
        read: int | None = self._file.readinto(buffer)
        return read

    def close(self) -> None:
        self._file.close()  # else the socket stays open as long as anything, such as a traceback, holds this reader
        super().close()


class _Answer(HTTPResponse):
    """An answer that is read through `_Reads`."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reads(sock))


class _Adapter(HTTPAdapter):
    """An adapter whose connections read `_Answer`s."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """The pool of a host."""
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        if pool.ConnectionCls.response_class is not _Answer:
            kind = pool.ConnectionCls  # its name begins the words of its errors
            pool.ConnectionCls = type(kind.__name__, (kind,), {"response_class": _Answer})
        return pool


def _authorisation(to: Endpoint) -> Any:
    """The `auth` of a request of `requests`: as the headers have it, else the user and the password of the URL.

    Without one, `requests` takes those that ~/.netrc has for the host, and lets them replace the header.
    """
    named = any(name.lower() == "authorization" for name in to.headers)
    user = requests.utils.get_auth_from_url(to.url)
    return user if any(user) and not named else lambda request: request


class _Connection:
    """A session of `requests` in which all that POSTs have in common is done once: their headers, and the settings of
    the environment (proxies, CA bundle). `requests` does that for each POST, which takes three times as long as
    sending it.
    """

    def __init__(self, to: Endpoint) -> None:
        session = requests.Session()
        session.mount("http://", _Adapter())
        session.mount("https://", _Adapter())
        session.headers.update(to.headers)
        session.cert = to.cert
        self._post = session.prepare_request(requests.Request("POST", to.url, auth=_authorisation(to)))
        self._how: dict[str, Any] = {**session.merge_environment_settings(to.url, {}, True, to.verify, None)}
        if is_on_this_machine(to.url):
            self._how["proxies"] = {}
        self._adapter = session.get_adapter(to.url)
        self._timeout_s = to.timeout_s

    def post(self, body: bytes) -> requests.Response:
        """Posts one body. Redirects are not followed."""
        self._post.prepare_body(body, None)
        return self._adapter.send(self._post, timeout=self._timeout_s, **self._how)


class OtlpHttp:
    """A transport. A forked child makes a connection of its own, since it must not share its parent's sockets."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._shown = without_user(endpoint.url)
        self._policy = Retry(total=None)
        self._pid = 0
        self._connection: _Connection | None = None

    def __call__(self, body: bytes) -> SendResult:
        """Posts one body. Trouble of the network or the collector is a result and never an exception."""
        url = self._shown
        try:
            with uninstrumented(), self._connected().post(body) as response:
                answer = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
                return self._result(response, answer)
        except (requests.ConnectionError, requests.Timeout, HTTPError) as error:
            return SendResult(SendStatus.RETRY, f"{url}: {_reason(error)}")
        except (requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema):
            return SendResult(
                SendStatus.REFUSED, f"{url} cannot be posted to: write http:// or https:// before the host"
            )
        except (requests.RequestException, ValueError) as error:
            # The library's words have the address with its password.
            why = error if url == self._endpoint.url else "encode the characters of the password (%23 for #)"
            return SendResult(SendStatus.REFUSED, f"{url} cannot be posted to: {why}")
        except OSError as error:  # a TLS file that is not there, or not yet
            return SendResult(SendStatus.RETRY, f"{url}: {error}")

    def _connected(self) -> _Connection:
        if self._connection is None or self._pid != os.getpid():
            self._connection, self._pid = _Connection(self._endpoint), os.getpid()
        return self._connection

    def _result(self, response: requests.Response, answer: bytes) -> SendResult:
        status = response.status_code
        shown = f"{self._shown} answered {status}: {reason_in(answer)!r}"
        if status in RETRYABLE:
            return SendResult(SendStatus.RETRY, shown, retry_after_s=self._retry_after(response))
        if status == TOO_LARGE:
            return SendResult(SendStatus.TOO_LARGE, shown)
        if response.is_redirect:
            target = response.headers["Location"]
            return SendResult(SendStatus.REFUSED, f"{shown}: a redirect; configure the final URL, {target}")
        if not 200 <= status < 300:
            return SendResult(SendStatus.REFUSED, shown)
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            return SendResult(SendStatus.REFUSED, f"{shown}: a web page, not an OTLP endpoint")
        if kind != "application/x-protobuf":
            return SendResult(SendStatus.DELIVERED)
        try:
            partial = ExportTraceServiceResponse.FromString(answer).partial_success
        except DecodeError:
            return SendResult(SendStatus.DELIVERED, f"{shown}: not an OTLP answer, taken as success for its status")
        return SendResult(SendStatus.DELIVERED, partial.error_message, rejected=max(partial.rejected_spans, 0))

    def _retry_after(self, response: requests.Response) -> float | None:
        try:
            return self._policy.get_retry_after(response.raw)
        except (InvalidHeader, ValueError, OverflowError):
            return None


def _reason(error: Exception) -> str:
    """The words of an error. A server that speaks no HTTP is most often the collector's port for gRPC."""
    if "BadStatusLine" in str(error):
        return "no HTTP is spoken there. OTLP over HTTP is on port 4318; 4317 needs OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    pooled = error.args[0] if error.args else None  # requests wraps the error of urllib3's pool, and that the socket's
    cause = getattr(pooled, "reason", None)
    return _WRAPPING.sub("", str(cause or error))


_WRAPPING: Final = re.compile(
    r"^(HTTPS?Connection(Pool)?\(.*?\)|<.*?>): (Failed to establish a new connection: )?(\[Errno -?\d+\] )?"
)
"""What urllib3 puts before the words of the system; the address stands in the message already."""


def transport_to(endpoint: Endpoint) -> Transport:
    """The transport of an endpoint's protocol. TLS files that are missing are logged."""
    for name, path in tls_files(endpoint).items():
        if not Path(path).exists():
            logger.error("OTEL_EXPORTER_OTLP_%s=%s: no such file; spans are kept until it is there", name, path)
    if endpoint.protocol == GRPC:
        from tokentrail._send.grpc import OtlpGrpc

        return OtlpGrpc(endpoint)
    return OtlpHttp(endpoint)
