"""The schema on a cluster: the statements of `collector/sql`, changed for shards and replicas in this one place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from collector.store.definitions import Schema

_CREATE_TABLE: Final = re.compile(r"(CREATE TABLE IF NOT EXISTS )(\w+)")
_ENGINE: Final = re.compile(r"ENGINE = (\w+)(?:\(([^()]*)\))?")
_VIEW: Final = re.compile(r"(CREATE OR REPLACE MATERIALIZED VIEW \w+) TO (\w+)")
_FROM: Final = re.compile(r"\bFROM (\w+)")
_CHANGE: Final = re.compile(r"^(ALTER TABLE|TRUNCATE TABLE|DELETE FROM) (\w+)")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_WINDOW: Final = re.compile(r"\bnon_replicated_deduplication_window = (\d+)")
_WINDOW_S: Final = 7 * 86400
"""Keeper remembers an insert for so long, unless 10,000 others followed. ClickHouse's default is an hour."""

SHARDED_BY: Final = ("trace_id", "service")
"""A row is on the shard that the first of these columns names. A table without them is whole on every node."""


@dataclass(frozen=True)
class Layout:
    """Where tables are: on one server (`cluster` is empty), or on a cluster's shards and replicas.

    On a cluster each stored table `requests` is two tables on every node:

        requests_local    Replicated…MergeTree, the rows of this shard
        requests          Distributed, all shards: queries read it, and an insert goes to the shards of its traces

    A payload lands on the node that the collector speaks to. The views that read its landing table write to Distributed
    tables (`flat_spans`, `tokens`), so the spans of a trace meet on one shard. All other views read and write there.
    One view alone writes to a Distributed table: its insert has the segment's token, which the shard takes once.
    """

    cluster: str = ""

    @classmethod
    def of(cls, dsn: str) -> tuple[str, Layout]:
        """Take `?cluster=NAME` out of a store's address. Raises ValueError for a name that cannot be one."""
        parts = urlsplit(dsn)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "cluster" not in parameters:
            return dsn, cls()
        name = parameters.pop("cluster")
        if not _NAME.fullmatch(name) or not parts.scheme.startswith("http"):
            msg = f"{name!r} is not the name of a cluster; write http://user:password@host:8123/database?cluster=NAME"
            raise ValueError(msg)
        return parts._replace(query=urlencode(parameters)).geturl(), cls(name)

    @property
    def settings(self) -> dict[str, str | int]:
        """Settings of every statement."""
        if not self.cluster:
            return {}
        return {
            "distributed_foreground_insert": 1,  # an insert that has ended is on its shards
            "distributed_product_mode": "global",  # a subquery reads all shards, not each shard its own
            "skip_unavailable_shards": 0,
        }

    @property
    def decision_settings(self) -> dict[str, str | int]:
        """Settings of inserts of which the first decides, and of queries for it: any node answers with all of them."""
        if not self.cluster:
            return {}
        return {"insert_quorum": "auto", "insert_quorum_parallel": 0, "select_sequential_consistency": 1}

    @property
    def on_cluster(self) -> str:
        """` ON CLUSTER NAME`, behind the table's name of a statement that every node runs."""
        return f" ON CLUSTER `{self.cluster}`" if self.cluster else ""

    def system(self, table: str) -> str:
        """A system table of the server, or of one replica of each shard."""
        return f"cluster('{self.cluster}', system.{table})" if self.cluster else f"system.{table}"

    def every_node(self, table: str) -> str:
        """A system table of every node."""
        return f"clusterAllReplicas('{self.cluster}', system.{table})" if self.cluster else f"system.{table}"

    def stored(self, table: str) -> str:
        """The table that has the rows on each node, for statements that drop or delete rows."""
        return f"{table}_local" if self.cluster else table

    def tables(self, schema: Schema, database: str) -> dict[str, str]:
        """Return the statement that creates each table, in order."""
        if not self.cluster:
            return schema.tables
        twins = _twins(schema)
        return {
            name: statement
            for table, sql in schema.tables.items()
            for name, statement in self._tables(table, sql, database, has_twin=table in twins)
        }

    def views(self, schema: Schema) -> dict[str, str]:
        """Return the statement that creates each view."""
        if not self.cluster:
            return schema.views
        twins, landing = _twins(schema), _landing(schema)
        return {
            name: _VIEW.sub(rf"\1{self.on_cluster} TO \2", sql)
            if _sources(sql) & landing
            else _VIEW.sub(lambda found: self._to_local(found, twins), _FROM.sub(lambda f: _from_local(f, twins), sql))
            for name, sql in schema.views.items()
        }

    def exchanges(self, schema: Schema) -> tuple[str, ...]:
        """Null tables that other shards insert into. They are closed with the landing tables when views change."""
        return (
            tuple(f"{name}_local" for name in _twins(schema) if _is_null(schema.tables[name])) if self.cluster else ()
        )

    def distributed(self, tables: Mapping[str, str]) -> list[str]:
        """Statements that give the Distributed tables the columns that their local tables have now."""
        create, replace = "CREATE TABLE IF NOT EXISTS", "CREATE OR REPLACE TABLE"
        return [sql.replace(create, replace) for sql in tables.values() if "ENGINE = Distributed(" in sql]

    def migration(self, statement: str, schema: Schema) -> str:
        """Change a statement of a migration: rows and columns are changed where they are stored."""
        twins = _twins(schema) if self.cluster else set()

        def change(found: re.Match[str]) -> str:
            return f"{found[1]} {found[2]}{'_local' if found[2] in twins else ''}{self.on_cluster}"

        return _CHANGE.sub(change, statement) if self.cluster else statement

    def _tables(self, name: str, sql: str, database: str, *, has_twin: bool) -> Iterator[tuple[str, str]]:
        if not has_twin:
            whole = not _is_null(sql)
            yield name, self._local(name, sql, f"/clickhouse/tables/{database}/{name}", whole=whole)
            return
        local = f"{name}_local"
        yield local, self._local(local, sql, f"/clickhouse/tables/{{shard}}/{database}/{local}", whole=False)
        key = next(column for column in SHARDED_BY if re.search(rf"\b{column}\b", sql))
        yield (
            name,
            f"CREATE TABLE IF NOT EXISTS {name}{self.on_cluster} AS {local}"
            f" ENGINE = Distributed('{self.cluster}', '{database}', '{local}', cityHash64({key}))",
        )

    def _local(self, name: str, sql: str, path: str, *, whole: bool) -> str:
        def replicated(engine: re.Match[str]) -> str:
            if engine[1] == "Null":
                return engine[0]
            replica = "{shard}-{replica}" if whole else "{replica}"
            arguments = ", ".join(filter(None, (f"'{path}', '{replica}'", engine[2])))
            return f"ENGINE = Replicated{engine[1]}({arguments})"

        sql = _CREATE_TABLE.sub(rf"\g<1>{name}{self.on_cluster}", sql, count=1)
        window = rf"replicated_deduplication_window = \1, replicated_deduplication_window_seconds = {_WINDOW_S}"
        return _WINDOW.sub(window, _ENGINE.sub(replicated, sql, count=1))

    def _to_local(self, view: re.Match[str], twins: set[str]) -> str:
        return (
            f"{view[1]}{self.on_cluster} TO {view[2]}_local"
            if view[2] in twins
            else f"{view[1]}{self.on_cluster} TO {view[2]}"
        )


