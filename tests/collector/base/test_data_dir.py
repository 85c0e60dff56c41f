"""The data folder is one collector's, and its user's alone."""

import stat

import pytest

from collector.base.data_dir import lock_folder
from collector.base.store_errors import StoreError
from tests.support.collector import Collector
from tests.support.otlp import token_body
from tests.support.stores import new_store


def test_what_a_collector_makes_is_for_its_user_alone(tmp_path):
    data = tmp_path / "data"
    collector = Collector(data, store=f"chdb://{data}/store").start()  # which the collector makes, not the test
    assert collector.post(token_body(count=3)).status_code == 200
    collector.wait_until_stored()
    collector.get("/metrics")
    assert collector.stop() == 0
    made = {path.name for path in data.iterdir()}
    assert made >= {"lock", "wal", "wal_logs", "wal_metrics", "counters.json", "store"}
    paths = [data, *data.rglob("*")]
    assert len(paths) > 100
    assert [path for path in paths if not path.is_symlink() and path.stat().st_mode & 0o077] == []
    data.chmod(0o755)
    lock_folder(data).close()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700, "the collector knows all names that it makes"


def test_of_a_folder_with_other_files_our_folders_are_closed(tmp_path):
    for name in ("wal", "store", "wal_metrics", "dead_letters", "thesis", "wallet"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    (tmp_path / "damaged_parts").symlink_to(tmp_path / "thesis")
    tmp_path.chmod(0o755)
    lock_folder(tmp_path).close()
    left = {path.name for path in (tmp_path, *tmp_path.iterdir()) if stat.S_IMODE(path.stat().st_mode) == 0o755}
    assert left == {tmp_path.name, "thesis", "wallet", "damaged_parts"}


def test_a_folder_in_use_is_named_with_the_way_to_its_process(tmp_path):
    with lock_folder(tmp_path), pytest.raises(StoreError, match=rf"used by another collector.*`fuser {tmp_path}/lock`"):
        lock_folder(tmp_path)
    lock_folder(tmp_path).close()


def test_a_lock_of_an_older_version_is_closed_to_others(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "lock").chmod(0o644)
    lock_folder(tmp_path).close()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_a_collector_on_the_folder_of_up_takes_the_one_in_it(tmp_path):
    (tmp_path / "collector" / "wal").mkdir(parents=True)
    new_store(tmp_path / "elsewhere")
    collector = Collector(tmp_path, store=f"chdb://{tmp_path}/elsewhere").start()
    assert collector.stop() == 0
    assert (tmp_path / "collector" / "lock").exists()
    assert not (tmp_path / "wal").exists()
