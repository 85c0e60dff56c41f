"""OTLP logs: what is taken, in which encodings, and that a record becomes a row through the real service."""

import json
import re
import time

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from collector.app.service import Service
from collector.otlp import logs
from collector.otlp.checked import ItemLimits
from collector.otlp.errors import MalformedError
from collector.otlp.logs import CLAIMED, check
from collector.otlp.signals import LOGS
from collector.otlp.validate import EARLIEST_NS
from collector.pipeline.settings import Settings
from collector.store.definitions import read_schema
from tests.fuzz_wire import I32, LEN, field
from tests.support.otlp import T0, set_attributes
from tests.support.stores import new_store

LIMITS = ItemLimits(max_bytes=2000, max_attributes=4)
RID = "00000000-0000-4000-8000-000000000001"
DAY = T0 // (86_400 * 10**9)


def request(*times, observed=0, **attributes):
    message = ExportLogsServiceRequest()
    of_resource = message.resource_logs.add()
    set_attributes(of_resource.resource, {"service.name": "frontend"})
    scoped = of_resource.scope_logs.add()
    scoped.scope.name = "dynamo.request_trace"
    for at in times:
        record = scoped.log_records.add(time_unix_nano=at, observed_time_unix_nano=observed)
        set_attributes(record, {"event_type": "request_end", "rid": RID} | attributes)
    return message


def test_good_records_are_stored_as_they_came():
    body = request(T0, T0 + 86_400 * 10**9).SerializeToString()
    checked = check(body, LIMITS)
    assert (checked.payload, checked.items, checked.rejected, checked.message) == (body, 2, {}, "")
    assert checked.days == (DAY, DAY + 1)


def test_a_record_without_a_time_has_that_of_its_observation():
    assert check(request(0, observed=T0).SerializeToString(), LIMITS).days == (DAY, DAY)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (request(0), "time"),
        (request(2**63), "time"),
        (request(time.time_ns() + 2 * 86_400 * 10**9), "future"),
        (request(T0, **{str(n): n for n in range(5)}), "too_many_attributes"),
        (request(T0, x="x" * 2000), "too_large"),
    ],
)
def test_a_record_that_cannot_be_stored_is_left_out_alone(bad, reason):
    bad.resource_logs[0].scope_logs[0].log_records.extend(request(T0).resource_logs[0].scope_logs[0].log_records)
    checked = check(bad.SerializeToString(), LIMITS)
    assert (checked.items, checked.rejected) == (2, {reason: 1})
    assert checked.message.startswith("1 log records: ")
    assert checked.payload == request(T0).SerializeToString()
    del bad.resource_logs[0].scope_logs[0].log_records[1]
    assert check(bad.SerializeToString(), LIMITS).payload == b""


def test_a_record_at_a_limit_is_stored():
    last_of_sender = T0 + 86_400 * 10**9
    at_limits = request(T0, a=1, b="x" * 100)
    size = at_limits.resource_logs[0].scope_logs[0].log_records[0].ByteSize()
    limits = ItemLimits(max_bytes=size, max_attributes=4, unix_ns=lambda: T0)
    for good in (at_limits, request(EARLIEST_NS), request(last_of_sender)):
        assert check(good.SerializeToString(), limits).payload == good.SerializeToString()
    assert check(request(last_of_sender + 1).SerializeToString(), limits).rejected == {"future": 1}
    assert check(request(EARLIEST_NS - 1).SerializeToString(), limits).rejected == {"time": 1}


def test_records_on_too_many_days_are_left_out():
    times = [T0 - n * 86_400 * 10**9 for n in range(40)]
    checked = check(request(*times, *times).SerializeToString(), LIMITS)
    assert (checked.items, checked.rejected) == (80, {"too_many_days": 18})
    assert checked.days == (DAY - 39, DAY - 9)


