"""Rows written straight into the real tables, so that a test can work out by itself how the API must answer."""

import math
import struct
from itertools import count

from clickhouse_connect.driver import options

from collector.otlp.tokens import tenant_hash

SECOND = 1_000_000_000
NOW = 1_795_255_200 * SECOND
"""2026-11-21T10:00:00Z"""

TABLES = (
    "requests",
    "tokens",
    "phases",
    "steps",
    "kv_events",
    "cold_starts",
    "open_requests",
    "samples",
    "causes",
    "step_models",
)
_ENGINE = {"service": "engine", "instance": "i-1", "process_tenant": "", "variant": "baseline"}
_serial = count(1)
options.pd = options.pd_time_test = None  # no insert here has a data frame; pandas takes 1.5 s


def trace_id() -> str:
    return f"{next(_serial):032x}"


class Rows:
    """Puts rows, given as keyword arguments, into a `LazyStore`. Times are unix nanoseconds, ids hex."""

    def __init__(self, store):
        self.store = store
        self._ends, self._has_announced = [], False

    def clear(self):
        self._ends, self._has_announced = [], False
        self.store.forget()
        for table in TABLES:
            self.store.client().command(f"TRUNCATE TABLE {table}")

    def request(self, *, ended=NOW - SECOND, e2e=SECOND, **fields):
        return self.requests([{"ended": ended, "e2e": e2e, **fields}])[0]

    def requests(self, many):
        """Their ends displace announcements, so they are stored beside the first of these."""
        rows = [_request(**fields) for fields in many]
        self._ends += map(_ended, rows)
        self.insert("requests", rows)
        return rows

    def open(self, *, start, seen, **fields):
        row = {
            **_ENGINE, "engine": "tokentrail", "model": "m", "trace_id": trace_id(), "span_id": "00000000000000aa",
            "start": start, "seen": seen, "operation": "chat", "tenant": "", "slo_class": "", "labels": {},
            "request_id": "", "input_tokens": 5, "output_tokens": 0, "ttft_ns": None, "last_token_ns": None,
            "gap_ns": None,
        } | fields  # fmt: skip
        self.insert("open_requests", [row])
        return row

    def tokens(self, request, durations_us, *, step=0):
        at, rows = request["start"], []
        for index, duration in enumerate(durations_us):
            at += duration * 1000
            rows.append(
                {"minute": at, "trace_id": request["trace_id"], "request_span_id": request["span_id"],
                 "token_index": index, "duration_us": duration, "step": step + index}
            )  # fmt: skip
        self.insert("tokens", rows)

    def phases(self, request, named):
        at, rows = request["start"], []
        for name, duration in named:
            at_end = at + duration
            rows.append(
                {"minute": at_end, "trace_id": request["trace_id"], "request_span_id": request["span_id"],
                 "process_tenant": request["process_tenant"], "start": at, "name": name, "duration_ns": duration}
            )  # fmt: skip
            at = at_end
        self.insert("phases", rows)

    def causes(self, explained):
        """A row of `causes` for each pair of a request and its other columns, such as `ttft_busy_us` and `level`."""
        keys = self.keys([request for request, _ in explained])
        self._insert_each("causes", [_causes(*one, key) for one, key in zip(explained, keys, strict=True)])

    def keys(self, requests):
        """The `request_key` of these requests, computed here: to ask for it would insert what waits."""
        return [
            (_key(_id(request["trace_id"]), _id(request["span_id"])) + tenant_hash(request["process_tenant"])) % 2**32
            for request in requests
        ]

    def _insert_each(self, table, rows):
        """Insert rows that do not all have the same columns."""
        for row in rows:
            self.insert(table, [row])

    def all_causes(self, explained):
        """As `causes`, of requests that have the same columns: one insert."""
        keys = self.keys([request for request, _ in explained])
        self.insert("causes", [_causes(*one, key) for one, key in zip(explained, keys, strict=True)])

    def step(self, *, start, **fields):
        self.insert("steps", [self.step_row(start=start, **fields)])

    @staticmethod
    def step_row(*, start, **fields):
        counts = ("prefill_tokens", "decode_tokens", "running", "waiting", "preempted",
                  "kv_blocks_used", "kv_blocks_total", "kv_blocks_evicted")  # fmt: skip
        return _ENGINE | dict.fromkeys(counts, 0) | {"start": start, "duration_ns": 10_000_000, "step": 0} | fields

    def kv_event(self, *, start, **fields):
        row = _ENGINE | {"start": start, "kind": "evict", "reason": "preemption", "blocks": 4, "duration_ns": 0,
                         "step": 0, "trace_id": "0" * 32, "request_span_id": "", "segment": "s",
                         "bytes": None, "beneficiary": ""} | fields  # fmt: skip
        self.insert("kv_events", [row])

    def cold_start(self, *, start, duration, **fields):
        row = _ENGINE | {"start": start, "duration_ns": duration, "trace_id": trace_id(), "span_id": "00000000000000cc",
                         "parent_span_id": "", "engine": "tokentrail", "model": "m", "phase": "", "status": "ok",
                         "error_type": "", "segment": "s"} | fields  # fmt: skip
        self.insert("cold_starts", [row])
        return row

    def insert(self, table, rows):
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        native = [list(map(_NATIVE[name], column)) if name in _NATIVE else column for name, column in columns.items()]
        self.store.put(table, columns, zip(*native, strict=True))
        self._has_announced |= table == "open_requests"
        if self._has_announced and self._ends:
            ends, self._ends = self._ends, []
            self.insert("open_requests", ends)


