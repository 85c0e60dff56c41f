"""How the command line and the dashboard reach a collector: without a proxy, with a key, and with certificates."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Final

import httpx

from tokentrail.shared.formatting import without_user

PROTOBUF: Final = "application/x-protobuf"
KEY: Final = "TOKENTRAIL_API_KEY"
"""The key (docs/collector.md#keys-and-tenants) that is sent."""
TLS_CA: Final = "TOKENTRAIL_API_TLS_CA"
"""File of the CA that signed the collector's certificate, in PEM. Default: the CAs of this machine."""
TLS_CERT: Final = "TOKENTRAIL_API_TLS_CERT"
"""File of a certificate, for a collector with --tls-client-ca (docs/collector.md#tls)."""
TLS_KEY: Final = "TOKENTRAIL_API_TLS_KEY"
"""File of its private key. Default: the file of the certificate."""
OTHER_FORM: Final = (LookupError, AttributeError, TypeError, ValueError)
"""The errors of reading an answer that is of another version's form."""
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")


class ConnectionSettingError(ValueError):
    """The address is no URL, the key is no key, or a certificate cannot be read. The message names the setting."""


def key_header(key: str | None = None) -> dict[str, str]:
    """The header with a key, else that in TOKENTRAIL_API_KEY, if there is one; raises ConnectionSettingError."""
    key = os.environ.get(KEY, "").strip() if key is None else key
    if not key.isascii() or not key.isprintable():
        raise ConnectionSettingError(f"{KEY} holds characters that no key has: copy the key again")
    return {"Authorization": f"Bearer {key}"} if key else {}


def transport() -> httpx.HTTPTransport:
    """A transport that uses no proxy of the environment; raises ConnectionSettingError.

    It trusts the CA in TOKENTRAIL_API_TLS_CA, or else the CAs of this machine. It shows the certificate in
    TOKENTRAIL_API_TLS_CERT. The certificate's private key is in TOKENTRAIL_API_TLS_KEY, or in the same file.
    """
    ca, cert, key = (os.environ.get(name, "").strip() or None for name in (TLS_CA, TLS_CERT, TLS_KEY))
    if not ca and not cert:
        return _Transport()
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConnectionSettingError(f"{TLS_CA} names no CA in PEM: {ca} ({error})") from error
    if cert:
        try:
            # With a password, OpenSSL does not ask the terminal for that of an encrypted key.
            context.load_cert_chain(cert, key, password="")
        except OSError as error:
            files = f"{cert} and {key}" if key else cert
            raise ConnectionSettingError(f"{TLS_CERT} and {TLS_KEY} name no certificate: {files} ({error})") from error
    return _Transport(context)


class _Transport(httpx.HTTPTransport):
    """Says of a host that can be no name, such as `a..b`, that it cannot be connected to.

    Without a context, it reads the CAs of this machine before it first asks an https:// address: that takes 20 ms.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._trusts_none = context is None
        super().__init__(verify=context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._trusts_none and request.url.scheme == "https":
            super().__init__(verify=ssl.create_default_context())
            self._trusts_none = False
        try:
            return super().handle_request(request)
        except UnicodeError as error:
            raise httpx.ConnectError(f"no host can have the name {request.url.host}", request=request) from error


def client(url: str, timeout_s: float, key: str | None = None) -> httpx.Client:
    """A client for addresses below `url`, which sends the key, as `key_header`; raises ConnectionSettingError."""
    try:
        return httpx.Client(base_url=url, timeout=timeout_s, headers=key_header(key), transport=transport())
    except httpx.InvalidURL as error:
        way_out = "write http://HOST:8080, with --api or in TOKENTRAIL_API_URL"
        shown, why = without_user(url), why_unanswered(url, error)
        raise ConnectionSettingError(f"{shown} is no address of a collector ({why}): {way_out}") from error


def send_otlp(url: str, signal: str, content: bytes, headers: Mapping[str, str], timeout_s: float) -> httpx.Response:
    """The answer of an OTLP/HTTP receiver to a payload; raises ConnectionSettingError."""
    with otlp_client(timeout_s) as http:
        return post_otlp(http, url, signal, content, headers)


def otlp_client(timeout_s: float) -> httpx.Client:
    """A client for many payloads: to read the CAs takes longer than to send one. Raises ConnectionSettingError."""
    return httpx.Client(timeout=timeout_s, transport=transport())


def post_otlp(http: httpx.Client, url: str, signal: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
    """The answer of an OTLP/HTTP receiver to a payload."""
    return http.post(f"{url.rstrip('/')}/v1/{signal}", content=content, headers={**headers, "content-type": PROTOBUF})


def in_words(error: Exception) -> str:
    """The words of an error, without the number that the operating system has for it.

    [Errno 111] Connection refused
    Connection refused
    """
    return _ERRNO.sub("", str(error)) or "the connection broke"


def why_unanswered(url: str, error: Exception) -> str:
    """Why an address gave no answer, in words. Those about one that is no URL may have a part of its password."""
    if isinstance(error, httpx.InvalidURL) and without_user(url) != url:
        return "encode the characters of the password (%23 for #)"
    return in_words(error)


def remedy(error: Exception) -> str:
    """The way out when the address lacks http://, or TLS may be why a connection fails; otherwise empty."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return "write http:// or https:// before the host"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"set {TLS_CA} to the CA that signed the collector's certificate"
    if "CERTIFICATE_REQUIRED" in str(error):
        return f"set {TLS_CERT} and {TLS_KEY}: the collector asks for a certificate"
    if "WRONG_VERSION_NUMBER" in str(error):
        return "the collector speaks plain HTTP: write http://"
    if isinstance(error, httpx.ReadTimeout):
        return "it has too much to do, or the question is too large: try again, or ask for a shorter time"
    # asyncio ends such a handshake without a word.
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return remedy_of_a_close(error.request.url.scheme)
    return ""


def remedy_of_a_close(scheme: str) -> str:
    """The way out when the other side closes a connection without an answer; empty where nothing is likely."""
    if scheme == "http":
        return "if the collector speaks TLS, write https://; else another server is there"
    if not os.environ.get(TLS_CERT):
        return f"if the collector asks for a certificate, set {TLS_CERT} and {TLS_KEY}"
    return ""


def way_out(error: Exception, option: str) -> str:
    """The remedy when a collector does not answer; `option` names its address."""
    return remedy(error) or f"start the collector, or name its address with {option}"
