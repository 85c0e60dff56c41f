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

    def values(name: bytes) -> list[str]:
        return [value.decode("latin-1") for header, value in scope["headers"] if header == name]

    return access.admit(
        role,
        values(b"authorization"),
        hosts=values(b"host"),
        address=(scope.get("client") or ("",))[0],
        route=f"{scope['method']} {scope['path']}"[:200],
    )
