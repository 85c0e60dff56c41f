"""Every setting of the collector: flags, then `TOKENTRAIL_*` environment variables, then these defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from collector.receive.names import COLUMNS
from collector.samples.targets import has_a_host, parse_static
from collector.slo.model import label_name
from collector.store.definitions import Decoding
from collector.store.layout import Layout
from collector.store.retention import parse_retention
from collector.wal.policy import Fsync
from tokentrail.semconv import MOST_LABELS
from tokentrail.shared.folders import file, folder

MIB = 1024 * 1024
_NO_PARAMETERS: Final = frozenset(
    {
        # ClickHouse takes a user and a password as parameters of its address. The client takes none that it has.
        *("user", "username", "password", "host", "port", "database", "interface", "dsn", "secure"),
        # The collector sets these, or relies on what the client does without them. `query_limit` would cut answers off.
        *("settings", "generic_args", "kwargs", "connect_timeout", "send_receive_timeout", "session_id", "query_limit"),
        *("autogenerate_session_id", "autogenerate_query_id", "rename_response_column", "tz_source", "tz_mode"),
        *("native_codec", "show_clickhouse_errors", "form_encode_query_params"),
        # They are Python's objects.
        *("headers", "pool_mgr", "token_provider", "dedicated_pool"),
    }
)
"""Parameters of the client that cannot stand in an address."""


def _is_address(value: str) -> str:
    split_address(value)
    return value


def split_address(value: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; raises ValueError that shows how to write one."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        msg = f"{value!r} is not HOST:PORT; write for example 127.0.0.1:4318 or [::1]:4318 (port 0 picks a free one)"
        raise ValueError(msg)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_retention(value: str) -> str:
    parse_retention(value)
    return value


def _is_scrape(value: str) -> str:
    parse_static(value)
    return value


def _is_store(value: str) -> str:
    if not value.startswith("chdb://"):
        _check_server(value)
    Layout.of(value)
    return value


def _check_server(address: str) -> None:
    """Raise ValueError for an address that names no server. The message may not show it: it may have a password."""
    if not address.startswith(("http://", "https://")):
        msg = "that is not the address of a store; write chdb:// (embedded), http://user:password@host:8123/database or https://…"
        raise ValueError(msg)
    if not has_a_host(address):
        msg = "the address has no host, or a wrong port; #, /, ? and @ in a password need %23, %2F, %3F and %40"
        raise ValueError(msg)
    named = {name for name, _ in parse_qsl(urlsplit(address).query)} & _NO_PARAMETERS
    if named:
        msg = (
            f"{' and '.join(sorted(named))} cannot stand after the ?; write http(s)://user:password@host:8123/database"
        )
        raise ValueError(msg)


def listed(value: str) -> tuple[str, ...]:
    """The items of a list that commas divide."""
    return tuple(item for part in value.split(",") if (item := part.strip()))


def _are_attributes(value: str) -> str:
    for name in listed(value):
        if not re.fullmatch(r"[A-Za-z0-9_./:-]+", name):
            msg = f"{name!r} is no attribute's name; write for example enduser.id,http.request.header.x-team"
            raise ValueError(msg)
    return value


def label_attributes(value: str) -> tuple[tuple[str, str], ...]:
    """The items of a list of `NAME=ATTRIBUTE`; an attribute alone gives the label its name."""
    pairs = (item.partition("=") for item in listed(value))
    return tuple((name, attribute or name) for name, _, attribute in pairs)


def _are_label_attributes(value: str) -> str:
    pairs = label_attributes(value)
    for name, attribute in pairs:
        _are_attributes(attribute)
        label_name(name)
    names = [name for name, _ in pairs]
    if len(names) > min(len({*names}), MOST_LABELS):
        msg = f"at most {MOST_LABELS} labels, each with a name of its own: write NAME=ATTRIBUTE,NAME=ATTRIBUTE"
        raise ValueError(msg)
    return value


Address = Annotated[str, AfterValidator(_is_address)]
Folder = Annotated[Path, BeforeValidator(folder)]
File = Annotated[Path, BeforeValidator(file)]
Positive = Annotated[int, Field(gt=0, le=2**62)]
BodyBytes = Annotated[int, Field(gt=0, lt=2**31)]
"""gRPC and Protobuf read no larger message."""
Attributes = Annotated[str, AfterValidator(_are_attributes)]
PositiveSeconds = Annotated[float, Field(gt=0, le=1e9)]
"""At most 31 years: no wait of the operating system and of the store can be endless."""
NotNegative = Annotated[float, Field(ge=0)]


class Settings(BaseSettings):
    """The collector's settings; each is also a flag (`wal_max_bytes` is `--wal-max-bytes`)."""

    model_config = SettingsConfigDict(
        env_prefix="TOKENTRAIL_",
        extra="forbid",
        use_attribute_docstrings=True,
        frozen=True,
        validate_default=True,
        cli_prog_name="tokentrail collector",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    data_dir: Folder = Path(".data")
    """Folder of the logs, the dead letters and the embedded store; one collector owns it."""
    store: Annotated[str, AfterValidator(_is_store)] = "chdb://"
    """`chdb://`: ClickHouse inside the collector, in the data folder; `chdb:///PATH`; or
    `http(s)://user:password@host:8123/database`, with `?cluster=NAME` for a cluster (docs/cluster.md), and
    `?ca_cert=FILE` for a CA that the system does not know."""
    store_user: str = ""
    """User of the server, in place of one in `--store`."""
    store_password_file: File | None = None
    """File that holds that user's password, without percent-encoding; no process list shows it."""
    otlp_http: Address = "127.0.0.1:4318"
    """Address that receives OTLP/HTTP."""
    otlp_grpc: Address = "127.0.0.1:4317"
    """Address that receives OTLP/gRPC."""
    api: Address = "127.0.0.1:8080"
    """Address of the API (docs/api.md) and `/metrics` (docs/metrics.md)."""
    slos: File | None = None
    """SLO file (docs/slos.md); without it there are latencies but no SLOs."""

    keys: File | None = None
    """File of keys (docs/collector.md#keys-and-tenants); `keys.json` in the data folder if not given."""
    audit_log: File | None = None
    """Audit log (docs/collector.md#audit-log); `audit.jsonl` in the data folder if not given."""
    allow_anonymous: bool = False
    """Callers need no key, also on addresses that other machines reach."""
    metrics_tenant_histograms: bool = False
    """The histograms of `/metrics` tell tenants apart. They are most of a page: with 50 tenants, it is up to 50 times
    as long."""
    metrics_without_key: bool = False
    """`/metrics` needs no key."""
    allowed_hosts: str = ""
    """Host names, divided by commas, by which callers without a key may reach the collector, besides loopback names and
    IP addresses."""
    tls_cert: File | None = None
    """Certificate of all ports in PEM, with those of intermediate CAs; without it, the ports speak plain text."""
    tls_key: File | None = None
    """Key of the certificate in PEM."""
    tls_client_ca: File | None = None
    """CA in PEM: clients need a certificate that it has signed."""

    tenant_spans_per_s: NotNegative = 0.0
    """Most spans a second of one tenant; 0 is no limit."""
    tenant_bytes_per_s: NotNegative = 0.0
    """Most bytes a second of one tenant, after decompression; 0 is no limit."""
    tenant_names: Annotated[int, Field(ge=0)] | None = None
    """Most distinct models of one tenant in an hour; the same limit holds for its services, instances, variants and SLO
    classes; 0 is no limit. If not given, 1,000 for a tenant's key and no limit for others."""
    query_concurrency: Positive = 4
    """Requests to the API that are answered at a time; the others wait."""
    query_waiting: Positive = 64
    """Requests to the API that may wait; more get 429 with `Retry-After`."""
    query_timeout_s: PositiveSeconds = 30.0
    """Longest time for one answer of the API, without its time in the queue."""
    query_memory_bytes: Positive = 2048 * MIB
    """Most memory of one query in the store."""

    max_body_bytes: BodyBytes = 16 * MIB
    """Largest request body as sent."""
    max_decompressed_bytes: BodyBytes = 64 * MIB
    """Largest request body after decompression; no more than this is ever unpacked."""
    receive_buffer_bytes: Positive = 256 * MIB
    """Most bytes of all OTLP bodies that are being received and checked, over HTTP and gRPC, as sent and decompressed;
    at this limit, clients are told to try again."""
    body_timeout_s: PositiveSeconds = 30.0
    """A request's body must arrive within this time, and a client must read some of its answer within it; otherwise the
    connection is closed. A header has 10 s and 64 KiB, and trailers have 64 KiB."""
    max_span_bytes: Positive = 256 * 1024
    """Largest single span."""
    max_span_attributes: Positive = 1024
    """Most attributes of one span."""
    max_payload_days: Positive = 31
    """Most days that the spans, data points or log records of one payload may have; each day is a partition of the
    tables."""
    max_future_s: PositiveSeconds = 86400.0
    """A span that ends further in the collector's future is left out."""

    fsync: Fsync = Fsync.ACK
    """`ack`: on disk before it is acknowledged; `os`: left to the operating system, which survives a killed process but
    not a power cut."""
    segment_bytes: Positive = 64 * MIB
    """A segment of the log is sealed, and then stored, at this size."""
    segment_age_s: PositiveSeconds = 1.0
    """A segment is also sealed at this age, so data can be queried about that much later; while data keeps coming,
    segments that are not full are sealed every five times this age (docs/collector.md#what-it-costs)."""
    wal_max_bytes: Positive = 2048 * MIB
    """Bytes that may wait for the store; when they are reached, clients are told to try again later."""
    dedup_retention_s: PositiveSeconds = 3600.0
    """A repeated payload is recognised for this long after it was stored."""
    claim_retention_s: PositiveSeconds = 86400.0
    """A payload that another collector of the same ClickHouse server
    (docs/collector.md#several-collectors-on-one-store) took is recognised for at least this long; of several
    collectors, the shortest time counts."""

    keep_content: bool = False
    """Prompts, answers and headers in the attributes of spans that no mapping reads are stored
    (docs/collector.md#from-a-span-to-rows)."""
    tenant_attributes: Attributes = ""
    """Attributes, divided by commas, that give a tenant to a request without one; the first counts
    (docs/slos.md#requests-without-a-class-or-a-tenant)."""
    slo_class_attributes: Attributes = ""
    """Attributes, divided by commas, that give an SLO class to a request without one."""
    label_attributes: Annotated[str, AfterValidator(_are_label_attributes)] = ""
    """Attributes, divided by commas, that give requests a label each, as `region=cloud.region,enduser.plan`
    (docs/collector.md#labels)."""
    join_after_s: PositiveSeconds = 7.0
    """If several processes send the spans of one request, the collector waits for them this long
    (docs/collector.md#requests-of-several-processes)."""
    explain: bool = True
    """The time of each request is divided into causes soon after its end
    (docs/explain.md#when-a-request-is-explained)."""
    scrape: Annotated[str, AfterValidator(_is_scrape)] = ""
    """Endpoints of engines to scrape (docs/scraping.md), divided by commas: `URL`, `SERVICE=URL`, or `SERVICE=dns+URL`
    for one target per address."""
    scrape_files: str = ""
    """Files of targets in Prometheus' `file_sd` format, divided by commas; their names may have a `*`."""
    scrape_interval_s: PositiveSeconds = 10.0
    """Each target is scraped once in this time."""
    scrape_timeout_s: PositiveSeconds = 5.0
    """Longest time of one scrape; no longer than the interval."""
    scrape_max_bytes: BodyBytes = 8 * MIB
    """Largest answer to a scrape, as sent and decompressed."""
    scrape_max_series: Positive = 2000
    """Most series of one scrape; the rest is left out and counted."""
    scrape_bearer_file: File | None = None
    """File with a bearer token that is sent to every target."""
    scrape_tls_ca: File | None = None
    """CA of the targets in PEM; the system's CAs if not given."""
    sample_all_names: bool = False
    """Metrics without a common name are stored too, scraped or sent."""

    lost_after_s: PositiveSeconds = 30.0
    """A request in flight counts as lost if nothing was heard of it for this long. The SDK announces a request at least
    every 20 s: a smaller value makes normal requests count as lost."""
    retention: Annotated[str, AfterValidator(_is_retention)] = ""
    """How long rows are kept (docs/storage.md#retention): `90d`, or `90d,tokens=7d,TENANT/requests=30d`; empty keeps
    them for ever."""
    drain_timeout_s: PositiveSeconds = 30.0
    """Longest shutdown; each stage that is left at its end still gets a second. The log keeps the payloads that are not
    stored by then."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Settings:
        if bool(self.tls_cert) != bool(self.tls_key) or (self.tls_client_ca and not self.tls_cert):
            msg = "TLS needs both --tls-cert and --tls-key (TOKENTRAIL_TLS_CERT and TOKENTRAIL_TLS_KEY)"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _the_user_is_whole(self) -> Settings:
        if self.store_password_file and not self.store_user:
            msg = "a password needs its user: set --store-user or TOKENTRAIL_STORE_USER"
            raise ValueError(msg)
        if self.store_user and self.store.startswith("chdb://"):
            msg = "--store-user is a server's user, and the store is embedded: set --store too, or leave it out"
            raise ValueError(msg)
        if self.store_user and "@" in self.store:
            msg = "--store names a user, and --store-user another one: leave one of them out"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _scrapes_end_in_time(self) -> Settings:
        if self.scrape_timeout_s > self.scrape_interval_s:
            msg = (
                "a scrape must end before the next one: make --scrape-timeout-s (TOKENTRAIL_SCRAPE_TIMEOUT_S) no longer"
                " than --scrape-interval-s"
            )
            raise ValueError(msg)
        return self

    @property
    def keys_file(self) -> Path:
        """The file of keys."""
        return self.keys or self.data_dir / "keys.json"

    @property
    def audit_file(self) -> Path:
        """The audit log."""
        return self.audit_log or self.data_dir / "audit.jsonl"

    @property
    def decoding(self) -> Decoding:
        """The settings that change the store's views."""
        return Decoding(
            self.keep_content,
            listed(self.tenant_attributes),
            listed(self.slo_class_attributes),
            label_attributes(self.label_attributes),
        )

    @property
    def names(self) -> frozenset[str]:
        """The attributes whose text becomes a column of the store."""
        given = (attribute for _, attribute in self.decoding.label_attributes)
        return COLUMNS.union(self.decoding.tenant_attributes, self.decoding.slo_class_attributes, given)

    @property
    def store_dsn(self) -> str:
        """The store's address, with its user; the default is filled in with the data folder.

        Raises OSError when the file of the password cannot be read.
        """
        if self.store == "chdb://":
            return f"chdb://{(self.data_dir / 'store').resolve()}"
        if not self.store_user:
            return self.store
        try:
            password = self.store_password_file.read_text().rstrip("\n") if self.store_password_file else ""
        except OSError as error:
            msg = f"--store-password-file {self.store_password_file} cannot be read: {error.strerror}"
            raise OSError(msg) from error
        scheme, _, rest = self.store.partition("://")
        return f"{scheme}://{quote(self.store_user, safe='')}:{quote(password, safe='')}@{rest}"


def load_settings(arguments: list[str]) -> Settings:
    """Read flags and the environment; exits with a message that names each wrong setting and its fix."""
    try:
        return CliApp.run(Settings, cli_args=arguments)
    except ValidationError as error:
        sys.stderr.write("".join(f"{line}\n" for line in describe_problems(error)))
        raise SystemExit(2) from None


def describe_problems(error: ValidationError) -> Iterator[str]:
    """Yield a line for each wrong setting, with its fix."""
    for problem in error.errors():
        detail = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            yield detail
            continue
        field = str(problem["loc"][0])
        names = f"--{field.replace('_', '-')} or TOKENTRAIL_{field.upper()}"
        got = "" if field == "store" else f" (got {str(problem['input'])!r})"  # it may have a password
        yield f"{field}: {detail}; set {names}{got}"
