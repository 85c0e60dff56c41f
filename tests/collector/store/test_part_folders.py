"""The folders of the store's tables after a power cut."""

import os
import time

import pytest

from collector.store import part_folders
from collector.store.part_folders import PartFolders


@pytest.fixture
def synced(monkeypatch):
    folders = []
    monkeypatch.setattr(part_folders, "sync_folder", lambda folder: folders.append(folder.name))
    return folders


@pytest.fixture
def tables(tmp_path):
    folders = [tmp_path / "store" / name[:3] / name for name in ("abc-1", "def-2")]
    for folder in folders:
        folder.mkdir(parents=True)
        changed(folder, 60)
    return folders


def changed(folder, seconds_ago):
    then_ns = time.time_ns() - seconds_ago * 10**9
    os.utime(folder, ns=(then_ns, then_ns))


def test_a_folder_is_synced_again_when_it_has_changed(tmp_path, tables, synced):
    folders = PartFolders(tmp_path)
    folders.sync()
    assert sorted(synced) == ["abc-1", "def-2"]
    folders.sync()
    assert len(synced) == 2
    changed(tables[1], 59)
    folders.sync()
    assert synced[2:] == ["def-2"]


def test_a_folder_that_has_just_changed_may_change_again_within_the_same_tick(tmp_path, tables, synced):
    folders = PartFolders(tmp_path)
    folders.sync()
    changed(tables[0], -60)  # as if the clock stood still
    for _ in range(2):
        folders.sync()
    assert synced[2:] == ["abc-1", "abc-1"]


def test_a_server_has_no_folders_here(synced):
    PartFolders(None).sync()
    assert synced == []


def test_a_disk_that_fails_is_told(tmp_path, tables, monkeypatch):
    def failing(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(part_folders, "sync_folder", failing)
    with pytest.raises(OSError, match="Input/output"):
        PartFolders(tmp_path).sync()
