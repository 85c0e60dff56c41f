"""What `tokentrail backup` checks of an archive that it received."""

import pytest

from collector.keep.archive import Manifest, pack
from tokentrail.cli.backup import verify

CONTENT = b"slos: []\n" * 100


@pytest.fixture
def archive(tmp_path):
    """A backup of one file, whole."""
    (tmp_path / "slos").write_bytes(CONTENT)
    manifest = Manifest(format=1, made="", until="", clickhouse="25", tables={}, files={})
    made = tmp_path / "b.tar"
    made.write_bytes(b"".join(pack([("settings/slos.yaml", tmp_path / "slos")], manifest)))
    return made


def test_a_whole_archive_is_as_its_manifest_says(archive):
    found = verify(archive)
    assert (found["clickhouse"], [*found["files"]]) == ("25", ["settings/slos.yaml"])
    assert found["files"]["settings/slos.yaml"]["size"] == len(CONTENT)


def test_another_byte_in_a_file_is_found(archive):
    archive.write_bytes(archive.read_bytes().replace(CONTENT, b"S" + CONTENT[1:]))
    with pytest.raises(ValueError, match="a file is not as the collector read it"):
        verify(archive)


def test_an_archive_without_its_manifest_has_no_end(archive):
    data = archive.read_bytes()
    archive.write_bytes(data[: data.index(b"manifest.json")] + bytes(1024))
    with pytest.raises(ValueError, match="its end is missing"):
        verify(archive)