def _from_local(source: re.Match[str], twins: set[str]) -> str:
    return f"FROM {source[1]}_local AS {source[1]}" if source[1] in twins else source[0]


def _is_null(sql: str) -> bool:
    return bool((engine := _ENGINE.search(sql)) and engine[1] == "Null")


def _sources(view: str) -> set[str]:
    return set(_FROM.findall(view))


def _target(view: str) -> str:
    match = _VIEW.match(view)
    assert match, view
    return match[2]


def _landing(schema: Schema) -> set[str]:
    """Null tables that no view writes to: the collector inserts into them."""
    written = {_target(view) for view in schema.views.values()}
    return {name for name, sql in schema.tables.items() if _is_null(sql) and name not in written}


def _twins(schema: Schema) -> set[str]:
    """Tables that are a local and a Distributed one."""
    landing = _landing(schema)
    exchanged = [_target(view) for view in schema.views.values() if _sources(view) & landing]
    if len(exchanged) != len(set(exchanged)):
        msg = f"two views that read a landing table write to one table; a shard would take one of them: {exchanged}"
        raise ValueError(msg)
    sharded = {
        name
        for name, sql in schema.tables.items()
        if not _is_null(sql) and any(re.search(rf"\b{column}\b", sql) for column in SHARDED_BY)
    }
    return sharded | {*exchanged}
