import json
import struct
import tempfile

import numpy as np
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from collector.receive.tokens import token_columns
from collector.signals import TRACES
from collector.status import IngestStatus
from collector.store import insert, part_folders
from collector.store.insert import DoubtfulError, RefusedError, TooMuchError, insert_otlp, native_block
from collector.store.writer import Writer
from collector.wal.commit import GroupCommit, LogUnavailableError
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import OLD_MAGIC, Frame, digest_of, old_digest_of
from collector.wal.log import LogLimits, SegmentLog
from tests.collector.test_runs import with_a_padded_head
from tests.support.otlp import T0, Request, token_body
from tokentrail import semconv

WAIT_S = 120


class Setup:
    def __init__(self, folder, store, **kwargs):
        self.folder = folder
        self.store = store
        self.status = IngestStatus()
        self.status.set_ready("start")
        self.dead_letters = DeadLetters(folder / "dead", "traces", self.status.dead_lettered)
        self.log = SegmentLog(folder / "wal", self.dead_letters)
        self.segments = []
        self.writer = self.another_writer(**kwargs)
        self.writer.on_segment(self.segments.append)

    def another_writer(self, **kwargs):
        return Writer(TRACES, self.log, self.store, self.status, self.dead_letters, **kwargs)

    def segment(self, *payloads):
        self.segment_that_waits(*payloads)
        return self.log.next_sealed(0)

    def segment_that_waits(self, *payloads):
        self.log.append([Frame(digest_of(payload), payload) for payload in payloads])
        self.log.seal()

    def dead(self):
        return {
            path: json.loads(path.with_suffix(".json").read_text()) for path in (self.folder / "dead").glob("*.bin")
        }

    def tokens(self):
        sql = "SELECT reinterpretAsUInt128(reverse(trace_id)) AS trace, count() FROM tokens GROUP BY trace"
        return dict(self.store.query(sql).result_rows)


@pytest.fixture
def setup(tmp_path, module_store):
    module_store.client().command("TRUNCATE TABLE tokens")
    return lambda **kwargs: Setup(tmp_path, module_store, **kwargs)


def unreadable(trace):
    """Passes for protobuf, but not for a column of 16 bytes."""
    request = Request().tokens(trace=trace, count=1)
    request.scope_spans.spans[0].trace_id = b"x" * 20
    return request.body()


def test_a_segment_becomes_rows_and_leaves_the_log(setup):
    s = setup()
    segment = s.segment(token_body(trace=1), token_body(trace=2))
    s.writer.write(segment)
    assert s.tokens() == {1: 3, 2: 3}
    assert s.segments == [segment.id]
    assert s.log.pending == (0, 0)
    assert not s.writer._stored, "the tokens of all segments would fill the memory"
    snapshot = s.status.snapshot()
    assert (snapshot.segments_inserted, snapshot.ready) == (1, True)
    assert snapshot.last_insert_unix_s > 0


@pytest.mark.parametrize("bad_at", [{0}, {4}, {1, 3}, {0, 1, 2, 3, 4}])
def test_only_the_payloads_that_the_store_refuses_are_set_aside(setup, bad_at):
    s = setup()
    payloads = [unreadable(n) if n in bad_at else token_body(trace=n + 1) for n in range(5)]
    s.writer.write(s.segment(*payloads))
    assert s.tokens() == {n + 1: 3 for n in range(5) if n not in bad_at}
    assert {path.read_bytes() for path in s.dead()} == {payloads[n] for n in bad_at}
    assert all("FixedString" in why["reason"] for why in s.dead().values())
    assert s.status.snapshot().payloads_dead_lettered == len(bad_at)
    assert s.log.pending == (0, 0)


@pytest.mark.parametrize(
    "value",
    [b"\x10\x03", b"\x18\x05\x10\x01", b"\x10\x01\xfb\x07\xfc\x07"],
    ids=["true as 3", "an integer and true", "true and a group"],
)
def test_a_value_that_protobuf_reads_and_clickhouse_refuses_holds_up_nothing_and_is_stored(setup, value):
    s = setup()
    s.writer._give_up.set()  # no second try
    attribute = b"\x0a\x01b\x12" + bytes([len(value)]) + value
    span = Request().tokens(trace=1, count=1).scope_spans.spans[0].SerializeToString()
    span += bytes([9 << 3 | 2, len(attribute)]) + attribute
    scope = b"\x0a\x0c\x0a\x0atokentrail" + bytes([2 << 3 | 2]) + encoded(len(span)) + span
    body = b"".join([b"\x0a", encoded(len(scope) + len(encoded(len(scope))) + 1), b"\x12", encoded(len(scope)), scope])
    s.writer.write(s.segment(body, token_body(trace=2)))
    assert (s.tokens(), s.dead()) == ({1: 1, 2: 3}, {})


