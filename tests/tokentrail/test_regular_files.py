"""Files that others may replace are read whole or not at all, and never waited for."""

import os
from pathlib import Path

import pytest

from tokentrail.shared.regular_files import read


def test_a_file_is_read_up_to_its_bound(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(file)
    assert read(file, 5) == read(str(tmp_path / "link"), 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read(file, 4)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_at_once_and_closed(tmp_path, make):
    make(tmp_path / "file")
    before = {*Path("/proc/self/fd").iterdir()}
    with pytest.raises(OSError, match="it is no regular file"):
        read(tmp_path / "file")
    assert {*Path("/proc/self/fd").iterdir()} == before
