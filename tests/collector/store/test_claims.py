"""Claims on a real store: each payload has one owner, also when two writers claim at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from collector.store.claims import Claims, ContendedError
from collector.store.definitions import read_schema
from collector.store.order import Order
from collector.wal.frame import Frame, digest_of


@pytest.fixture
def claims(module_store):
    module_store.client().command("DROP TABLE payload_claims SYNC")  # a truncated table would know its old tokens
    module_store.client().command(read_schema().tables["payload_claims"])
    return lambda signal="traces", **kwargs: Claims(module_store, signal, **{"retention_s": 3600.0} | kwargs)


def frames(*payloads):
    return [Frame(digest_of(payload), payload) for payload in payloads]


def owned(claims, segment, *payloads):
    return [frame.payload for frame in claims.claimed(segment, frames(*payloads))]


def count(store):
    return store.query("SELECT uniqExact(claim), count() FROM payload_claims").result_rows[0]


def test_the_first_segment_that_claims_a_payload_stores_it_whatever_the_collector(claims):
    assert owned(claims(), "a", b"1", b"2") == [b"1", b"2"]
    assert owned(claims(), "b", b"2", b"3") == [b"3"]
    assert owned(claims(), "c", b"1", b"2", b"3") == []


def test_a_segment_without_a_payload_claims_nothing(claims, module_store):
    assert claims().claimed("a", []) == []
    assert count(module_store) == (0, 0)


def test_a_segment_may_have_more_payloads_than_sql_of_256_kib_can_name(claims):
    payloads = [str(n).encode() for n in range(14_000)]
    assert owned(claims(), "a", *payloads) == payloads


def test_the_answer_is_the_same_after_a_crash_and_makes_no_further_claim(claims, module_store):
    for segment, expected in (("a", [b"1", b"2"]), ("b", [b"3"])):
        payloads = (b"1", b"2") if segment == "a" else (b"2", b"3")
        assert owned(claims(), segment, *payloads) == expected
    before = count(module_store)
    assert owned(claims(), "b", b"2", b"3") == [b"3"]
    assert owned(claims(), "a", b"1", b"2") == [b"1", b"2"]
    assert count(module_store) == before == (2, 4)


def test_a_payload_of_another_signal_or_with_the_same_prefix_is_another_payload(claims):
    assert owned(claims(), "a", b"1") == [b"1"]
    assert owned(claims("metrics"), "b", b"1") == [b"1"]
    twin = Frame(digest_of(b"1")[:8] + bytes(8), b"twin")
    assert claims().claimed("c", [twin]) == [twin]


def test_a_withdrawn_payload_goes_to_the_next_segment_and_stays_with_it(claims):
    first = claims()
    assert owned(first, "a", b"1", b"2") == [b"1", b"2"]
    for _ in range(2):
        first.withdraw("a", [digest_of(b"1")])
    assert owned(claims(), "b", b"1", b"2") == [b"1"]
    assert owned(claims(), "a", b"1", b"2") == [b"2"]
    assert owned(claims(), "c", b"1", b"2") == []


def interleaved(one, other, *, before):
    """Let `other` claim in the middle of the first claim of `one`, before the call of this name."""
    call, calls = getattr(one, before), []

    def with_the_other_in_between(*args, **kwargs):
        if not calls:
            calls.append(1)
            calls.append(owned(other, "other", b"1", b"2"))
        return call(*args, **kwargs)

    setattr(one, before, with_the_other_in_between)
    return owned(one, "one", b"2", b"3"), calls[1]


@pytest.mark.parametrize("before", ["_claim", "_insert"])
def test_a_claim_that_another_collector_overtakes_comes_behind_it(claims, module_store, before):
    assert interleaved(claims(), claims(), before=before) == ([b"3"], [b"1", b"2"])
    rows = module_store.query("SELECT claim, any(segment), count() FROM payload_claims GROUP BY claim ORDER BY claim")
    assert rows.result_rows == [(1, "other", 2), (2, "one", 2)]


def test_a_claim_whose_answer_was_lost_is_found(claims, module_store):
    one = claims()
    insert = one._insert

    def insert_and_lose_the_answer(*args, **kwargs):
        one._insert = insert
        insert(*args, **kwargs)
        raise ConnectionError("timed out")

    one._insert = insert_and_lose_the_answer
    with pytest.raises(ConnectionError):
        one.claimed("a", frames(b"1"))
    assert owned(one, "a", b"1") == [b"1"]
    assert count(module_store) == (1, 1)


def test_many_writers_at_once_give_each_payload_one_owner(claims):
    start = threading.Barrier(4)

    def write(writer):
        mine = claims()
        start.wait()
        stored = []
        for nth in range(6):
            payloads = [f"{nth}-{n}".encode() for n in range(5)] + [f"{writer}-{nth}".encode()]
            for _ in range(20):
                try:
                    stored += owned(mine, f"{writer}.{nth}", *payloads)
                    break
                except ContendedError:
                    continue
        return stored

    with ThreadPoolExecutor(4) as pool:
        stored = [payload for payloads in pool.map(write, "abcd") for payload in payloads]
    assert len(stored) == len(set(stored)) == 6 * 5 + 4 * 6


def test_a_number_that_was_lost_in_a_crash_of_the_store_is_passed_over(claims, module_store, monkeypatch):
    assert owned(claims(), "a", b"1") == [b"1"]
    module_store.client().command("ALTER TABLE payload_claims DELETE WHERE true SETTINGS mutations_sync = 1")
    monkeypatch.setattr("collector.store.order._PAUSE_S", 0.0)
    monkeypatch.setattr("collector.store.order._TRIES_OF_A_LOST_NUMBER", 30)
    late = claims()
    with pytest.raises(ContendedError, match="segment b"):
        late.claimed("b", frames(b"1"))
    assert owned(late, "b", b"1") == [b"1"]
    assert owned(late, "c", b"1") == []


def test_claims_that_others_make_between_looks_cost_no_number(claims, module_store, monkeypatch):
    monkeypatch.setattr("collector.store.order._PAUSE_S", 0.0)
    monkeypatch.setattr("collector.store.order._TRIES_OF_A_LOST_NUMBER", 3)
    order, numbers = claims()._order, []
    for claim in range(1, 4):
        numbers += [order.next_number() for _ in range(3)]
        module_store.client().command(f"INSERT INTO payload_claims (claim) VALUES ({claim})")
    assert numbers == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_old_claims_are_dropped_by_partitions_and_the_newest_number_stays(claims, module_store):
    def age(claim, age_s):
        module_store.client().command(
            f"INSERT INTO payload_claims (claim, prefix, claimed_at) VALUES ({claim}, {claim}, now() - {age_s})"
        )

    age(1, 100_000)
    age(2, 100)
    age(65_536, 100_000)
    age(70_000, 90_000)
    age(2 * 65_536 - 1, 90_000)
    age(3 * 65_536 - 2, 90_000)
    assert owned(claims(retention_s=86_400.0), "a", b"1") == [b"1"]
    assert count(module_store) == (7, 7), "196,607 is not a number at which old claims are looked for"
    claims()._order.forget(197_000, retention_s=86_400)
    kept = module_store.query("SELECT claim FROM payload_claims ORDER BY claim").result_rows
    assert kept == [(1,), (2,), (3 * 65_536 - 2,), (3 * 65_536 - 1,)]


def test_old_claims_are_looked_for_behind_each_claim(claims, monkeypatch):
    looked = []
    monkeypatch.setattr(Order, "forget", lambda _, claim, *, retention_s: looked.append((claim, retention_s)))
    mine = claims(retention_s=7200.0)
    assert owned(mine, "a", b"1") == [b"1"]
    assert owned(mine, "b", b"1", b"2") == [b"2"]
    assert looked == [(1, 7200), (2, 7200)]


def test_the_newest_claims_stay_however_old_they_are(claims, module_store):
    module_store.client().command("INSERT INTO payload_claims (claim, claimed_at) VALUES (1, now() - 100000)")
    claims()._order.forget(1000, retention_s=1)
    assert count(module_store) == (1, 1)