def encoded(number):
    """A varint below 2^14, in two bytes."""
    return bytes([number & 127 | 128, number >> 7])


def test_a_payload_that_was_set_aside_may_be_sent_again_and_a_stored_one_is_known(setup):
    s = setup()
    stored, refused, divided = token_body(trace=1), unreadable(2), misread(3)
    s.writer.write(s.segment(stored, refused, divided))
    again = SegmentLog(s.folder / "wal", s.dead_letters)
    for log in (s.log, again):
        assert [log.seen(digest_of(payload)) for payload in (stored, refused, divided)] == [True, False, True]
    s.writer.write(s.segment(refused, token_body(trace=4)))
    assert s.tokens() == {1: 3, 3: 2, 4: 3}
    assert s.status.snapshot().payloads_dead_lettered == 3


class ClaimedElsewhere:
    """Claims of which another collector has those of some payloads. They fail at first."""

    def __init__(self, *payloads):
        self.payloads = payloads
        self.failures = 2
        self.withdrawn = []

    def own(self, segment, frames):
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("connection refused")
        return [frame for frame in frames if frame.payload not in self.payloads]

    def withdraw(self, segment, digests):
        self.withdrawn.append((segment, set(digests)))


def test_a_payload_that_another_segment_has_claimed_is_left_out_and_counted(setup):
    claims = ClaimedElsewhere(token_body(trace=2))
    s = setup(claims=claims, max_wait_s=0.001)
    segment = s.segment(token_body(trace=1), token_body(trace=2), unreadable(3))
    s.writer.write(segment)
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().payloads_repeated == 1
    assert claims.withdrawn == [(segment.id, {digest_of(unreadable(3))})]
    assert s.log.pending == (0, 0)
    assert s.log.seen(digest_of(token_body(trace=2)))
    assert s.status.snapshot().ready
    s.writer.write(s.segment(token_body(trace=4), token_body(trace=2)))
    assert s.tokens() == {1: 3, 4: 3}
    assert len(claims.withdrawn) == 1


def test_a_file_that_is_damaged_while_claims_wait_for_the_store_makes_no_other_rows(setup):
    sources = []

    def keep(store, signal, body, token):
        sources.append(body)

    s = setup(claims=ClaimedElsewhere(), insert=keep, max_wait_s=0.001)
    payload = token_body(trace=1)
    s.writer.write(s.segment(payload))
    assert sources == [payload], "the bytes, and not the file"


def test_claims_that_the_server_has_forgotten_are_made_again_before_the_next_attempt(setup):
    """Another collector has the first claim of one of the payloads by then."""
    claims = ClaimedElsewhere()

    def fails_once(store, signal, body, token):
        if not claims.payloads:
            claims.payloads = (token_body(trace=2),)
            raise ConnectionError("connection refused")
        insert_otlp(store, signal, body, token)

    s = setup(claims=claims, insert=fails_once, max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1), token_body(trace=2)))
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().payloads_repeated == 1
    assert s.log.pending == (0, 0)


def test_a_segment_of_which_others_have_claimed_all_inserts_nothing(setup):
    s = setup(claims=ClaimedElsewhere(token_body(trace=1)), max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1)))
    assert (s.tokens(), s.segments, s.log.pending) == ({}, [], (0, 0))
    s.writer.write(s.segment(token_body(trace=2)))
    assert s.tokens() == {2: 3}
    assert s.writer._claims.withdrawn == []


def misread(trace):
    """A request of three tokens, one of which has its name as a varint."""
    request = Request().tokens(trace=trace, count=3)
    request.scope_spans.spans[1].ClearField("name")
    request.scope_spans.spans[1].MergeFromString(b"\x28\x05")
    return request.body()


@pytest.mark.parametrize("bad_at", [{0}, {1, 3}, {0, 1, 2, 3}])
def test_a_field_of_a_wrong_wire_type_costs_its_span_alone(setup, bad_at):
    s = setup()
    segment = s.segment(*(misread(n + 1) if n in bad_at else token_body(trace=n + 1) for n in range(4)))
    s.writer.write(segment)
    assert s.tokens() == {n + 1: 2 if n in bad_at else 3 for n in range(4)}
    assert s.segments == [f"{segment.id}.r"], "one insert for all that can be read"
    for path, why in s.dead().items():
        (span,) = ExportTraceServiceRequest.FromString(path.read_bytes()).resource_spans[0].scope_spans[0].spans
        assert b"\x28\x05" in span.SerializeToString()
        assert "wrong wire type" in why["reason"]
    assert len(s.dead()) == s.status.snapshot().payloads_dead_lettered == len(bad_at)
    assert s.log.pending == (0, 0)