def test_records_that_no_mapping_reads_are_counted_named_and_left_out(caplog):
    caplog.set_level("INFO")
    read, unread = request(T0), request(T0, T0 + 1)
    unread.resource_logs[0].scope_logs[0].scope.name = "an app"
    both = ExportLogsServiceRequest(resource_logs=[*read.resource_logs, *unread.resource_logs])
    for _ in range(2):
        checked = check(both.SerializeToString(), LIMITS)
        assert (checked.items, checked.rejected, checked.unwanted) == (3, {}, {"unclaimed": 2})
        assert checked.days == (DAY, DAY)
        left = ExportLogsServiceRequest.FromString(checked.payload)
        assert [len(s.log_records) for r in left.resource_logs for s in r.scope_logs] == [1, 0]
    assert caplog.text.count("'an app'") == 1
    nothing = check(unread.SerializeToString(), LIMITS)
    assert (nothing.payload, nothing.items, nothing.message) == (b"", 2, "")


def test_a_scope_that_is_named_in_the_log_is_not_remembered_whole(monkeypatch):
    monkeypatch.setattr(logs, "_named_scopes", named := set())
    message = request(T0)
    message.resource_logs[0].scope_logs[0].scope.name = "s" * 5_000_000
    check(message.SerializeToString(), LIMITS)
    assert [len(scope) for scope in named] == [1024]


UNREAD_RECORDS = [
    {"event_type": "request_start"},
    {"event_type": ""},
    {"event_type": 5},
    {"rid": ""},
    {"rid": RID.upper().replace("8000", "ABCD")},
    {"rid": RID + "\n"},
    {"rid": "00000000-0000-0000-0000-000000000000"},
]


def test_a_field_that_comes_twice_has_its_last_value():
    """ClickHouse takes a text as empty whose field comes again behind another one: such a record had disappeared."""
    of_resource = request(T0).resource_logs[0]
    scope, resource = of_resource.scope_logs[0], field(1, LEN, of_resource.resource.SerializeToString())
    record = scope.log_records[0]
    attribute = record.attributes.pop(1).SerializeToString()
    encoded = record.SerializeToString() + field(6, LEN, field(1, LEN, b"xyz") + attribute)
    twice = resource + field(2, LEN, field(1, LEN, scope.scope.SerializeToString()) + field(2, LEN, encoded))
    checked = check(field(1, LEN, twice), LIMITS)
    (kept,) = ExportLogsServiceRequest.FromString(checked.payload).resource_logs[0].scope_logs[0].log_records
    assert [attribute.key for attribute in kept.attributes] == ["event_type", "rid"]
    assert checked.payload.count(b"xyz") == 0


def test_a_key_that_comes_again_with_another_wire_type_is_left_out():
    """ClickHouse takes it for an empty text: such a record was acknowledged, and had no row."""
    of_resource = request(T0).resource_logs[0]
    scope, resource = of_resource.scope_logs[0], field(1, LEN, of_resource.resource.SerializeToString())
    record = scope.log_records[0]
    good = record.SerializeToString(deterministic=True)
    attribute = record.attributes.pop(0).SerializeToString()
    encoded = field(6, LEN, attribute + field(1, I32, bytes(4))) + record.SerializeToString()
    body = field(
        1, LEN, resource + field(2, LEN, field(1, LEN, scope.scope.SerializeToString()) + field(2, LEN, encoded))
    )
    checked = check(body, LIMITS)
    assert (checked.items, checked.unwanted, checked.rejected) == (1, {}, {})
    (kept,) = ExportLogsServiceRequest.FromString(checked.payload).resource_logs[0].scope_logs[0].log_records
    assert kept.SerializeToString(deterministic=True) == good


def test_records_of_a_mappings_scope_that_it_does_not_read_are_counted():
    message = request(T0)
    for attributes in UNREAD_RECORDS:
        message.resource_logs.extend(request(T0, **attributes).resource_logs)
    checked = check(message.SerializeToString(), LIMITS)
    assert (checked.items, checked.rejected, checked.unwanted) == (8, {}, {"unclaimed": 7})
    left = ExportLogsServiceRequest.FromString(checked.payload)
    assert [len(s.log_records) for r in left.resource_logs for s in r.scope_logs] == [1] + [0] * 7
    assert check(request(T0, event_type="").SerializeToString(), LIMITS).payload == b""


