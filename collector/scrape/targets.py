"""The targets to scrape: a list of URLs, DNS names, and files in the format of Prometheus' `file_sd`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode, urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from tokentrail.shared import regular_files

_URL: Final = re.compile(r"(?:(?P<service>[^=/:]+)=)?(?P<dns>dns\+)?(?P<url>https?://\S+)")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@?#\[\]]+)(:\d+)?")
_OWN_LABELS: Final = frozenset({"job", "service", "service_name", "instance", "engine"})
"""Labels that name the process; the others are added to its series."""
_LARGEST_FILE: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    """One endpoint. `service` and `instance` name its process in the store."""

    url: str
    service: str
    instance: str
    engine: str = ""
    """The product; empty: its metrics tell."""
    labels: tuple[tuple[str, str], ...] = ()
    """Added to every series."""

    @property
    def safe_url(self) -> str:
        """The address without its user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def offset_s(self, interval_s: float) -> float:
        """When in each interval it is scraped. It follows from the URL, so that targets spread over the interval."""
        digest = hashlib.sha256(self.url.encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64 * interval_s


@dataclass(frozen=True)
class StaticTarget:
    """An item of the setting `scrape`: `URL`, `SERVICE=URL` or `SERVICE=dns+URL`."""

    service: str
    url: str
    by_dns: bool

    @classmethod
    def parse(cls, item: str) -> StaticTarget:
        """Read one item; raises ValueError that shows how to write one."""
        match = _URL.fullmatch(item.strip())
        if not match or not has_a_host(match["url"]):
            msg = f"{item!r} is not a target; write http://host:8000/metrics, or SERVICE=http://host:8000"
            raise ValueError(msg)
        parts = urlsplit(match["url"])
        url = parts._replace(path=parts.path or "/metrics").geturl()
        return cls(match["service"] or parts.hostname or "", url, bool(match["dns"]))

    def targets(self, addresses: Iterable[str]) -> Iterator[Target]:
        """Yield the target, or one for each address of its host."""
        parts = urlsplit(self.url)
        if not self.by_dns:
            yield Target(self.url, self.service, _host_and_port(self.url))
            return
        for address in sorted(set(addresses)):
            host = f"[{address}]" if ":" in address else address
            port = f":{parts.port}" if parts.port else ""
            user, at, _ = parts.netloc.rpartition("@")
            url = parts._replace(netloc=user + at + host + port).geturl()
            yield Target(url, self.service, _host_and_port(url))


def has_a_host(url: str) -> bool:
    """Tell whether a URL has a host, and a port that can be one, if any."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def parse_static(setting: str) -> tuple[StaticTarget, ...]:
    """Read the setting `scrape`: items divided by commas. Raises ValueError."""
    return tuple(StaticTarget.parse(item) for item in setting.split(",") if item.strip())


def _host_and_port(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _label(value: Any) -> str:
    """The value of a label as it is written, as Prometheus takes it: 7 is a text like any other."""
    if isinstance(value, bool):  # of JSON
        return str(value).lower()
    if not isinstance(value, str | None):
        msg = "must be one value"
        raise ValueError(msg)  # pydantic reports a ValueError at its field
    return value or ""


class _Group(BaseModel):
    """One entry of a `file_sd` file."""

    model_config = ConfigDict(extra="forbid")

    targets: list[str]
    labels: dict[str, Annotated[str, BeforeValidator(_label)]] = {}


class _AsWritten(yaml.SafeLoader):
    """YAML's safe loader, with numbers, dates, yes and no left as text."""


def _as_written(loader: _AsWritten, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


for _kind in ("int", "float", "bool", "timestamp"):
    _AsWritten.add_constructor(f"tag:yaml.org,2002:{_kind}", _as_written)


class Files:
    """Reads `file_sd` files again when they change. A file that cannot be read keeps its last targets."""

    def __init__(self, patterns: Sequence[str], report: Callable[[str, str], None]) -> None:
        """`report` is told a file, or a pattern, and its error; an empty one: it can be read, or is gone."""
        self._patterns = patterns
        self._report = report
        self._read: dict[str, tuple[float, list[Target]]] = {}

    def targets(self) -> list[Target]:
        """Return the targets of all files that match a pattern now."""
        all_paths = []
        for pattern in self._patterns:
            paths = [str(path) for path in sorted(Path(pattern).parent.glob(Path(pattern).name))]
            self._report(pattern, "" if paths else "no file has this name")
            all_paths += paths
        for gone in self._read.keys() - {*all_paths, *self._patterns}:
            self._report(gone, "")
        self._read = {path: self._fresh(path) for path in all_paths}
        return [target for _, targets in self._read.values() for target in targets]

    def _fresh(self, path: str) -> tuple[float, list[Target]]:
        known = self._read.get(path, (-1.0, []))
        try:
            status = Path(path).stat()
            if status.st_mtime == known[0]:
                return known
            fresh = status.st_mtime, list(read_file(path))
            self._report(path, "")
            return fresh
        except (OSError, ValueError, yaml.YAMLError) as error:
            self._report(path, str(error))
        except RecursionError:
            self._report(path, "its lists are nested too deeply")
        return known


def read_file(path: str) -> Iterator[Target]:
    """Read the targets of one file, JSON or YAML; raises OSError, ValueError or YAMLError."""
    text = regular_files.read(path, _LARGEST_FILE).decode()
    if path.endswith(".json"):
        document = json.loads(text, parse_int=str, parse_float=str)
    else:
        document = yaml.load(text, Loader=_AsWritten)  # noqa: S506 - a SafeLoader
    try:
        groups = TypeAdapter(list[_Group]).validate_python(document or [])
    except ValidationError as error:
        first = error.errors()[0]
        told = first["msg"].removeprefix("Value error, ")
        msg = ".".join(map(str, ("entry", *first["loc"]))) + f": {told}"
        raise ValueError(msg) from error
    for group in groups:
        for address in group.targets:
            yield _of_file(address, {key: value for key, value in group.labels.items() if value})


def _of_file(address: str, labels: Mapping[str, str]) -> Target:
    for text in (address, *labels, *labels.values()):
        if any("\ud800" <= character <= "\udfff" for character in text):  # of an escape in JSON; UTF-8 has none
            msg = f"{text!a} has half of a surrogate pair, which is no character"
            raise ValueError(msg)
    if not _ADDRESS.fullmatch(address):
        msg = f"the target {address!r} is not HOST:PORT"
        raise ValueError(msg)
    scheme = labels.get("__scheme__", "http")
    path = "/" + labels.get("__metrics_path__", "/metrics").lstrip("/")
    parameters = {key.removeprefix("__param_"): value for key, value in labels.items() if key.startswith("__param_")}
    query = f"?{urlencode(parameters)}" if parameters else ""
    (target,) = StaticTarget.parse(f"{scheme}://{address}{path}{query}").targets(())
    service = labels.get("service_name") or labels.get("service") or labels.get("job") or target.service
    own_labels = {key: value for key, value in labels.items() if key not in _OWN_LABELS and not key.startswith("__")}
    return replace(
        target,
        service=service,
        instance=labels.get("instance", target.instance),
        engine=labels.get("engine", ""),
        labels=tuple(sorted(own_labels.items())),
    )
