"""Every setting of the collector: flags, then `TOKENTRAIL_*` environment variables, then these defaults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict

from collector.wal.policy import Fsync

MIB = 1024 * 1024


def _is_address(value: str) -> str:
    split_address(value)
    return value


def split_address(value: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises ValueError that shows how to write one."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        msg = f"{value!r} is not HOST:PORT; write for example 127.0.0.1:4318 or [::1]:4318 (port 0 picks a free one)"
        raise ValueError(msg)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_store(value: str) -> str:
    if not value.startswith(("chdb://", "http://", "https://")):
        msg = (
            f"{value!r} is not a store; write chdb:// (embedded), http://user:password@host:8123/database or https://…"
        )
        raise ValueError(msg)
    return value


Address = Annotated[str, AfterValidator(_is_address)]
Positive = Annotated[int, Field(gt=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """The collector's settings; each is also a flag (`wal_max_bytes` is `--wal-max-bytes`)."""

    model_config = SettingsConfigDict(
        env_prefix="TOKENTRAIL_",
        extra="forbid",
        frozen=True,
        validate_default=True,
        cli_prog_name="python -m collector",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    data_dir: Path = Field(Path(".data"), description="folder of the log, dead letters and the embedded store")
    store: Annotated[str, AfterValidator(_is_store)] = Field(
        "chdb://",
        description="chdb:// (embedded, in the data dir), chdb:///PATH or http(s)://… (a ClickHouse server)",
    )
    otlp_http: Address = Field("127.0.0.1:4318", description="where OTLP/HTTP is received")
    otlp_grpc: Address = Field("127.0.0.1:4317", description="where OTLP/gRPC is received")
    api: Address = Field("127.0.0.1:8080", description="where the API and /metrics answer")
    slos: Path | None = Field(None, description="SLO file; without it there are latencies but no SLOs")

    max_body_bytes: Positive = Field(16 * MIB, description="largest request body as sent")
    max_decompressed_bytes: Positive = Field(64 * MIB, description="largest request body after decompression")
    max_span_bytes: Positive = Field(256 * 1024, description="largest single span")
    max_span_attributes: Positive = Field(1024, description="most attributes of a span")

    fsync: Fsync = Field(Fsync.ACK, description="ack: on disk before acknowledged; os: left to the operating system")
    segment_bytes: Positive = Field(32 * MIB, description="a segment of the log is sealed at this size")
    segment_age_s: PositiveSeconds = Field(1.0, description="or at this age, so that it can be queried")
    wal_max_bytes: Positive = Field(2048 * MIB, description="log size at which clients are told to retry later")
    dedup_retention_s: PositiveSeconds = Field(3600.0, description="how long a repeated payload is recognised")

    lost_after_s: PositiveSeconds = Field(30.0, description="silence after which a request in flight counts as lost")
    retention_days: Annotated[int, Field(ge=0)] = Field(0, description="days that rows are kept; 0 keeps them for ever")
    drain_timeout_s: PositiveSeconds = Field(
        30.0, description="longest shutdown; the log keeps what is not stored by then"
    )

    @property
    def store_dsn(self) -> str:
        """The store's address with the embedded default filled in."""
        return f"chdb://{(self.data_dir / 'store').resolve()}" if self.store == "chdb://" else self.store


def load_settings(arguments: list[str]) -> Settings:
    """Settings from flags and the environment; exits with a message that names each wrong field and how to fix it."""
    try:
        return CliApp.run(Settings, cli_args=arguments)
    except ValidationError as error:
        for problem in error.errors():
            field = str(problem["loc"][0]) if problem["loc"] else "settings"
            detail = problem["msg"].removeprefix("Value error, ")
            names = f"--{field.replace('_', '-')} or TOKENTRAIL_{field.upper()}"
            sys.stderr.write(f"{field}: {detail}; set {names} (got {problem['input']!r})\n")
        raise SystemExit(2) from None
