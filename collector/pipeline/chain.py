"""One signal's chain of log, commit and writer."""

from __future__ import annotations

from collector.access.limits import Limiter
from collector.base.status import IngestStatus
from collector.otlp.checked import ItemLimits
from collector.otlp.signals import Signal
from collector.pipeline.settings import Settings
from collector.receive.ingest import Ingest
from collector.store.claims import Claims
from collector.store.store import Store
from collector.store.writer import Writer
from collector.wal.commit import GroupCommit
from collector.wal.dead_letters import DeadLetters
from collector.wal.log import LogLimits, SegmentLog


class Chain:
    """The way of one signal from the receivers to the store: `ingest` → `commit` → log → `writer`."""

    def __init__(
        self, signal: Signal, settings: Settings, store: Store, status: IngestStatus, limiter: Limiter
    ) -> None:
        """Open the signal's log, which recovers the payloads that an earlier process left."""
        dead_letters = DeadLetters(settings.data_dir / "dead_letters", signal.name, status.dead_lettered)
        log = SegmentLog(
            settings.data_dir / signal.wal_folder,
            dead_letters,
            fsync=settings.fsync,
            limits=LogLimits(
                settings.segment_bytes, settings.segment_age_s, settings.wal_max_bytes, settings.dedup_retention_s
            ),
        )
        self.signal = signal
        self.log = log
        self.commit = GroupCommit(signal.name, log, status)
        # One process has an embedded store, and its log knows what it has received.
        claims = None if store.embedded else Claims(store, signal.name, retention_s=settings.claim_retention_s)
        self.writer = Writer(signal, log, store, status, dead_letters, claims=claims)
        limits = ItemLimits(
            settings.max_span_bytes,
            settings.max_span_attributes,
            settings.max_payload_days,
            settings.max_future_s,
            all_names=settings.sample_all_names,
            names=settings.names,
        )
        self.ingest = Ingest(signal, self.commit, status, limits, limiter)
