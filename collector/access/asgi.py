"""Access for ASGI applications."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from collector.access.access import Access
from collector.access.caller import Caller, Role

BEARER: Final = 'Bearer realm="tokentrail"'
"""The header `WWW-Authenticate` of a 401."""


def admit(access: Access, role: Role, scope: MutableMapping[str, Any]) -> Caller:
    """Return the caller of an HTTP request if its role includes `role`; raises as `Access.admit` does."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    return access.admit(
        role,
        headers.get(b"authorization"),
        host=headers.get(b"host"),
        address=(scope.get("client") or ("",))[0],
        route=f"{scope['method']} {scope['path']}"[:200],
    )