def test_a_payload_without_a_span_that_can_be_read_is_no_insert(setup):
    s = setup()
    request = Request().tokens(trace=1, count=1)
    request.scope_spans.spans[0].ClearField("name")
    request.scope_spans.spans[0].MergeFromString(b"\x28\x05")
    s.writer.write(s.segment(request.body()))
    assert (s.tokens(), s.segments, len(s.dead())) == ({}, [], 1)
    assert s.log.pending == (0, 0)


def test_a_misread_field_beside_the_spans_costs_none_of_them(setup):
    s = setup()
    s.writer.write(s.segment(token_body(trace=1) + b"\x08\x01"))
    assert s.tokens() == {1: 3}
    assert s.dead() == {}


@pytest.mark.parametrize("values", [b"\x0a\x01a\x0a\x03bcd", b"\x0a\x04abcd\x18\x05", b"\x18\x05\x0a\x04abcd"])
@pytest.mark.parametrize("place", ["span", "resource"])
def test_a_payload_with_two_values_of_an_attribute_is_stored_with_the_last_one(setup, place, values):
    odd = Request().tokens(trace=2)
    holder = odd.scope_spans.spans[0] if place == "span" else odd.message.resource_spans[0].resource
    holder.attributes.add(key="odd").value.string_value = "8 more"
    body = odd.body().replace(b"\x0a\x068 more", values)
    s = setup(max_wait_s=0.01)
    s.writer.write(s.segment(token_body(trace=1), body, token_body(trace=3)))
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert s.dead() == {}


def test_an_enumeration_that_is_larger_than_32_bits_is_cut_as_in_protobuf(setup):
    odd = Request().tokens(trace=2)
    odd.scope_spans.spans[0].trace_state = "12345"
    body = odd.body().replace(b"\x1a\x0512345", b"\x30\x80\x80\x80\x80\x80\x01")  # kind = 2³⁵
    s = setup(max_wait_s=0.01)
    s.writer.write(s.segment(token_body(trace=1), body, token_body(trace=3)))
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert s.dead() == {}


def test_a_payload_beside_misread_ones_that_the_store_refuses_is_still_set_aside_alone(setup):
    s = setup()
    s.writer.write(s.segment(token_body(trace=1), misread(2), unreadable(3), token_body(trace=4)))
    assert s.tokens() == {1: 3, 2: 2, 4: 3}
    assert sorted("wrong wire type" in why["reason"] for why in s.dead().values()) == [False, True]


def test_a_payload_that_protobuf_cannot_read_holds_up_nothing(setup):
    """A length of six bytes. ClickHouse reads it; a collector took it when it did not parse long runs of spans."""
    s = setup()
    s.writer.write(s.segment(with_a_padded_head(token_body(trace=1), length=6), misread(2), token_body(trace=3)))
    assert s.tokens() == {1: 3, 2: 2, 3: 3}
    assert len(s.dead()) == 1


def scarce(most_bytes, calls):
    """A store with memory for inserts of this many bytes."""

    def insert(store, signal, source, token):
        body = source.read_bytes() if hasattr(source, "read_bytes") else source
        calls.append((token.partition(".")[2], len(body)))
        if len(body) > most_bytes:
            raise TooMuchError("memory limit")
        insert_otlp(store, signal, source, token)

    return insert


def test_an_insert_that_is_too_large_for_the_memory_is_tried_again_and_then_divided(setup):
    calls = []
    s = setup(insert=scarce(1_500_000, calls), max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1, count=16_000, index_key=semconv.OLD_TOKEN_INDEX), token_body(trace=2)))
    assert [token for token, _ in calls] == ["", "", "", "", "0", "0", "0", "0", "0.0", "0.1", "1"]
    assert s.tokens() == {1: 16_000, 2: 3}
    assert s.dead() == {}
    assert s.log.pending == (0, 0)


def test_a_small_insert_waits_for_memory_and_is_never_set_aside(setup):
    calls = []

    def recovers(store, signal, source, token):
        scarce(0 if len(calls) < 9 else 10**6, calls)(store, signal, source, token)

    s = setup(insert=recovers, max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1), token_body(trace=2)))
    assert {token for token, _ in calls} == {""}
    assert s.tokens() == {1: 3, 2: 3}


def test_a_single_span_that_is_too_large_for_the_memory_is_set_aside(setup):
    request = Request()
    request.span("large", attributes={"text": "x" * 2_000_000})
    s = setup(insert=scarce(10**6, []), max_wait_s=0.001)
    s.writer.write(s.segment(request.body(), token_body(trace=2)))
    assert [path.read_bytes() for path in s.dead()] == [request.body()]
    assert s.tokens() == {2: 3}
    assert s.log.pending == (0, 0)


