"""The collector, wired: receivers → logs → store, and the API that reads the store."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from collector.access.access import OPEN, Access, check_exposure
from collector.access.audit import AuditLog
from collector.access.keyring import Keyring
from collector.access.limits import Limiter, TenantLimits
from collector.access.tls import Tls, TlsFiles
from collector.api import create_app
from collector.api.context import Context
from collector.api.session import QueryLimits, query_settings
from collector.backup.cut import Backups
from collector.chain import Chain
from collector.data_dir import lock_folder
from collector.explainer.stage import Explainer
from collector.exposition import Live, MetricsPage, StoreCounters
from collector.exposition.filled import FilledTables
from collector.exposition.present import Processes
from collector.http_server import HttpServer
from collector.measure.reader import Reader, Source
from collector.measure.slos import SloOut, evaluate
from collector.measure.top_cause import reasons
from collector.measure.window import Window
from collector.query.queries import Queries
from collector.receive.buffer import Buffer
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits, create_otlp_app
from collector.samples.setup import open_scraper
from collector.settings import Settings, split_address
from collector.signals import SIGNALS, Signal
from collector.slo.burn import burn_rules, load_windows
from collector.slo.cells import Cells
from collector.slo.model import Slo
from collector.slo_file import SloFile
from collector.sql.fragment import TRUE
from collector.stage import Stage
from collector.status import IngestStatus
from collector.store.early_claims import EarlyClaims
from collector.store.expiry import Expiry
from collector.store.insert import behind_inserts
from collector.store.joiner import Joiner
from collector.store.opener import StoreOpener
from collector.store.retention import FOR_EVER, Retention, check_windows, parse_retention
from collector.store.steady_clock import SteadyClock
from collector.store.store import Store
from collector.store.usage import Usage
from collector.wal.log import PAUSE, SegmentLog
from collector.watermark import OldestWaiting, Watermark
from tokentrail.shared.hosts import names_in

_LEAST_STOP_S: Final = 1.0
"""Every stage has this long to stop, also when those before it have used up the time."""

logger = logging.getLogger(__name__)


class Service:
    """One collector process.

    Constructing it opens the store and the logs and binds the sockets; it raises `StoreError` or OSError with the
    remedy. A ClickHouse server that is away is opened when it answers. `start` begins, `stop` drains in the order in
    which data flows.
    """

    def __init__(self, settings: Settings, signals: Sequence[Signal] = SIGNALS) -> None:
        self._settings = settings
        hosts = [split_address(address)[0] for address in (settings.otlp_http, settings.otlp_grpc, settings.api)]
        access = open_access(settings, hosts)
        tls = None
        if settings.tls_cert and settings.tls_key:
            tls = Tls(TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca))
        self.status = IngestStatus(behind_after_s=settings.lost_after_s + PAUSE * settings.segment_age_s)
        self._lock_file = lock_folder(settings.data_dir)
        retention = parse_retention(settings.retention)
        slos = SloFile(settings.slos, partial(check_slos, retention=retention), folder=settings.data_dir)
        opener = StoreOpener(settings.store_dsn, self.status, settings.decoding)
        self.store = opener.store
        expiry = Expiry(
            self.store, retention, self.status, clock=SteadyClock(settings.data_dir / "retention_clock.json")
        )
        joiner = Joiner(self.store, self.status, after_s=settings.join_after_s)
        explainer = Explainer(self.store, self.status) if settings.explain else None
        limiter = Limiter(
            TenantLimits(settings.tenant_spans_per_s, settings.tenant_bytes_per_s, settings.tenant_names),
            self.status.limited,
        )
        chains = [Chain(signal, settings, self.store, self.status, limiter) for signal in signals]
        api, live = build_api(
            self.store,
            slos,
            self.status,
            lost_after_s=settings.lost_after_s,
            retention=retention,
            data_dir=settings.data_dir,
            backups=Backups(
                self.store,
                chains,
                [settings.slos] if settings.slos else [],
                [stage for stage in (joiner, explainer) if stage],
            ),
            logs=[partial(_oldest_waiting, chain.log) for chain in chains],
            access=access,
            limits=QueryLimits(
                settings.query_concurrency,
                settings.query_waiting,
                settings.query_timeout_s,
                settings.query_memory_bytes,
            ),
            metrics_without_key=settings.metrics_without_key,
            tenant_histograms=settings.metrics_tenant_histograms,
            tls=tls,
        )
        explained = [explainer.on_segment] if explainer else []
        of_requests = [live.counters.on_segment, joiner.on_segment, *explained]
        for chain in chains:
            for told in [live.on_samples] if chain.signal.brings_samples else of_requests:
                chain.writer.on_segment(told)
        for told in [live.counters.on_segment, *explained]:
            joiner.on_joined(told)
        if explainer:
            explainer.on_explained(live.counters.on_explained)

        ingests = [chain.ingest for chain in chains]
        limits = BodyLimits(settings.max_body_bytes, settings.max_decompressed_bytes, settings.receive_buffer_bytes)
        http_server = partial(HttpServer, body_timeout_s=settings.body_timeout_s, tls=tls.context() if tls else None)
        buffer = Buffer(limits.under_way)
        otlp_app = create_otlp_app(ingests, limits, access, buffer)
        otlp_http = http_server(otlp_app, "otlp-http", *split_address(settings.otlp_http))
        otlp_grpc = GrpcReceiver(
            ingests,
            limits,
            *split_address(settings.otlp_grpc),
            message_timeout_s=settings.body_timeout_s,
            access=access,
            tls=tls,
            buffer=buffer,
        )
        api_server = http_server(api, "api", *split_address(settings.api))
        self.listeners = {server.name: server.url for server in (otlp_http, otlp_grpc, api_server)}
        """Name and address of everything that listens, with the real ports."""
        self.status.listeners = self.listeners
        commits = [chain.commit for chain in chains]
        writers = [chain.writer for chain in chains]
        scrapers = open_scraper(settings, ingests, self.status)
        self._stages: list[Stage] = [*scrapers, otlp_http, otlp_grpc, *commits, *writers, joiner]
        self._stages += [*([explainer] if explainer else []), live, expiry, opener, api_server]
        """In the order in which data flows."""

    def start(self) -> None:
        """Start against the flow, so that nothing arrives before there is a place for it."""
        for stage in reversed(self._stages):
            stage.start()
        self.status.set_ready("start")

    def stop(self) -> bool:
        """Stop with the flow, so that each stage gets the rest of the one before it.

        True when every stage has handed on everything: then all that was acknowledged is in the store.
        """
        deadline = time.monotonic() + self._settings.drain_timeout_s
        self.status.set_not_ready("start", "the collector is stopping")
        unfinished = [
            stage.name for stage in self._stages if not stage.stop(max(_LEAST_STOP_S, deadline - time.monotonic()))
        ]
        if unfinished:
            # Their threads may still use the store, so it is left to the end of the process.
            names = ", ".join(unfinished)
            logger.warning("stopped with work left in %s; the logs keep their payloads for the next start", names)
            return False
        self.store.close()
        self._lock_file.close()
        return True


def build_api(
    store: Store,
    slos: Sequence[Slo] | SloFile,
    status: IngestStatus,
    *,
    lost_after_s: float,
    retention: Retention = FOR_EVER,
    data_dir: Path | None = None,
    backups: Backups | None = None,
    clock: Callable[[], int] = time.time_ns,
    logs: Sequence[OldestWaiting] | None = None,
    access: Access = OPEN,
    limits: QueryLimits | None = None,
    metrics_without_key: bool = False,
    tenant_histograms: bool = False,
    tls: Tls | None = None,
) -> tuple[FastAPI, Live]:
    """Build the HTTP API of a store, and the state behind its `/metrics`.

    The `on_segment` of the state's counters must be called after each inserted segment, or `on_samples` of the state
    after one that brings samples. `logs` hold the payloads that are not in the store yet; without logs, the store has
    all. Raises `InfeasibleSlo` when no burn-rate rule can watch one of the SLOs. `clock` gives unix nanoseconds.
    """
    slo_file = slos if isinstance(slos, SloFile) else SloFile(slos=slos, check=check_slos, clock=clock)
    limits = limits or QueryLimits()
    of_scrapes = {
        "max_execution_time": limits.timeout_s,
        "max_memory_usage": limits.memory_bytes,
        **behind_inserts(5),  # and before the API's queries
    }
    own_queries = Queries(store, lambda: of_scrapes)
    filled = FilledTables(own_queries)
    claims = None if store.embedded else EarlyClaims(store)
    counters = StoreCounters(
        own_queries,
        filled,
        slo_file.slos(),
        clock=clock,
        folder=data_dir,
        claims=claims,
        tenant_histograms=tenant_histograms,
    )
    lost_after_ns = round(lost_after_s * 1e9)
    heard_until: Callable[[], int] = clock
    complete_until: Callable[[], int] = clock
    if logs is not None:
        heard_until = Watermark(logs, clock, lost_after_ns=lost_after_ns, heard_until_ns=counters.heard_until_ns)
        complete_until = heard_until.complete_until
    queries = Queries(store, query_settings)
    times = clock, heard_until, complete_until
    source = Source(queries, slo_file, load_windows(), lost_after_ns, *times, counters.given_up_ns)
    of_own = replace(source, queries=own_queries)
    usage = Usage(store, data_dir, lambda: of_scrapes)
    live = Live(
        counters,
        Processes(own_queries, filled, lost_after_ns=lost_after_ns),
        own_queries,
        usage,
        slo_file.slos,
        _evaluation(source, store, of_scrapes),
        lambda evaluated: reasons(Reader(of_own, ""), _until_now(of_own), evaluated),
        clock=clock,
        heard_until=heard_until,
        shared_store=not store.embedded,
    )
    app = create_app(
        Context(source, counters.clocks),
        MetricsPage(live, status, usage, heard_until=heard_until, slo_file=slo_file, tls=tls),
        status,
        usage,
        retention,
        backups or Backups(store, [], []),
        cancel=store.cancel,
        access=access,
        limits=limits,
        metrics_without_key=metrics_without_key,
    )
    return app, live


def _evaluation(source: Source, store: Store, settings: Mapping[str, Any]) -> Callable[[], list[SloOut]]:
    """A function that evaluates all SLOs at the moment of the call.

    The queries of a call share a comment, by which they read the versions of all days once (`Queries.versions`).
    """
    calls, comment = count(1), {"log_comment": ""}
    one_call = replace(source, queries=Queries(store, lambda: {**settings, **comment}))

    def evaluated() -> list[SloOut]:
        comment["log_comment"] = f"tokentrail evaluation {next(calls)}"
        reader = Reader(one_call, "")
        return evaluate(reader, reader.slos, _until_now(one_call))

    return evaluated


def check_slos(slos: Sequence[Slo], retention: Retention = FOR_EVER) -> None:
    """Raise ValueError for SLOs that cannot be watched, or judged together, or whose requests are not kept."""
    check_windows(slos, retention)
    for slo in slos:
        burn_rules(slo, load_windows())
    Cells(slos)


def _until_now(source: Source) -> Window:
    return Window(0, source.clock(), TRUE)


def open_access(settings: Settings, hosts: Sequence[str]) -> Access:
    """Read the keys; raises ValueError when other machines could call without one and nobody has said that they may."""
    keyring = Keyring(settings.keys_file)
    logger.info(
        "keys are those of %s%s", settings.keys_file, "" if settings.keys_file.exists() else ", which is not there"
    )
    check_exposure(
        hosts,
        keyring,
        allow_anonymous=settings.allow_anonymous,
        keys_file=str(settings.keys_file),
        make_key=_command_of_a_key(settings),
    )
    if settings.allow_anonymous and keyring.in_use:
        logger.warning("callers without a key may do everything, although there are keys: --allow-anonymous is true")
    if settings.keys and not keyring.in_use and not settings.allow_anonymous:
        logger.warning("%s has no keys: callers without one may do everything until it has", settings.keys)
    allowed = names_in(settings.allowed_hosts, *hosts)
    return Access(keyring, AuditLog(settings.audit_file), settings.allow_anonymous, allowed)


def _command_of_a_key(settings: Settings) -> str:
    """The command that makes the first key where this collector looks for it."""
    if settings.keys:
        return f"TOKENTRAIL_KEYS={shlex.quote(str(settings.keys))} tokentrail keys create --role admin"
    return f"tokentrail keys create --role admin --data-dir {shlex.quote(str(settings.data_dir))}"


def _oldest_waiting(log: SegmentLog) -> int | None:
    return log.waiting_since_ns
