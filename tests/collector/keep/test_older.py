"""A backup of an older version is restored into the tables of this one; one that was never released is refused."""

from collector.store.definitions import read_migrations
from tests.collector.keep.archives import run_restore
from tests.support import forked


def test_a_backup_from_before_a_column_came_is_restored_with_its_default(store, backups, tmp_path):
    store.client().command("ALTER TABLE tokens DROP COLUMN step")
    (tmp_path / "b.tar").write_bytes(b"".join(backups.make()))
    store.client().command("ALTER TABLE tokens ADD COLUMN step Nullable(UInt64)")
    restored = run_restore(tmp_path / "b.tar", tmp_path / "new")
    assert "tokens: 3 rows\n" in restored.stdout, restored.stderr
    asked = forked.run(
        "tests.support.ask", tmp_path / "new" / "store", "SELECT token_index, step FROM tokens ORDER BY 1"
    )
    assert asked.stdout.splitlines() == ["[(0, None), (1, None), (2, None)]"], asked.stderr


def test_a_backup_of_a_version_that_was_never_released_is_refused(store, backups, tmp_path):
    (baseline,) = read_migrations()
    for digest in ("of other tables", baseline.digest):
        sql = f"ALTER TABLE schema_version UPDATE digest = '{digest}' WHERE 1 SETTINGS mutations_sync = 2"
        store.client().command(sql)
        if digest != baseline.digest:
            (tmp_path / "b.tar").write_bytes(b"".join(backups.make()))
    restored = run_restore(tmp_path / "b.tar", tmp_path / "new")
    assert restored.returncode == 1
    assert "in the backup has the tables of a version of tokentrail that was never released" in restored.stderr
    assert not (tmp_path / "new").exists()
