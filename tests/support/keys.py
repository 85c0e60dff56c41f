"""Keys for tests, in a file as a collector reads them."""

from datetime import UTC, datetime
from itertools import count

from collector.access.access import Access
from collector.access.audit import AuditLog
from collector.access.caller import Role
from collector.access.keyring import Keyring
from collector.access.keys import changing, make_key

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def add_key(path, role, tenant="", **kwargs):
    """Put a new key into the file; its header."""
    key, secret = make_key(Role(role), tenant, CREATED, **kwargs)
    with changing(path) as keys:
        keys.append(key)
    return {"authorization": f"Bearer {secret}"}


def access_to(path, **kwargs):
    """Access by the keys of a file, which is looked at with each request, with an audit log beside it."""
    return Access(Keyring(path, monotonic_s=count(0, 10).__next__), AuditLog(path.with_name("audit.jsonl")), **kwargs)