def test_a_payload_of_which_a_half_is_stored_is_known(setup):
    request = Request().tokens(trace=1, count=1)
    request.span("large", attributes={"text": "x" * 2_000_000})
    s = setup(insert=scarce(10**6, []), max_wait_s=0.001)
    s.writer.write(s.segment(request.body()))
    assert (s.tokens(), len(s.dead())) == ({1: 1}, 1)
    assert s.log.seen(digest_of(request.body()))


READING = ": (at row 1): While executing ProtobufRowInputFormat: While executing File"


@pytest.mark.parametrize(
    ("code", "text", "raised"),
    [
        (241, "Memory limit (total) exceeded", TooMuchError),
        (252, "Too many partitions for single INSERT block (more than 100)", RefusedError),
        (36, f"Invalid protobuf data: OneOf has more than one value to track{READING}", RefusedError),
        (9999, f"An error that nobody has seen yet{READING}", RefusedError),
        (241, f"Memory limit (total) exceeded{READING}", TooMuchError),
        (210, f"I/O error: Broken pipe{READING}", DatabaseError),
        (76, f"Cannot open file, errno: 24, strerror: Too many open files{READING}", DatabaseError),
        (33, "Cannot read all data. Bytes read: 5. Bytes expected: 100", DoubtfulError),
        (32, f"Attempt to read after eof{READING}", DoubtfulError),
        (117, "Incorrect data", DoubtfulError),
        (32, "Attempt to read after eof: while receiving packet from node-2:9000", DatabaseError),
        (1001, f"std::bad_alloc{READING}", DatabaseError),
        (36, "Setting max_threads is wrong", DatabaseError),
        (436, "Could not convert value '34359738368' from type Int64 to type Int32", RefusedError),
        (252, "Too many parts (300). Merges are processing significantly slower than inserts", DatabaseError),
    ],
)
def test_an_error_of_the_store_is_told_from_one_of_the_data(code, text, raised):
    class Failing:
        embedded = False

        def client(self):
            return self

        def raw_insert(self, *_, **__):
            raise DatabaseError(text, code=code)

    with pytest.raises(raised, match=text[:10]):
        insert_otlp(Failing(), TRACES, b"", "token")


def test_a_server_has_the_rows_when_it_answers():
    """A new server's default is 1, and its profile may let it answer before."""

    class Server:
        embedded = False

        def client(self):
            return self

        def raw_insert(self, *_, settings, **__):
            assert settings["async_insert"] == 0
            inserted.append(settings["insert_deduplication_token"])

    inserted = []
    insert_otlp(Server(), TRACES, b"", "a")
    insert.insert_block(Server(), TRACES, [], "b")
    assert inserted == ["a", "b"]


class OverTheNetwork:
    """The module's store as a server, which gets the bytes cut short so often."""

    embedded = False

    def __init__(self, store, cuts, *, of=b""):
        self._store, self.cuts, self._of = store, cuts, of
        self.tokens = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def insert(self, store, signal, source, token):
        self.tokens.append(token.partition(".")[2])
        if self._of in source and self.cuts:
            self.cuts.pop()()
        insert_otlp(self._store, signal, source, token)


def cut():
    raise DoubtfulError("Code: 33. Cannot read all data")


def away():
    raise ConnectionError("connection refused")


@pytest.mark.parametrize("cuts", [[cut], [cut] * 3, [cut, away, away, away, cut, away, cut]])
def test_a_connection_that_breaks_in_the_middle_of_a_body_makes_no_dead_letter(setup, module_store, cuts):
    server = OverTheNetwork(module_store, [*cuts])
    s = setup(insert=server.insert, claims=ClaimedElsewhere(), max_wait_s=0.001)
    s.writer._store = server
    s.writer.write(s.segment(token_body(trace=1), token_body(trace=2)))
    assert (s.tokens(), s.dead()) == ({1: 3, 2: 3}, {})
    assert server.tokens == [""] * (len(cuts) + 1), "never divided: the server has the whole insert or nothing"


def test_a_payload_of_which_a_server_says_so_again_and_again_is_set_aside_alone(setup, module_store):
    bad = token_body(trace=2)
    server = OverTheNetwork(module_store, [cut] * 100, of=bad)
    s = setup(insert=server.insert, claims=ClaimedElsewhere(), max_wait_s=0.001)
    s.writer._store = server
    s.writer.write(s.segment(token_body(trace=1), bad))
    assert server.tokens == ["", "", "", "", "0", "1", "1", "1", "1"]
    assert [path.read_bytes() for path in s.dead()] == [bad]
    assert s.tokens() == {1: 3}


