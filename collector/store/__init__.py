"""The store: ClickHouse, embedded (chDB) or a server, behind one client."""

from collector.store.errors import StoreError
from collector.store.store import Store

__all__ = ["Store", "StoreError"]
