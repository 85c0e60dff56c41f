"""The scraper: asks each target for its metrics at an interval, and hands them to the signal's `Ingest` as OTLP.

Each target has a task and limits of its own, so one that hangs or answers without end costs the others nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from collector.access.limits import LimitedError
from collector.receive.decompress import decompress
from collector.receive.errors import BrokenEncodingError, TooLargeError, UnsupportedEncodingError
from collector.receive.ingest import Ingest
from collector.samples.exposition import Exposition, read_exposition, set_labels
from collector.samples.names import UP
from collector.samples.targets import Files, StaticTarget, Target
from collector.status import IngestStatus, ScrapeResult
from collector.wal.commit import LogUnavailableError
from tokentrail.semconv import ENGINE, SCRAPER, SERVICE_INSTANCE_ID, SERVICE_NAME
from tokentrail.shared import regular_files

logger = logging.getLogger(__name__)

_REFRESH_S: Final = 5.0
"""How often files are looked at; names are asked for at every sixth look."""
_DNS_EVERY: Final = 6
_MOST_TARGETS: Final = 1000
_ACCEPT: Final = "text/plain;version=0.0.4"


@dataclass(frozen=True)
class ScrapeLimits:
    """Times and sizes of one scrape, and of all that are under way."""

    interval_s: float = 10.0
    timeout_s: float = 5.0
    """From the look-up of the name to the last byte."""
    max_bytes: int = 8 * 1024 * 1024
    """Of an answer, as sent and decompressed."""
    max_series: int = 2000
    all_names: bool = False
    under_way_bytes: int = 128 * 1024 * 1024


class _ScrapeError(Exception):
    """A scrape failed; `args[0]` is the reason, a word."""


class Scraper:
    """A stage with a thread and an event loop of its own."""

    name = "scraper"

    def __init__(
        self,
        static: Sequence[StaticTarget],
        files: Sequence[str],
        ingest: Ingest,
        limits: ScrapeLimits,
        *,
        scraper_id: str,
        status: IngestStatus,
        bearer_file: Path | None = None,
        tls: ssl.SSLContext | bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives unix seconds."""
        self._static = static
        self._files = Files(files, self._discovered)
        self._ingest = ingest
        self._limits = limits
        self._scraper_id = scraper_id
        self._status = status
        self._bearer_file = bearer_file
        self._tls = tls
        self._clock = clock
        self._under_way = 0
        self._engines: dict[Target, str] = {}
        self._addresses: dict[str, list[str]] = {}
        self._failed: dict[str, str] = {}
        self._doubled: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="scraper-reader")
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin to scrape."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End all scrapes; the answers that have arrived are in the log."""
        if self._loop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        assert self._loop
        # Names that nobody answers for hold these threads. Pages are read by others.
        names = ThreadPoolExecutor(64, thread_name_prefix="scraper-names")
        self._loop.set_default_executor(names)
        try:
            self._loop.run_until_complete(self._work())
        finally:
            for pool in (names, self._readers):
                pool.shutdown(wait=False, cancel_futures=True)
            self._loop.close()

    async def _work(self) -> None:
        running: dict[Target, asyncio.Task[None]] = {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=_MOST_TARGETS)
        async with httpx.AsyncClient(
            verify=self._tls, limits=limits, trust_env=False, timeout=self._limits.timeout_s
        ) as client:
            turn = 0
            while not self._stopping.is_set():
                wanted = await self._targets(ask_names=turn % _DNS_EVERY == 0)
                for target in running.keys() - wanted:
                    running.pop(target).cancel()
                    self._engines.pop(target, None)
                for target in wanted - running.keys():
                    running[target] = asyncio.create_task(self._keep_scraping(client, target))
                turn += 1
                await self._pause(_REFRESH_S)
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        """Wait, or return at once when the scraper stops."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _targets(self, *, ask_names: bool) -> set[Target]:
        if ask_names:
            await asyncio.gather(*(self._ask(item) for item in self._static if item.by_dns))
        targets = [t for item in self._static for t in item.targets(self._addresses.get(item.url, ()))]
        targets += await asyncio.to_thread(self._files.targets)
        unique = self._unique(targets)
        self._status.scrape_targets(min(len(unique), _MOST_TARGETS), dropped=max(0, len(unique) - _MOST_TARGETS))
        return set(list(unique.values())[:_MOST_TARGETS])

    def _unique(self, targets: Sequence[Target]) -> dict[tuple[str, str, str], Target]:
        """The targets by address and process. Two jobs at one address are two processes. Of entries that name one
        process with different labels the last counts, since its numbers would else be stored twice.
        """
        unique: dict[tuple[str, str, str], Target] = {}
        doubled = set()
        for target in targets:
            key = (target.url, target.service, target.instance)
            if unique.get(key, target) != target:
                doubled.add(f"the target {target.safe_url} of {target.service}")
            unique[key] = target
        for source in self._doubled - doubled:
            self._discovered(source, "")
        for source in doubled:
            self._discovered(source, "entries with different labels name it: the last one is scraped")
        self._doubled = doubled
        return unique

    async def _ask(self, item: StaticTarget) -> None:
        """Ask for the addresses of a name; if that fails, the last ones stay."""
        host = urlsplit(item.url).hostname
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            self._addresses[item.url] = [str(address[0]) for *_, address in addresses]
            self._discovered(f"the name {host}", "")
        except (OSError, TimeoutError, UnicodeError) as error:  # the last for `a..b`, which can be no name
            self._discovered(f"the name {host}", f"not found: {error}")

    async def _keep_scraping(self, client: httpx.AsyncClient, target: Target) -> None:
        interval_s = self._limits.interval_s
        offset_s = target.offset_s(interval_s)
        while True:
            wait_s = (offset_s - self._clock()) % interval_s
            await asyncio.sleep(wait_s if wait_s > interval_s / 100 else wait_s + interval_s)
            await self.scrape(client, target)

    async def scrape(self, client: httpx.AsyncClient, target: Target) -> None:
        """Scrape a target once and hand on its metrics, or why there are none."""
        began_s, began = self._clock(), time.monotonic()
        page, result = Exposition([], "", 0, 0), str(ScrapeResult.OK)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                page = await self._page(client, target, round(began_s * 1e9))
            if page.metrics:
                self._engines[target] = page.engine
            else:
                result = ScrapeResult.NO_METRICS
        except (TimeoutError, httpx.TimeoutException):
            result = ScrapeResult.TIMEOUT
        except _ScrapeError as error:
            result = str(error.args[0])
        except httpx.HTTPError as error:
            result = ScrapeResult.CONNECT if isinstance(error, httpx.ConnectError) else ScrapeResult.BROKEN
        except (httpx.InvalidURL, UnicodeError):  # a host that can have no address
            result = ScrapeResult.CONNECT
        except Exception:
            logger.exception("a scrape of %s failed", target.safe_url)
            result = ScrapeResult.INTERNAL
        self._note(f"the scrape of {target.safe_url}", "" if result == ScrapeResult.OK else result)
        metrics = [*page.metrics, *_own_metrics(round(began_s * 1e9), time.monotonic() - began, result)]
        await self._hand_on(target, metrics, result, page.dropped)

    async def _page(self, client: httpx.AsyncClient, target: Target, time_ns: int) -> Exposition:
        headers = {"accept": _ACCEPT, "accept-encoding": "gzip"}
        if self._bearer_file:
            headers["authorization"] = f"Bearer {await asyncio.to_thread(self._token)}"
        async with client.stream("GET", target.url, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise _ScrapeError(f"http_{response.status_code}")
            body = bytearray()
            try:
                async for chunk in response.aiter_raw():
                    body += chunk
                    self._under_way += len(chunk)
                    if len(body) > self._limits.max_bytes:
                        raise _ScrapeError(ScrapeResult.TOO_LARGE)
                    if self._under_way > self._limits.under_way_bytes:
                        raise _ScrapeError(ScrapeResult.BUSY)
                encoding = response.headers.get("content-encoding", "identity")
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(
                    self._readers, self._read, bytes(body), encoding, time_ns, target.engine
                )
            finally:
                self._under_way -= len(body)

    def _token(self) -> str:
        assert self._bearer_file
        try:
            return regular_files.read(self._bearer_file).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            self._note(str(self._bearer_file), str(error))
            raise _ScrapeError(ScrapeResult.BEARER_FILE) from error

    def _read(self, body: bytes, encoding: str, time_ns: int, engine: str) -> Exposition:
        try:
            text = decompress(body, encoding, self._limits.max_bytes).decode()
        except TooLargeError as error:
            raise _ScrapeError(ScrapeResult.TOO_LARGE) from error
        except (BrokenEncodingError, UnsupportedEncodingError, UnicodeDecodeError) as error:
            raise _ScrapeError(ScrapeResult.ENCODING) from error
        try:
            return read_exposition(
                text,
                time_ns=time_ns,
                all_names=self._limits.all_names,
                most_series=self._limits.max_series,
                engine=engine,
            )
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise _ScrapeError(ScrapeResult.PARSE) from error

    async def _hand_on(self, target: Target, metrics: Sequence[Metric], result: str, series_dropped: int) -> None:
        request = ExportMetricsServiceRequest()
        made = request.resource_metrics.add()
        engine = target.engine or self._engines.get(target, "")
        resource = {
            SERVICE_NAME: target.service,
            SERVICE_INSTANCE_ID: target.instance,
            ENGINE: engine,
            SCRAPER: self._scraper_id,
        }
        set_labels(made.resource, resource.items())
        made.scope_metrics.add(metrics=metrics)
        for metric in made.scope_metrics[0].metrics:
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                known = {attribute.key for attribute in point.attributes}
                set_labels(point, (label for label in target.labels if label[0] not in known))
        try:
            durable = self._ingest.accept(request.SerializeToString())
            async with asyncio.timeout(self._limits.interval_s):
                await asyncio.shield(asyncio.wrap_future(durable))
        except (LogUnavailableError, LimitedError, TimeoutError) as error:
            result = ScrapeResult.LOG
            self._note("the log of metrics", f"samples are lost: {error}")
        self._status.scraped(result, series_dropped=series_dropped)

    def _discovered(self, source: str, problem: str) -> None:
        self._note(source, problem)
        self._status.discovered(source, problem)

    def _note(self, subject: str, reason: str) -> None:
        """Log a change: something fails, fails for another reason, or works again (`reason` is empty)."""
        before = self._failed.get(subject, "")
        if reason:
            self._failed[subject] = reason
        else:
            self._failed.pop(subject, None)
        if reason != before:
            logger.log(logging.WARNING if reason else logging.INFO, "%s: %s", subject, reason or "works again")


def _own_metrics(time_ns: int, took_s: float, result: str) -> list[Metric]:
    """Return `up` and the duration of a scrape. `up` of one that told nothing has the reason as label.

    A target that answers with no metric that is kept is up: a wrong address is no dead engine.
    """
    up, duration = Metric(name=UP), Metric(name="scrape_duration_seconds")
    answered = result in (ScrapeResult.OK, ScrapeResult.NO_METRICS)
    point = up.gauge.data_points.add(time_unix_nano=time_ns, as_double=float(answered))
    if result != ScrapeResult.OK:
        set_labels(point, [("reason", result)])
    duration.gauge.data_points.add(time_unix_nano=time_ns, as_double=took_s)
    return [up, duration]
