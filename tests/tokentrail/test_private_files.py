"""Locks, new files and folders that nobody but their owner may read."""

import os
import stat
import threading
import time

import pytest

from tokentrail.shared import private_files


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_lock_is_for_one_at_a_time(tmp_path):
    path = tmp_path / "lock"
    with private_files.lock(path):
        began = time.monotonic()
        with pytest.raises(BlockingIOError):
            private_files.lock(path)
        with pytest.raises(BlockingIOError):
            private_files.held(os.open(path, private_files.LOCK), wait_s=0.2)
        assert time.monotonic() - began >= 0.2
    private_files.lock(path).close()


def test_who_waits_gets_a_lock_when_it_is_free(tmp_path):
    path, got = tmp_path / "lock", threading.Event()

    def wait():
        private_files.held(os.open(path, private_files.LOCK), wait_s=120).close()
        got.set()

    with private_files.lock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not got.wait(0.2)
    thread.join(120)
    assert got.is_set()


def test_nobody_else_can_open_a_lock_also_one_that_everybody_could(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("content")
    old.chmod(0o644)
    for path in (new, old):
        private_files.lock(path).close()
        assert mode(path) == 0o600
    assert old.read_text() == "content"


def test_a_lock_and_a_new_file_follow_no_link(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    for content in (None, "content"):
        if content:
            victim.write_text(content)
        link.symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            private_files.lock(link)
        with private_files.create(link) as file:
            file.write(b"new")
        assert not link.is_symlink()
        assert (link.read_bytes(), mode(link)) == (b"new", 0o600)
        link.unlink()
    assert victim.read_text() == "content"


def test_a_new_file_takes_the_place_of_an_old_one_whose_mode_was_another(tmp_path):
    path = tmp_path / "file"
    path.write_text("old and long")
    path.chmod(0o666)
    with private_files.create(path) as file:
        file.write(b"new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0o755, 0o700),
        (0o701, 0o700),
        (0o777, 0o700),
        (0o700, 0o700),
        (0o750, 0o750),
        (0o1777, 0o1777),
        (0o2770, 0o2770),
    ],
)
def test_a_folder_that_others_may_enter_is_closed(tmp_path, before, after):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(before)
    private_files.close_folder(tmp_path / "folder")
    assert mode(tmp_path / "folder") == after


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o755)
    os.chown(tmp_path / "folder", 65534, 65534)
    private_files.close_folder(tmp_path / "folder")
    assert mode(tmp_path / "folder") == 0o755
