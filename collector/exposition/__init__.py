"""`/metrics`: counters of the rows that each stored segment brought, and the present state of engines and collector."""

from collector.exposition.page import MetricsPage, router
from collector.exposition.store_counters import StoreCounters

__all__ = ["MetricsPage", "StoreCounters", "router"]
