"""One node of a ClickHouse cluster `prod`, answered by chDB: `python clickhouse_cluster.py PATH PORT`.

In the cluster `lame`, the other replica is away.
Distributed tables, `cluster(…)` and the views are ClickHouse's own; the cluster's only shard is this process. chDB has
no interserver port and no queue of DDL, so ON CLUSTER is left out of each statement, and a Replicated table is one that
is not replicated and remembers as many inserts.
"""

import re
import sys
from pathlib import Path

from clickhouse_http import Server  # type: ignore[import-not-found]  # this folder is the script's

CONFIG = """
<clickhouse>
    <tcp_port>9000</tcp_port>
    <remote_servers><prod><shard>
        <internal_replication>true</internal_replication>
        <replica><host>127.0.0.1</host><port>9000</port></replica>
    </shard></prod><lame><shard>
        <internal_replication>true</internal_replication>
        <replica><host>127.0.0.1</host><port>9000</port></replica>
        <replica><host>127.0.0.1</host><port>9</port></replica>
    </shard></lame></remote_servers>
</clickhouse>
"""
ON_CLUSTER = re.compile(r" ON CLUSTER `prod`")
REPLICATED = re.compile(r"ENGINE = Replicated(\w*MergeTree)\('/clickhouse/[^']*', '[^']*'(?:, )?")
WINDOW = re.compile(r"\breplicated_deduplication_window = (\d+), replicated_deduplication_window_seconds = \d+")
SYNC_REPLICA = re.compile(r"SYSTEM SYNC REPLICA \w+")


class Node(Server):
    def __init__(self, path, port):
        Path(path).mkdir(parents=True, exist_ok=True)
        config = Path(path).with_name("config.xml")
        config.write_text(CONFIG)
        super().__init__(path, port, options=f"?config-file={config}")

    def run(self, statement, form, settings, values):
        statement = REPLICATED.sub(r"ENGINE = \1(", ON_CLUSTER.sub("", statement))
        statement = WINDOW.sub(r"non_replicated_deduplication_window = \1", statement)
        return super().run(SYNC_REPLICA.sub("SELECT 1", statement), form, settings, values)


if __name__ == "__main__":
    node = Node(sys.argv[1], int(sys.argv[2]))
    print(f"listening on http://127.0.0.1:{node.server_port}", flush=True)
    node.serve_forever()
