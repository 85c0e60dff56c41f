"""OTLP over HTTP, one POST at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.util import Retry

from tokentrail.export import SendResult, SendStatus

RETRYABLE: Final = frozenset({429, 502, 503, 504})
"""The OTLP specification's list of statuses after which a client tries again."""
TOO_LARGE: Final = 413
MAX_ANSWER_BYTES: Final = 65_536
SHOWN_CHARACTERS: Final = 200
"""Length of the part of an answer that a log message quotes."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a collector and how to post to it; `verify` and `cert` are those of `requests`."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float = 10.0
    compression: Compression = Compression.NoCompression
    verify: bool | str = True
    cert: str | tuple[str, str] | None = None


class OtlpHttp:
    """A transport. A forked child makes a session of its own, since it must not share its parent's sockets."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._policy = Retry(total=None)
        self._pid = 0
        self._session = requests.Session()

    def __call__(self, body: bytes) -> SendResult:
        """Posts one body. Trouble of the network or the collector is a result and never an exception."""
        if self._pid != os.getpid():
            self._session, self._pid = self._connect(), os.getpid()
        url, timeout_s = self._endpoint.url, self._endpoint.timeout_s
        try:
            with self._session.post(url, data=body, timeout=timeout_s, stream=True, allow_redirects=False) as response:
                answer = response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
                return self._result(response, answer)
        except (requests.ConnectionError, requests.Timeout, HTTPError) as error:
            return SendResult(SendStatus.RETRY, f"{url}: {error}")
        except (requests.RequestException, ValueError) as error:
            return SendResult(SendStatus.REFUSED, f"{url} cannot be posted to: {error}")

    def _connect(self) -> requests.Session:
        session = requests.Session()
        session.headers.update(self._endpoint.headers)
        session.verify = self._endpoint.verify
        session.cert = self._endpoint.cert
        return session

    def _result(self, response: requests.Response, answer: bytes) -> SendResult:
        status = response.status_code
        shown = f"{self._endpoint.url} answered {status}: {answer.decode(errors='replace')[:SHOWN_CHARACTERS]!r}"
        if status in RETRYABLE:
            return SendResult(SendStatus.RETRY, shown, retry_after_s=self._retry_after(response))
        if status == TOO_LARGE:
            return SendResult(SendStatus.TOO_LARGE, shown)
        if response.is_redirect:
            target = response.headers["Location"]
            return SendResult(SendStatus.REFUSED, f"{shown}: a redirect; configure the final URL, {target}")
        if not 200 <= status < 300:
            return SendResult(SendStatus.REFUSED, shown)
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            return SendResult(SendStatus.REFUSED, f"{shown}: a web page, not an OTLP endpoint")
        if kind != "application/x-protobuf":
            return SendResult(SendStatus.DELIVERED)
        try:
            partial = ExportTraceServiceResponse.FromString(answer).partial_success
        except DecodeError:
            return SendResult(SendStatus.DELIVERED, f"{shown}: not an OTLP answer, taken as success for its status")
        return SendResult(SendStatus.DELIVERED, partial.error_message, rejected=max(partial.rejected_spans, 0))

    def _retry_after(self, response: requests.Response) -> float | None:
        try:
            return self._policy.get_retry_after(response.raw)
        except (InvalidHeader, ValueError, OverflowError):
            return None
