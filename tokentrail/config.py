"""Configuration by OpenTelemetry's environment variables. A bad value is logged by name and the default used."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.sdk import environment_variables as otel
from opentelemetry.util.re import parse_env_headers

from tokentrail.guard import logger
from tokentrail.http import Endpoint

MAX_QUEUE_BYTES: Final = "TOKENTRAIL_MAX_QUEUE_BYTES"
MAX_REQUEST_AGE_S: Final = "TOKENTRAIL_MAX_REQUEST_AGE_S"
STRICT: Final = "TOKENTRAIL_STRICT"
TRACES_EXPORTER: Final = "OTEL_TRACES_EXPORTER"

MAX_PAYLOAD_BYTES: Final = 4 << 20
MAX_PAYLOAD_SPANS: Final = 16_384

_FIXED_HEADERS: Final = {"content-type": "application/x-protobuf", "user-agent": "tokentrail"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the export. The defaults buffer about three minutes of 10,000 tokens/s."""

    endpoint: Endpoint
    enabled: bool = True
    schedule_delay_s: float = 1.0
    max_queue_spans: int = 2_000_000
    max_queue_bytes: int = 256 << 20
    max_payload_spans: int = MAX_PAYLOAD_SPANS
    max_request_age_s: float = 7_200.0
    strict: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Settings from OTEL_* and TOKENTRAIL_* variables; docs/sdk.md lists them."""
        env = _Env(environ)
        if (protocol := env.exporter("PROTOCOL")) not in ("", "http/protobuf"):
            logger.warning("OTEL_EXPORTER_OTLP_PROTOCOL=%s: tokentrail speaks http/protobuf only and uses it", protocol)
        exporter = env.text(TRACES_EXPORTER).lower()
        return cls(
            endpoint=_endpoint(env),
            enabled=env.text(otel.OTEL_SDK_DISABLED).lower() != "true" and exporter != "none",
            schedule_delay_s=env.number(otel.OTEL_BSP_SCHEDULE_DELAY, 1_000, low=1) / 1_000,
            max_queue_spans=int(env.number(otel.OTEL_BSP_MAX_QUEUE_SIZE, 2_000_000, low=1)),
            max_queue_bytes=int(env.number(MAX_QUEUE_BYTES, 256 << 20, low=1)),
            max_payload_spans=int(env.number(otel.OTEL_BSP_MAX_EXPORT_BATCH_SIZE, MAX_PAYLOAD_SPANS, low=1)),
            max_request_age_s=env.number(MAX_REQUEST_AGE_S, 7_200.0, low=1),
            strict=env.text(STRICT).lower() == "true",
        )


def compressor(compression: Compression) -> Callable[[bytes], bytes]:
    """The function that compresses a body."""
    if compression is Compression.Gzip:
        return lambda body: gzip.compress(body, compresslevel=1, mtime=0)
    if compression is Compression.Deflate:
        return lambda body: zlib.compress(body, level=1)
    return bytes


def decompressor(compression: Compression) -> Callable[[bytes], bytes]:
    """The inverse of `compressor`."""
    if compression is Compression.Gzip:
        return gzip.decompress
    return zlib.decompress if compression is Compression.Deflate else bytes


def _endpoint(env: _Env) -> Endpoint:
    base = env.text(otel.OTEL_EXPORTER_OTLP_ENDPOINT) or "http://localhost:4318"
    compression = env.compression()
    encoding = {} if compression is Compression.NoCompression else {"content-encoding": compression.value}
    certificate, key = env.exporter("CLIENT_CERTIFICATE"), env.exporter("CLIENT_KEY")
    return Endpoint(
        url=env.text(otel.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or f"{base.removesuffix('/')}/v1/traces",
        headers={**_FIXED_HEADERS, **parse_env_headers(env.exporter("HEADERS"), liberal=True), **encoding},
        timeout_s=env.number(env.exporter_name("TIMEOUT"), 10.0, low=0.001),
        compression=compression,
        verify=env.exporter("CERTIFICATE") or True,
        cert=(certificate, key) if certificate and key else certificate or None,
    )


class _Env:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def exporter_name(self, setting: str) -> str:
        """The traces variable of an exporter setting where it is set, else the general one."""
        traces = f"OTEL_EXPORTER_OTLP_TRACES_{setting}"
        return traces if self.text(traces) else f"OTEL_EXPORTER_OTLP_{setting}"

    def exporter(self, setting: str) -> str:
        return self.text(self.exporter_name(setting))

    def number(self, name: str, default: float, *, low: float) -> float:
        raw = self.text(name)
        try:
            value = float(raw) if raw else default
        except ValueError:
            value = float("nan")
        if low <= value < float("inf"):
            return value
        logger.warning("%s=%r is not a number of at least %g: using %g", name, raw, low, default)
        return default

    def compression(self) -> Compression:
        raw = self.exporter("COMPRESSION").lower() or Compression.NoCompression.value
        try:
            return Compression(raw)
        except ValueError:
            logger.warning("%s=%r is none of none, gzip, deflate: using none", self.exporter_name("COMPRESSION"), raw)
            return Compression.NoCompression
