"""`python -m collector`: read the settings, run the service, stop at SIGTERM or SIGINT."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys

from collector.app.service import Service
from collector.base.store_errors import StoreError
from collector.pipeline.settings import load_settings
from tokentrail.shared import log_lines, open_files, private_files
from tokentrail.shared.folders import of_a_collector

logger = logging.getLogger("collector")

_FILES = 2048
"""512 connections to each of three ports, and the files of an embedded store."""
_LEAST_FILES = 256
"""An idle collector has up to 130 open. With fewer, a part of it dies at the start and the rest lives on."""


def main(arguments: list[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit status is 1 when it cannot start."""
    settings = load_settings(arguments)
    log_lines.begin()
    # They warn of each call that fails, some with a traceback. The caller logs the failure, or answers with it.
    for library in ("clickhouse_connect", "urllib3"):
        logging.getLogger(library).setLevel(logging.ERROR)
    # It tells of each scrape, with the whole address.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = of_a_collector(settings.data_dir)
    if folder != settings.data_dir:
        logger.info("the data folder is %s, that of `tokentrail up`", folder)
        settings = settings.model_copy(update={"data_dir": folder})
    os.umask(private_files.UMASK)
    if open_files.allow(_FILES) < _LEAST_FILES:
        logger.error("cannot start: it needs %d open files (ulimit -Hn, LimitNOFILE)", _LEAST_FILES)
        return 1
    stop_signal = _listen_for_stop()
    try:
        service = Service(settings)
    except (StoreError, OSError, ValueError) as error:
        logger.error("cannot start: %s", error)
        return 1
    _die_of_crashes()
    service.start()
    for name, url in service.listeners.items():
        sys.stdout.write(f"{name} listening on {url}\n")
    sys.stdout.flush()
    os.read(stop_signal, 1)
    logger.info("stopping: receivers, logs, store, API")
    service.stop()
    return 0


def _listen_for_stop() -> int:
    """Open a file to read until SIGTERM or SIGINT. (A handler that sets an Event may deadlock at a second signal.)"""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return readable


def _die_of_crashes() -> None:
    """Undo ClickHouse's handlers, and have Python's stack printed.

    ClickHouse in this process catches a crash, also of another library, and refuses all statements from then on. The
    process would live and store nothing until somebody restarts it.
    """
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
