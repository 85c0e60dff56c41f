"""Configuration by OpenTelemetry's environment variables. A bad value is logged by name and the default used."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk import environment_variables as otel
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from tokentrail import semconv
from tokentrail._build.sampling import Sampling, Thresholds
from tokentrail._host.guard import logger
from tokentrail._send.http import GRPC, HTTP, Endpoint

MAX_QUEUE_BYTES: Final = "TOKENTRAIL_MAX_QUEUE_BYTES"
MAX_REQUEST_AGE_S: Final = "TOKENTRAIL_MAX_REQUEST_AGE_S"
STRICT: Final = "TOKENTRAIL_STRICT"
SAMPLING: Final = "TOKENTRAIL_SAMPLING"
TRACES_EXPORTER: Final = "OTEL_TRACES_EXPORTER"

_UNKNOWN: Final = "unknown_service"
_HEADER: Final = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+")
"""A header's name, which may be percent-encoded."""
MAX_PAYLOAD_BYTES: Final = 4 << 20
MAX_PAYLOAD_SPANS: Final = 16_384
MOST_S: Final = 1e9
"""The longest time of a setting, in seconds. Sockets and locks take no longer one than 9.2e9."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the export, for `Trail(settings)`. The defaults buffer about three minutes of 10,000 tokens/s."""

    endpoint: Endpoint
    enabled: bool = True
    schedule_delay_s: float = 1.0
    max_queue_spans: int = 2_000_000
    max_queue_bytes: int = 256 << 20
    max_payload_spans: int = MAX_PAYLOAD_SPANS
    max_request_age_s: float = 7_200.0
    strict: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    meter_provider: MeterProvider | None = None
    """Where the metrics of the SDK go; None is the global one."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Settings from OTEL_* and TOKENTRAIL_* variables; docs/sdk.md lists them."""
        env = _Env(environ)
        exporter = env.text(TRACES_EXPORTER).lower()
        if exporter not in ("", "otlp", "none"):
            logger.warning("%s=%s: tokentrail exports OTLP only, and uses it", TRACES_EXPORTER, exporter)
        return cls(
            endpoint=_endpoint(env),
            enabled=env.text(otel.OTEL_SDK_DISABLED).lower() != "true" and exporter != "none",
            schedule_delay_s=env.number(otel.OTEL_BSP_SCHEDULE_DELAY, 1_000, low=1, high=MOST_S * 1_000) / 1_000,
            max_queue_spans=int(env.number(otel.OTEL_BSP_MAX_QUEUE_SIZE, 2_000_000, low=1)),
            max_queue_bytes=int(env.number(MAX_QUEUE_BYTES, 256 << 20, low=1)),
            max_payload_spans=int(env.number(otel.OTEL_BSP_MAX_EXPORT_BATCH_SIZE, MAX_PAYLOAD_SPANS, low=1)),
            max_request_age_s=env.number(MAX_REQUEST_AGE_S, 7_200.0, low=1, high=MOST_S),
            strict=env.text(STRICT).lower() == "true",
            sampling=env.sampling(),
        )


