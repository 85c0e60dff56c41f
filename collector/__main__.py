"""`python -m collector`: settings, the service, and signals."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from collector.service import Service
from collector.settings import load_settings
from collector.store.store import StoreError

logger = logging.getLogger("collector")


def main(arguments: list[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit status is 1 when it cannot start."""
    settings = load_settings(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        service = Service(settings)
    except (StoreError, OSError, ValueError) as error:
        logger.error("cannot start: %s", error)
        return 1
    service.start()
    for name, url in service.listeners.items():
        sys.stdout.write(f"{name} listening on {url}\n")
    sys.stdout.flush()
    stop.wait()
    logger.info("stopping: receivers, log, store, API")
    if not service.stop():
        logger.warning("not everything is in the store yet; the log keeps it for the next start")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
