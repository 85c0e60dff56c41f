"""Decides who may call: by key, and by the name under which a caller without a key reached this collector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from collector.access.audit import AuditLog
from collector.access.caller import ANYBODY, Caller, Role
from collector.access.keyring import Keyring, utc_now
from tokentrail.shared.hosts import is_allowed, is_loopback


class UnauthenticatedError(PermissionError):
    """The caller shows no key, or not a valid one."""


class ForbiddenError(PermissionError):
    """The caller's key is not for this."""


class WrongHostError(PermissionError):
    """A caller without a key used a host name that is not this collector's."""


class AmbiguousError(PermissionError):
    """The request names several keys or hosts: a proxy before the collector may have checked another one."""


@dataclass(frozen=True)
class Access:
    """Tells the callers of one collector apart.

    Once there are keys, every caller needs one. Without keys everybody may call, by a loopback name, an IP address or
    an allowed host name: a web page that rebinds its own DNS name to this address is refused.
    """

    keyring: Keyring = field(default_factory=lambda: Keyring(None))
    audit: AuditLog = field(default_factory=lambda: AuditLog(None))
    allow_anonymous: bool = False
    """Callers without a key are let in, also when there are keys."""
    allowed_hosts: frozenset[str] = frozenset({"*"})
    """Host names in lower case; `*` allows all."""
    now: Callable[[], datetime] = utc_now

    def admit(
        self, role: Role, authorizations: Sequence[str], *, hosts: Sequence[str] = (), address: str, route: str
    ) -> Caller:
        """Return the caller if its role includes `role`; else the refusal goes to the audit log.

        `authorizations` are all headers of that name in HTTP, or all metadata of it in gRPC, and `hosts` the headers
        `Host`. Raises `AmbiguousError`, `UnauthenticatedError`, `ForbiddenError` or `WrongHostError`.
        """
        key_id = ""
        try:
            authorization, host = _only("Authorization", authorizations), _only("Host", hosts)
            caller = replace(self._caller(authorization, host), address=address)
            key_id = caller.key_id
            self._check_role(caller, role)
        except PermissionError as error:
            self.audit.write("denied", key=key_id, address=address, route=route, reason=str(error))
            raise
        return caller

    def _caller(self, authorization: str | None, host: str | None) -> Caller:
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":  # also a proxy's user and password, which it may pass on
            return self._without_key(host)
        key = self.keyring.find(secret.strip())
        state = key.state(self.now()) if key else "unknown"
        if key is None or state != "valid":
            which = f"the key {key.id} is {state}" if key else "the collector does not know this key"
            msg = f"{which}; `Authorization: Bearer KEY` needs a valid one"
            raise UnauthenticatedError(msg)
        return Caller(key.id, key.role, key.tenant)

    def _without_key(self, host: str | None) -> Caller:
        if self.keyring.in_use and not self.allow_anonymous:
            msg = "this collector asks for a key: send `Authorization: Bearer KEY` (`tokentrail keys` makes one)"
            raise UnauthenticatedError(msg)
        if host is not None and not is_allowed(host, self.allowed_hosts):
            msg = f"the host {host[:100]!r} is not one of this collector's; TOKENTRAIL_ALLOWED_HOSTS allows more"
            raise WrongHostError(msg)
        return ANYBODY

    def _check_role(self, caller: Caller, role: Role) -> None:
        if not caller.may(role):
            needed = role if role is Role.ADMIN else f"{role} or admin"
            msg = f"the key {caller.key_id} has the role {caller.role}; this needs {needed}"
            raise ForbiddenError(msg)


def _only(name: str, values: Sequence[str]) -> str | None:
    if len(values) > 1:
        msg = f"the request has the header {name} {len(values)} times; send it once"
        raise AmbiguousError(msg)
    return values[0] if values else None


OPEN: Final = Access()
"""Everybody may call: for a collector that others cannot reach."""


def check_exposure(
    hosts: Sequence[str], keyring: Keyring, *, allow_anonymous: bool, keys_file: str, make_key: str
) -> None:
    """Raise ValueError when others than this machine could call without a key and nobody has said that they may.

    `make_key` is the command that makes a key in `keys_file`.
    """
    reachable = sorted({host for host in hosts if not is_loopback(host)})
    if reachable and not keyring.in_use and not allow_anonymous:
        msg = (
            f"{', '.join(reachable)} can be reached from other machines, and there is no key in {keys_file}. Either "
            f"make one ({make_key}), or let everybody in who reaches the ports "
            "(--allow-anonymous true or TOKENTRAIL_ALLOW_ANONYMOUS=true)"
        )
        raise ValueError(msg)
