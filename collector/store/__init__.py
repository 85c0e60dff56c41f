"""The store: ClickHouse, embedded (chDB) or a server, behind one client."""

from collector.base.store_errors import StoreError
from collector.store.store import Store

__all__ = ["Store", "StoreError"]
