"""What a backup has, what pauses for it, and what a failed one leaves."""

import hashlib
import tarfile

import pytest

from collector.keep import cut
from collector.keep.archive import BackupError, File, Manifest, Table, pack
from collector.keep.cut import Backups
from collector.store.store import Store
from tests.collector.rows import NOW
from tokentrail.cli.backup import verify


def test_what_waited_in_a_log_is_said_not_to_be_in_the_backup(archive):
    manifest = verify(archive)
    assert (manifest["made"], manifest["until"]) == ("2026-11-21T10:00:00Z", "2026-11-21T09:59:55Z")


def test_every_chain_and_all_that_write_besides_pause_for_the_cut(backups):
    backups.make().close()
    assert [len(chain.pauses) for chain in (*backups._chains, *backups._others)] == [1, 1, 1]


def test_times_of_a_backup_are_rounded_down_to_a_microsecond():
    assert cut._rfc3339(NOW + 123_456_789) == "2026-11-21T10:00:00.123456Z"


def test_a_backup_is_a_tar_that_others_read(archive):
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert names[-1] == "manifest.json"
        assert tar.extractfile("settings/slos.yaml").read() == b"slos: []"
    assert archive.read_bytes()[-2 * tarfile.BLOCKSIZE :] == bytes(2 * tarfile.BLOCKSIZE), "its end, by the standard"
    parts = {name.split("/")[2] for name in names if name.startswith("tables/tokens/")}
    manifest = verify(archive)
    assert manifest["tables"]["tokens"]["parts"] == dict.fromkeys(parts, 1)
    assert len(parts) == 3
    assert manifest["tables"]["requests"]["parts"] == {}
    assert "flat_spans" not in manifest["tables"]
    assert set(manifest["files"]) == set(names) - {"manifest.json"}


def test_one_backup_at_a_time_and_an_end_makes_room(backups, store):
    first = backups.make()
    with pytest.raises(BackupError, match="another backup is under way"):
        backups.make()
    next(first)
    first.close()
    first.close()
    assert not (store.folder / "shadow" / "tokentrail").exists()
    assert b"".join(backups.make())
    backups.make().close()


def test_links_of_a_process_that_died_are_removed(backups, store):
    left = store.folder / "shadow" / "tokentrail" / "left"
    left.mkdir(parents=True)
    stream = backups.make()
    assert not left.exists()
    stream.close()
    left.mkdir(parents=True)
    Backups(store, [], [])  # at the next start, without another backup
    assert not left.exists()


def test_a_failed_cut_makes_room_too(backups, monkeypatch):
    def late(_):
        raise TimeoutError("the traces writer has been at one segment for 30 s")

    monkeypatch.setattr(backups._chains[1], "paused", late)
    with pytest.raises(BackupError, match="could not be made: the traces writer"):
        backups.make()
    monkeypatch.undo()
    backups.make().close()


def test_a_cut_that_fails_behind_its_links_leaves_none(backups, store, monkeypatch):
    links = store.folder / "shadow" / "tokentrail"

    def full(_):
        assert links.exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cut, "_rfc3339", full)
    with pytest.raises(BackupError, match=r"could not be made: .*No space left"):
        backups.make()
    assert not links.exists()


def test_a_server_is_backed_up_by_its_own_statement():
    with pytest.raises(BackupError, match="use its BACKUP statement"):
        Backups(Store("http://127.0.0.1:1/default"), [], []).make()


def test_an_slo_file_that_has_gone_is_named_and_nothing_is_cut(store, tmp_path):
    gone = Backups(store, [], [tmp_path / "slos.yaml"])
    for _ in range(2):
        with pytest.raises(
            BackupError, match=r"slos\.yaml, with which the collector started, and it is not there any more"
        ):
            gone.make()


@pytest.mark.parametrize("name", ["slos\n.yaml", "\x1b[2J.yaml", "\udcff.yaml"])
def test_an_slo_file_that_no_restore_would_take_is_named_before_anything_is_cut(store, tmp_path, name):
    slos = tmp_path / name
    slos.touch()
    with pytest.raises(BackupError, match=r"a backup cannot have the name .*rename the SLO file"):
        Backups(store, [], [slos]).make()


def test_a_table_that_is_not_ours_is_not_in_the_backup(backups, store):
    store.client().command("CREATE TABLE mine (a Int32) ENGINE = MergeTree ORDER BY a")
    store.client().command("INSERT INTO mine VALUES (1)")
    try:
        assert b"tables/mine/" not in b"".join(backups.make())
    finally:
        store.client().command("DROP TABLE mine SYNC")


@pytest.mark.parametrize("later", [b"123", b"12345"])
def test_a_file_that_changes_its_size_while_it_is_read_is_an_error(tmp_path, later):
    source = tmp_path / "x"
    source.write_bytes(b"1234")
    chunks = pack([("settings/x", source)], Manifest(format=1, made="", until="", clickhouse="", tables={}, files={}))
    next(chunks)
    source.write_bytes(later)
    with pytest.raises(BackupError, match="changed while it was read"):
        list(chunks)


def test_large_files_are_read_in_chunks(tmp_path):
    source = tmp_path / "x"
    source.write_bytes(b"a" * (3 * 1024 * 1024 + 1))
    tables = {"t": Table(create="CREATE TABLE default.t (`a` String) ENGINE = MergeTree ORDER BY a", parts={})}
    manifest = Manifest(format=1, made="", until="", clickhouse="", tables=tables, files={})
    sizes = [len(chunk) for chunk in pack([("settings/x", source)], manifest)]
    assert max(sizes) == 1024 * 1024
    assert manifest.files["settings/x"] == File(size=3145729, sha256=hashlib.sha256(source.read_bytes()).hexdigest())
