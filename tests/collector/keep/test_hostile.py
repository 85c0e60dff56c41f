"""Backups that somebody has changed: what they say is compared, and never run."""

import re
import socket
import tarfile

import pytest

from collector.keep.archive import BackupError, Table, pack, unpack
from collector.keep.restore import restore
from collector.keep.tables import check_part, check_tables
from collector.store.definitions import read_migrations, read_schema, stored_tables
from tests.collector.keep.archives import EMPTY, rewrite, rewrite_with_digest, run_restore

VERSIONS = Table(create=stored_tables(read_schema())["schema_version"], parts={"all_1_1_0": 1})
REQUESTS = "CREATE TABLE default.requests (`end` DateTime64(9, 'UTC'){column}) ENGINE = MergeTree ORDER BY end{more}"
SETTINGS = " SETTINGS index_granularity = 8192"


SPARSE = tarfile.GNUTYPE_SPARSE


def manifest_of(**tables):
    return EMPTY.model_copy(deep=True, update={"tables": {"schema_version": VERSIONS} | tables})


def packed(path, sources=(), **tables):
    path.write_bytes(b"".join(pack(sources, manifest_of(**tables))))
    return path


@pytest.fixture
def endpoint():
    """The address of a server, and whether somebody has called it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)

        def called():
            try:
                server.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        yield f"http://127.0.0.1:{server.getsockname()[1]}/x/", called


def test_a_disk_in_a_statement_is_named_and_not_asked(archive, tmp_path, endpoint):
    url, called = endpoint
    disk = f", disk = disk(type = s3, endpoint = '{url}', path = '{tmp_path}')"

    def change(manifest):
        manifest["tables"]["samples"]["create"] += disk

    rewrite(archive, change)
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    assert restored.stderr.startswith("the backup's table samples has disk, endpoint, ")
    assert not called()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("column", "more", "named"),
    [
        (", `a` String DEFAULT file('/etc/passwd')", SETTINGS, "a, file"),
        ("DEFAULT url('http://127.0.0.1:1/', 'CSV', 'a String')", SETTINGS, "url"),
        (" MATERIALIZED dictGet('d', 'a', 1)", SETTINGS, "dictGet"),
        (" ALIAS sleepEachRow(3)", SETTINGS, "sleepEachRow"),
        ("", f"{SETTINGS}, storage_policy = 's3'", "storage_policy"),
        ("", f"{SETTINGS}, DISK = 's3'", "DISK"),
        ("", " TTL end TO VOLUME 'x'", "TO, VOLUME"),
        ("", f"{SETTINGS}; SYSTEM SHUTDOWN", "SHUTDOWN, SYSTEM"),
        (", PROJECTION p (SELECT end)", "", "PROJECTION, SELECT, p"),
        (" COMMENT 'it''s', `b` UInt8", "", "COMMENT, b"),
        (r" DEFAULT 'it\'s', `c` UInt8", "", "c"),
    ],
)
def test_a_word_that_no_statement_of_ours_has_is_named(column, more, named):
    manifest = manifest_of(requests=Table(create=REQUESTS.format(column=column, more=more), parts={}))
    with pytest.raises(
        BackupError, match=rf"the backup's table requests has {named}, which no table of tokentrail has"
    ):
        check_tables(manifest)


def test_the_statements_of_this_version_pass(store):
    """So the tests above see what is refused."""
    sql = "SELECT name, create_table_query FROM system.tables WHERE name IN {names:Array(String)}"
    own = stored_tables(read_schema())
    printed = {name: Table(create=text, parts={}) for name, text in store.query(sql, {"names": [*own]}).result_rows}
    assert len(printed) == len(own) > 10
    check_tables(manifest_of(**printed | {"schema_version": VERSIONS}))


def test_a_statement_that_differs_in_numbers_is_not_run(archive, tmp_path):
    def change(manifest):
        manifest["tables"]["tokens"]["create"] = manifest["tables"]["tokens"]["create"].replace("8192", "1")

    rewrite(archive, change)
    assert run_restore(archive, tmp_path / "new").returncode == 0
    metadata = (tmp_path / "new" / "store" / "metadata" / "default" / "tokens.sql").read_text()
    assert "index_granularity = 8192" in metadata


def test_a_table_that_is_not_ours_is_named(tmp_path):
    evil = Table(create="CREATE TABLE default.evil (`end` String) ENGINE = MergeTree ORDER BY end", parts={})
    with pytest.raises(BackupError, match="has the table evil, and this version of tokentrail has no such table"):
        restore(packed(tmp_path / "b.tar", evil=evil), tmp_path / "new")
    landing = Table(create="CREATE TABLE default.joins (`end` String) ENGINE = MergeTree ORDER BY end", parts={})
    with pytest.raises(BackupError, match="has the table joins"):
        restore(packed(tmp_path / "b.tar", joins=landing), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


@pytest.mark.parametrize("parts", [None, {}, {"all_1_1_0": 0}])
def test_a_backup_without_a_version_is_refused(tmp_path, parts):
    tables = {} if parts is None else {"schema_version": Table(create="", parts=parts)}
    (tmp_path / "b.tar").write_bytes(b"".join(pack([], EMPTY.model_copy(update={"tables": tables}))))
    with pytest.raises(BackupError, match="nobody knows which version's tables it has"):
        restore(tmp_path / "b.tar", tmp_path / "new")


def test_a_backup_of_a_newer_version_is_refused(backups, store, tmp_path):
    newer = read_migrations()[-1].version + 1
    store.client().command(f"INSERT INTO schema_version (version) VALUES ({newer})")
    (tmp_path / "b.tar").write_bytes(b"".join(backups.make()))
    store.client().command(f"ALTER TABLE schema_version DELETE WHERE version = {newer} SETTINGS mutations_sync = 2")
    restored = run_restore(tmp_path / "b.tar", tmp_path / "new")
    assert restored.returncode == 1
    assert f"tables of version {newer}, newer than this collector's version {newer - 1}" in restored.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("`duration_us` UInt64", "`duration_us` String", "`duration_us` String"),
        ("`duration_us` UInt64", "`duration_us` Nullable(UInt64)", r"`duration_us` Nullable\(UInt64\)"),
        ("`duration_us` UInt64", "`more` UInt64", "`more` UInt64"),
        ("`duration_us` UInt64", "`duration_us` UInt64\n`more` Dynamic", "`more` Dynamic"),
        ("columns format version: 1", "columns format version: 2", "columns format version: 2"),
    ],
)
def test_a_column_of_a_part_that_its_table_does_not_have_is_named(tmp_path, old, new, named):
    part = tmp_path / "tokens" / "all_1_1_0"
    part.mkdir(parents=True)
    text = "columns format version: 1\n1 columns:\n`duration_us` UInt64\n"
    (part / "columns.txt").write_text(text)
    check_part(part, {"duration_us": "UInt64"})
    (part / "columns.txt").write_text(text.replace(old, new))
    with pytest.raises(BackupError, match=f"^the backup's part tokens/all_1_1_0 has the column .{named}"):
        check_part(part, {"duration_us": "UInt64"})


def test_a_part_is_looked_at_before_clickhouse_reads_it(archive, tmp_path):
    with tarfile.open(archive) as tar:
        name = next(name for name in tar.getnames() if name.startswith("tables/tokens/") and "/columns.txt" in name)
        text = tar.extractfile(name).read().decode()
    rewrite_with_digest(archive, name, text.replace("`duration_us` UInt64", "`duration_us` Dynamic").encode())
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    part = name.removeprefix("tables/").removesuffix("/columns.txt")
    assert restored.stderr.startswith(f"the backup's part {part} has the column '`duration_us` Dynamic'")


def header(name="settings/x", size=0, **fields):
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT)


def with_size(data, text):
    """A header with another size in its field, and the checksum that belongs to it."""
    data = data[:124] + text + data[136:]
    unsigned = sum(data[:148]) + sum(data[156:512]) + 8 * 32
    return data[:148] + b"%06o\0 " % unsigned + data[156:]


@pytest.mark.parametrize(
    "data",
    [
        header(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        header(type=tarfile.LNKTYPE, linkname="settings/y"),
        header(type=tarfile.DIRTYPE),
        header(type=tarfile.FIFOTYPE),
        header(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        header(type=tarfile.BLKTYPE),
        header(type=tarfile.CONTTYPE),
        header(type=SPARSE),
        header(type=b"x", size=2**30),
        with_size(header(type=b"x"), b"\xff" * 11 + b"\x01"),
        header(type=b"g", size=10),
        header(type=b"L", size=2**40),
        header(type=b"K", size=2**40),
        with_size(header(), b"\xff" * 11 + b"\x01"),
        header(
            pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "999999999999999"}
        ),
        header(pax_headers={"GNU.sparse.size": "99999999999999", "GNU.sparse.map": "0,0"}),
        header(pax_headers={"size": "-512"}),
        header(pax_headers={"linkpath": "/etc"}),
        header(pax_headers={"path": "settings/x\0y"}),
        header("settings/x\ny"),
        header("settings/\x1b[2J"),
        header("settings/\udcff"),
        header("settings/x/../../y"),
        header("tables/requests/p/q/data.bin"),
        header("tables/requests/p.proj/data.bin"),
        header("tables/requests/data.bin"),
    ],
)
def test_what_is_no_plain_file_with_a_name_of_ours_is_named(tmp_path, data):
    archive = tmp_path / "b.tar"
    archive.write_bytes(data + bytes(10 * tarfile.BLOCKSIZE))
    (tmp_path / "in").mkdir()
    with pytest.raises(
        BackupError, match=r"is not a backup of tokentrail, because it (has '(settings|tables)/|is no tar)"
    ):
        unpack(archive, tmp_path / "in")
    assert [*(tmp_path / "in").rglob("*")] == []


def test_a_name_without_end_is_refused_before_it_is_read(tmp_path):
    archive = tmp_path / "b.tar"
    archive.write_bytes(header("settings/" + "x" * 70_000) + bytes(10 * tarfile.BLOCKSIZE))
    with pytest.raises(BackupError, match="which is no plain file"):
        unpack(archive, tmp_path)


def test_what_clickhouse_says_of_a_part_is_one_line(archive, tmp_path):
    with tarfile.open(archive) as tar:
        name = next(name for name in tar.getnames() if name.startswith("tables/tokens/") and "minmax_minute" in name)
    rewrite_with_digest(archive, name, b"\n\x1b[2J\n" * 3)
    restored = run_restore(archive, tmp_path / "new")
    assert restored.returncode == 1
    assert f"{archive} cannot be restored: Code: " in restored.stderr
    assert restored.stderr.removesuffix("\n").isprintable()
    assert len(restored.stderr) < 2000


def test_a_large_file_with_a_long_name_is_taken(tmp_path):
    """So the test above sees what is refused."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * 10)
    archive, name = tmp_path / "b.tar", "settings/" + "ü" * 110
    packed(archive, [(name, source)])
    archive.write_bytes(header(type=tarfile.XHDTYPE) + archive.read_bytes())  # an extension that says nothing
    (tmp_path / "in").mkdir()
    unpack(archive, tmp_path / "in")
    assert (tmp_path / "in" / name).read_bytes() == b"x" * 10


