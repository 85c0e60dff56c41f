"""Archives that tests make, change and restore."""

import hashlib
import io
import json
import tarfile

from typer.testing import CliRunner

from collector.keep.archive import Manifest
from tests.support import forked
from tokentrail.cli.app import app

EMPTY = Manifest(format=1, made="", until="", clickhouse="", tables={}, files={})


def tokentrail(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_restore(archive, data_dir):
    """In a process of its own: this one has another store open."""
    return forked.run("collector.keep.__main__", archive, data_dir)


def rewrite(archive, change, *, member="manifest.json"):
    """Change the manifest, or the bytes of another member, and keep the rest."""
    with tarfile.open(archive) as tar:
        members = [(info, tar.extractfile(info).read()) for info in tar]
    with tarfile.open(archive, "w") as tar:
        for info, data in members:
            if info.name == member == "manifest.json":
                manifest = json.loads(data)
                change(manifest)
                data = json.dumps(manifest).encode()
            elif info.name == member:
                data = change(data)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def rewrite_with_digest(archive, name, content):
    """Change a member, and the manifest with it."""
    digest = hashlib.sha256(content).hexdigest()
    rewrite(archive, lambda _: content, member=name)
    rewrite(archive, lambda manifest: manifest["files"][name].update(sha256=digest, size=len(content)))


def tar_of(path, name, content):
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return path.read_bytes()
