"""`python -m collector.backup FILE DATA_DIR`: restore a backup into a new data folder."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from collector.backup.archive import BackupError
from collector.backup.restore import restore
from tokentrail.shared import private_files


def main(arguments: list[str]) -> int:
    """Print the rows of each table; the exit status is 1 when nothing was restored, 130 after Ctrl-C or SIGTERM."""
    as_json = "--json" in arguments[2:]
    if len(arguments) != len(("FILE", "DATA_DIR")) + as_json:
        sys.stderr.write("usage: python -m collector.backup FILE DATA_DIR [--json]\n")
        return 2
    archive, data_dir = (Path(argument) for argument in arguments[:2])
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    os.umask(private_files.UMASK)
    try:
        manifest = restore(archive, data_dir)
    except BackupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if as_json:
        rows = {name: table.rows for name, table in manifest.tables.items()}
        sys.stdout.write(json.dumps({"data_dir": str(data_dir), "until": str(manifest.until), "rows": rows}) + "\n")
        return 0
    for name, table in manifest.tables.items():
        sys.stdout.write(f"{name}: {table.rows} rows\n")
    sys.stdout.write(f"all that was acknowledged before {manifest.until} is in {data_dir}\n")
    return 0


def _interrupt(*_: object) -> None:
    """End the restore once: a second signal must not end the removal of its files."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