def test_no_connection_breaks_on_the_way_to_an_embedded_store(setup):
    calls = []

    def refuse(store, signal, source, token):
        calls.append(token)
        cut()

    s = setup(insert=refuse)
    s.writer.write(s.segment(token_body(trace=1)))
    assert (len(calls), len(s.dead())) == (1, 1)


def test_clickhouse_says_both_errors_as_they_are_told_apart(setup, monkeypatch):
    s = setup()
    days = Request()
    for day in range(3):
        days.span("on a day", span=day + 1, start=T0 + day * 86400 * 10**9)
    monkeypatch.setitem(insert.INSERT_SETTINGS, "max_partitions_per_insert_block", 2)
    with pytest.raises(RefusedError, match="partitions"):
        insert_otlp(s.store, TRACES, days.body(), "days")
    monkeypatch.setitem(insert.INSERT_SETTINGS, "max_partitions_per_insert_block", 0)
    monkeypatch.setitem(insert.INSERT_SETTINGS, "max_memory_usage", 1_000_000)
    with pytest.raises(TooMuchError, match="emory limit"):
        insert_otlp(s.store, TRACES, token_body(count=16_000), "memory")


MANY = 1200


def joined(*payloads):
    """One payload, as a sender joins them."""
    return (b"".join(payloads),)


def alone(*payloads):
    return payloads


@pytest.mark.parametrize("payloads", [alone, joined])
def test_many_tokens_are_inserted_as_columns_beside_everything_else(setup, payloads):
    calls = []

    def otlp(store, signal, source, token):
        calls.append((token, source))
        insert_otlp(store, signal, source, token)

    def block(store, signal, source, token):
        calls.append((token, None))
        insert.insert_block(store, signal, source, token)

    s = setup(insert=otlp, insert_block=block)
    other = misread(3)
    segment = s.segment(*payloads(token_body(trace=1, count=MANY), other, token_body(trace=2)))
    s.writer.write(segment)
    name = segment.id
    assert calls == [(f"{name}.columns", None), (name, other), (f"{name}.r", calls[-1][1])]
    assert s.tokens() == {1: MANY, 2: 3, 3: 2}
    assert s.segments == [f"{name}.r"]
    assert s.status.snapshot().segments_inserted == 1


def test_the_parts_are_durable_before_the_log_gives_the_segment_up(setup, monkeypatch):
    s = setup()
    table = s.store.table_folder("tokens")
    waiting_and_parts = []

    def sync(folder):
        if folder == table:
            waiting_and_parts.append((s.log.pending[0], len([*folder.glob("*_*_*_0")])))

    monkeypatch.setattr(part_folders, "sync_folder", sync)
    parts = len([*table.glob("*_*_*_0")])
    s.writer.write(s.segment(token_body(trace=1)))
    assert waiting_and_parts == [(1, parts + 1)]


