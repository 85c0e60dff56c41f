"""Keys: made once, stored as hashes, found by their secret, and read again when their file changes."""

import errno
import fcntl
import json
import logging
import os
import re
import stat
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from collector.access.__main__ import main
from collector.access.caller import Role
from collector.access.keyring import Keyring
from collector.access.keys import KeyFileError, Keys, changing, make_key, read_keys

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "keys.json"


def add(path, *args, **kwargs):
    key, secret = make_key(*args, **kwargs)
    with changing(path) as keys:
        keys.append(key)
    return key, secret


def test_the_file_has_the_hash_and_not_the_secret(path):
    key, secret = add(path, Role.INGEST, "acme", NOW)
    assert re.fullmatch("tokentrail_[0-9a-f]{8}_[0-9a-f]{64}", secret)
    assert secret.split("_")[2] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == [key]


def test_secrets_differ():
    assert len({make_key(Role.READ, "a", NOW)[1] for _ in range(100)}) == 100


def test_a_key_is_found_by_its_whole_secret_only(path):
    first, secret = make_key(Role.READ, "acme", NOW)
    second, other = make_key(Role.READ, "acme", NOW)
    keys = Keys([first, second])
    assert keys.find(secret) == first
    assert keys.find(other) == second
    mixed = f"tokentrail_{first.id}_{other.split('_')[2]}"
    wrong = [mixed, secret[:-1], secret + "0", secret.upper(), "", first.id, first.sha256]
    wrong.append("tokentrail_00000000_" + "0" * 64)
    assert [keys.find(text) for text in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "valid"),
        ({"expires": NOW + timedelta(seconds=1)}, "valid"),
        ({"expires": NOW}, "expired"),
        ({"expires": NOW + timedelta(days=1), "revoked": NOW}, "revoked"),
    ],
)
def test_states(fields, state):
    key, _ = make_key(Role.READ, "a", NOW)
    assert key.model_copy(update=fields).state(NOW) == state


@pytest.mark.parametrize("tenant", ["a'b", "x" * 65, "-a", "a b", "a\n", "ä"])
def test_a_tenants_name_is_safe_in_sql(tenant):
    with pytest.raises(ValidationError):
        make_key(Role.READ, tenant, NOW)


def test_an_admin_key_has_no_tenant():
    with pytest.raises(ValidationError, match="all tenants"):
        make_key(Role.ADMIN, "acme", NOW)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"keys": [{"id": "x"}]}', '{"keys": [], "more": 1}', "\x00", '{"keys": [{}]}']
)
def test_a_broken_file_is_refused_without_its_content(path, content):
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(KeyFileError, match=re.escape(str(path))):
        read_keys(path)


def test_two_keys_with_one_id_are_refused(path):
    add(path, Role.READ, "a", NOW)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"keys": content["keys"] * 2}))
    with pytest.raises(KeyFileError, match="one id"):
        read_keys(path)


