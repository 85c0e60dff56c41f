"""Settings of the proxy. Wrong ones are refused at the start, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final
from urllib.parse import urlsplit

from tokentrail.semconv import LABEL_NAME, MOST_LABELS

HOSTED: Final = {"api.openai.com": "openai", "api.anthropic.com": "anthropic"}
"""Engine names of hosted servers. Others are called by their host, unless `--engine` names them."""

_HEADER: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""A token of RFC 9110, section 5.6.2."""


class WrongSetting(ValueError):
    """A setting that cannot be used. The message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The options of `tokentrail proxy`. Times are in seconds."""

    upstream: str
    listen: str = "127.0.0.1:8001"
    admin: str = "127.0.0.1:9464"
    engine: str = ""
    vantage: str = "server"
    tenant_header: str = "x-tokentrail-tenant"
    class_header: str = "x-tokentrail-slo-class"
    label_headers: Mapping[str, str] = field(default_factory=dict)
    """The header of each label."""
    tenant_salt: str = ""
    ask_usage: bool = False
    max_requests: int = 1024
    max_body_mib: int = 64
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 600.0
    write_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.upstream)
            known = parts.scheme in ("http", "https") and _is_host(parts.hostname or "") and parts.port != 0
        except ValueError:  # of a bracket that is not closed, or of a port that is none
            known = False
        if not known:
            raise WrongSetting("--upstream: an address such as http://localhost:8000")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise WrongSetting("--upstream: no user, password, query or fragment; keys come in the clients' headers")
        if self.vantage not in ("server", "client"):
            raise WrongSetting("--vantage: server or client")
        for name in ("max_requests", "max_body_mib", "connect_timeout_s", "read_timeout_s", "write_timeout_s"):
            if not 0 < getattr(self, name) < inf:
                raise WrongSetting(f"--{name.removesuffix('_s').replace('_', '-')}: more than 0")
        if not 0 <= self.drain_timeout_s < inf:
            raise WrongSetting("--drain-timeout: 0 or more")
        for name in ("tenant_header", "class_header"):
            if not re.fullmatch(_HEADER, getattr(self, name)):
                raise WrongSetting(f"--{name.replace('_', '-')}: the name of a header such as x-team")
        for name, header in self.label_headers.items():
            if not (LABEL_NAME.fullmatch(name) and re.fullmatch(_HEADER, header)):
                raise WrongSetting("--label-header: NAME=HEADER, such as region=x-region")
        if len(self.label_headers) > MOST_LABELS:
            raise WrongSetting(f"--label-header: at most {MOST_LABELS}")
        address(self.listen, "--listen")
        address(self.admin, "--admin")

    @property
    def upstream_host(self) -> str:
        """The host of the upstream."""
        return urlsplit(self.upstream).hostname or ""

    @property
    def engine_name(self) -> str:
        """The product that answers: the given name, or a hosted server's, or the upstream's host."""
        return self.engine or HOSTED.get(self.upstream_host, self.upstream_host)


def address(value: str, name: str) -> tuple[str, int]:
    """Host and port. "[::1]:80" gives ("::1", 80). Raises `WrongSetting`."""
    host, _, port = value.rpartition(":")
    if not _is_host(host) or not port.isdecimal() or int(port) > 65535:
        raise WrongSetting(f"{name}: HOST:PORT, not {value!r}")
    return host.strip("[]"), int(port)


def _is_host(name: str) -> bool:
    """Whether a name can be one of a host: `a..b` and `http://a` are none."""
    try:
        return bool(name.encode("idna")) and "/" not in name
    except UnicodeError:
        return False