def test_the_scopes_that_mappings_read_are_those_of_the_sql():
    reads = [sql for sql in read_schema().views.values() if "FROM otlp_logs" in sql]
    assert set(re.findall(r"scope\.name = '([^']*)'", " ".join(reads))) == CLAIMED.keys()
    assert all("scope.name = " in sql for sql in reads)


def test_other_bytes_are_refused():
    with pytest.raises(MalformedError, match="ExportLogsServiceRequest"):
        check(b"\x0a\x05abc", LIMITS)


def test_a_request_is_divided_by_its_records():
    first, second = LOGS.halves(request(T0, T0 + 1).SerializeToString())
    assert (first, second) == (request(T0).SerializeToString(), request(T0 + 1).SerializeToString())
    assert LOGS.halves(first) is None
    misread = request(T0)
    misread.resource_logs[0].scope_logs[0].log_records.add().MergeFromString(b"\x0a\x01a")  # its time as bytes
    good, bad = LOGS.without_misread(misread.SerializeToString())
    assert good == request(T0).SerializeToString()
    assert bad


def dynamo(number):
    """A record of one request, as Dynamo sends it."""
    rid = f"00000000-0000-4000-8000-{number:012x}"
    values = {"input_tokens": number, "output_tokens": 3, "ttft_ms": 20.5, "total_time_ms": 100.25}
    payload = json.dumps({"request": {"request_id": rid, **values}})
    return request(T0, event_type="request_end", rid=rid, payload=payload)


def test_records_by_http_json_and_grpc_become_rows_once(tmp_path):
    free = "127.0.0.1:0"
    new_store(tmp_path / "data" / "store")
    service = Service(
        Settings(
            data_dir=tmp_path / "data", otlp_http=free, otlp_grpc=free, api=free, segment_age_s=0.05, join_after_s=0.5
        )
    )
    service.start()
    try:
        url = service.listeners["otlp-http"] + "/v1/logs"
        for _ in range(2):
            answer = httpx.post(
                url, content=dynamo(1).SerializeToString(), headers={"content-type": "application/x-protobuf"}
            )
            assert (answer.status_code, answer.content) == (200, b"")
        attributes = [
            {"key": a.key, "value": {"stringValue": a.value.string_value}}
            for a in dynamo(2).resource_logs[0].scope_logs[0].log_records[0].attributes
        ]
        record = {"timeUnixNano": str(T0), "attributes": attributes}
        document = {
            "resourceLogs": [{"scopeLogs": [{"scope": {"name": "dynamo.request_trace"}, "logRecords": [record]}]}]
        }
        assert httpx.post(url, json=document).json() == {}
        with grpc.insecure_channel(service.listeners["otlp-grpc"].removeprefix("http://")) as channel:
            export = channel.unary_unary(f"/{LOGS.grpc_service}/Export")
            answer = ExportLogsServiceResponse.FromString(export(dynamo(3).SerializeToString(), timeout=120))
            assert answer == ExportLogsServiceResponse()
        sql = "SELECT input_tokens, output_tokens, ttft_ns, e2e_ns FROM requests ORDER BY input_tokens"
        deadline = time.monotonic() + 120
        while len(found := service.store.query(sql).result_rows) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == [(n, 3, 20_500_000, 100_250_000) for n in (1, 2, 3)]
        counted = service.status.snapshot()
        assert (counted.items_received["log_records"], counted.payloads_duplicate) == (4, 1)
        while 'engine="dynamo"' not in httpx.get(service.listeners["api"] + "/metrics").text:
            assert time.monotonic() < deadline, "/metrics has no requests of dynamo"
            time.sleep(0.1)
    finally:
        assert service.stop()