def test_a_change_that_fails_leaves_the_file(path):
    key, _ = add(path, Role.READ, "a", NOW)

    def fail():
        with changing(path) as keys:
            keys.clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read_keys(path) == [key]
    assert sorted(p.name for p in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_disk_that_fails_leaves_the_file(path, monkeypatch):
    key, _ = add(path, Role.READ, "a", NOW)

    def no_space(_):
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        add(path, Role.READ, "b", NOW)
    assert read_keys(path) == [key]
    assert sorted(p.name for p in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_writers_wait_for_each_other(path):
    threads = [threading.Thread(target=add, args=(path, Role.READ, f"t{n}", NOW)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {key.tenant for key in read_keys(path)} == {f"t{n}" for n in range(20)}


class Monotonic:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_running_collector_knows_a_new_key_and_a_revoked_one_after_a_second(path):
    clock = Monotonic()
    keyring = Keyring(path, monotonic_s=clock)
    in_use = [keyring.in_use]
    key, secret = add(path, Role.READ, "a", NOW)
    clock.now += 0.9
    assert keyring.find(secret) is None
    clock.now += 0.1
    assert keyring.find(secret) == key
    in_use.append(keyring.in_use)
    with changing(path) as keys:
        keys[0] = key.model_copy(update={"revoked": NOW})
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "revoked"
    assert [*in_use, keyring.in_use] == [False, True, True]


@pytest.mark.parametrize("in_place", [True, False], ids=["written in place", "replaced at the same time"])
def test_a_change_that_leaves_the_size_of_the_file_is_seen(path, in_place):
    clock = Monotonic()
    _, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    before = path.stat()
    changed = path.read_bytes().replace(b'"tenant": "a"', b'"tenant": "b"')
    other = path if in_place else path.with_name("other")
    other.write_bytes(changed)
    modified_ns = before.st_mtime_ns + (10**9 if in_place else 0)
    os.utime(other, ns=(modified_ns, modified_ns))
    other.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_ino == before.st_ino) == (before.st_size, in_place)
    clock.now += 1
    assert keyring.find(secret).tenant == "b"


def test_a_mistake_in_the_file_leaves_the_keys_as_they_were(path, caplog):
    clock = Monotonic()
    key, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    path.write_text("{")
    for _ in range(3):
        clock.now += 1
        assert keyring.find(secret) == key
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it is said once"
    _, later = make_key(Role.READ, "b", NOW)
    path.unlink()
    clock.now += 1
    assert keyring.find(secret) is None
    assert keyring.find(later) is None
    assert keyring.in_use  # a lost file does not open the collector


def opening(monkeypatch, refused):
    """Make the system refuse to open files of keys with the error that `refused` returns for each."""
    real = os.open

    def opened(path, *arguments, **options):
        error = refused(Path(path)) if str(path).endswith("keys.json") else None
        if error:
            raise OSError(error, os.strerror(error))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opened)


def by_mode(path):
    """Deny to read files by their mode, also where root runs the tests."""
    return 0 if path.stat().st_mode & stat.S_IRUSR else errno.EACCES


def test_a_file_that_may_be_read_again_is_read_again(path, monkeypatch, caplog):
    clock = Monotonic()
    key, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    with changing(path) as keys:
        keys[0] = key.model_copy(update={"revoked": NOW})
    opening(monkeypatch, by_mode)
    path.chmod(0)
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "valid"
    assert "Permission denied (the keys stay as they were)" in caplog.text
    path.chmod(stat.S_IRUSR)
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "revoked"


def test_a_file_that_could_not_be_opened_once_is_read_again_unchanged(path, monkeypatch, caplog):
    clock = Monotonic()
    key, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    with changing(path) as keys:
        keys[0] = key.model_copy(update={"revoked": NOW})
    opening(monkeypatch, lambda _: errno.EMFILE)
    for _ in range(3):
        clock.now += 1
        assert keyring.find(secret).state(NOW) == "valid"
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it is said once"
    monkeypatch.undo()
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "revoked"
    opening(monkeypatch, lambda _: errno.EMFILE)
    path.touch()
    clock.now += 1
    keyring.find(secret)
    assert len(caplog.records) == 2, "the next time is said too"


def test_a_link_to_the_file_stays_so_that_collectors_may_share_the_keys(path, tmp_path):
    key, secret = add(path, Role.READ, "a", NOW)
    links = [tmp_path / name / "keys.json" for name in ("one", "two")]
    for link in links:
        link.parent.mkdir()
        link.symlink_to(path)
    clock = Monotonic()
    keyring = Keyring(links[1], monotonic_s=clock)
    with changing(links[0]) as keys:
        keys[0] = key.model_copy(update={"revoked": NOW})
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "revoked"
    assert all(link.is_symlink() for link in links)
    assert sorted(file.name for file in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_links_that_lead_to_each_other_are_no_file_of_keys(tmp_path, capsys, monkeypatch):
    link = tmp_path / "keys.json"
    link.symlink_to(link)
    monkeypatch.setenv("TOKENTRAIL_KEYS", str(link))
    assert main(["create", "--role", "admin", "--data-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert str(link) in told
    assert len(told.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_key_that_root_makes_can_be_read_by_the_user_of_the_collector(path):
    path.parent.mkdir()
    os.chown(path.parent, 65534, 65534)
    add(path, Role.READ, "a", NOW)
    assert {file.stat().st_uid for file in path.parent.iterdir()} == {65534}
    os.chown(path, 1, 1)
    add(path, Role.READ, "a", NOW)
    assert path.stat().st_uid == 1


def test_a_lock_that_another_process_holds_is_waited_for_a_time(path, monkeypatch):
    add(path, Role.READ, "a", NOW)
    monkeypatch.setattr("collector.access.keys._LOCKED_S", 0.3)
    lock = path.with_name("keys.json.lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(KeyFileError, match=rf"{lock} has been held by another process for 0 s: .*`fuser {lock}`"):
            add(path, Role.READ, "b", NOW)
    add(path, Role.READ, "c", NOW)
    assert [key.tenant for key in read_keys(path)] == ["a", "c"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(path, kind, caplog):
    clock = Monotonic()
    key, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    clock.now += 1
    assert keyring.find(secret) == key
    told = "it is no regular file"
    assert f"{told} (the keys stay as they were)" in caplog.text
    for used in (lambda: Keyring(path), lambda: read_keys(path), lambda: add(path, Role.READ, "b", NOW)):
        with pytest.raises(KeyFileError, match=told):
            used()


class Hanging:
    """A file system that answers when it is told to."""

    def __init__(self, monkeypatch):
        self.answers = threading.Event()
        self.asked = 0
        self._stat = Path.stat
        monkeypatch.setattr(Path, "stat", lambda path, **options: self.stat(path, **options))

    def stat(self, path, **options):
        if path.name == "keys.json":
            self.asked += 1
            assert self.answers.wait(300)
        return self._stat(path, **options)


def test_a_file_system_that_hangs_holds_up_one_caller_for_a_moment(path, monkeypatch, caplog):
    monkeypatch.setattr("collector.base.watched_file._PATIENCE_S", 0.2)
    clock = Monotonic()
    key, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    with changing(path) as keys:
        keys[0] = key.model_copy(update={"revoked": NOW})
    hanging = Hanging(monkeypatch)
    began = time.monotonic()
    for _ in range(1000):
        clock.now += 1
        assert keyring.find(secret).state(NOW) == "valid"
        assert keyring.in_use
    assert time.monotonic() - began < 100
    looking = [thread for thread in threading.enumerate() if thread.name == "watched-file"]
    assert [thread.daemon for thread in looking] == [True], "the process can end"
    assert hanging.asked == 1, "one thread waits for it, not one of each second"
    assert [record.getMessage() for record in caplog.records] == [
        f"the keys in {path} cannot be read yet: the file system does not answer, or the machine is busy "
        "(the keys stay as they were)"
    ]
    hanging.answers.set()
    end_s = time.monotonic() + 120
    while keyring.find(secret).state(NOW) == "valid":
        assert time.monotonic() < end_s
        time.sleep(0.01)
    hanging.answers.clear()
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "revoked"
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2, "it is said again"
    hanging.answers.set()


def test_a_start_does_not_wait_for_a_file_system_that_hangs(path, monkeypatch):
    monkeypatch.setattr("collector.base.watched_file._START_S", 0.2)
    add(path, Role.READ, "a", NOW)
    hanging = Hanging(monkeypatch)
    with pytest.raises(KeyFileError, match=rf"the keys in {path} cannot be read: it has taken"):
        Keyring(path)
    hanging.answers.set()


def test_a_broken_file_ends_the_start(path):
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(KeyFileError):
        Keyring(path)


def test_no_key_is_made_in_a_new_folder_beside_the_data_folder_of_a_collector(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TOKENTRAIL_KEYS", raising=False)
    (tmp_path / "mine" / "wal").mkdir(parents=True)
    create = ["create", "--role", "admin", "--data-dir"]
    assert main([*create, str(tmp_path / ".data")]) == 1
    assert f"--data-dir {tmp_path / 'mine'}" in capsys.readouterr().err
    assert not (tmp_path / ".data").exists()
    (tmp_path / "new").mkdir()
    assert [main([*create, str(tmp_path / name)]) for name in ("mine", "new")] == [0, 0]
    assert (tmp_path / "mine" / "keys.json").exists()