def _id(value):
    return bytes.fromhex(value) if isinstance(value, str) else value


def _key(trace, span):
    """toUInt32(cityHash64(trace, span)) of ClickHouse: CityHash 1.0.2 of 16 and of 8 bytes."""
    (low, high), (first, last) = struct.unpack("<QQ", trace), struct.unpack("<II", span)
    turned = (high + 16) % 2**64
    turned = turned >> 16 | turned << 48 & 2**64 - 1
    return _hash_of_two(_hash_of_two(low, turned) ^ high, _hash_of_two(8 + (first << 3), last)) % 2**32


def _hash_of_two(u, v):
    multiplier = 0x9DDFEA08EB382D69
    a = (u ^ v) * multiplier % 2**64
    b = (v ^ a ^ a >> 47) * multiplier % 2**64
    return (b ^ b >> 47) * multiplier % 2**64


_NATIVE = {
    "trace_id": _id,
    "span_id": _id,
    "request_span_id": _id,
    "minute": lambda ns: ns // SECOND // 60 * 60,
    "ingested_at": lambda ns: ns // 1_000_000,
}
"""clickhouse-connect takes integers for times, in the column's own unit, so that nanoseconds survive."""


def _ended(request):
    """The columns that the decoding view computes at a request's end."""
    same = ("start", "trace_id", "span_id", "engine", "service", "instance", "process_tenant", "variant", "vantage",
            "model", "tenant", "slo_class")  # fmt: skip
    return {name: request[name] for name in same} | {"seen": request["end"] + 3600 * SECOND, "ended": 1}


def _causes(request, fields, key):
    """What the explainer copies from a request; all its time is unexplained, unless the fields say where it went."""
    same = ("end", "ingested_at", "engine", "service", "instance", "process_tenant", "variant", "vantage", "operation",
            "model", "tenant", "slo_class", "labels", "status", "error_type", "output_tokens", "weight")  # fmt: skip
    ttft_us, e2e_us = -(-(request["ttft_ns"] or 0) // 1000), -(-request["e2e_ns"] // 1000)
    first_token = "known" if request["ttft_ns"] is not None else "none" if request["output_tokens"] == 0 else "unknown"
    before = ttft_us if first_token == "known" else e2e_us
    rest = e2e_us - before
    told = {part: sum(us for name, us in fields.items() if name.startswith(part)) for part in ("ttft", "rest")}
    tokens, tpot_ns = request["output_tokens"], request["tpot_ns"]
    tpot_ns = request["tpot_at_most_ns"] if tpot_ns is None else tpot_ns
    mean_gap_us = -(-rest // (tokens - 1)) if tokens and tokens > 1 else 0
    unknown_us = 0 if tokens is not None and tokens < 2 else 2**32 - 1
    tpot_us = unknown_us if tpot_ns is None else -(-math.ceil(tpot_ns) // 1000)
    gap_ns, visible_ns = request["gap_ns"], request["first_visible_ns"]
    known_us = {"known": min(max(ttft_us, 1), 2**32 - 2), "none": 0, "unknown": 2**32 - 1}[first_token]
    seen_us = known_us if request["reasoning_tokens"] == 0 or tokens == 0 else 2**32 - 1
    row = {name: request[name] for name in same} | {
        "request_key": key,
        "gap_us": unknown_us if gap_ns is None else min(-(-gap_ns // 1000), 2**32 - 2),
        "first_visible_us": seen_us if visible_ns is None else min(max(-(-visible_ns // 1000), 1), 2**32 - 2),
        "first_token": first_token,
        "ttft_unexplained_us": before - told["ttft"],
        "rest_unexplained_us": rest - told["rest"],
        "tpot_more_us": (tpot_us - mean_gap_us) % 2**32,
        "tpot_is_bound": request["tpot_ns"] is None and request["tpot_at_most_ns"] is not None,
        "level": "steps",
        "version": 1,
    }
    return row | fields


def _request(*, ended=NOW - SECOND, e2e=SECOND, **fields):
    tokens = fields.get("output_tokens", 10)
    row = {
        "end": ended, "start": ended - e2e, "trace_id": trace_id(), "span_id": "00000000000000aa", "parent_span_id": "",
        "request_id": "", "engine": "tokentrail", **_ENGINE, "vantage": "server", "operation": "chat", "model": "m",
        "tenant": "", "slo_class": "", "labels": {}, "status": "ok", "error_type": "", "finish_reason": "stop",
        "input_tokens": 5,
        "output_tokens": tokens, "cached_tokens": 0, "reasoning_tokens": 0, "preemptions": 0,
        "drafted_tokens": None, "accepted_tokens": None, "perplexity": None, "mean_entropy": None,
        "first_visible_ns": None, "wait_batch_ns": None,
        "wait_tokens_ns": None, "wait_kv_ns": None, "wait_priority_ns": None,
        "ttft_ns": e2e // 2 if tokens else None, "tpot_ns": e2e / 2 / (tokens - 1) if tokens and tokens > 1 else None,
        "tpot_at_most_ns": None,
        "e2e_ns": e2e, "queue_ns": None, "cold_start_ns": None, "prefill_ns": None, "decode_ns": None,
        "preempted_ns": None, "weight": 1.0,
        "kv_transfer_ns": None, "stalled_ns": None, "gap_ns": None, "gap_index": None, "segment": "s",
        "ingested_at": ended,
    }  # fmt: skip
    assert fields.keys() <= row.keys(), fields.keys() - row.keys()
    return row | fields
