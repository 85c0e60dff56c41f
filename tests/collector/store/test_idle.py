"""An embedded store that nobody uses sleeps. Its threads are counted in a process of their own."""

import subprocess
import sys
import textwrap

import pytest

_WAKE_UPS = textwrap.dedent(
    """
    import sys, time
    from collections import Counter
    from pathlib import Path
    from collector.store import Store

    def wake_ups():
        counted = Counter()
        for thread in Path("/proc/self/task").iterdir():
            name = (thread / "comm").read_text().strip()
            counted[name] += int((thread / "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0])
        return counted

    store = Store.open(f"chdb://{sys.argv[1]}")
    for table in range(20):
        store.command(f"CREATE TABLE t{table} (a Int32) ENGINE = MergeTree ORDER BY a", {})
        store.command(f"INSERT INTO t{table} VALUES (1)", {})
    before = wake_ups()
    time.sleep(3)
    after = wake_ups()
    print(*[after[name] - before[name] for name in ("BgSchPool", "BgStrmSchPool", "MemoryWorker")])
    store.close()
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_tables_do_not_ask_for_work_every_second(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", _WAKE_UPS, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    of_tables, of_streams, of_memory = map(int, ran.stdout.split())
    # twenty tables that ask once a second, and memory that is added up twenty times a second, would be 60
    assert of_tables < 30, ran.stdout
    assert of_streams < 30
    assert of_memory < 30
