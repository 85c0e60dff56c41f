"""`python -m tests.power_cuts --rounds 10`: power cuts at random moments under load; root and a loop device.

Four clients send requests with tokens, and send them again until they are acknowledged. After the last cut, each
acknowledged request and token must be stored once and counted once. A file system that is cut off may let an fsync
return that has written nothing, which no power cut does: an answer counts as an acknowledgement when it had been read
before the cut began, so its fsync had returned. `--kind xfs` takes another file system. The exit status is 1 when a row
is missing or there twice.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from contextlib import suppress

from collector.store.store import Store
from tests.collector.app.test_process import Client, stored_tokens
from tests.collector.test_power_cut import body, counted, power_cut
from tests.support.collector import Collector
from tests.support.power import Mount

TOKENS = 300


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.power_cuts")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kind", default="ext4")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        disk = Mount(folder, options.kind)
        try:
            return run(disk, options.rounds, random.Random(options.seed), options.seed)
        finally:
            disk.unmount()


def run(disk, rounds, chance, seed):
    collector = Collector(disk.path / "data", "--segment-age-s", "0.2").start()
    disk.sync()
    clients = [
        Client(collector, itertools.count(first, 4), lambda trace: body(trace, TOKENS)) for first in (1, 2, 3, 4)
    ]
    for client in clients:
        client.start()
    cuts = []
    try:
        for _ in range(rounds):
            sent = sum(len(client.acknowledged) for client in clients)
            collector.wait_until(lambda sent=sent: sum(len(client.acknowledged) for client in clients) > sent + 20)
            time.sleep(chance.uniform(0.0, 3.0))
            began = time.monotonic()
            power_cut(collector, disk)
            cuts.append((began, time.monotonic()))
            collector.start()
    finally:
        for client in clients:
            client.enough.set()
            client.join(120)
    collector.wait_until_stored()
    answered = {trace: at for client in clients for trace, at in client.acknowledged.items()}
    acknowledged = {trace for trace, at in answered.items() if not any(began <= at <= back for began, back in cuts)}
    with suppress(AssertionError):
        collector.wait_until(lambda: counted(collector) >= len(acknowledged), timeout_s=60)
    total = counted(collector)
    collector.stop()
    requests, tokens = stored_requests(collector.data_dir), stored_tokens(collector.data_dir)
    expected = {(trace, index) for trace in acknowledged for index in range(TOKENS)}
    result = {
        "seed": seed,
        "rounds": rounds,
        "acknowledged": len(acknowledged),
        "answered while it was cut": len(answered) - len(acknowledged),
        "requests doubled": sum(count > 1 for count in requests.values()),
        "requests lost": len(acknowledged - requests.keys()),
        "tokens doubled": sum(count > 1 for count in tokens.values()),
        "tokens lost": len(expected - tokens.keys()),
        "counted wrong": total - len(requests),
    }
    print(result)
    return int(any(result[name] for name in list(result)[4:]))


def stored_requests(data_dir):
    """Trace → rows."""
    store = Store.open(f"chdb://{data_dir / 'store'}")
    try:
        sql = "SELECT reinterpretAsUInt128(reverse(trace_id)) AS trace, count() FROM requests GROUP BY trace"
        return dict(store.query(sql).result_rows)
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main())
