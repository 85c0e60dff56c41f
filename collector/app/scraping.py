"""Makes the scraper of a collector from its settings."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collector.base.status import IngestStatus
from collector.pipeline.settings import Settings, listed
from collector.receive.ingest import Ingest
from collector.scrape.targets import parse_static
from tokentrail.shared.folders import words_of

if TYPE_CHECKING:
    from collector.scrape.scraper import Scraper


def open_scraper(settings: Settings, ingests: Sequence[Ingest], status: IngestStatus) -> list[Scraper]:
    """Return the scraper, or nothing when there is nothing to scrape. Raises OSError for a CA file that is none."""
    files = listed(settings.scrape_files)
    if not settings.scrape.strip() and not files:
        return []
    from collector.scrape.scraper import ScrapeLimits, Scraper  # httpx takes 0.2 s of CPU; few collectors scrape

    tls = _tls(settings.scrape_tls_ca)
    ingest = next(ingest for ingest in ingests if ingest.signal.name == "metrics")
    limits = ScrapeLimits(
        settings.scrape_interval_s,
        settings.scrape_timeout_s,
        settings.scrape_max_bytes,
        settings.scrape_max_series,
        all_names=settings.sample_all_names,
    )
    return [
        Scraper(
            parse_static(settings.scrape),
            files,
            ingest,
            limits,
            scraper_id=scraper_id(settings),
            status=status,
            bearer_file=settings.scrape_bearer_file,
            tls=tls,
        )
    ]


def _tls(ca: Path | None) -> ssl.SSLContext:
    """Make the context that trusts this CA, or those of the system."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        msg = f"--scrape-tls-ca {ca} is no CA in PEM: {words_of(error)}"
        raise OSError(msg) from error


def scraper_id(settings: Settings) -> str:
    """Name this collector: the same after a restart, another for each data folder."""
    folder = hashlib.sha256(str(settings.data_dir.resolve()).encode()).hexdigest()[:8]
    return f"{socket.gethostname()}-{folder}"
