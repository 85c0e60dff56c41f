"""Keys: made once, stored as hashes, found by their secret, and read again when their file changes."""

import errno
import json
import logging
import os
import re
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from collector.access.__main__ import main
from collector.access.audit import AuditLog
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


def deny_by_mode(monkeypatch):
    """Deny to read files by their mode, also where root runs the tests."""
    read = Path.read_bytes

    def read_bytes(path):
        if not path.stat().st_mode & stat.S_IRUSR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


def test_a_file_that_may_be_read_again_is_read_again(path, monkeypatch, caplog):
    deny_by_mode(monkeypatch)
    clock = Monotonic()
    key, secret = add(path, Role.READ, "a", NOW)
    keyring = Keyring(path, monotonic_s=clock)
    with changing(path) as keys:
        keys[0] = key.model_copy(update={"revoked": NOW})
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
    monkeypatch.setattr(Path, "read_bytes", no_open_file)
    for _ in range(3):
        clock.now += 1
        assert keyring.find(secret).state(NOW) == "valid"
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it is said once"
    monkeypatch.undo()
    clock.now += 1
    assert keyring.find(secret).state(NOW) == "revoked"
    monkeypatch.setattr(Path, "read_bytes", no_open_file)
    path.touch()
    clock.now += 1
    keyring.find(secret)
    assert len(caplog.records) == 2, "the next time is said too"


def no_open_file(_path):
    raise OSError(errno.EMFILE, "Too many open files")


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


