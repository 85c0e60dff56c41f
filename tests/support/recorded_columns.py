"""The columns that `explain_process` takes, of each process in a store."""

from dataclasses import dataclass

import numpy as np

_REQUESTS = """
SELECT cityHash64(trace_id, span_id) AS key, toUnixTimestamp64Nano(start) AS start, toUnixTimestamp64Nano(end) AS end,
       ttft_ns, input_tokens, output_tokens, cached_tokens, wait_batch_ns, wait_kv_ns, wait_tokens_ns, wait_priority_ns,
       ttft_us, e2e_us, status, service, instance
FROM requests ORDER BY start
"""
_PHASES = """
SELECT cityHash64(trace_id, request_span_id) AS key, toUnixTimestamp64Nano(start) AS start, duration_ns, name
FROM phases ORDER BY start
"""
_STEPS = "SELECT * EXCEPT start, toUnixTimestamp64Nano(start) AS start FROM steps ORDER BY start"
_KV_EVENTS = "SELECT toUnixTimestamp64Nano(start) AS start, duration_ns, service, instance FROM kv_events"


@dataclass
class Tables:
    """The columns of one process."""

    requests: dict
    phases: dict
    steps: dict
    kv_events: dict


def processes(store):
    """The tables of each process, by service and instance."""
    requests, phases, steps, events = (_columns(store, sql) for sql in (_REQUESTS, _PHASES, _STEPS, _KV_EVENTS))
    names = dict.fromkeys(zip(requests["service"].tolist(), requests["instance"].tolist(), strict=True))
    found = {}
    for service, instance in names:
        own, of_it, moved = (_of(table, service, instance) for table in (requests, steps, events))
        there = np.isin(phases["key"], own["key"]) if phases else None
        found[service, instance] = Tables(own, {name: column[there] for name, column in phases.items()}, of_it, moved)
    return found


def _of(table, service, instance):
    if not table:
        return {}
    chosen = (table["service"] == service) & (table["instance"] == instance)
    return {name: column[chosen] for name, column in table.items()}


def _columns(store, sql):
    rows = list(store.query(sql).named_results())
    return {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def _column(values):
    if any(isinstance(value, int | float) for value in values) and all(
        isinstance(v, int | float | None) for v in values
    ):
        if None in values:
            return np.array(values, float)
        return np.array(values, np.uint64 if max(values) > 2**63 else None)
    return np.array(values)
