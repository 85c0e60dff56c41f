"""Langfuse's own path, so that a Langfuse SDK can send to the collector in place of Langfuse."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from collector.access.access import Access

PATH: Final = "/api/public/otel/v1/traces"


class SecretKeyAsBearer:
    """Shows a tokentrail key that a Langfuse SDK sends as its secret key, the password of Basic authentication.

    Any other password changes nothing: the SDK sends one also to a collector that asks for no key.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Wrap the endpoint of `PATH`."""
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        headers = [(k, self._shown(value) if k == b"authorization" else value) for k, value in scope.get("headers", [])]
        await self._app({**scope, "headers": headers}, receive, send)

    def _shown(self, authorization: bytes) -> bytes:
        secret = _password(authorization)
        return b"Bearer " + secret.encode() if secret and self._access.keyring.find(secret) else authorization


def _password(authorization: bytes) -> str:
    """The password in the value of a header `Authorization: Basic …`, or an empty string."""
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
