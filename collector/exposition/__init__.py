"""`/metrics`: counters that follow the store segment by segment, and what is true right now."""

from collector.exposition.ledger import Ledger
from collector.exposition.scrape import Scrape, router

__all__ = ["Ledger", "Scrape", "router"]
