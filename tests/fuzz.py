"""`python -m tests.fuzz --count 20000 --seed 7`: hostile bodies at a real collector, over HTTP and gRPC.

Each body is a good request of traces, metrics or logs with some of its bytes, fields or encoding changed. Between them
go good requests, the witnesses. The run fails when an answer is a server error, when a row has a value that its span
cannot have, when a witness's rows are not exactly those it described, when an acknowledged span, log record or data
point is neither stored nor counted nor a dead letter (tests/fuzz_counts.py), when the collector's log has a traceback,
when an answer of the API is a server error, or when the collector does not take a good request at the end. As many
answers of models, with finish reasons and usages of any kind, are read as the proxy does it (tests/fuzz_answers.py).
`--server` puts a ClickHouse server behind the collector (tests/support/clickhouse_http.py), whose errors are others.
`--record FILE` writes the result as JSON.
"""

import argparse
import base64
import gzip
import json
import random
import sys
import tempfile
import time
import zlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import grpc
import httpx
import zstandard
from google.protobuf import json_format
from prometheus_client.parser import text_string_to_metric_families

from collector.otlp.signals import LOGS, METRICS, TRACES
from collector.store.store import Store
from tests import fuzz_answers, fuzz_bodies, fuzz_counts, fuzz_wire
from tests.support.clickhouse_server import Server
from tests.support.collector import PROTOBUF, Collector
from tests.support.otlp import MS, Request
from tokentrail import semconv

WITNESS_EVERY = 50
WITNESS_TRACE = 10**12
NOW_NS = time.time_ns()
ENCODE = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.ZstdCompressor().compress}
HTTP_ANSWERS = {200, 400, 413, 415}
GRPC_ANSWERS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED}
VALUES = [
    0,
    -1,
    1,
    2**31,
    2**32,
    2**63 - 1,
    -(2**63),
    0.5,
    -0.0,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "5",
    "\x00",
    "é",
]
VALUES += [True, [], ["a"] * 3, b"\xff", "x" * 300]
REASONS = ["stop", "abort", "network_error", "content_filter", "cancelled", "banana"]
VALUES += [*REASONS, ["abort"], ["stop"], ["banana"]]
JSON_VALUES = [None, 0, -1, 1e400, 2**70, "", "zz", "\ud800", [], {}, [[]], {"a": 1}, True, "NaN", "9" * 40]
KEYS = [*semconv.STEP_ATTRIBUTES, semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS, semconv.STATUS]
KEYS += [semconv.TIME_TO_FIRST_TOKEN, semconv.TIME_TO_FIRST_CHUNK, semconv.TIME_TO_LAST_TOKEN, semconv.OPERATION_NAME]
KEYS += [semconv.FINISH_REASONS, semconv.REASONING_TOKENS, semconv.CACHE_CREATION_TOKENS, semconv.SAMPLING_WEIGHT]
KEYS += ["gen_ai.usage.cache_creation.input_tokens", "gen_ai.client.inference.time_to_first_chunk"]
KEYS += ["gen_ai.latency.e2e", "gen_ai.latency.time_in_model_prefill", "gen_ai.request.id", "", "x" * 200]
TRACE_STATES = ["", "", "ot=th:c", "a=b,ot=th:8;rv:1", "ot=th:zz", "ot=p:70", "ot=th:ffffffffffffff"]
NAMES = [semconv.TOKEN_SPAN, semconv.STEP_SPAN, semconv.PHASE_SPAN, semconv.OPEN_SPAN, "tokentrail.kv.evict", "chat m"]
NAMES += ["tokentrail.cold_start.load", "llm_request", "GET /", ""]
CALL = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m"}
# Rows that no span can have made.
WRONG_ROWS = {
    "a TTFT that is longer than its request": "SELECT count() FROM requests WHERE ttft_ns > e2e_ns",
    "a TPOT that is no number": "SELECT count() FROM requests WHERE isNaN(tpot_ns) OR tpot_ns < 0 OR tpot_ns > e2e_ns",
    "a TPOT of fewer than two tokens": "SELECT count() FROM requests WHERE tpot_ns IS NOT NULL AND output_tokens < 2",
    "a request that ends before it starts": "SELECT count() FROM requests WHERE end < start",
    "an end that is not start plus E2E": """
        SELECT count() FROM requests WHERE toUnixTimestamp64Nano(end) - toUnixTimestamp64Nano(start) != e2e_ns""",
    "a phase that is longer than its request": """
        SELECT count() FROM requests WHERE greatest(ifNull(queue_ns, 0), ifNull(prefill_ns, 0)) > e2e_ns""",
    "an odd status": "SELECT count() FROM requests WHERE status NOT IN ('ok', 'error', 'cancelled', 'unknown')",
    "a failure that is ok": """
        SELECT count() FROM requests
        WHERE engine = 'genai' AND status = 'ok' AND finish_reason IN ('abort', 'network_error')""",
    "a part that is more than its whole": """
        SELECT count() FROM requests WHERE cached_tokens > input_tokens OR reasoning_tokens > output_tokens""",
    "an odd weight": "SELECT count() FROM requests WHERE NOT (weight = 0 OR weight BETWEEN 1 AND 1e6)",
    "an odd vantage": "SELECT count() FROM requests WHERE vantage NOT IN ('server', 'client')",
    "a time outside 2000 to 2100": """
        SELECT count() FROM requests WHERE start < '2000-01-01 00:00:00' OR end >= '2100-01-01 00:00:00'""",
}


