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
from collector.store.definitions import Decoding
from collector.store.layout import Layout
from collector.store.retention import parse_retention
from collector.wal.policy import Fsync
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
        frozen=True,
        validate_default=True,
        cli_prog_name="tokentrail collector",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    data_dir: Folder = Field(Path(".data"), description="Folder of the logs, the dead letters and the embedded store.")
    store: Annotated[str, AfterValidator(_is_store)] = Field(
        "chdb://",
        description="chdb:// embeds ClickHouse in the data folder, chdb:///PATH elsewhere; http(s)://… is a server, or"
        " a cluster with ?cluster=NAME.",
    )
    store_user: str = Field("", description="User of the server, in place of one in its address.")
    store_password_file: File | None = Field(None, description="File that holds only that user's password.")
    otlp_http: Address = Field("127.0.0.1:4318", description="Address that receives OTLP/HTTP.")
    otlp_grpc: Address = Field("127.0.0.1:4317", description="Address that receives OTLP/gRPC.")
    api: Address = Field("127.0.0.1:8080", description="Address of the API and /metrics.")
    slos: File | None = Field(None, description="SLO file. Without it there are latencies but no SLOs.")

    keys: File | None = Field(None, description="File of keys; keys.json in the data folder if not given.")
    audit_log: File | None = Field(None, description="Audit log; audit.jsonl in the data folder if not given.")
    allow_anonymous: bool = Field(
        False, description="Callers need no key, also on addresses that other machines reach."
    )
    metrics_without_key: bool = Field(False, description="/metrics needs no key.")
    allowed_hosts: str = Field(
        "", description="Host names, divided by commas, by which callers without a key may reach this collector."
    )
    tls_cert: File | None = Field(None, description="Certificate (PEM) of all ports. Without it they speak plain text.")
    tls_key: File | None = Field(None, description="Key (PEM) of the certificate.")
    tls_client_ca: File | None = Field(None, description="CA (PEM): clients need a certificate that it signed.")

    tenant_spans_per_s: NotNegative = Field(0.0, description="Most spans a second of one tenant; 0 is no limit.")
    tenant_bytes_per_s: NotNegative = Field(0.0, description="Most bytes a second of one tenant; 0 is no limit.")
    tenant_names: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Most distinct models, services, instances and so on of one tenant in an hour; 0 is no limit. "
        "If not given, 1000 for a tenant's key.",
    )
    query_concurrency: Positive = Field(4, description="Requests to the API that are answered at a time.")
    query_waiting: Positive = Field(64, description="Requests to the API that wait; more get 429.")
    query_timeout_s: PositiveSeconds = Field(30.0, description="Longest time for one answer of the API.")
    query_memory_bytes: Positive = Field(2048 * MIB, description="Most memory of one query in the store.")

    max_body_bytes: BodyBytes = Field(16 * MIB, description="Largest request body as sent.")
    max_decompressed_bytes: BodyBytes = Field(64 * MIB, description="Largest request body after decompression.")
    receive_buffer_bytes: Positive = Field(
        256 * MIB, description="Most bytes of OTLP requests under way; beyond them, clients are told to try again."
    )
    body_timeout_s: PositiveSeconds = Field(30.0, description="A request's body must arrive within this time.")
    max_span_bytes: Positive = Field(256 * 1024, description="Largest single span.")
    max_span_attributes: Positive = Field(1024, description="Most attributes of one span.")
    max_payload_days: Positive = Field(31, description="Most days that the spans of one payload may start or end on.")
    max_future_s: PositiveSeconds = Field(86400.0, description="A span that ends further in the future is left out.")

    fsync: Fsync = Field(
        Fsync.ACK, description="ack syncs to disk before the acknowledgement; os leaves that to the operating system."
    )
    segment_bytes: Positive = Field(64 * MIB, description="A segment of a log is sealed at this size.")
    segment_age_s: PositiveSeconds = Field(
        1.0, description="A segment is also sealed at this age, so that its rows can be queried."
    )
    wal_max_bytes: Positive = Field(2048 * MIB, description="At this size of a log, clients are told to retry later.")
    dedup_retention_s: PositiveSeconds = Field(3600.0, description="A repeated payload is recognised for this long.")
    claim_retention_s: PositiveSeconds = Field(
        86400.0, description="A payload that another collector of the same store took is recognised for this long."
    )

    keep_content: bool = Field(
        False, description="Prompts, answers and headers in the attributes of spans that no mapping reads are stored."
    )
    tenant_attributes: Attributes = Field(
        "", description="Attributes, divided by commas, that give a tenant to a request without one; the first counts."
    )
    slo_class_attributes: Attributes = Field(
        "", description="Attributes, divided by commas, that give an SLO class to a request without one."
    )
    join_after_s: PositiveSeconds = Field(
        7.0, description="If several processes send the spans of a request, the collector waits for them this long."
    )
    scrape: Annotated[str, AfterValidator(_is_scrape)] = Field(
        "",
        description="Prometheus endpoints of engines to scrape, divided by commas: URL, SERVICE=URL, or SERVICE=dns+URL"
        " for one target per address.",
    )
    scrape_files: str = Field(
        "", description="Files of targets in Prometheus' file_sd format, divided by commas; their names may have a *."
    )
    scrape_interval_s: PositiveSeconds = Field(10.0, description="Each target is scraped once in this time.")
    scrape_timeout_s: PositiveSeconds = Field(5.0, description="Longest time of one scrape.")
    scrape_max_bytes: BodyBytes = Field(8 * MIB, description="Largest answer to a scrape.")
    scrape_max_series: Positive = Field(2000, description="Most series of one scrape; the rest is left out.")
    scrape_bearer_file: File | None = Field(None, description="File with a bearer token that is sent to every target.")
    scrape_tls_ca: File | None = Field(None, description="CA (PEM) of the targets; the system's CAs if not given.")
    sample_all_names: bool = Field(False, description="Metrics without a common name are stored too.")

    lost_after_s: PositiveSeconds = Field(
        30.0, description="A request in flight counts as lost after it was not heard of for this long."
    )
    retention: Annotated[str, AfterValidator(_is_retention)] = Field(
        "", description="How long rows are kept: 90d, or 90d,tokens=7d,TENANT/requests=30d. Empty keeps them for ever."
    )
    drain_timeout_s: PositiveSeconds = Field(
        30.0, description="Longest shutdown. The log keeps the payloads that are not stored by then."
    )

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
        return Decoding(self.keep_content, listed(self.tenant_attributes), listed(self.slo_class_attributes))

    @property
    def names(self) -> frozenset[str]:
        """The attributes whose text becomes a column of the store."""
        return COLUMNS.union(self.decoding.tenant_attributes, self.decoding.slo_class_attributes)

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
