"""The store: ClickHouse, embedded (chDB) or a server, behind one client."""

from collector.store.store import Store, StoreError

__all__ = ["Store", "StoreError"]
