"""`python -m collector.access`: makes, lists and revokes keys."""

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from collector.access.__main__ import main
from collector.access.caller import Role
from collector.access.keys import Keys, read_keys


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

    def test_json_has_the_key_once_and_never_its_hash(self, capsys):
        assert main(["create", "--role", "read", "--all-tenants", "--name", "n", "--json"]) == 0
        created = json.loads(capsys.readouterr().out)
        assert Keys(read_keys(self.path)).find(created.pop("key")).id == created["id"]
        assert main(["list", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == [created]
        assert {name: created[name] for name in ("role", "tenant", "name", "state")} == {
            "role": "read", "tenant": None, "name": "n", "state": "valid"
        }  # fmt: skip
        assert main(["revoke", created["id"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "revoked"
        assert "sha256" not in created

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
