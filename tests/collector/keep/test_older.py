"""A backup of an older version is restored, and migrated as its store would have been."""

from collector.keep.cut import Backups
from collector.store.schema import apply_schema
from collector.store.store import Store
from tests.collector.keep.archives import run_restore
from tests.collector.store.migrating import current, definitions
from tests.support.stores import write_version_2

__all__ = ["current"]


def rows_of(store):
    """All rows of all tables, each column by its name."""
    names = (
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree' ORDER BY name"
    )
    found = {}
    for (table,) in store.query(names).result_rows:
        sql = (
            "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = {table:String}"
            " AND name != 'applied_at' ORDER BY name"
        )
        columns = ", ".join(f"`{name}`" for (name,) in store.query(sql, {"table": table}).result_rows)
        found[table] = columns, store.query(f"SELECT {columns} FROM {table} ORDER BY ALL").result_rows
    return found


def test_a_backup_of_version_2_has_the_rows_of_its_store_also_when_both_are_migrated(current, tmp_path):
    store = Store.open(f"chdb://{tmp_path}/store")
    write_version_2(store)
    (tmp_path / "b.tar").write_bytes(b"".join(Backups(store, [], []).make()))
    apply_schema(store, sql_dir=current)
    migrated = rows_of(store)
    store.close()
    restored = run_restore(tmp_path / "b.tar", tmp_path / "new")
    assert "requests: 71 rows\n" in restored.stdout, restored.stderr
    store = Store.open(f"chdb://{tmp_path}/new/store")
    try:
        apply_schema(store, sql_dir=current)
        assert rows_of(store) == migrated
    finally:
        store.close()
    assert len(migrated["requests"][1]) == 71


def test_a_backup_from_before_a_column_was_dropped_is_migrated_as_its_store(current, tmp_path):
    """Migration 20 changes the column that migration 24 drops."""
    store = Store.open(f"chdb://{tmp_path}/store")
    apply_schema(store, sql_dir=current)
    for statement in (
        "ALTER TABLE requests ADD COLUMN surface_cell UInt16 MATERIALIZED 1024 * (tpot_at_most_ns IS NOT NULL)",
        "DELETE FROM schema_version WHERE version > 19",
        "INSERT INTO requests (end, output_tokens, tpot_at_most_ns) VALUES (now(), 9, 5)",
    ):
        store.client().command(statement)
    (tmp_path / "b.tar").write_bytes(b"".join(Backups(store, [], []).make()))
    apply_schema(store, sql_dir=current)
    migrated = rows_of(store), definitions(store)
    store.close()
    restored = run_restore(tmp_path / "b.tar", tmp_path / "new")
    assert "requests: 1 rows\n" in restored.stdout, restored.stderr
    store = Store.open(f"chdb://{tmp_path}/new/store")
    try:
        apply_schema(store, sql_dir=current)
        assert (rows_of(store), definitions(store)) == migrated
    finally:
        store.close()
    assert "surface_cell" not in migrated[0]["requests"][0]
