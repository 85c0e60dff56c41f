"""`sudo tokentrail keys`: root follows no link that another user may have set, and leaves files to their owners."""

import os
import stat

import pytest

from collector.access.__main__ import main
from collector.access.keys import read_keys

SOMEBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that belongs to somebody else than root, in one of root's."""
    for name in [name for name in os.environ if name.startswith("TOKENTRAIL_")]:
        monkeypatch.delenv(name)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, SOMEBODY, SOMEBODY)
    return theirs


@pytest.fixture
def victim(tmp_path):
    """A folder of root's, with a file, and what it looked like."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text("secret")

    def look():
        return {
            path: (path.stat().st_uid, path.stat().st_mode, path.stat().st_size) for path in (folder, *folder.iterdir())
        }

    before = look()
    yield folder
    assert look() == before


def create(data_dir):
    return main(["create", "--role", "admin", "--data-dir", str(data_dir)])


def link(path, target, user=SOMEBODY):
    path.symlink_to(target)
    os.chown(path, user, user, follow_symlinks=False)


def owners(folder):
    found = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (of.st_uid, of.st_gid, stat.S_IMODE(of.st_mode)) for name, of in found.items()}


def test_what_root_makes_belongs_to_the_owner_of_the_folder(folder, capsys):
    theirs = (SOMEBODY, SOMEBODY, 0o600)
    assert create(folder) == 0
    assert owners(folder) == dict.fromkeys(("keys.json", "keys.json.lock", "audit.jsonl"), theirs)
    assert create(folder / "new" / "data") == 0
    assert owners(folder / "new") == {"data": (SOMEBODY, SOMEBODY, 0o700)}
    assert owners(folder / "new" / "data") == dict.fromkeys(("keys.json", "keys.json.lock", "audit.jsonl"), theirs)


def test_a_file_of_another_user_stays_theirs(folder, capsys):
    assert create(folder) == 0
    os.chown(folder / "keys.json", 1, 2)
    assert create(folder) == 0
    assert owners(folder)["keys.json"] == (1, 2, 0o600)
    assert len(read_keys(folder / "keys.json")) == 2


@pytest.mark.parametrize("name", ["keys.json", "keys.json.lock"])
@pytest.mark.parametrize("target", ["new", "file", "."])
@pytest.mark.parametrize("user", [SOMEBODY, 0])
def test_a_link_in_a_folder_of_another_user_is_named_and_not_followed(folder, victim, name, target, user, capsys):
    link(folder / name, victim / target, user)
    assert create(folder) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {folder / name} is a link, where another user than root may set links")
    assert (folder / name).is_symlink()


def test_an_audit_log_that_is_a_link_is_not_followed(folder, victim, capsys, caplog):
    for target in ("new", "file"):
        link(folder / "audit.jsonl", victim / target)
        assert create(folder) == 0
        assert f"{folder}/audit.jsonl is a link" in caplog.text
        (folder / "audit.jsonl").unlink()


def test_a_second_name_of_a_file_is_not_written_to(folder, victim, capsys, caplog):
    os.link(victim / "file", folder / "audit.jsonl")
    assert create(folder) == 0
    assert f"{folder}/audit.jsonl is a link" in caplog.text
    os.link(victim / "file", folder / "second.lock")
    (folder / "keys.json.lock").unlink()
    (folder / "second.lock").rename(folder / "keys.json.lock")
    assert create(folder) == 1


@pytest.mark.parametrize("way", ["link", "deep/link", "by-root/deep/link"])
@pytest.mark.parametrize("user", [SOMEBODY, 0])
def test_a_link_on_the_way_to_the_folder_is_not_followed(folder, victim, way, user, capsys):
    (folder / "deep").mkdir()
    (folder.parent / "by-root").symlink_to("theirs")
    for place in (folder, folder / "deep"):
        link(place / "link", victim, user)
    base = folder.parent if way.startswith("by-root") else folder
    for data_dir in (base / way, base / way / "new"):
        assert create(data_dir) == 1
        assert "link is a link, where another user" in capsys.readouterr().err


def test_a_link_of_another_user_in_a_folder_for_everybody_is_not_followed(tmp_path, victim, folder, capsys):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    link(shared / "data", victim)
    assert create(shared / "data") == 1
    group = tmp_path / "group"
    group.mkdir()
    group.chmod(0o770)
    link(group / "keys.json", victim / "file", user=0)
    assert create(group) == 1


def test_links_of_root_lead_to_where_they_lead(tmp_path, folder, capsys):
    (tmp_path / "data").symlink_to("theirs")
    assert create(tmp_path / "data") == 0
    own = tmp_path / "own"
    own.mkdir()
    (own / "keys.json").symlink_to(folder / "keys.json")
    assert create(own) == 0
    assert len(read_keys(folder / "keys.json")) == 2
    assert (own / "keys.json").is_symlink()
    assert owners(folder)["keys.json"] == (SOMEBODY, SOMEBODY, 0o600)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder, capsys):
    os.mkfifo(folder / "audit.jsonl")
    os.mkfifo(folder / "keys.json")
    assert create(folder) == 1
    (folder / "keys.json").unlink()
    assert create(folder) == 0
