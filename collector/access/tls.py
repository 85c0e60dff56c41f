"""TLS for all ports: certificate, key, and the CA of client certificates, read again when their files change."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from collector.access.validity import Validity, read_validity
from collector.base.watched_file import Version, file_version
from tokentrail.shared import regular_files
from tokentrail.shared.folders import words_of

logger = logging.getLogger(__name__)

_PASSING_S: Final = 0.1
"""gRPC's handshakes take microseconds from their look at the configuration to its use."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files."""

    certificate: Path
    """The certificate, followed by those of the intermediate CAs."""
    key: Path
    client_ca: Path | None = None
    """Clients need a certificate that this CA has signed; None: they need none."""

    def versions(self) -> tuple[Version, ...]:
        """Return the version of each file."""
        return tuple(map(file_version, self.all()))

    def all(self) -> tuple[Path, ...]:
        """The files that there are."""
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca else []))


class Tls:
    """The TLS configuration of a collector's servers.

    Every handshake looks whether the files have changed, and connections made from then on have the new certificate.
    New files that cannot be used leave the old ones in place, with an error in the log. A certificate that is over, or
    not valid yet, is used with an error in the log: the clock may be wrong.
    """

    validity: Validity | None = None
    """Of the newest certificate; None when no client would take it."""
    is_usable = False
    """Whether the newest files can be used, and a client would take their certificate at a time within its own."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files; raises ValueError that names them."""
        self._files = files
        self._lock = threading.Lock()
        self._versions: tuple[Version, ...] = ()
        self._changed_s = 0.0
        """When the files were read again, unix time."""
        self._given_grpc: Any = None
        try:
            self._versions = files.versions()
            self._current, self._current_grpc = self._context(), self._grpc_configuration()
        except (OSError, ssl.SSLError) as error:
            ca = f" and the client CA {files.client_ca}" if files.client_ca else ""
            msg = f"TLS cannot be used with the certificate {files.certificate}, the key {files.key}{ca}: {error}"
            raise ValueError(msg) from error
        self._look_at_validity()

    def context(self) -> ssl.SSLContext:
        """Make the context of an HTTP server. It gives each handshake the newest certificate."""
        context = self._context()
        context.sni_callback = self._choose
        return context

    def grpc_credentials(self) -> Any:
        """Make the credentials of a gRPC server. They give each handshake the newest certificate."""
        self._given_grpc = self._current_grpc
        return grpc.dynamic_ssl_server_credentials(
            self._current_grpc,
            self._newest_grpc_configuration,
            require_client_authentication=self._files.client_ca is not None,
        )

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for file in self._files.all():
            _read(file)  # OpenSSL would wait for a pipe
        if b"ENCRYPTED" in _read(self._files.key):  # OpenSSL would ask the terminal, also in a handshake
            msg = "the key has a password: write it into a file without one"
            raise OSError(msg)
        context.load_cert_chain(self._files.certificate, self._files.key)
        if self._files.client_ca:
            context.load_verify_locations(self._files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET  # a session that is resumed shows no certificate
            context.num_tickets = 0
        return context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """Give a handshake the newest certificate. It fails for a session of TLS 1.2 from before a new client CA.

        OpenSSL remembers such sessions without a ticket. The client begins a new one the next time.
        """
        self._read_again()
        connection.context = self._current
        session = connection.session if self._files.client_ca and connection.session_reused else None
        is_old = session is not None and session.time <= self._changed_s
        return ssl.ALERT_DESCRIPTION_CERTIFICATE_UNKNOWN if is_old else None

    def _newest_grpc_configuration(self) -> Any:
        """Return the newest configuration once, and None when gRPC has it already.

        gRPC replaces a configuration while another handshake may be about to use it, which crashes the process
        (grpc/grpc#36693). It calls this under a lock that each handshake takes first, so those before get time to pass.
        """
        self._read_again()
        newest = self._current_grpc
        if newest is self._given_grpc:
            return None
        time.sleep(_PASSING_S)
        self._given_grpc = newest
        return newest

    def _grpc_configuration(self) -> Any:
        files = self._files
        pair = (_read(files.key), _read(files.certificate))
        client_ca = _read(files.client_ca) if files.client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], client_ca)

    def _read_again(self) -> None:
        with self._lock:
            try:
                versions = self._files.versions()
                if versions == self._versions:
                    return
                self._versions = versions
                self._current, self._current_grpc = self._context(), self._grpc_configuration()
                self._changed_s = time.time()
            except (OSError, ssl.SSLError) as error:
                logger.error("%s cannot be used: %s (the old certificate stays)", self._files.certificate, error)
                self.is_usable = False
                return
            logger.info("read the certificate %s again", self._files.certificate)
            self._look_at_validity()

    def _look_at_validity(self) -> None:
        file = self._files.certificate
        try:
            self.validity = read_validity(file, self._files.key)
            problem = self.validity.problem(time.time())
        except (OSError, ssl.SSLError) as error:
            self.validity, problem = None, str(error)
        self.is_usable = self.validity is not None
        if problem:
            logger.error("clients refuse the certificate %s: %s", file, problem)


def _read(file: Path) -> bytes:
    """The bytes of one of the files. Raises OSError that names it."""
    try:
        return regular_files.read(file)
    except OSError as error:
        msg = f"{file}: {words_of(error)}"
        raise OSError(msg) from error
