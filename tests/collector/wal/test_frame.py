import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.wal.frame import (
    COMMIT_BYTES,
    HEADER_BYTES,
    MAGIC,
    Corrupt,
    Frame,
    Torn,
    commit_record,
    digest_of,
    header,
    read,
)
from tests.support.otlp import token_body

payloads = st.lists(st.binary(max_size=60), max_size=6)


def written(items):
    return b"".join(header(Frame(digest_of(item), item)) + item for item in items)


def committed(*batches):
    data = b""
    for batch in batches:
        data += written(batch)
        data += commit_record(len(data))
    return data


def whole(data):
    return [item.payload for item in read(data) if isinstance(item, Frame)]


@given(payloads)
def test_what_is_written_is_read(items):
    assert list(read(written(items))) == [Frame(digest_of(item), item) for item in items]


@given(payloads, st.data())
def test_truncation_anywhere_loses_only_the_frames_behind_it_and_is_never_called_corruption(items, data):
    whole_file = written(items)
    cut = data.draw(st.integers(0, len(whole_file)))
    found = list(read(whole_file[:cut]))
    ends = [len(written(items[: n + 1])) for n in range(len(items))]
    kept = sum(end <= cut for end in ends)
    assert whole(whole_file[:cut]) == items[:kept]
    at_boundary = cut == 0 or cut in ends
    assert [type(item) for item in found[kept:]] == ([] if at_boundary else [Torn])


@given(payloads, st.integers(1, 200))
def test_zeros_behind_the_last_frame_are_a_torn_write(items, zeros):
    assert list(read(written(items) + bytes(zeros)))[len(items) :] == [Torn(len(written(items)))]


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=2, max_size=6), st.data())
def test_damage_in_the_middle_costs_one_frame_and_is_kept_with_its_place(items, data):
    victim = data.draw(st.integers(0, len(items) - 2))
    start = len(written(items[:victim]))
    size = HEADER_BYTES + len(items[victim])
    damaged = bytearray(written(items))
    where = start + data.draw(st.integers(0, size - 1))
    damaged[where] ^= data.draw(st.integers(1, 255))
    found = list(read(bytes(damaged)))
    assert whole(bytes(damaged)) == items[:victim] + items[victim + 1 :]
    corrupt = [item for item in found if isinstance(item, Corrupt)]
    assert [(item.offset, item.data) for item in corrupt] == [(start, bytes(damaged[start : start + size]))]


def test_a_damaged_last_frame_that_is_complete_is_corrupt_not_torn():
    data = bytearray(written([b"first", b"second"]))
    data[-1] ^= 1
    first, second = read(bytes(data))
    assert isinstance(first, Frame)
    assert isinstance(second, Corrupt)


@pytest.mark.parametrize("bit", range(8 * HEADER_BYTES))
def test_a_flipped_bit_in_the_header_of_the_last_frame_is_corruption_of_an_acknowledged_payload(bit):
    data = bytearray(committed([b"first"], [b"second", b"last"]))
    start = len(data) - COMMIT_BYTES - HEADER_BYTES - len(b"last")
    data[start + bit // 8] ^= 1 << bit % 8
    found = list(read(bytes(data)))
    assert whole(bytes(data)) == [b"first", b"second"]
    corrupt = [item for item in found if isinstance(item, Corrupt)]
    assert [(item.offset, item.data) for item in corrupt] == [(start, bytes(data[start:-COMMIT_BYTES]))]
    assert not any(isinstance(item, Torn) for item in found)


@given(st.lists(payloads, min_size=1, max_size=4), st.data())
def test_truncation_of_committed_batches_is_never_called_corruption(batches, data):
    file = committed(*batches)
    cut = data.draw(st.integers(0, len(file)))
    found = list(read(file[:cut]))
    assert not any(isinstance(item, Corrupt) for item in found)
    items = [item for batch in batches for item in batch]
    kept = whole(file[:cut])
    assert kept == items[: len(kept)]
    ends = [len(committed(*batches[:n])) for n in range(len(batches) + 1)]
    complete = sum(len(batch) for batch, end in zip(batches, ends[1:], strict=True) if end <= cut)
    assert len(kept) >= complete


def test_a_damaged_commit_record_costs_no_payload():
    data = bytearray(committed([b"first"], [b"last"]))
    for place in (len(data) - 1, len(committed([b"first"])) - 1):
        data[place] ^= 1
        assert whole(bytes(data)) == [b"first", b"last"]


def test_a_commit_record_elsewhere_than_at_its_own_offset_is_none():
    assert [type(item) for item in read(commit_record(0))] == []
    assert [type(item) for item in read(commit_record(1))] == [Corrupt]


def test_a_file_without_commit_records_is_read_as_before():
    assert whole(written([b"first", b"last"])) == [b"first", b"last"]


@pytest.mark.parametrize("length", [2**32 - 1, 10**6])
def test_a_header_that_promises_too_much_hides_nothing_behind_it(length):
    liar = struct.pack("<4sI16s", MAGIC, length, bytes(16))
    assert whole(liar + written([b"after"])) == [b"after"]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_to_the_end(data):
    for item in read(data):
        assert isinstance(item, Frame | Torn | Corrupt)


def test_a_payload_that_looks_like_a_frame_stays_one_payload():
    nested = written([b"inner"])
    assert whole(written([nested, b"after"])) == [nested, b"after"]


def test_a_file_of_frames_is_one_otlp_message_of_all_payloads():
    bodies = [token_body(trace=trace) for trace in (1, 2)]
    joined = ExportTraceServiceRequest.FromString(b"".join(bodies))
    for file in (written(bodies), committed(bodies[:1], bodies[1:])):
        as_it_lies = ExportTraceServiceRequest.FromString(file)
        assert as_it_lies.resource_spans == joined.resource_spans


def test_days_are_kept():
    item = Frame(digest_of(b"a"), b"a", (20_000, 65_535))
    assert list(read(header(item) + b"a")) == [item]
