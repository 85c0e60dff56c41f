"""The least that ingest can cost: the steps that nothing can leave out, each alone, in CPU of this process.

    token span     hash, copy, insert of the same columns in Native format into `tokens`
    other span     hash, copy, parse by Protobuf, decode by ClickHouse (its views are dropped), insert of a row of
                   `requests` that is made of constants

To receive the bytes, fsync them and merge the parts later comes on top.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.otlp.signals import TRACES
from collector.otlp.tokens import Columns, token_columns
from collector.store import Store
from collector.store.insert import insert_block, insert_otlp, native_block
from collector.store.parts import row_count
from collector.store.schema import apply_schema
from collector.wal.frame import digest_of

_ROUNDS: Final = 3
_REQUESTS: Final = """
    INSERT INTO requests
        (end, start, trace_id, span_id, request_id, engine, model, status, e2e_ns, output_tokens, ttft_ns)
    SELECT now64(9), now64(9), toFixedString(toString(number), 16), 'a', 'chatcmpl', 'genai', 'm', 'ok', number, 9, 9
    FROM numbers({n:UInt32})
"""


def floors(sdk_bodies: Sequence[bytes], shapes: Mapping[str, Sequence[bytes]], spans: int) -> dict[str, float]:
    """Return the floors in µs per span, and their parts. Each of the `shapes` of other spans has so many spans.

    A shape's numbers end in its name.
    """
    parts: list[tuple[bytes, Columns]] = [(body, tokens) for body in sdk_bodies if (tokens := token_columns(body))]
    bodies, columns = [body for body, _ in parts], [tokens for _, tokens in parts]
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"chdb://{folder}/store")
        try:
            apply_schema(store)
            drop_views(store)
            numbers = _together("token", _of_tokens(store, bodies, columns))
            for shape, others in shapes.items():
                numbers |= _together("span", _of_spans(store, shape, others, spans), shape)
        finally:
            store.close()
    return numbers


def _of_tokens(store: Store, bodies: Sequence[bytes], columns: Sequence[Columns]) -> dict[str, float]:
    assert TRACES.plain
    block = native_block(columns, TRACES.plain.types)
    taken = {
        "hash": _least(lambda _: [digest_of(body) for body in bodies]),
        "copy": _least(lambda _: b"".join(bodies)),
        "insert": _least(lambda n: insert_block(store, TRACES, block, f"tokens {n}")),
    }
    tokens = row_count(columns)
    return {step: us / tokens for step, us in taken.items()}


def _of_spans(store: Store, shape: str, bodies: Sequence[bytes], spans: int) -> dict[str, float]:
    joined = b"".join(bodies)
    taken = {
        "hash": _least(lambda _: [digest_of(body) for body in bodies]),
        "copy": _least(lambda _: b"".join(bodies)),
        "parse": _least(lambda _: list(map(ExportTraceServiceRequest.FromString, bodies))),
        "decode": _least(lambda n: insert_otlp(store, TRACES, joined, f"{shape} {n}")),
        "insert": _least(lambda _: store.client().command(_REQUESTS, {"n": spans})),
    }
    return {step: us / spans for step, us in taken.items()}


def _together(kind: str, steps: Mapping[str, float], shape: str = "") -> dict[str, float]:
    """Name the steps, and add them up."""
    parts = {f"floor_{kind}_{step}_us{shape}": us for step, us in steps.items()}
    return {**parts, f"floor_us_per_{kind}{shape}": sum(steps.values())}


def drop_views(store: Store) -> None:
    """Drop all views, so that the landing tables decode and keep nothing."""
    for (view,) in store.query("SELECT name FROM system.tables WHERE engine = 'MaterializedView'").result_rows:
        store.client().command(f"DROP VIEW {view} SYNC")


def _least(work: Callable[[int], object]) -> float:
    """µs of CPU of the cheapest of some rounds; the first warms up."""
    taken = []
    for n in range(_ROUNDS):
        before = time.process_time()
        work(n)
        taken.append(time.process_time() - before)
    return min(taken) * 1e6