def test_files_that_root_makes_belong_to_the_owner_of_their_folder(path, monkeypatch):
    given = []
    path.parent.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    add(path, Role.READ, "a", NOW)
    AuditLog(path.with_name("audit.jsonl")).write("created")
    folder = path.parent.stat()
    assert given == [(folder.st_uid, folder.st_gid)] * len(("the lock", "the keys", "the audit log"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_key_that_root_makes_can_be_read_by_the_user_of_the_collector(path):
    path.parent.mkdir()
    os.chown(path.parent, 65534, 65534)
    add(path, Role.READ, "a", NOW)
    assert {file.stat().st_uid for file in path.parent.iterdir()} == {65534}
    os.chown(path, 1, 1)
    add(path, Role.READ, "a", NOW)
    assert path.stat().st_uid == 1


def test_a_broken_file_ends_the_start(path):
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(KeyFileError):
        Keyring(path)


class TestCommand:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch, tmp_path):
        for name in [name for name in os.environ if name.startswith("TOKENTRAIL_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("TOKENTRAIL_DATA_DIR", str(tmp_path))
        self.path = tmp_path / "keys.json"
        self.audit = tmp_path / "audit.jsonl"

    def test_create_shows_the_key_once(self, capsys):
        assert main(["create", "--role", "ingest", "--tenant", "acme", "--expires", "90d", "--name", "engine 1"]) == 0
        secret = capsys.readouterr().out.strip()
        key = Keys(read_keys(self.path)).find(secret)
        assert (key.role, key.tenant, key.name) == (Role.INGEST, "acme", "engine 1")
        assert key.expires - key.created == timedelta(days=90)
        assert main(["list"]) == 0
        listed = capsys.readouterr().out
        assert key.id in listed
        assert secret.split("_")[2] not in listed
        line = json.loads(self.audit.read_text())
        assert (line["event"], line["key"], line["role"], line["tenant"]) == ("created", key.id, "ingest", "acme")
        assert secret.split("_")[2] not in self.audit.read_text()

    def test_the_file_of_the_keys_is_named(self, capsys):
        assert main(["list"]) == 0
        assert f"there are no keys in {self.path}" in capsys.readouterr().err
        assert main(["create", "--role", "admin"]) == 0
        assert f"only its hash is stored, in {self.path}" in capsys.readouterr().err
        assert main(["list"]) == 0
        assert capsys.readouterr().err == ""

    def test_revoke_takes_the_id_or_the_key(self, capsys):
        for tenant in ("a", "b"):
            main(["create", "--role", "read", "--tenant", tenant])
        first, second = capsys.readouterr().out.split()
        assert main(["revoke", first]) == 0
        assert main(["revoke", second.split("_")[1]]) == 0
        assert [key.state(datetime.now(UTC)) for key in read_keys(self.path)] == ["revoked", "revoked"]
        assert [json.loads(line)["event"] for line in self.audit.read_text().splitlines()][2:] == ["revoked", "revoked"]

    def test_revoking_again_keeps_the_time(self, capsys):
        main(["create", "--role", "admin"])
        secret = capsys.readouterr().out.strip()
        main(["revoke", secret])
        before = read_keys(self.path)
        main(["revoke", secret])
        assert read_keys(self.path) == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["create"], "--role ingest, read or admin"),
            (["create", "--role", "read"], "--tenant NAME, or --all-tenants"),
            (["create", "--role", "ingest", "--tenant", "a b"], "error: --tenant: a name has up to 64 letters"),
            (["create", "--role", "admin", "--name", "n" * 201], "error: --name: a note has 200 characters at most"),
            (["create", "--role", "admin", "--tenant", "a"], "leave --tenant out"),
            (["create", "--role", "admin", "--expires", "2020-01-01T00:00:00+00:00"], "past"),
            (["create", "--role", "admin", "--expires", "2099-01-01T00:00:00"], "time zone"),
            (["create", "--role", "admin", "--expires", "soon"], "--expires: 'soon' is not a duration"),
            (["create", "--role", "admin", "--expires", "soon"], "or a time with its zone, such as 2027"),
            (["revoke", "0123abcd"], "is this the collector's --data-dir?"),
            (["revoke"], "needs the id of a key, which `tokentrail keys list` shows"),
            (["revoke", "tokentrail_"], "needs the id of a key"),
        ],
    )
    def test_mistakes_are_named_and_change_nothing(self, capsys, arguments, message):
        assert main(arguments) == 1
        assert message in capsys.readouterr().err
        assert not self.path.exists() or read_keys(self.path) == []

    def test_a_key_of_all_tenants_is_made_when_it_is_asked_for(self, capsys):
        assert main(["create", "--role", "read", "--all-tenants"]) == 0
        assert read_keys(self.path)[0].tenant == ""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["create", "--role", "reader"], "invalid choice: 'reader' (choose from"),
            (["create", "acme", "--role", "admin"], "only revoke takes an id, and not create"),
            (["list", "0123abcd"], "only revoke takes an id, and not list"),
            (["list", "--role", "read"], "list takes no option but --data-dir"),
            (["list", "--all-tenants"], "list takes no option but --data-dir"),
            (["revoke", "0123abcd", "--tenant", "a"], "revoke takes no option but --data-dir"),
            (["revoke", "0123abcd", "--name", "a"], "revoke takes no option but --data-dir"),
            (["revoke", "0123abcd", "--expires", "1d"], "revoke takes no option but --data-dir"),
        ],
    )
    def test_arguments_that_would_be_left_out_are_refused(self, capsys, arguments, message):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert (ended.value.code, message in capsys.readouterr().err) == (2, True)
        assert not self.path.exists()

    def test_a_folder_that_is_none_is_named_and_a_wrong_one_is_not_made(self, capsys, tmp_path):
        file, absent = tmp_path / "file", tmp_path / "absent"
        file.touch()
        for wrong in (str(file), "", "a" * 300):
            assert main(["create", "--role", "admin", "--data-dir", wrong]) == 1
            assert f"data_dir: {wrong!r} is not a folder" in capsys.readouterr().err
        assert main(["create", "--role", "admin", "--data-dir", str(file / "sub")]) == 1
        assert f"error: {file / 'sub'} cannot be written: Not a directory; --data-dir names" in capsys.readouterr().err
        assert main(["revoke", "0123abcd", "--data-dir", str(absent)]) == 1
        assert not absent.exists()

    def test_an_output_that_cannot_be_written_is_no_fault_of_the_folder(self, capsys, monkeypatch):
        def full(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("sys.stdout.write", full)
        assert main(["list"]) == 1
        assert capsys.readouterr().err.splitlines()[-1] == "error: No space left on device"
        assert main(["create", "--role", "admin"]) == 1
        (key,) = read_keys(self.path)
        assert f"the key {key.id} is stored and cannot be shown (No space left" in capsys.readouterr().err

    @pytest.mark.parametrize("error", [KeyError, OSError])
    def test_a_user_without_a_name_gets_the_key(self, capsys, monkeypatch, error):
        def nameless():
            raise error

        monkeypatch.setattr("getpass.getuser", nameless)
        assert main(["create", "--role", "admin"]) == 0
        assert capsys.readouterr().out.startswith("tokentrail_")
        assert json.loads(self.audit.read_text())["user"] == str(os.getuid())


def test_a_key_for_the_folder_of_tokentrail_up_is_made_where_its_collector_looks(tmp_path):
    (tmp_path / "collector" / "wal").mkdir(parents=True)
    assert main(["create", "--role", "admin", "--data-dir", str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {
        "keys.json",
        "keys.json.lock",
        "audit.jsonl",
    }
    assert len(read_keys(tmp_path / "collector" / "keys.json")) == 1
    (tmp_path / "wal").mkdir()
    assert main(["create", "--role", "admin", "--data-dir", str(tmp_path)]) == 0
    assert len(read_keys(tmp_path / "keys.json")) == 1
