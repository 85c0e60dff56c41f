"""`/metrics`: counters of the rows that each stored segment brought, and the present state of engines and collector."""

from collector.exposition.live import Live
from collector.exposition.page import MetricsPage, router
from collector.exposition.store_counters import StoreCounters

__all__ = ["Live", "MetricsPage", "StoreCounters", "router"]