def test_inserts_need_no_temporary_folder_of_the_system_which_may_be_full(setup, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    s = setup()
    not_plain = Request().tokens(trace=2)
    not_plain.span("chat", trace=2)
    s.writer.write(s.segment(token_body(trace=1, count=MANY), not_plain.body()))
    assert s.tokens() == {1: MANY, 2: 3}


def test_a_data_folder_may_have_any_name(setup, tmp_path):
    """ClickHouse would take this name for those of other files."""
    path = tmp_path / "it's {1,2}*.wal"
    path.write_bytes(token_body(trace=1))
    (tmp_path / "it's 1.wal").write_bytes(token_body(trace=2))
    s = setup()
    insert_otlp(s.store, TRACES, path, "a folder's name")
    assert s.tokens() == {1: 3}


def test_a_segment_of_tokens_alone_is_announced_once(setup):
    s = setup()
    segment = s.segment(token_body(trace=1, count=MANY))
    s.writer.write(segment)
    assert s.tokens() == {1: MANY}
    assert s.segments == [f"{segment.id}.columns"]
    assert s.log.pending == (0, 0)


@pytest.mark.parametrize("dies_in", ["columns", "otlp"])
@pytest.mark.parametrize(("stored", "payloads"), [(False, alone), (True, alone), (False, joined), (True, joined)])
def test_a_crash_around_either_insert_adds_nothing_twice_and_loses_nothing(setup, dies_in, stored, payloads):
    def dying(name, real):
        def insert_it(*args):
            if name != dies_in or stored:
                real(*args)
            if name == dies_in:
                raise KeyboardInterrupt

        return insert_it

    s = setup()
    segment = s.segment(*payloads(token_body(trace=1, count=MANY), misread(3)))
    crashing = s.another_writer(insert=dying("otlp", insert_otlp), insert_block=dying("columns", insert.insert_block))
    with pytest.raises(KeyboardInterrupt):
        crashing.write(segment)
    for _ in range(2):
        after = setup()
        waiting = after.log.next_sealed(0)
        if waiting:
            after.writer.write(waiting)
    assert s.tokens() == {1: MANY, 3: 2}


def test_payloads_whose_resources_would_fill_the_memory_are_divided_before_they_are_inserted(setup, monkeypatch):
    """A store that is inside the collector would be killed with it, also at the next start."""
    monkeypatch.setattr("collector.store.writer._MOST_REPEATED", 1_000_000)
    calls = []

    def counting(store, signal, source, token):
        calls.append(token.split(".")[1:])
        insert_otlp(store, signal, source, token)

    large, small = Request(big="r" * 100_000), Request()
    for n in range(30):
        large.span("x", trace=n + 1)
    small.span("x", trace=99)
    s = setup(insert=counting)
    s.store.client().command("TRUNCATE TABLE spans")
    s.writer.write(s.segment(large.body(), small.body()))
    assert calls == [["0", "0", "0"], ["0", "0", "1"], ["0", "1", "0"], ["0", "1", "1"], ["1"]]
    assert s.store.query("SELECT count(), uniqExact(trace_id) FROM spans").result_rows == [(31, 31)]
    assert s.log.pending == (0, 0)


def test_columns_that_are_too_large_for_the_memory_are_divided(setup):
    calls = []

    def scarce_block(store, signal, block, token):
        calls.append(token.partition(".columns")[2])
        if sum(map(len, block)) > 1_100_000:
            raise TooMuchError("memory limit")
        insert.insert_block(store, signal, block, token)

    s = setup(insert_block=scarce_block, max_wait_s=0.001)
    s.writer.write(s.segment(token_body(trace=1, count=30_001), token_body(trace=2, count=10_000)))
    assert calls == ["", "", "", "", ".0", ".1"]
    assert s.tokens() == {1: 30_001, 2: 10_000}
    assert s.log.pending == (0, 0)


def test_a_segment_that_an_older_collector_stored_before_a_crash_is_not_stored_twice(setup, tmp_path, module_store):
    payload = token_body(trace=1, count=MANY)
    path = tmp_path / "wal" / "00000000000000000001-00000000.wal"
    path.parent.mkdir()
    path.write_bytes(struct.pack("<4sI16s", OLD_MAGIC, len(payload), old_digest_of(payload)) + payload)
    insert_otlp(module_store, TRACES, path, path.stem)
    s = setup()
    s.writer.write(s.log.next_sealed(0))
    assert s.segments == [path.stem]
    assert s.tokens() == {1: MANY}


def test_a_segment_of_many_days_is_several_inserts(setup):
    day = 86_400 * 10**9
    s = setup()
    starts = [T0 - n * 40 * day for n in range(5)]
    bodies = [token_body(trace=n + 1, start=start) for n, start in enumerate(starts)]
    s.log.append([Frame(digest_of(body), body, (at // day,) * 2) for body, at in zip(bodies, starts, strict=True)])
    s.log.seal()
    segment = s.log.next_sealed(0)
    s.writer.write(segment)
    assert s.tokens() == dict.fromkeys(range(1, 6), 3)
    assert s.segments == [f"{segment.id}.d0", f"{segment.id}.d1"]


def test_a_payload_of_more_days_than_an_insert_may_have_by_default_is_stored(setup):
    """`--max-payload-days` allows it."""
    request = Request()
    for day in range(101):
        request.span("on a day", trace=day + 1, start=T0 - day * 86_400 * 10**9)
    s = setup()
    s.store.client().command("TRUNCATE TABLE spans")
    s.writer.write(s.segment(request.body()))
    assert s.store.query("SELECT uniqExact(trace_id) FROM spans").result_rows == [(101,)]
    assert s.dead() == {}


def test_a_crash_in_the_middle_of_setting_aside_adds_nothing_twice(setup):
    s = setup()
    payloads = [token_body(trace=1), unreadable(9), token_body(trace=2), token_body(trace=3)]
    segment = s.segment(*payloads)
    calls = []

    def crash_after_an_insert(store, signal, body, token):
        calls.append(token)
        insert_otlp(store, signal, body, token)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        s.another_writer(insert=crash_after_an_insert).write(segment)
    s.another_writer().write(segment)
    assert s.tokens() == {1: 3, 2: 3, 3: 3}
    assert len(s.dead()) == 1


def test_a_store_that_fails_is_tried_until_it_takes_the_segment_and_is_not_ready_meanwhile(setup):
    reasons = []

    def fail_three_times(store, signal, body, token):
        if len(reasons) < 3:
            reasons.append(s.status.snapshot().reason)
            raise ConnectionError("connection refused")
        reasons.append(s.status.snapshot().reason)
        insert_otlp(store, signal, body, token)

    s = setup(insert=fail_three_times, max_wait_s=0.01)
    s.writer.write(s.segment(token_body(trace=1)))
    assert reasons[0] == ""
    assert all("connection refused" in reason for reason in reasons[1:])
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().ready
    assert s.dead() == {}


def test_a_store_that_was_away_for_long_is_tried_again_within_the_longest_wait(setup, monkeypatch):
    waits = []

    def away(store, signal, source, token):
        if len(waits) < 12:
            raise ConnectionError("connection refused")

    s = setup(insert=away)
    monkeypatch.setattr(s.writer, "_wait", waits.append)
    s.writer.write(s.segment(token_body(trace=1)))
    assert waits[0] < 1
    assert waits[-1] == max(waits) == 10.0


def test_an_insert_that_ends_after_two_minutes_makes_the_collector_not_ready_for_the_rest_of_it(setup):
    now_s, reasons = [1000.0], []

    def slow(store, signal, body, token):
        for seconds in (119.0, 1.0, 30.0):
            now_s[0] += seconds
            reasons.append(s.status.snapshot().reason)
        insert_otlp(store, signal, body, token)

    s = setup(insert=slow)
    s.status.monotonic_s = lambda: now_s[0]
    s.writer.write(s.segment(token_body(trace=1)))
    answer = "the traces store has not answered for {} s"
    assert reasons == ["", answer.format(120), answer.format(150)]
    assert s.status.snapshot().ready
    assert s.tokens() == {1: 3}


def test_a_file_that_is_damaged_while_the_store_is_away_makes_no_other_rows(setup):
    sources = []

    def fail_once(store, signal, body, token):
        sources.append(body)
        if len(sources) == 1:
            body.write_bytes(body.read_bytes().replace(b"a model", b"A model"))
            raise ConnectionError("connection refused")
        insert_otlp(store, signal, body, token)

    s = setup(insert=fail_once, max_wait_s=0.01)
    payload = Request(model="a model").tokens().body()
    s.writer.write(s.segment(payload))
    assert sources[1] == payload
    assert s.tokens() == {1: 3}


def test_a_segment_with_a_damaged_frame_gives_the_others(setup):
    s = setup()
    segment = s.segment(token_body(trace=1), b"to be damaged", token_body(trace=2))
    segment.path.write_bytes(segment.path.read_bytes().replace(b"damaged", b"dAmaged"))
    after_a_restart = setup()
    after_a_restart.writer.write(after_a_restart.log.next_sealed(0))
    assert s.tokens() == {1: 3, 2: 3}
    assert ["checksum" in why["reason"] for why in s.dead().values()] == [True]


def test_a_segment_that_cannot_be_released_is_announced_once(setup, monkeypatch):
    s = setup()
    segment = s.segment(token_body(trace=1), unreadable(9))
    release = s.log.release
    monkeypatch.setattr(s.log, "release", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        s.writer.write(segment)
    monkeypatch.setattr(s.log, "release", release)
    s.writer.write(segment)
    assert s.segments == [f"{segment.id}.0"]
    assert s.tokens() == {1: 3}
    assert s.log.pending == (0, 0)


def test_an_error_of_any_kind_is_told_and_the_thread_goes_on(setup, monkeypatch, caplog):
    s, told, read = setup(max_wait_s=0.01), [], SegmentLog.read

    def fail_once(*args):
        if not told:
            told.append("")
            raise ZeroDivisionError("a mistake")
        told.append(s.status.snapshot().reason)
        return read(*args)

    monkeypatch.setattr(s.log, "read", lambda segment: fail_once(s.log, segment))
    s.segment_that_waits(token_body(trace=1))
    s.writer.start()
    assert s.writer.stop(WAIT_S)
    assert "a segment of traces cannot be written: ZeroDivisionError('a mistake')" in told[1]
    assert "Traceback" in caplog.text
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().ready


def test_a_log_that_cannot_be_read_is_told_and_read_again_a_second_later(setup, monkeypatch):
    s, waits, read = setup(), [], SegmentLog.read

    def wait(seconds):
        waits.append((seconds, s.status.snapshot().reason))

    def fail_once(segment):
        if not waits:
            raise OSError("disk")
        return read(s.log, segment)

    monkeypatch.setattr(s.log, "read", fail_once)
    monkeypatch.setattr(s.writer._give_up, "wait", wait)
    s.segment_that_waits(token_body(trace=1))
    s.writer.start()
    assert s.writer.stop(WAIT_S)
    assert waits == [(1.0, "the log of traces cannot be read or released: disk")]
    assert s.tokens() == {1: 3}
    assert s.status.snapshot().ready


def test_a_writer_forgets_the_tokens_of_a_segment_that_is_stored(setup):
    s = setup()
    for trace in (1, 2):
        s.writer.write(s.segment(token_body(trace=trace), unreadable(trace + 7)))
        assert not s.writer._stored
        assert not s.writer._set_aside


def test_an_insert_of_a_million_rows_is_one_part(setup):
    """Half of an insert would stay when the other half fails, and its token would not be known."""
    s, count = setup(), 1_200_000
    columns = token_columns(Request().tokens(trace=1, count=100).body())
    many = {name: np.repeat(column, count // 100, axis=0) for name, column in columns.items()}
    assert TRACES.plain
    insert.insert_block(s.store, TRACES, native_block([many], TRACES.plain.types), "a token")
    sql = "SELECT level, rows FROM system.parts WHERE table = 'tokens' AND active"
    assert s.store.query(sql).result_rows == [(0, count)]


def test_a_failing_callback_stops_nothing(setup, caplog):
    s = setup()
    s.writer.on_segment(lambda segment: 1 / 0)
    s.writer.write(s.segment(token_body(trace=1)))
    assert s.log.pending == (0, 0)
    assert "ZeroDivisionError" in caplog.text


def test_draining_writes_what_is_sealed(setup):
    s = setup()
    for trace in (1, 2, 3):
        s.segment(token_body(trace=trace))
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 2: 3, 3: 3}


def test_a_backlog_is_one_insert(setup):
    s = setup()
    for trace in range(1, 6):
        s.segment_that_waits(token_body(trace=trace))
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == dict.fromkeys(range(1, 6), 3)
    assert len(s.segments) == s.status.snapshot().segments_inserted == 1
    assert s.log.pending == (0, 0)
    sql = "SELECT count() FROM system.parts WHERE table = 'tokens' AND active"
    assert s.store.query(sql).result_rows == [(1,)]


def test_a_segment_is_written_under_the_lock_that_a_pause_takes(setup):
    locked = []

    def look(store, signal, source, token):
        locked.append(s.writer._writing.locked())

    s = setup(insert=look)
    s.segment_that_waits(token_body(trace=1))
    s.writer.start()
    assert s.writer.stop(WAIT_S)
    assert locked == [True]


def test_a_crash_behind_the_insert_of_a_backlog_adds_nothing_twice(setup):
    def crash_after_the_insert(store, signal, body, token):
        insert_otlp(store, signal, body, token)
        raise KeyboardInterrupt

    s = setup()
    for trace in (1, 2, 3):
        s.segment_that_waits(token_body(trace=trace))
    s.log.merge_waiting()
    with pytest.raises(KeyboardInterrupt):
        s.another_writer(insert=crash_after_the_insert).write(s.log.next_sealed(0))
    after = setup()
    after.segment_that_waits(token_body(trace=4))
    after.writer.start()
    assert after.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 2: 3, 3: 3, 4: 3}


def test_a_bad_payload_in_a_backlog_is_set_aside_alone(setup):
    s = setup()
    for payload in (token_body(trace=1), unreadable(2), misread(3), token_body(trace=4)):
        s.segment_that_waits(payload)
    s.writer.start()
    assert s.writer.stop(timeout_s=30.0)
    assert s.tokens() == {1: 3, 3: 2, 4: 3}
    assert len(s.dead()) == 2


def test_draining_gives_up_on_a_store_that_is_away_and_keeps_the_segments(setup):
    def away(store, signal, body, token):
        raise ConnectionError("away")

    s = setup(insert=away)
    s.segment(token_body(trace=1))
    s.writer.start()
    assert s.status.snapshot().wal_segments_pending == 1, "it counts although nothing has been sent to this process"
    assert not s.writer.stop(timeout_s=0.2)
    assert s.log.pending[0] == 1
    s.writer._thread.join(WAIT_S)
    assert not s.writer._thread.is_alive()


def test_a_full_log_is_ready_again_when_the_store_has_taken_something(setup):
    s = setup()
    segment = s.segment(token_body(trace=1))
    s.log.limits = LogLimits(max_bytes=1)
    with pytest.raises(LogUnavailableError, match="full"):
        GroupCommit("traces", s.log, s.status).submit(b"another")
    assert "the log of traces is full" in s.status.snapshot().reason
    s.writer.write(segment)
    assert s.status.snapshot().ready
