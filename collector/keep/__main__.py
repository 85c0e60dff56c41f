"""`python -m collector.keep FILE DATA_DIR|ADDRESS`: restore a backup into a new data folder, or into a server."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from collector.keep.archive import BackupError
from collector.keep.restore import restore
from collector.keep.to_server import to_server
from collector.pipeline.settings import load_settings
from tokentrail.shared import private_files
from tokentrail.shared.formatting import without_user


def main(arguments: list[str]) -> int:
    """Print the rows of each table; the exit status is 1 when nothing was restored, 130 after Ctrl-C or SIGTERM."""
    as_json = "--json" in arguments[2:]
    if len(arguments) != len(("FILE", "DATA_DIR")) + as_json:
        sys.stderr.write("usage: python -m collector.keep FILE DATA_DIR|ADDRESS [--json]\n")
        return 2
    archive, target = Path(arguments[0]), arguments[1]
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    os.umask(private_files.UMASK)
    try:
        if "://" in target:
            manifest = to_server(archive, load_settings(["--store", target]).store_dsn)
            target = without_user(target)
        else:
            manifest = restore(archive, Path(target))
    except (BackupError, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if as_json:
        rows = {name: table.rows for name, table in manifest.tables.items()}
        sys.stdout.write(json.dumps({"data_dir": target, "until": str(manifest.until), "rows": rows}) + "\n")
        return 0
    for name, table in manifest.tables.items():
        sys.stdout.write(f"{name}: {table.rows} rows\n")
    sys.stdout.write(f"all that was acknowledged before {manifest.until} is in {target}\n")
    return 0


def _interrupt(*_: object) -> None:
    """End the restore once: a second signal must not end the removal of its files."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
