"""Recorded telemetry of engines and instrumentations, replayed into a store, beside what their clients measured."""

import gzip
import json
import re
import statistics
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from collector.base.status import IngestStatus
from collector.otlp.signals import SIGNALS, TRACES
from collector.store.insert import insert_otlp
from collector.store.joiner import Joiner

DATA = Path(__file__).resolve().parents[1] / "data"
NS = 1e-9
_MOST_INSERTS = 2


@dataclass
class Recording:
    """One file of tests/data: bodies by signal in order of arrival, and a line for each request of a client."""

    file: str
    bodies: dict[str, list[bytes]] = field(default_factory=dict)
    client: list[dict] = field(default_factory=list)

    def __post_init__(self):
        with tarfile.open(DATA / self.file) as archive:
            for name in sorted(archive.getnames()):
                if name == "client.jsonl":
                    self.client = [json.loads(line) for line in archive.extractfile(name)]
                elif name.endswith(".bin"):
                    self.bodies.setdefault(name.split("/")[0], []).append(archive.extractfile(name).read())

    def replay(self, store, signals=None):
        """Insert the bodies in a few groups, as segments would bring them, and join their requests."""
        for signal in SIGNALS:
            bodies = self.bodies.get(signal.name, []) if signals is None or signal.name in signals else []
            size = -(-len(bodies) // _MOST_INSERTS) or 1
            for first in range(0, len(bodies), size):
                insert_otlp(store, signal, b"".join(bodies[first : first + size]), f"{self.file}-{signal.name}-{first}")
        join(store)

    @property
    def completed(self):
        """Requests that their client saw to the end without an error."""
        return [line for line in self.client if line.get("finish_reason") and not line.get("aborted")]


def join(store):
    """Join every request that the store holds."""
    joiner = Joiner(store, IngestStatus(), after_s=0)
    while True:
        assert joiner.run_once()
        sql = "SELECT count() FROM held_requests WHERE segment NOT IN (SELECT segment FROM joined_segments)"
        if store.query(sql).result_rows == [(0,)]:
            return


def replay(store, recording, *files):
    """Insert what lies in files of a recording (`traces`, when none is given) as one request.

    The bodies in a file lie one behind the other, and messages of Protocol Buffers behind each other are one.
    """
    files = files or ("traces",)
    bodies = [gzip.decompress((DATA / recording / f"{file}.bin.gz").read_bytes()) for file in files]
    insert_otlp(store, TRACES, b"".join(bodies), "-".join((recording, *files)))


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


def rows_of(store):
    """Request rows by request id; no two may share one."""
    found = requests(store)
    by_id = {row["request_id"]: row for row in found}
    assert len(by_id) == len(found)
    return by_id


def assert_agreement(differences_s, *, median_s=0.015, most_s=0.050):
    """The client sees everything later than the engine, by the hop between them."""
    assert statistics.median(map(abs, differences_s)) <= median_s
    assert max(map(abs, differences_s)) <= most_s


def of_lines(lines, rows, request_id):
    """Pairs of a row and its line, for lines of which each must have a row with a TTFT."""
    pairs = [(rows[request_id(line)], line) for line in lines]
    assert all(row["ttft_ns"] is not None for row, _ in pairs)
    return pairs


def ttft_differences(pairs):
    """Seconds by which the client's TTFT is longer, for each streamed request of which both are known."""
    return [
        (line["chunks"][0] - row["ttft_ns"]) * NS
        for row, line in pairs
        if line.get("stream", True) and line.get("chunks") and row["ttft_ns"]
    ]


def e2e_differences(pairs):
    """Seconds by which the client's E2E is longer."""
    return [(line["end_ns"] - row["e2e_ns"]) * NS for row, line in pairs]


def spread(differences):
    """The median and the maximum of the absolute differences, in whole ms."""
    sizes = [abs(difference) * 1000 for difference in differences]
    return round(statistics.median(sizes)), round(max(sizes))


def spreads_on(page):
    """The spreads of TTFT and of E2E that the table of a page in docs/engines states, a pair for each recording."""
    text = (DATA.parents[1] / "docs" / "engines" / page).read_text()
    found = re.findall(r"\| (\d+) / (\d+) ms \| (\d+) / (\d+) ms \|$", text, re.MULTILINE)
    return [((int(a), int(b)), (int(c), int(d))) for a, b, c, d in found]


def tokens_of(row):
    """Input and output tokens of a request row."""
    return row["input_tokens"], row["output_tokens"]


def billed(line):
    """Input and output tokens that the client was told; None for a stream without usage."""
    usage = line.get("usage") or {}
    return usage.get("prompt_tokens"), usage.get("completion_tokens")


def phases_partition(store):
    """Assert that the phases of each request add up to it; return the number of requests that have phases."""
    sql = """
        SELECT r.e2e_ns, sum(p.duration_ns), min(toUnixTimestamp64Nano(p.start)) - any(toUnixTimestamp64Nano(r.start)),
               max(toUnixTimestamp64Nano(p.start) + p.duration_ns) - any(toUnixTimestamp64Nano(r.start))
        FROM requests AS r JOIN phases AS p ON p.trace_id = r.trace_id AND p.request_span_id = r.span_id
        GROUP BY r.trace_id, r.span_id, r.e2e_ns
    """
    found = store.query(sql).result_rows
    assert all(e2e == total == last and first == 0 for e2e, total, first, last in found)
    return len(found)
