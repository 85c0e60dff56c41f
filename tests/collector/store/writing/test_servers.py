"""Errors of the store are told from errors of the data, also where a connection breaks."""

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from collector.otlp.signals import TRACES
from collector.store import insert
from collector.store.insert import DoubtfulError, RefusedError, TooMuchError, insert_otlp
from tests.collector.store.writing.written import ClaimedElsewhere
from tests.support.otlp import T0, Request, token_body

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
