"""`/metrics`: counters of the rows that each stored segment brought, and the present state of engines and collector."""

from collector.metrics.live import Live
from collector.metrics.page import MetricsPage, router
from collector.metrics.store_counters import StoreCounters

__all__ = ["Live", "MetricsPage", "StoreCounters", "router"]
