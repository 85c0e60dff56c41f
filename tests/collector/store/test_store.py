"""Each thread has its own client of the store, and the client of a thread that has ended is used again."""

import shutil
import socket
import threading
from contextlib import suppress

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError
from clickhouse_connect.driver.httpclient import HttpClient
from urllib3 import Timeout

from collector.base.store_errors import StoreError, StoreUnavailableError, is_unavailable
from collector.store.store import Store
from tests.support.stores import new_store

WAIT_S = 120


class Client:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1

    def query(self, sql, **_):
        raise DatabaseError(sql)

    raw_query = query


class Counted(Store):
    """Connects to nothing, and keeps each client that it made."""

    def __init__(self):
        super().__init__("chdb:///nowhere")
        self.made = []

    def _connect(self):
        self.made.append(Client())
        return self.made[-1]


def in_thread(action):
    """Run it in a thread of its own, to its end; its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def store():
    return Counted()


def test_a_thread_keeps_its_client(store):
    assert store.client() is store.client()
    assert len(store.made) == 1


def test_threads_that_run_have_clients_of_their_own(store):
    mine = store.client()
    assert in_thread(store.client) is not mine
    assert len(store.made) == 2


def test_threads_that_follow_each_other_use_one_client(store):
    mine = store.client()
    assert len({id(in_thread(store.client)) for _ in range(5)} - {id(mine)}) == 1
    assert len(store.made) == 2


def test_a_client_that_was_left_behind_goes_to_one_thread_only(store):
    in_thread(store.client)
    assert store.client() is store.made[0]
    assert in_thread(store.client) is store.made[1]


def test_every_client_is_closed_once(store):
    store.client()
    for _ in range(3):
        in_thread(store.client)
    store.close()
    store.close()
    assert [client.closed for client in store.made] == [1, 1]


@pytest.mark.parametrize("ask", [lambda store: store.query("q"), lambda store: store.binary("q", {}, {})])
def test_a_client_whose_query_failed_is_used_no_more(store, ask):
    failed = store.client()
    other = in_thread(store.client)
    with pytest.raises(DatabaseError):
        ask(store)
    assert store.client() is not failed
    assert (failed.closed, other.closed, store.client().closed) == (1, 0, 0)
    store.close()
    assert [client.closed for client in store.made] == [1] * len(store.made)


def test_a_query_that_fails_while_the_store_is_closed_opens_nothing(store):
    client = store.client()
    store.close()
    with pytest.raises(DatabaseError):
        store.query("q")
    assert store.made == [client]


@pytest.mark.parametrize("ask", [Store.query, Store.binary])
def test_an_answer_has_no_rows_of_a_query_that_failed_before(module_store, ask):
    """The query fails behind its first rows, as one does that takes too long. chDB keeps these rows."""
    with pytest.raises(DatabaseError, match="throwIf"):
        ask(module_store, "SELECT number, throwIf(number = 5000) FROM numbers(9000)", {}, {"max_block_size": 1000})
    assert module_store.query("SELECT 1, 2, 3").result_rows == [(1, 2, 3)]
    assert module_store.binary("SELECT 1", {}, {}) == b"\x01"


def test_an_embedded_store_compiles_nothing_but_regular_expressions(module_store):
    compiled = "SELECT name FROM system.settings WHERE name LIKE 'compile%' AND value != '0'"
    assert module_store.query(compiled).result_rows == [("compile_regular_expressions",)]


def test_an_embedded_store_remembers_no_conditions(module_store):
    """A condition that is remembered spoils answers, and the cache of them grows for days."""
    entries = "SELECT value FROM system.metrics WHERE metric = 'QueryConditionCacheEntries'"
    module_store.client().insert("joined_segments", [["a segment"]], column_names=["segment"])
    before = module_store.query(entries).result_rows  # of other tests' stores in this process
    for n in range(3):
        module_store.query("SELECT count() FROM joined_segments WHERE length(segment) > {n:UInt8}", {"n": n + 50})
    assert module_store.query(entries).result_rows == before


def test_settings_of_a_binary_query_hold_for_it_alone(module_store):
    sql = "SELECT number FROM numbers({n:UInt8})"
    rows = [module_store.binary(sql, {"n": 4}, settings) for settings in ({"limit": 2}, {})]
    assert [list(memoryview(found).cast("Q")) for found in rows] == [[0, 1], [0, 1, 2, 3]]


def test_a_folder_that_chdb_would_take_for_another_one_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"cannot lie in .*: chDB takes what follows a \? for options"):
        Store.open(f"chdb://{tmp_path}/is it?")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("follows", [True, False])
def test_a_copy_without_its_symbolic_links_is_refused(tmp_path, follows):
    """chDB opened a copy that had left them out as a store without rows."""
    new_store(tmp_path / "store")
    link = tmp_path / "store" / "metadata" / "default"
    database = link.resolve()
    link.unlink()
    if follows:
        shutil.copytree(database, link)
    with pytest.raises(StoreError, match=r"has lost its symbolic links.*`cp -a`"):
        Store.open(f"chdb://{tmp_path / 'store'}")


@pytest.mark.parametrize(("scheme", "first"), [("http", b"P"), ("https", b"\x16")], ids=["POST", "a TLS handshake"])
def test_the_scheme_of_an_address_decides_whether_its_password_travels_in_tls(scheme, first):
    heard = []

    def listen(server):
        with suppress(OSError):  # the test ends it
            while True:
                with server.accept()[0] as connection:
                    heard.append(connection.recv(1))

    with socket.create_server(("127.0.0.1", 0)) as server:
        listener = threading.Thread(target=listen, args=(server,))
        listener.start()
        with pytest.raises(StoreUnavailableError):
            Store.open(f"{scheme}://me:secret@127.0.0.1:{server.getsockname()[1]}/db?cluster=prod")
        server.shutdown(socket.SHUT_RDWR)
        listener.join()
    assert {*heard} == {first}


def test_a_start_does_not_wait_for_a_server_that_accepts_and_says_nothing():
    refused = []

    def start(port):
        try:
            Store.open(f"http://127.0.0.1:{port}/db", connect_timeout_s=1.0, send_receive_timeout_s=3600.0)
        except StoreUnavailableError as error:
            refused.append(error)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=start, args=(server.getsockname()[1],), daemon=True)
        thread.start()
        thread.join(WAIT_S)
    assert len(refused) == 1


class Patient(HttpClient):
    """A client of a server that keeps for how long it would have waited for each answer."""

    timeout = Timeout(read=300.0)

    def __init__(self):
        self.waited_s = []

    def query(self, *_, **__):
        self.waited_s.append(self.timeout.read_timeout)

    command = query


def test_an_answer_is_waited_for_as_long_as_its_query_may_take_and_other_answers_as_before(monkeypatch):
    store, client = Store("http://127.0.0.1:1/db"), Patient()
    monkeypatch.setattr(store, "_connect", lambda: client)
    store.query("q", settings={"max_execution_time": 2})
    store.query("q")
    store.cancel("q")
    store.query("q")
    assert client.waited_s == [7.0, 300.0, 5.0, 300.0]


def test_a_query_of_a_store_that_is_away_is_not_cancelled_and_nobody_fails(store, caplog):
    store.refuse("the store is away")
    store.cancel("q")
    assert "a query cannot be cancelled: the store is away" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), True),
        (StoreUnavailableError(), True),
        (OperationalError("timed out"), True),
        (DatabaseError("HTTP driver received HTTP status 502, server response: Bad Gateway"), True),
        (DatabaseError("Too many simultaneous queries", code=202), True),
        (OperationalError("All connection tries failed", code=279), True),
        (DatabaseError("Unknown table", code=60), False),
        (OperationalError("Memory limit exceeded", code=241), False),
        (ProgrammingError("Unknown parameter"), False),
    ],
)
def test_a_server_that_is_away_or_busy_and_a_proxy_in_front_of_it_are_told_from_wrong_questions(error, expected):
    assert is_unavailable(error) == expected
