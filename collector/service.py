"""The collector, wired: receivers → log → writer → store, and the API that reads the store."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import IO

from fastapi import FastAPI

from collector.api import create_app
from collector.api.questions import Context
from collector.exposition import Ledger, Scrape
from collector.http_server import HttpServer
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits, create_otlp_app
from collector.receive.ingest import Ingest
from collector.receive.validate import SpanLimits
from collector.settings import Settings, split_address
from collector.slo.burn import burn_rules, load_windows
from collector.slo.model import Slo, load_slos
from collector.sql.queries import Queries
from collector.status import IngestStatus
from collector.store.schema import apply_schema
from collector.store.store import Store, StoreError
from collector.store.writer import Writer
from collector.wal.commit import GroupCommit
from collector.wal.log import LogLimits, SegmentLog


def build_api(
    store: Store,
    slos: Sequence[Slo],
    status: IngestStatus,
    *,
    lost_after_s: float,
    clock: Callable[[], int] = time.time_ns,
) -> tuple[FastAPI, Ledger]:
    """Build the HTTP API of a store, and the ledger behind its `/metrics`.

    The ledger's `on_segment` must be called after each inserted segment. Raises `InfeasibleSlo` when no burn-rate rule
    can watch one of the SLOs. `clock` gives unix nanoseconds.
    """
    windows = load_windows()
    for slo in slos:
        burn_rules(slo, windows)
    context = Context(Queries(store), tuple(slos), windows, round(lost_after_s * 1e9), clock)
    ledger = Ledger(context.queries, slos, lost_after_ns=context.lost_after_ns, clock=clock)
    scrape = Scrape(ledger, context.queries, status, lost_after_ns=context.lost_after_ns, clock=clock)
    return create_app(context, scrape, status), ledger


class Service:
    """Everything that runs in one collector process.

    Constructing it opens the store and the log and binds the sockets; it raises `StoreError` or OSError that says what
    to do. `start` begins, `stop` drains in the order in which data flows.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.status = IngestStatus()
        self._lock_file = _own(settings.data_dir)
        self.store = Store.open(settings.store_dsn)
        apply_schema(self.store, retention_days=settings.retention_days)
        log = SegmentLog(
            settings.data_dir / "wal",
            quarantine=settings.data_dir / "dead_letters",
            fsync=settings.fsync,
            limits=LogLimits(
                settings.segment_bytes, settings.segment_age_s, settings.wal_max_bytes, settings.dedup_retention_s
            ),
        )
        self._commit = GroupCommit(log, self.status)
        self._writer = Writer(log, self.store, self.status, dead_letters=settings.data_dir / "dead_letters")
        slos = load_slos(settings.slos) if settings.slos else ()
        api, ledger = build_api(self.store, slos, self.status, lost_after_s=settings.lost_after_s)
        self._writer.on_segment(ledger.on_segment)

        ingest = Ingest(self._commit, self.status, SpanLimits(settings.max_span_bytes, settings.max_span_attributes))
        limits = BodyLimits(settings.max_body_bytes, settings.max_decompressed_bytes)
        self._api = HttpServer(api, "api", *split_address(settings.api))
        self._otlp_http = HttpServer(create_otlp_app(ingest, limits), "otlp-http", *split_address(settings.otlp_http))
        self._otlp_grpc = GrpcReceiver(ingest, limits, *split_address(settings.otlp_grpc))

    @property
    def listeners(self) -> dict[str, str]:
        """Name and address of everything that listens, with the real ports."""
        return {"otlp-http": self._otlp_http.url, "otlp-grpc": self._otlp_grpc.url, "api": self._api.url}

    def start(self) -> None:
        """Start against the flow, so that nothing arrives before there is a place for it."""
        self._writer.start()
        self._commit.start()
        self._api.start()
        self._otlp_grpc.start()
        self._otlp_http.start()
        self.status.set_ready("start")

    def stop(self) -> bool:
        """Drain with the flow: receivers, log, store, API. True when everything acknowledged is in the store."""
        deadline = monotonic() + self._settings.drain_timeout_s
        self.status.set_not_ready("start", "the collector is stopping")
        self._otlp_http.stop(_left(deadline))
        self._otlp_grpc.stop(_left(deadline))
        self._commit.stop()
        drained = self._writer.drain(_left(deadline))
        self._api.stop(1.0)
        self.store.close()
        self._lock_file.close()
        return drained


def _own(data_dir: Path) -> IO[str]:
    """Hold the data folder for this process: two writers of one log would lose data."""
    data_dir.mkdir(parents=True, exist_ok=True)
    lock = (data_dir / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        msg = f"data folder {data_dir} is used by another collector; stop it or set another --data-dir"
        raise StoreError(msg) from error
    return lock


def _left(deadline: float) -> float:
    return max(0.0, deadline - monotonic())