def _endpoint(env: _Env) -> Endpoint:
    protocol = env.protocol()
    base = env.url(otel.OTEL_EXPORTER_OTLP_ENDPOINT)
    if base and protocol == HTTP:
        base = f"{base.removesuffix('/')}/v1/traces"
    return Endpoint.to(
        env.url(otel.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or base,
        headers=env.headers(),
        protocol=protocol,
        timeout_s=env.number(env.exporter_name("TIMEOUT"), 10.0, low=0.001, high=MOST_S),
        compression=env.compression(),
        certificate=env.exporter("CERTIFICATE"),
        client_certificate=env.exporter("CLIENT_CERTIFICATE"),
        client_key=env.exporter("CLIENT_KEY"),
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

    def headers(self) -> dict[str, str]:
        """`name=value` divided by commas, percent-encoded or not. OpenTelemetry 1.25 takes no space in a value. The log
        does not quote a part without a name, since it may be a key.
        """
        found: dict[str, str] = {}
        for part in self.exporter("HEADERS").split(","):
            name, equals, value = (text.strip() for text in part.partition("="))
            if equals and _HEADER.fullmatch(name) and value.isascii():
                found[unquote(name).lower()] = unquote(value)
            elif part.strip():
                logger.warning("%s has a part that is no name=value: it is left out", self.exporter_name("HEADERS"))
        return found

    def url(self, name: str) -> str:
        """The URL; "" for one that cannot be read, such as `http://[::1`."""
        raw = self.text(name)
        try:
            urlsplit(raw)
        except ValueError as error:
            logger.warning("%s=%r is not usable: %s; using the default", name, raw, error)
            return ""
        return raw

    def number(self, name: str, default: float, *, low: float, high: float = 1e15) -> float:
        raw = self.text(name)
        try:
            value = float(raw) if raw else default
        except ValueError:
            value = float("nan")
        if low <= value <= high:
            return value
        logger.warning("%s=%r is not a number from %g to %g: using %g", name, raw, low, high, default)
        return default

    def protocol(self) -> str:
        name, raw = self.exporter_name("PROTOCOL"), self.exporter("PROTOCOL") or HTTP
        if raw == GRPC and find_spec("grpc") is None:
            logger.warning("%s=grpc needs `pip install tokentrail[grpc]`: using %s", name, HTTP)
        elif raw not in (HTTP, GRPC):
            logger.warning("%s=%r is neither %s nor %s: using the former", name, raw, HTTP, GRPC)
        else:
            return raw
        return HTTP

    def sampling(self) -> Sampling:
        raw = self.text(SAMPLING)
        try:
            given = json.loads(raw) if raw else {}
            if not isinstance(given, dict):
                raise ValueError('write an object, such as {"rate": 0.1}')
            thresholds = tuple(Thresholds(**entry) for entry in given.pop("thresholds", ()))
            return Sampling(**given, thresholds=thresholds)
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("%s=%r is not usable: %s; keeping every request", SAMPLING, raw, error)
            return Sampling()

    def compression(self) -> Compression:
        raw = self.exporter("COMPRESSION").lower() or Compression.NoCompression.value
        try:
            return Compression(raw)
        except ValueError:
            name = self.exporter_name("COMPRESSION")
            logger.warning("%s=%r is not one of none, gzip and deflate: using none", name, raw)
            return Compression.NoCompression


def resource_of(service_name: str | None, variant: str, given: Mapping[str, str | int] | None) -> Resource:
    """OpenTelemetry's resource (OTEL_RESOURCE_ATTRIBUTES, detectors) with the attributes that the code gives."""
    variant_attribute: dict[str, str | int] = {semconv.VARIANT: variant} if variant else {}
    resource = _detected({**variant_attribute, **(given or {})})
    if service_name and str(resource.attributes.get(semconv.SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN):
        resource = resource.merge(Resource({semconv.SERVICE_NAME: service_name}))
    return resource


def with_instance(resource: Resource) -> Resource:
    """The resource with a `service.instance.id` of this process. OpenTelemetry before 1.45 generates none."""
    if semconv.SERVICE_INSTANCE_ID in resource.attributes:
        return resource
    return resource.merge(Resource({semconv.SERVICE_INSTANCE_ID: _instance_of(os.getpid())}))


@lru_cache(maxsize=1)
def _instance_of(pid: int) -> str:
    return str(uuid4())


def _detected(attributes: Mapping[str, str | int]) -> Resource:
    """OpenTelemetry's resource. It asks its detectors in threads, of which Python starts none for it once the main
    thread has ended; other threads may go on for hours, and have the resource of the environment then.
    """
    try:
        return Resource.create(attributes)
    except RuntimeError:
        return OTELResourceDetector().detect().merge(Resource(attributes))