def good(chance, trace):
    """A request of one of the engines that the collector knows, with tokens."""
    scope = chance.choice([semconv.SCOPE_NAME, "vllm.tracing.otel", "other"])
    request = Request(scope=scope)
    start = NOW_NS - chance.randrange(3600) * 10**9
    for n in range(chance.randrange(1, 4)):
        keys = chance.sample(KEYS, chance.randrange(5))
        request.span(
            chance.choice(NAMES),
            trace=trace,
            span=n + 1,
            start=start + n,  # announcements are told apart by it
            ns=chance.randrange(10**9),
            kind=chance.randrange(6),
            attributes=(CALL if chance.random() < 0.3 else {}) | {key: chance.choice(VALUES) for key in keys},
            trace_state=chance.choice(TRACE_STATES),
        )
    return request.tokens(trace=trace, count=chance.randrange(5), start=start)


def witness(trace):
    """A request with known rows: TTFT 200 ms, TPOT 100 ms, 5 tokens."""
    request = Request(**{"service.name": "witness"})
    attributes = {semconv.OPERATION_NAME: "chat", semconv.OUTPUT_TOKENS: 5, semconv.TIME_TO_FIRST_TOKEN: 0.2}
    request.span("chat m", trace=trace, ns=600 * MS, kind=2, start=NOW_NS, attributes=attributes)
    return request.tokens(trace=trace, parent=1, count=5, start=NOW_NS, ns=120 * MS)


def changed_bytes(chance, body):
    data = bytearray(body)
    for _ in range(chance.choice([0, 1, 1, 2, 8])):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                del data[at : at + chance.randrange(1, 20)]
            case 1:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 2:
                data[at:at] = data[at : at + chance.randrange(60)]
            case 3 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 4 if at < len(data):
                data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
    return bytes(data)


def otlp_json(message):
    """The request as OTLP/JSON, with hexadecimal ids."""

    def hexadecimal(fields):
        ids = {
            key: base64.b64decode(fields[key]).hex() for key in ("traceId", "spanId", "parentSpanId") if key in fields
        }
        return fields | ids

    return json.loads(json_format.MessageToJson(message), object_hook=hexadecimal)


def changed_json(chance, node):
    """The document with about one value in a hundred replaced."""
    if chance.random() < 0.01:
        return chance.choice(JSON_VALUES)
    if isinstance(node, dict):
        return {
            key if chance.random() > 0.002 else "\ud800": changed_json(chance, value) for key, value in node.items()
        }
    return [changed_json(chance, item) for item in node] if isinstance(node, list) else node


def message_of(chance, signal, trace):
    """A good request of a signal."""
    if signal is TRACES:
        return good(chance, trace).message
    at = NOW_NS - trace * MS
    return fuzz_bodies.metrics(chance, at) if signal is METRICS else fuzz_bodies.logs(chance, trace, at)


def encoded(chance, message):
    """The request as Protobuf, with some bytes or one field changed."""
    if chance.random() < 0.5:
        return fuzz_wire.changed(chance, message)
    return changed_bytes(chance, message.SerializeToString())


