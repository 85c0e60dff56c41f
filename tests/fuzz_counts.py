"""What became of each span, log record and data point that was acknowledged, for `tests.fuzz`.

The requests are decoded here with Protobuf's classes, not by the collector. Of each signal, the items in acknowledged
requests are those with a row, in a dead letter, named by a counter of what was left out, or repeated. A request or a
token that came before in another body has one row.
"""

import base64
import gzip
import json
import zlib
from collections import Counter

import zstandard
from google.protobuf import json_format

from collector.otlp import logs, validate
from collector.otlp import metrics as samples
from collector.otlp.signals import LOGS, METRICS, SIGNALS, TRACES
from tokentrail import semconv

DECODE = {"gzip": gzip.decompress, "deflate": zlib.decompress}
DECODE["zstd"] = lambda body: zstandard.ZstdDecompressor().decompress(body, max_output_size=10**6)
DROPPED = {TRACES: "spans_rejected", LOGS: "log_records_dropped", METRICS: "data_points_dropped"}
EXPLAINED = {TRACES: validate.EXPLANATION, LOGS: logs.EXPLANATION, METRICS: samples.EXPLANATION}
# One row for each item, but for announcements, which replace each other. The phases of vLLM's requests have names.
ROWS = {
    TRACES: """
        SELECT (SELECT count() FROM tokens) + (SELECT count() FROM phases WHERE name = '') + (SELECT count() FROM steps)
            + (SELECT count() FROM kv_events) + (SELECT count() FROM cold_starts) + (SELECT count() FROM spans)
            + (SELECT count() FROM requests WHERE engine != 'dynamo')""",
    LOGS: "SELECT count() FROM held_spans WHERE claim = 'dynamo.held.log'",
    METRICS: "SELECT count() FROM samples",
}
ANNOUNCED = "SELECT DISTINCT trace_id, span_id, toUnixTimestamp64Nano(start) FROM open_requests"


def items_of(signal, message):
    """The spans, log records or data points of a request."""
    for of_resource in getattr(message, message.DESCRIPTOR.fields[0].name):
        for scoped in getattr(of_resource, f"scope_{signal.name.replace('traces', 'spans')}"):
            if signal is not METRICS:
                yield from getattr(scoped, signal.items)
                continue
            for metric in scoped.metrics:
                if kind := metric.WhichOneof("data"):
                    yield from getattr(metric, kind).data_points


def message_of(signal, body, headers):
    """The request in an HTTP body."""
    body = DECODE[headers["content-encoding"]](body) if "content-encoding" in headers else body
    if "json" not in headers["content-type"]:
        return signal.request.FromString(body)

    def as_base64(fields):
        ids = {"traceId", "spanId", "parentSpanId"} & fields.keys()
        return fields | {
            key: base64.b64encode(bytes.fromhex(fields[key])).decode() for key in ids if fields[key] is not None
        }

    document = json.loads(body, object_hook=as_base64)
    return json_format.ParseDict(document, signal.request(), ignore_unknown_fields=True)


def response_of(signal, answer):
    """The response in an answer over HTTP."""
    if "json" in answer.headers["content-type"]:
        return json_format.Parse(answer.content, signal.response())
    return signal.response.FromString(answer.content)


class Counts:
    """Items of acknowledged requests by signal."""

    def __init__(self):
        self.acknowledged, self.rejected, self.repeated = Counter(), Counter(), Counter()
        self.announcements = []
        self.same, self._identities = 0, set()

    def add(self, signal, message, response, *, again=False):
        """Count an acknowledged request. Returns what is wrong about its answer, or nothing."""
        items = list(items_of(signal, message))
        rejected = getattr(response.partial_success, f"rejected_{signal.items}")
        self.acknowledged[signal] += len(items)
        self.rejected[signal] += rejected
        if again:
            self.repeated[signal] += len(items) - rejected
        elif signal is TRACES:
            self.announcements += [item for item in items if item.name == semconv.OPEN_SPAN]
            self.same += sum(map(self._is_known, items))
        return f"{rejected} of {len(items)} {signal.items} rejected" if not 0 <= rejected <= len(items) else ""

    def _is_known(self, span):
        """Whether this request or token came before in another body, and so is stored once. Others are stored twice."""
        index = next((a.value.int_value for a in span.attributes if a.key.endswith("token.index")), 0)
        identities = {
            (span.trace_id, span.span_id, span.end_time_unix_nano),
            (span.trace_id, span.parent_span_id, index),
        }
        known = not identities.isdisjoint(self._identities)
        self._identities |= identities
        return known

    def wrong(self, store, folder, numbers):
        """The items that are nowhere, and the counters that do not say what the answers said."""
        wrong = []
        letters = list(_dead_letters(folder))
        for signal in SIGNALS:
            dropped = {
                labels[0]: value
                for (name, *labels), value in numbers.items()
                if name == f"tokentrail_collector_{DROPPED[signal]}_total"
            }
            told = sum(value for reason, value in dropped.items() if reason in EXPLAINED[signal])
            if told != self.rejected[signal]:
                wrong.append(f"answers reject {self.rejected[signal]} {signal.items}, and /metrics has {told}")
            received = numbers.get((f"tokentrail_collector_{signal.items}_received_total",))
            if received not in (None, self.acknowledged[signal]):
                wrong.append(f"{self.acknowledged[signal]} {signal.items} acknowledged, and /metrics has {received}")
            dead = [item for of, message in letters if of is signal for item in items_of(signal, message)]
            rows = store.query(ROWS[signal]).result_rows[0][0]
            if signal is TRACES:
                dead = [item for item in dead if item.name != semconv.OPEN_SPAN]
                rows += self._announced(store, letters)
            found = rows + sum(dropped.values()) + len(dead) + self.repeated[signal]
            missing = int(self.acknowledged[signal] - found)
            if not 0 <= missing <= (self.same if signal is TRACES else 0):
                wrong.append(
                    f"{missing} of {self.acknowledged[signal]} {signal.items} were acknowledged and are nowhere"
                )
        return wrong

    def _announced(self, store, letters):
        """The announcements that are in the store, or that a later one of the same request replaced, or in a letter."""
        stored = {(bytes(trace), bytes(span), start) for trace, span, start in store.query(ANNOUNCED).result_rows}
        for signal, message in letters:
            if signal is TRACES:
                stored |= {_key(item) for item in items_of(signal, message) if item.name == semconv.OPEN_SPAN}
        return sum(_key(item) in stored for item in self.announcements)


def _key(announcement):
    return announcement.trace_id, announcement.parent_span_id.ljust(8, b"\0"), announcement.start_time_unix_nano


def _dead_letters(folder):
    signals = {signal.name: signal for signal in SIGNALS}
    for about in folder.glob("*.json"):
        signal = signals[json.loads(about.read_text())["signal"]]
        yield signal, signal.request.FromString(about.with_suffix(".bin").read_bytes())
