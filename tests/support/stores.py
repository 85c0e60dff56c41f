"""New stores for tests, copied from a template."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import chdb

from collector.store import store as store_module
from collector.store.definitions import SQL_DIR
from collector.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / ".pytest_cache" / "stores"
# A DELETE waits until the embedded engine looks for work two or three times: 22 s where it looks each ten seconds.
store_module._SELDOM_AWAKE["background_processing_pool_thread_sleep_seconds_if_nothing_to_do"] = 0.1
# By default a thread of its own reads what the kernel does not have at hand, which all of a folder in memory counts as:
# 5 % of the CPU of a test of the API.
store_module._UNCOMPILED["local_filesystem_read_method"] = "pread"
MAKE = """
import sys
from collector.store.schema import apply_schema
from collector.store.store import Store
store = Store.open(sys.argv[1])
apply_schema(store)
store.close()
"""


class LazyStore(Store):
    """A store whose rows of a test wait until the store is asked.

    An insert of one row takes 10 to 40 ms of CPU, and an insert of all rows of a test takes as long.
    """

    def __init__(self, dsn, **timeouts):
        super().__init__(dsn, **timeouts)
        self._waiting = {}
        self._waiting_lock = threading.Lock()
        self._types = {}

    def put(self, table, columns, rows):
        """Insert rows at the next call of `client`, in the order in which they came."""
        with self._waiting_lock:
            self._waiting.setdefault((table, tuple(columns)), []).extend(rows)

    def forget(self):
        """Drop the rows that wait."""
        with self._waiting_lock:
            self._waiting.clear()

    def client(self):
        client = super().client()
        with self._waiting_lock:
            while self._waiting:
                table, columns = next(iter(self._waiting))
                rows = self._waiting.pop((table, columns))
                if table not in self._types:  # the client would ask for them before each insert
                    self._types[table] = {
                        name: kind for name, kind, *_ in client.query(f"DESCRIBE {table}").result_rows
                    }
                types = [self._types[table][name] for name in columns]
                client.insert(table, rows, column_names=columns, column_type_names=types, settings=AS_THEY_ARE)
        return client

    def with_timeout(self, send_receive_timeout_s):
        self.client()
        return super().with_timeout(send_receive_timeout_s)


AS_THEY_ARE = {"insert_deduplicate": 0, "optimize_on_insert": 0, "max_threads": 1}
"""Rows of one key stay apart, as if they had come one by one. A second thread for one row costs more than the row."""


def new_store(folder):
    """Copy an embedded store with all tables and no rows to `folder`, which does not exist yet."""
    shutil.copytree(_template(), folder, symlinks=True)


def open_new_store(folder):
    """A new embedded store, opened. One process may have one open at a time."""
    new_store(folder)
    return LazyStore.open(f"chdb://{folder}")


@cache
def _template():
    """Another process makes it, once for each version of the schema: creating tables and views takes 2 s of CPU."""
    digest = hashlib.sha256(chdb.__version__.encode())
    kinds = ("*.sql", "*.proto", "*.yaml", "*.py")
    made_of = [path for kind in kinds for path in SQL_DIR.rglob(kind)] + [*(ROOT / "collector/store").glob("*.py")]
    for path in sorted([*made_of, ROOT / "tokentrail/shared/finish_reasons.py"]):
        digest.update(path.read_bytes())
    template = TEMPLATES / digest.hexdigest()[:16]
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    with TEMPLATES.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            shutil.rmtree(TEMPLATES)
            made = TEMPLATES / "made"
            subprocess.run([sys.executable, "-c", MAKE, f"chdb://{made}"], cwd=ROOT, check=True, timeout=300)
            made.rename(template)
    return template


def drop_everything(store):
    """Drop all tables and views, so that the store is as a new one."""
    sql = "SELECT name FROM system.tables WHERE database = currentDatabase() ORDER BY engine != 'MaterializedView'"
    if names := [f"`{name}`" for (name,) in store.query(sql).result_rows]:
        store.client().command(f"DROP TABLE {', '.join(names)} SYNC")
