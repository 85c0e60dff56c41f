"""The time for which a certificate is valid, which Python tells of a peer's certificate alone."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: a certificate that is over has times too."""


@dataclass(frozen=True)
class Validity:
    """Unix seconds."""

    not_before_s: float
    not_after_s: float

    def problem(self, now_s: float) -> str | None:
        """What is wrong with the certificate now; None when it is valid."""
        if now_s > self.not_after_s:
            return f"it has been over since {_utc(self.not_after_s)}"
        if now_s < self.not_before_s:
            return f"it is not valid before {_utc(self.not_before_s)}"
        return None


def read_validity(certificate: Path, key: Path) -> Validity:
    """Show the certificate to a client in memory, which trusts the file itself.

    Raises ssl.SSLError when a client refuses it for another reason than its time, such as a purpose that is not a
    server's.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    client.load_verify_locations(certificate)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking, showing = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    for side in (asking, showing, asking, showing, asking):  # TLS 1.3 needs three of these calls, and 1.2 all
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    seen = cast("dict[str, Any]", asking.getpeercert())
    return Validity(*(float(ssl.cert_time_to_seconds(seen[name])) for name in ("notBefore", "notAfter")))


def _utc(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
