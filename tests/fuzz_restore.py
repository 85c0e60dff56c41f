"""`python -m tests.fuzz_restore --count 400 --seed 7`: hostile backups, each restored by a process of its own.

Each is a good backup with changed bytes, names, links, sizes, statements, columns, parts or numbers. Most changed files
get a manifest that fits them. The run fails when a restore ends by a crash, a traceback or more than one line of
error, when it takes longer than two minutes, when something outside of its new folder changes, when a refused backup
leaves a folder, when a table has a statement other than ours, or when anybody asks the address that stands in the
statements.
"""

import argparse
import dataclasses
import hashlib
import json
import random
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from collector.keep.cut import Backups
from collector.store.schema import apply_schema
from collector.store.store import Store
from tests.support import forked

FILL = """
    INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step)
    SELECT toDateTime('2026-11-20 10:00:00', 'UTC') + number * 86400, unhex(repeat('ab', 16)), 'abcdefgh', number, 7, 1
    FROM numbers(3)
"""
NAMES = [
    "../victim",
    "/etc/victim",
    "settings/../../victim",
    "tables/tokens/../../../victim",
    "store/x",
    "manifest.json",
]
NAMES += [
    "settings/\x1b[2J",
    "settings/x\ny",
    "settings/" + "n" * 300,
    "tables/tokens/p.proj/x",
    "tables/evil/p/x",
    "",
    "\udcff",
]
NAMES += ["tables/tokens/detached/data.bin", "metadata/default/x.sql", "settings/.", "tables/tokens/a/b/c"]
TYPES = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE]
TYPES += [b"x", b"g", b"L", b"K", b"\0", b"7", b"Z"]
SIZES = [0, 1, 511, 2**20, 2**33, 2**62, -1]
PAX = [{"path": "../victim"}, {"size": "-512"}, {"size": "9" * 30}, {"linkpath": "/etc"}, {"path": "settings/x\0y"}]
PAX += [{"GNU.sparse.map": "0,999999999"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, {"x" * 70_000: "y"}]
EXPRESSIONS = [" DEFAULT url('{url}', 'CSV', 'a String')", " MATERIALIZED file('{victim}')", " ALIAS sleepEachRow(3)"]
EXPRESSIONS += [" DEFAULT (SELECT count() FROM url('{url}', 'CSV', 'a String'))", " CODEC(AES_128_GCM_SIV)"]
CLAUSES = [", disk = disk(type = s3, endpoint = '{url}')", ", disk = disk(type = web, endpoint = '{url}')"]
CLAUSES += [", storage_policy = 'x'", " AS SELECT * FROM url('{url}', 'CSV', 'a String')", "; SYSTEM SHUTDOWN"]
CLAUSES += [" TTL minute TO DISK 'x'", ", index_granularity = 1", ", disk = disk(type = local, path = '{victim}/')"]
KINDS = ["String", "Dynamic", "Array(UInt64)", "AggregateFunction(sum, UInt64)", "Nullable(UInt64)", "UInt8\n`x` UInt8"]
VALUES = [None, -1, 0, 2**70, "", "../victim", "x" * 100_000, "\x1b[2J", "\udcff", [], {}, True, 1e300]


@dataclasses.dataclass
class Member:
    """One file of an archive, and what its header says."""

    info: tarfile.TarInfo
    data: bytes


def read(archive):
    with tarfile.open(archive) as tar:
        return [Member(info, tar.extractfile(info).read()) for info in tar]


def write(path, members):
    """The headers say what `members` says, also where it is wrong."""
    with path.open("wb") as file:
        for member in members:
            with suppress(UnicodeError, ValueError, OverflowError):
                file.write(member.info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape"))
                file.write(member.data + bytes(-len(member.data) % tarfile.BLOCKSIZE))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def changed_bytes(chance, data):
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                del data[at : at + chance.randrange(1, 600)]
            case 1:
                data[at:at] = chance.randbytes(chance.randrange(1, 600))
            case 2 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 3:
                data[at : at + 8] = b"\xff" * 8
    return bytes(data)


def changed_value(chance, node):
    """The document with one value replaced, at any depth."""
    if isinstance(node, dict) and node and chance.random() < 0.85:
        key = chance.choice([*node])
        if chance.random() < 0.1:
            return {(chance.choice(NAMES) if name == key else name): value for name, value in node.items()}
        return node | {key: changed_value(chance, node[key])}
    return chance.choice(VALUES)


def changed_statement(chance, manifest, places):
    table = manifest["tables"][chance.choice([*manifest["tables"]])]
    if chance.random() < 0.5:
        table["create"] += chance.choice(CLAUSES).format(**places)
    else:
        column = chance.choice(re.findall(r"`\w+` [\w(]+\)?", table["create"]))
        expression = chance.choice(EXPRESSIONS).format(**places)
        table["create"] = table["create"].replace(column, column + expression, 1)


def changed_file(chance, members, places):
    """Change a file of a part, or its columns."""
    columns = [member for member in members if member.info.name.endswith("/columns.txt")]
    member = chance.choice(columns if chance.random() < 0.4 else members[:-1])
    if member in columns and chance.random() < 0.7:
        kind = chance.choice([*KINDS, "UInt8" + chance.choice(EXPRESSIONS).format(**places)])
        lines = member.data.decode().splitlines()
        at = chance.randrange(2, len(lines))
        lines[at] = f"{lines[at].partition(' ')[0]} {kind}"
        member.data = ("\n".join(lines) + "\n").encode()
    else:
        member.data = changed_bytes(chance, member.data)
    member.info.size = len(member.data)


def changed_members(chance, members):
    member = chance.choice(members)
    match chance.randrange(7):
        case 0:
            member.info.name = chance.choice(NAMES)
        case 1:
            member.info.type, member.info.linkname = (
                chance.choice(TYPES),
                chance.choice(["/etc/passwd", "../victim", ""]),
            )
        case 2:
            member.info.size = chance.choice(SIZES)
        case 3:
            member.info.pax_headers = chance.choice(PAX)
        case 4:
            members.insert(chance.randrange(len(members)), dataclasses.replace(member))
        case 5:
            members.remove(member)
        case 6:
            chance.shuffle(members)


def hostile(chance, good, target, places):
    """Write a changed copy of a good backup; return what was changed."""
    members = read(good)
    manifest = json.loads(members[-1].data)
    kind = chance.choice(["bytes", "members", "value", "statement", "statement", "file", "file"])
    match kind:
        case "members":
            changed_members(chance, members)
        case "value":
            manifest = changed_value(chance, manifest)
        case "statement":
            changed_statement(chance, manifest, places)
        case "file":
            changed_file(chance, members, places)
    if chance.random() < {"file": 0.8, "members": 0.5}.get(kind, 0):
        manifest["files"] = {
            member.info.name: {"size": len(member.data), "sha256": hashlib.sha256(member.data).hexdigest()}
            for member in members
            if member.info.name != "manifest.json"
        }
    for member in members:
        if member.info.name == "manifest.json":
            member.data = json.dumps(manifest).encode()
            if kind != "members":
                member.info.size = len(member.data)
    write(target, members)
    if kind == "bytes":
        target.write_bytes(changed_bytes(chance, target.read_bytes()))
    return kind


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def judge(restored, new, own):
    """What is wrong with one restore that has ended."""
    if restored.returncode not in (0, 1):
        yield f"it ended with {restored.returncode}: {restored.stderr[-300:]}"
    elif restored.returncode:
        if not restored.stderr.removesuffix("\n").isprintable():
            yield f"its error is {restored.stderr[:2000]!r}"
        if new.exists():
            yield "a refused backup left its folder"
    else:
        for file in (new / "store" / "metadata" / "default").resolve().glob("*.sql"):
            if re.sub("UUID '[^']+'", "", file.read_text()) != own[file.name]:
                yield f"{file.name} has another statement: {file.read_text()[:300]}"


def make(folder):
    """A good backup."""
    store = Store.open(f"chdb://{folder / 'store'}")
    apply_schema(store)
    store.client().command(FILL)
    (folder / "slos.yaml").write_text("slos: []")
    (folder / "good.tar").write_bytes(b"".join(Backups(store, [], [folder / "slos.yaml"]).make()))
    store.close()


def fuzz(seed, count, folder):
    """One run; returns its record."""
    chance, began, answers, wrong = random.Random(seed), time.monotonic(), Counter(), []
    make(folder)
    metadata = (folder / "store" / "metadata" / "default").resolve()
    own = {file.name: re.sub("UUID '[^']+'", "", file.read_text()) for file in metadata.glob("*.sql")}
    outside = folder / "outside"
    (outside / "victim").mkdir(parents=True)
    before, target, new = None, outside / "b.tar", outside / "new"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        places = {"url": f"http://127.0.0.1:{server.getsockname()[1]}/x/", "victim": outside / "victim"}
        for n in range(count):
            kind = hostile(chance, folder / "good.tar", target, places)
            before = files_of(outside)
            restored = forked.run("collector.keep.__main__", target, new)
            answers[f"{kind} {'restored' if restored.returncode == 0 else 'refused'}"] += 1
            found = [*judge(restored, new, own)]
            shutil.rmtree(new, ignore_errors=True)
            if files_of(outside) != before:
                found.append("something outside of the new folder changed")
            with suppress(BlockingIOError):
                server.accept()[0].close()
                found.append("it asked the address of a statement")
            wrong += [f"backup {n} ({kind}): {what}" for what in found]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seed": seed,
        "backups": count,
        "seconds": round(time.monotonic() - began),
        "answers": dict(sorted(answers.items())),
        "wrong": wrong,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_restore", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--count", type=int, default=400)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        record = fuzz(given.seed, given.count, Path(folder))
    print(json.dumps(record, indent=2))
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
