"""The caller of a request: the role and the tenant that its key gives it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """The rights of a key."""

    INGEST = "ingest"
    """Send telemetry."""
    READ = "read"
    """Ask the API."""
    ADMIN = "admin"
    """Everything, for all tenants."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    key_id: str
    """Empty for a caller without a key."""
    role: Role
    tenant: str
    """The only tenant that the caller may write or read; empty: all of them."""
    address: str = ""
    """Host of the peer, for the audit log."""

    def may(self, role: Role) -> bool:
        """Tell whether the caller's role includes this one."""
        return self.role in (role, Role.ADMIN)


ANYBODY: Final = Caller("", Role.ADMIN, "")
"""A caller without a key, where the collector asks for none."""
