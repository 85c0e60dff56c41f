"""Half, damaged, foreign and hostile archives are refused, with the reason."""

import gzip
import tarfile

import pytest

from collector.keep.archive import BackupError, Manifest, pack, unpack
from collector.keep.restore import restore
from tests.collector.keep.archives import rewrite, tar_of
from tokentrail.cli.backup import verify


def test_a_flipped_bit_is_found_by_both_sides(archive, tmp_path):
    name = next(name for name in verify(archive)["files"] if name.endswith("data.bin"))
    rewrite(archive, lambda data: bytes([data[0] ^ 1]) + data[1:], member=name)
    with pytest.raises(BackupError, match=f"damaged: {name}"):
        restore(archive, tmp_path / "new")
    with pytest.raises(ValueError, match="a file is not as the collector read it"):
        verify(archive)
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_missing_is_found(archive, tmp_path):
    rewrite(archive, lambda manifest: manifest["files"].update({"settings/x": {"size": 1, "sha256": "0"}}))
    with pytest.raises(BackupError, match="damaged: settings/x"):
        restore(archive, tmp_path / "new")


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_half_of_a_backup_is_refused(archive, tmp_path, keep):
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * keep) // 512 * 512])
    with pytest.raises(BackupError, match=r"is damaged after \d+ of its files|has no manifest: its end is missing"):
        restore(archive, tmp_path / "new")
    with pytest.raises((ValueError, tarfile.TarError)):
        verify(archive)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is no tar"),
        (b"hello", "it is no tar"),
        (b"x" * 5000, "it is no tar"),
        ("thesis.tex", "it has 'thesis.tex'"),
        ("manifest.json", "its manifest.json is that of something else ('format': Field required)"),
    ],
)
def test_a_file_that_is_no_backup_is_named_with_the_way_to_make_one(tmp_path, content, reason):
    file = tmp_path / "file"
    file.write_bytes(tar_of(file, content, b"{}") if isinstance(content, str) else content)
    with pytest.raises(BackupError) as told:
        restore(file, tmp_path / "new")
    assert str(told.value).startswith(f"{file} is not a backup of tokentrail, because {reason}: `tokentrail backup")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_files_that_were_packed_are_unpacked_byte_by_byte(tmp_path):
    content = {"settings/x": b"one", "settings/empty": b"", "settings/large": bytes(range(256)) * 9000}
    sources = []
    for number, (name, data) in enumerate(content.items()):
        sources.append((name, tmp_path / str(number)))
        sources[-1][1].write_bytes(data)
    archive, folder = tmp_path / "b.tar", tmp_path / "new"
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    archive.write_bytes(b"".join(pack(sources, empty)))
    folder.mkdir()
    found = unpack(archive, folder)
    assert {name: file.size for name, file in found.files.items()} == {
        name: len(data) for name, data in content.items()
    }
    assert {name: (folder / name).read_bytes() for name in content} == content


def test_nothing_comes_behind_the_manifest(tmp_path):
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    once = b"".join(pack([], empty)).removesuffix(bytes(2 * tarfile.BLOCKSIZE))
    archive = tmp_path / "b.tar"
    archive.write_bytes(once + b"".join(pack([], empty)))
    with pytest.raises(BackupError, match=r"because it has 'manifest\.json'"):
        restore(archive, tmp_path / "new")


def test_a_file_that_is_there_twice_is_refused(tmp_path):
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    source = tmp_path / "x"
    source.write_text("x")
    archive = tmp_path / "b.tar"
    archive.write_bytes(b"".join(pack([("settings/x", source)] * 2, empty)))
    with pytest.raises(BackupError, match="File exists"):
        restore(archive, tmp_path / "new")


def test_a_manifest_beyond_a_limit_is_not_read_to_its_end(tmp_path, monkeypatch):
    archive = tmp_path / "b.tar"
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    tar_of(archive, "manifest.json", empty.model_dump_json().encode())
    (tmp_path / "in").mkdir()
    unpack(archive, tmp_path / "in")
    monkeypatch.setattr("collector.keep.archive._MOST_MANIFEST", 50)
    with pytest.raises(BackupError, match=r"its manifest\.json is that of something else"):
        unpack(archive, tmp_path / "in")


def test_a_backup_that_was_compressed_is_to_be_unpacked_first(tmp_path, archive):
    archive.write_bytes(gzip.compress(archive.read_bytes()))
    with pytest.raises(BackupError, match="unpack it first"):
        restore(archive, tmp_path / "new")


@pytest.mark.parametrize(
    "name", ["../x", "tables/a/../../x", "/etc/x", "store/x", "tables/x", "settings", "settings/.", "settings/a/b"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    empty = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})
    source = tmp_path / "source"
    source.write_text("x")
    archive = tmp_path / "evil.tar"
    archive.write_bytes(b"".join(pack([(name, source)], empty)))
    (tmp_path / "in").mkdir()
    with pytest.raises(BackupError, match="not a backup of tokentrail"):
        unpack(archive, tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []


def test_a_link_is_refused(tmp_path):
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        link = tarfile.TarInfo("settings/x")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(BackupError, match="not a backup of tokentrail"):
        unpack(archive, tmp_path)


@pytest.mark.parametrize("other", [0, 2])
def test_another_format_is_refused(archive, tmp_path, other):
    rewrite(archive, lambda manifest: manifest.update(format=other))
    with pytest.raises(BackupError, match=f"format {other}, and this version reads format 1"):
        restore(archive, tmp_path / "new")
