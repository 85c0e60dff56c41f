"""A restored store has all rows, or there is none."""

import hashlib
import os
from pathlib import Path

import pytest

from collector.keep.__main__ import main as restore_command
from collector.keep.archive import BackupError, Manifest, pack, unpack
from collector.keep.restore import restore
from collector.store.store import Store
from tests.collector.keep.archives import rewrite, run_restore
from tests.support import forked
from tokentrail.cli.backup import verify


def test_a_restored_store_has_the_rows_and_is_one_that_a_collector_opens(archive, store, tmp_path):
    volume = tmp_path / "volume"  # which cannot be replaced by another folder
    (volume / "lost+found").mkdir(parents=True)
    (volume / ".restoring" / "store").mkdir(parents=True)  # of an attempt that was killed
    (tmp_path / "new").symlink_to(volume)
    restored = run_restore(archive, tmp_path / "new")
    assert (restored.returncode, restored.stderr) == (0, "")
    assert "tokens: 3 rows\n" in restored.stdout
    assert "before 2026-11-21T09:59:55Z is in" in restored.stdout
    assert sorted(path.name for path in volume.iterdir()) == ["lost+found", "settings", "store"]
    of_versions = "SELECT count() FROM schema_version"
    of_tokens = "SELECT sum(token_index), count(), toString(max(minute)) FROM tokens"
    asked = forked.run("tests.support.ask", tmp_path / "new" / "store", of_tokens, of_versions)
    versions = store.query(of_versions).result_rows
    assert asked.stdout.splitlines() == ["[(3, 3, '2026-11-22 10:00:00')]", str(versions)], asked.stderr


def test_rows_that_a_delete_has_masked_stay_masked(backups, store, tmp_path):
    store.client().command("DELETE FROM tokens WHERE token_index = 1 SETTINGS lightweight_deletes_sync = 2")
    (tmp_path / "b.tar").write_bytes(b"".join(backups.make()))
    restored = run_restore(tmp_path / "b.tar", tmp_path / "new")
    assert "tokens: 3 rows\n" in restored.stdout, restored.stderr
    asked = forked.run("tests.support.ask", tmp_path / "new" / "store", "SELECT token_index FROM tokens ORDER BY ALL")
    assert asked.stdout.splitlines() == ["[(0,), (2,)]"], asked.stderr


def test_a_folder_with_files_is_not_restored_over(archive, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("mine")
    with pytest.raises(BackupError, match="is not empty"):
        restore(archive, tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["x"]


def test_a_folder_that_was_there_stays_when_a_restore_fails(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "b.tar").write_bytes(b"no tar")
    for folder in ("data", "new"):
        with pytest.raises(BackupError, match="it is no tar"):
            restore(tmp_path / "b.tar", tmp_path / folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "data"]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_restored_store_is_on_the_disk_before_it_is_in_its_place_where_it_comes_last(tmp_path, monkeypatch):
    slos = tmp_path / "slos.yaml"
    slos.write_text("slos: []")
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    archive = tmp_path / "b.tar"
    archive.write_bytes(b"".join(pack([("settings/slos.yaml", slos)], empty)))
    done, replace = [], Path.replace

    def attach(_, work):
        (work / "store").mkdir()
        done.append("attached")
        return Store(f"chdb://{work / 'store'}")

    def moved(path, to):
        done.append(path.name)
        return replace(path, to)

    monkeypatch.setattr("collector.keep.restore.attach", attach)
    monkeypatch.setattr("collector.keep.restore.sync_folder", lambda folder: done.append(f"synced {folder.name}"))
    monkeypatch.setattr(os, "sync", lambda: done.append("synced"))
    monkeypatch.setattr(Path, "replace", moved)
    restore(archive, tmp_path / "new")
    assert done == ["attached", "synced", "settings", "store", "synced new"]


def test_a_row_too_few_is_noticed(archive, tmp_path):
    def more(manifest):
        part = next(iter(manifest["tables"]["tokens"]["parts"]))
        manifest["tables"]["tokens"]["parts"][part] += 1

    rewrite(archive, more)
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    assert "the table tokens had 4 rows and has 3" in restored.stderr
    assert not (tmp_path / "new").exists()


def test_a_part_that_was_damaged_before_the_backup_is_noticed(archive, tmp_path):
    name = next(name for name in verify(archive)["files"] if "tables/tokens/" in name and name.endswith("data.bin"))
    found = {}

    def flipped(data):
        found["data"] = data[:-1] + bytes([data[-1] ^ 1])
        return found["data"]

    rewrite(archive, flipped, member=name)
    digest = hashlib.sha256(found["data"]).hexdigest()
    rewrite(archive, lambda manifest: manifest["files"][name].update(sha256=digest))
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    assert "the table tokens had 3 rows and has 3, some of them damaged" in restored.stderr
    assert not (tmp_path / "new").exists()


def test_ctrl_c_in_a_restore_is_no_error_of_ours(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("collector.keep.__main__.restore", interrupted)
    assert restore_command([str(tmp_path / "b.tar"), str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err == ""


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "new"):
        with pytest.raises(BackupError, match=rf"{folder} cannot be made \(Not a directory\): restore into a new"):
            restore(tmp_path / "b.tar", folder)
    with pytest.raises(BackupError, match=r"cannot be restored: .*No such file"):
        restore(tmp_path / "b.tar", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_slo_file_may_have_any_name(tmp_path):
    slos = tmp_path / "SLOs of the team (über).yaml"
    slos.write_text("slos: []")
    archive = tmp_path / "b.tar"
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    archive.write_bytes(b"".join(pack([(f"settings/{slos.name}", slos)], empty)))
    verify(archive)
    unpack(archive, tmp_path / "new")
    assert (tmp_path / "new" / "settings" / slos.name).read_text() == "slos: []"