def http_case(chance, message):
    """Body and headers of one request."""
    if as_json := chance.random() < 0.4:
        text = json.dumps(changed_json(chance, otlp_json(message)))
        body = text.encode() if chance.random() < 0.7 else changed_bytes(chance, text.encode())
    else:
        body = encoded(chance, message)
    headers = {"content-type": "application/json" if as_json else "application/x-protobuf"}
    if chance.random() < 0.02:
        headers["content-type"] = chance.choice(["text/plain", "", "application/json; charset=x"])
    encoding = chance.choice([None, None, "gzip", "deflate", "zstd"])
    if encoding:
        body = ENCODE[encoding](body)
        body = changed_bytes(chance, body) if chance.random() < 0.3 else body
        headers["content-encoding"] = encoding if chance.random() < 0.98 else "br"
    return body, headers


def run(collector, seed, count, counts):
    """Send everything, and count in `counts` what is acknowledged.

    Returns the number of each answer, the witnesses' traces, and the answers that must not be.
    """
    chance, answers, traces, wrong = random.Random(seed), Counter(), [], []
    with grpc.insecure_channel(collector.urls["otlp-grpc"].removeprefix("http://")) as channel:
        for n in range(count):
            if n % WITNESS_EVERY == 0:
                traces.append(WITNESS_TRACE + n)
                times = 1 + n // WITNESS_EVERY % 2  # every second one is sent twice
                statuses = {
                    status for again in range(times) for status in send_witnesses(collector, counts, traces[-1], again)
                }
                wrong += [f"body {n}: the witness was answered {statuses}"] if statuses != {200} else []
            signal = chance.choice([TRACES, TRACES, METRICS, LOGS])
            message = message_of(chance, signal, n + 1)
            if chance.random() < 0.2:
                body = encoded(chance, message)
                try:
                    response = channel.unary_unary(f"/{signal.grpc_service}/Export")(body, timeout=30)
                    answers["gRPC OK"] += 1
                    if odd := counts.add(signal, signal.request.FromString(body), signal.response.FromString(response)):
                        wrong.append(f"body {n}: {odd}")
                except grpc.RpcError as error:
                    answers[f"gRPC {error.code().name}"] += 1
                    if error.code() not in GRPC_ANSWERS:
                        wrong.append(f"body {n}: {signal.name} {error.code().name} {error.details()}")
                continue
            body, headers = http_case(chance, message)
            try:
                response = collector.http.post(
                    collector.urls["otlp-http"] + signal.http_path, content=body, headers=headers
                )
                answer = response.status_code
            except httpx.HTTPError as error:
                answer = type(error).__name__
            answers[f"HTTP {answer}"] += 1
            if answer not in HTTP_ANSWERS:
                wrong.append(f"body {n}: {signal.name} {answer}")
            elif answer == 200:
                decoded = fuzz_counts.message_of(signal, body, headers)
                if odd := counts.add(signal, decoded, fuzz_counts.response_of(signal, response)):
                    wrong.append(f"body {n}: {odd}")
    return answers, traces, wrong


def send_witnesses(collector, counts, trace, again=0):
    """The statuses of the answers to a good request of each signal; data points are sent once, to be counted."""
    at = NOW_NS - (trace - WITNESS_TRACE) * MS
    bodies = {TRACES: witness(trace).message, LOGS: fuzz_bodies.log_witness(trace, at)}
    if not again:
        bodies[METRICS] = fuzz_bodies.metrics(random.Random(trace), at, "witness")
    for signal, message in bodies.items():
        url = collector.urls["otlp-http"] + signal.http_path
        answer = collector.http.post(url, content=message.SerializeToString(), headers=PROTOBUF)
        if answer.status_code == 200:
            counts.add(signal, message, fuzz_counts.response_of(signal, answer), again=again)
        yield answer.status_code


def is_stored(collector, witnesses):
    """Tell whether nothing waits for the store, and all witnesses of logs are joined."""
    joined = collector.get("/api/v1/summary?variant=witness-log").json()
    return joined["requests"]["total"] == witnesses and not any(collector.data_dir.glob("wal*/*.wal"))


