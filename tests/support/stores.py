"""Stores that an older version wrote, kept under tests/data."""

import gzip
from pathlib import Path

from collector.store.definitions import statements

VERSION_2 = Path(__file__).resolve().parents[1] / "data" / "store-2"


def write_version_2(store):
    """Fill an empty store with tables, views and rows as version 2 wrote them."""
    for statement in statements((VERSION_2 / "schema.sql").read_text()):
        store.client().command(statement)
    for file in sorted(VERSION_2.glob("*.native.gz")):
        table = file.name.removesuffix(".native.gz")
        block = gzip.decompress(file.read_bytes())
        store.client().raw_insert(table, insert_block=block, fmt="Native", settings={"optimize_on_insert": 0})


def drop_everything(store):
    """Drop all tables and views, so that the store is as a new one."""
    sql = "SELECT name FROM system.tables WHERE database = currentDatabase() ORDER BY engine != 'MaterializedView'"
    for (name,) in store.query(sql).result_rows:
        store.client().command(f"DROP TABLE IF EXISTS `{name}` SYNC")
