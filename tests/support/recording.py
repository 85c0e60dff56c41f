"""Recorded telemetry of other instrumentations, and what their clients measured."""

import gzip
import json
import statistics
from pathlib import Path

from collector.signals import TRACES
from collector.store.insert import insert_otlp

DATA = Path(__file__).resolve().parents[1] / "data"
NS = 1e-9


def replay(store, recording, file="traces"):
    """Insert the bodies of a recording, which lie one behind the other in one file, and so are one request."""
    body = gzip.decompress((DATA / recording / f"{file}.bin.gz").read_bytes())
    insert_otlp(store, TRACES, body, f"{recording}-{file}")


def client_lines(recording):
    """One object for each request of the recording's client, by the time of sending."""
    lines = gzip.decompress((DATA / recording / "client.jsonl.gz").read_bytes()).decode().splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda line: line["send_unix_ns"])


def requests(store, where="true"):
    """Request rows as dictionaries, by start; `start_ns` is the start in unix ns."""
    sql = f"SELECT *, toUnixTimestamp64Nano(start) AS start_ns FROM requests WHERE {where} ORDER BY start"
    return list(store.query(sql).named_results())


def by_response_id(rows, lines):
    """Return pairs of a row and the line of its client. Every completed request has exactly one row."""
    completed = {line["response_id"]: line for line in lines if line["status"] == 200}
    found = [row for row in rows if row["request_id"] in completed]
    assert sorted(row["request_id"] for row in found) == sorted(completed)
    return [(row, completed[row["request_id"]]) for row in found]


def ttft_differences(pairs):
    """Seconds by which the client's TTFT is longer, for each streamed request of which both are known."""
    return [(line["chunks"][0] - row["ttft_ns"]) * NS for row, line in pairs if line.get("chunks") and row["ttft_ns"]]


def e2e_differences(pairs):
    """Seconds by which the client's E2E is longer."""
    return [(line["end_ns"] - row["e2e_ns"]) * NS for row, line in pairs]


def spread(differences):
    """The median and the maximum of the absolute differences, in whole ms."""
    sizes = [abs(difference) * 1000 for difference in differences]
    return round(statistics.median(sizes)), round(max(sizes))


def tokens_of(line):
    """Input and output tokens that the client was billed; None for a stream without usage."""
    usage = line.get("usage") or {}
    return usage.get("prompt_tokens"), usage.get("completion_tokens")