def ask(collector):
    """Ask for all that needs no id. Returns the answers that must not be, and the numbers of /metrics."""
    wrong = [f"{path}: {collector.get(path).text}" for path in ("/healthz", "/readyz") if collector.get(path).is_error]
    for path, methods in collector.get("/openapi.json").json()["paths"].items():
        if "get" in methods and "{" not in path and collector.get(path).status_code >= 500:
            wrong.append(f"{path}: {collector.get(path).text[:300]}")
    page = collector.get("/metrics").text
    numbers = {(s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(page) for s in f.samples}
    return wrong, numbers


def judge(dsn, traces, counts, dead_letters, numbers):
    """The wrong rows in the store of a collector that has ended."""
    store = Store.open(dsn)
    try:
        found = {what: store.query(sql).result_rows[0][0] for what, sql in WRONG_ROWS.items()}
        wrong = [f"{n} rows with {what}" for what, n in found.items() if n]
        sql = """
            SELECT count(), uniqExact(trace_id), uniqExact(ttft_ns, tpot_ns, e2e_ns, output_tokens, status, engine),
                any((ttft_ns, tpot_ns, e2e_ns, output_tokens, status, engine))
            FROM requests WHERE service = 'witness'
        """
        rows, requests, kinds, kind = store.query(sql).result_rows[0]
        expected = (200 * MS, 100 * MS, 600 * MS, 5, "ok", "tokentrail")
        if (rows, requests, kinds, kind) != (len(traces), len(traces), 1, expected):
            wrong.append(
                f"{len(traces)} witnesses made {rows} rows of {requests} requests, {kinds} kinds, such as {kind}"
            )
        sql = f"""
            SELECT count(), uniqExact(trace_id, token_index), sum(duration_us) FROM tokens
            WHERE reinterpretAsUInt128(reverse(trace_id)) BETWEEN {traces[0]} AND {traces[-1]}
        """
        tokens = store.query(sql).result_rows[0]
        if tokens != (5 * len(traces), 5 * len(traces), 600_000 * len(traces)):
            wrong.append(f"{len(traces)} witnesses made {tokens} tokens")
        sql = """
            SELECT count(), uniqExact(request_id),
                countIf((input_tokens, output_tokens, ttft_ns, e2e_ns) = (7, 3, 20e6, 100e6))
            FROM requests WHERE service = 'witness-log'
        """
        if (rows := store.query(sql).result_rows[0]) != (len(traces),) * 3:
            wrong.append(f"{len(traces)} witnesses of logs made {rows} rows, requests, and right rows")
        wrong += counts.wrong(store, dead_letters, numbers)
    finally:
        store.close()
    return wrong


def fuzz(seed, count, folder, *, server=False):
    """One run; returns its record."""
    began, counts = time.monotonic(), fuzz_counts.Counts()
    clickhouse = Server(folder)
    if server:
        clickhouse.start()
    arguments = ["--max-body-bytes", "100000", "--max-decompressed-bytes", "200000", "--join-after-s", "2"]
    collector = Collector(
        folder / "data", *arguments, store=f"{clickhouse.url}/default" if server else "chdb://"
    ).start()
    try:
        answers, traces, wrong = run(collector, seed, count, counts)
        traces.append(WITNESS_TRACE + count)
        if set(send_witnesses(collector, counts, traces[-1])) != {200}:
            wrong.append("a good request behind all others was refused")
        try:
            collector.wait_until(lambda: is_stored(collector, len(traces)))
        except AssertionError:
            wrong.append(f"the log waits: {collector.get('/readyz').text}")
        asked, numbers = ask(collector)
        wrong += asked
        if collector.stop() or list((folder / "data").glob("wal*/*.wal")):
            wrong.append("the collector did not store everything before it ended")
    except BaseException:
        collector.kill()
        raise
    finally:
        clickhouse.kill()
    log = (folder / "data.log").read_text()
    wrong += [f"the collector's log has {log[at:][:2000]}" for at in [log.find("Traceback")] if at >= 0]
    wrong += fuzz_answers.wrong_answers(random.Random(seed), count)
    dead = folder / "data" / "dead_letters"
    wrong += judge(f"chdb://{folder / ('db' if server else 'data/store')}", traces, counts, dead, numbers)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seed": seed,
        "bodies": count,
        "witnesses": len(traces),
        "seconds": round(time.monotonic() - began),
        "answers": dict(sorted(answers.items())),
        "acknowledged": {signal.items: n for signal, n in counts.acknowledged.items()},
        "dead_letters": len(list(dead.glob("*.bin"))),
        "wrong": wrong,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        record = fuzz(given.seed, given.count, Path(folder), server=given.server)
    text = json.dumps(record, indent=2)
    print(text)
    if given.record:
        given.record.write_text(text + "\n")
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