def test_a_file_of_a_part_that_the_manifest_does_not_have_is_named(tmp_path):
    source = tmp_path / "data.bin"
    source.touch()
    for name in ("tables/requests/all_1_1_0/data.bin", "tables/schema_version/all_2_2_0/data.bin"):
        packed(tmp_path / "b.tar", [(name, source)])
        with pytest.raises(BackupError, match=f"it has '{name}', and its manifest.json has no such part"):
            restore(tmp_path / "b.tar", tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda manifest: manifest["tables"].update({"../x": {"create": "", "parts": {}}}), "tables.../x"),
        (lambda manifest: manifest["tables"]["tokens"]["parts"].update({"../../../x": 1}), "tables.tokens.parts"),
        (
            lambda manifest: manifest["tables"]["tokens"]["parts"].update({"a; DROP TABLE tokens": 1}),
            "tables.tokens.parts",
        ),
        (lambda manifest: manifest["tables"]["tokens"]["parts"].update(all_1_1_0=-1), "tables.tokens.parts.all_1_1_0"),
        (lambda manifest: manifest["files"].update({"\x1b]0;x": {"size": 0, "sha256": ""}}), "files"),
        (lambda manifest: manifest.update(until="\x1b[2Jnever"), "until"),
        (lambda manifest: manifest.update(made=1), "made"),
        (lambda manifest: manifest.update(files=None), "files"),
    ],
)
def test_a_field_of_the_manifest_that_nobody_wrote_is_named(archive, tmp_path, change, named):
    rewrite(archive, change)
    with pytest.raises(BackupError, match=rf"manifest\.json is that of something else \('{re.escape(named)}") as told:
        restore(archive, tmp_path / "new")
    assert "\x1b" not in str(told.value)
    assert not (tmp_path / "new").exists()
