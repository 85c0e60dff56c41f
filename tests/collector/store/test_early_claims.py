"""Requests in flight on a store that several collectors share: their counters together count each request once."""

import time
from dataclasses import replace

import pytest

from collector.ask.queries import Queries
from collector.base.process import Process
from collector.count.in_flight import read_in_flight
from collector.metrics import metrics
from collector.metrics.filled import FilledTables
from collector.metrics.store_counters import StoreCounters
from collector.slo.model import load_slos
from collector.sql.fragment import TRUE
from collector.store.claims import ContendedError
from collector.store.definitions import read_schema
from collector.store.early_claims import EarlyClaims, EarlyCount
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
LATE = {"slo_class": "chat", "ttft_ns": 900 * MS}
"""A request that misses the TTFT of the SLO "chat"."""


@pytest.fixture
def claims(module_store):
    module_store.client().command("DROP TABLE early_claims SYNC")  # a truncated table would know its old tokens
    module_store.client().command(read_schema().tables["early_claims"])
    return EarlyClaims(module_store)


@pytest.fixture
def counters(rows, claims, slos_file, clock, tmp_path):
    """Opens the counters of a collector by its name; opened again, they are those of the next process."""

    def opened(name):
        (tmp_path / name).mkdir(exist_ok=True)
        queries = Queries(rows.store)
        return StoreCounters(
            queries,
            FilledTables(queries),
            load_slos(slos_file),
            clock=clock,
            folder=tmp_path / name,
            claims=EarlyClaims(rows.store),
        )

    return opened


@pytest.fixture
def see(rows, clock):
    """Read the requests in flight now."""
    return lambda: read_in_flight(
        Queries(rows.store),
        TRUE,
        start_ns=NOW - 3600 * SECOND,
        end_ns=clock(),
        lost_after_ns=30 * SECOND,
        heard_until_ns=clock(),
    )


class KilledError(Exception):
    pass


def killed(*_, **__):
    raise KilledError


def look(counters, see):
    counters.count_in_flight(see(), NOW)
    counters.save()


def ended(rows, request, counters, segment, **fields):
    """The end of an announced request comes in a segment of this collector, which does not count it yet."""
    row = {key: request[key] for key in ("trace_id", "span_id", "slo_class", "tenant")}
    rows.request(
        ended=NOW, e2e=NOW - request["start"], segment=segment, **row | {"ttft_ns": request["ttft_ns"]} | fields
    )
    counters.on_segment(segment)


def of(counters, metric, *labels):
    return counters._series.counters[metric].get(labels, 0)


def judged(*collectors, slo="chat"):
    """Each collector's judged and good requests."""
    return [(of(c, metrics.SLO_REQUESTS, slo, ""), of(c, metrics.SLO_GOOD, slo, "")) for c in collectors]


def lost(*collectors):
    return [sum(c._series.counters.get(metrics.LOST, {}).values()) for c in collectors]


@pytest.fixture
def hung(rows):
    return rows.open(start=NOW - 9 * SECOND, seen=NOW - SECOND, **LATE)


@pytest.mark.parametrize("stored_by", [0, 1])
def test_a_hung_request_counts_at_one_collector_and_not_again_when_it_ends(counters, see, rows, hung, stored_by):
    pair = a, b = counters("a"), counters("b")
    for _ in range(2):
        look(a, see)
        look(b, see)
    assert judged(a, b) == [(1, 0), (0, 0)]
    assert judged(a, b, slo="all") == [(0, 0), (0, 0)]
    ended(rows, hung, pair[stored_by], "s")
    pair[stored_by].count_segments()
    look(a, see)
    look(b, see)
    assert judged(a, b) == [(1, 0), (0, 0)]
    at_its_end = [(0, 0), (0, 0)]
    at_its_end[stored_by] = (1, 1)
    assert judged(a, b, slo="all") == at_its_end, "who stores the end counts it for the other SLOs"


def test_a_claim_behind_the_segment_with_the_end_is_void_for_everybody(counters, see, rows, hung):
    a, b, c = map(counters, "abc")
    before = see()
    ended(rows, hung, b, "s")
    b.count_segments()
    a.count_in_flight(before, NOW)
    assert judged(a, b) == [(0, 0), (1, 0)]
    ended(rows, {**hung, "trace_id": f"{77:032x}"}, c, "t")
    c.count_segments()
    assert len(c._early) == 0
    assert judged(a, b, c) == [(0, 0), (1, 0), (1, 0)]


def test_a_claim_before_the_segment_is_entered_takes_the_request_out_of_it(counters, see, rows, hung):
    a, b = counters("a"), counters("b")
    before = see()
    ended(rows, hung, b, "s")
    a.count_in_flight(before, NOW)
    b.count_segments()
    assert judged(a, b) == [(1, 0), (0, 0)]


def test_a_collector_that_dies_behind_its_claim_counts_it_when_it_is_back(counters, see, rows, hung, monkeypatch):
    a, b = counters("a"), counters("b")
    monkeypatch.setattr(a._claims, "read", killed)
    with pytest.raises(KilledError):
        a.count_in_flight(see(), NOW)
    ended(rows, hung, b, "s")
    b.count_segments()
    assert judged(a, b) == [(0, 0), (0, 0)]
    for _ in range(2):
        a = counters("a")
        look(a, see)
        assert judged(a, b) == [(1, 0), (0, 0)]
    assert judged(a, b, slo="all") == [(0, 0), (1, 1)]


def test_a_collector_that_dies_behind_its_entry_of_a_segment_counts_what_it_entered(
    counters, see, rows, hung, monkeypatch
):
    a, b = counters("a"), counters("b")
    before = see()
    ended(rows, hung, b, "s")
    monkeypatch.setattr(b, "_read", killed)
    with pytest.raises(KilledError):
        b.count_segments()
    look(a, lambda: before)
    b = counters("b")
    b.count_segments()
    assert judged(a, b) == [(0, 0), (1, 0)]


def test_a_lost_request_counts_once_and_its_good_end_counts_as_good_where_it_is_stored(counters, see, rows, clock):
    a, b = counters("a"), counters("b")
    request = rows.open(start=NOW - SECOND, seen=NOW, slo_class="chat", ttft_ns=100 * MS)
    clock.now += 40 * SECOND
    look(b, see)
    look(a, see)
    assert judged(a, b) == [(0, 0), (1, 0)]
    assert lost(a, b) == [0, 1]
    ended(rows, request, a, "s")
    a.count_segments()
    assert judged(a, b) == [(0, 1), (1, 0)]
    assert lost(a, b) == [0, 1]


def test_a_lost_request_is_no_violation_in_flight(counters, see, clock, hung):
    a = counters("a")
    look(a, see)
    violations = a._series.gauges[metrics.SLO_IN_FLIGHT]
    assert violations["chat",] == 1
    clock.now += 40 * SECOND
    look(a, see)
    assert violations["chat",] == 0


def test_a_request_that_has_ended_is_not_claimed_for_ever_where_its_end_is_not_visible(
    counters, claims, see, rows, hung
):
    """Its end may be stored at a replica that the next query does not ask."""
    a = counters("a")
    look(a, see)
    before = see()
    ended(rows, hung, a, "s")
    a.count_segments()
    lost = replace(before, is_lost=~before.is_lost)
    claimed = claims.read(0, since_ns=0)[0]
    for _ in range(2):
        look(a, lambda: lost)
    assert (judged(a), claims.read(0, since_ns=0)[0]) == ([(1, 0)], claimed)


def count_of(key, slo="chat"):
    return EarlyCount(f"{key:048x}", slo, "", True, Process("engine", "i-1"), 7)


def test_an_entry_that_another_collector_overtakes_comes_behind_it(claims, module_store):
    other, number = EarlyClaims(module_store), claims._order.next_number

    def overtaken():
        if not claims.read(0, since_ns=0)[0]:
            seen = number()
            other.enter("b", counts=[count_of(1)])
            return seen
        return number()

    claims._order.next_number = overtaken
    claims.enter("a", counts=[count_of(1), count_of(2, "")])
    assert claims.read(0, since_ns=0) == (2, [("b", count_of(1)), ("a", count_of(1)), ("a", count_of(2, ""))])
    assert claims.read(1, since_ns=0) == (2, [("a", count_of(1)), ("a", count_of(2, ""))])
    assert claims.read(2, since_ns=0) == (2, [])


def test_old_entries_are_looked_for_behind_each_entry(claims, monkeypatch):
    looked = []
    monkeypatch.setattr(claims._order, "forget", lambda claim, *, retention_s: looked.append((claim, retention_s)))
    assert [claims.enter("a", segments=[segment]) for segment in "st"] == [1, 2]
    assert looked == [(1, 2 * 86_400), (2, 2 * 86_400)]


def test_an_entry_that_never_comes_first_is_refused(claims, monkeypatch):
    monkeypatch.setattr("collector.store.order._PAUSE_S", 0.0)
    monkeypatch.setattr(claims, "_claimant", lambda number: "b")
    with pytest.raises(ContendedError, match="not counted yet"):
        claims.enter("a", ["s"])


@pytest.mark.parametrize("dies", [False, True])
def test_a_segment_that_two_collectors_joined_counts_where_it_was_entered_first(
    counters, rows, hung, dies, monkeypatch
):
    a, b = counters("a"), counters("b")
    ended(rows, hung, a, "s.joined.0")
    ended(rows, {**hung, "trace_id": f"{78:032x}"}, b, "of b")
    b.on_segment("s.joined.0")
    if dies:
        monkeypatch.setattr(a, "_read", killed)
        with pytest.raises(KilledError):
            a.count_segments()
        a = counters("a")
    else:
        a.count_segments()
    b.count_segments()
    a.count_segments()
    assert judged(a, b) == [(1, 0), (1, 0)]
    assert [c.pending for c in (a, b)] == [0, 0]


def test_an_end_in_two_segments_counts_from_the_first_that_was_entered(claims, rows, hung):
    for segment in ("s", "t"):
        rows.request(ended=NOW, segment=segment, trace_id=hung["trace_id"], span_id=hung["span_id"], **LATE)
    late = EarlyCount(hung["trace_id"] + hung["span_id"], "chat", "", True, Process("engine", "i-1"), 7)
    claims.enter("b", segments=["s"])
    claims.enter("a", counts=[late])
    claims.enter("b", segments=["t"])
    assert claims.read(0, since_ns=0) == (3, [])


def test_ends_are_found_for_more_requests_than_one_query_asks_for(claims, rows, monkeypatch):
    monkeypatch.setattr("collector.store.early_claims._KEYS_AT_ONCE", 1)
    claims.enter("b", segments=["s"])
    keys = []
    for _ in range(3):
        request = rows.request(ended=NOW, segment="s", **LATE)
        keys.append(request["trace_id"] + request["span_id"])
    claims.enter("a", counts=[EarlyCount(key, "chat", "", True, Process("engine", "i-1"), 7) for key in keys])
    assert claims.read(0, since_ns=0) == (2, [])


def test_requests_are_counted_when_the_server_came_back_with_fewer_claims(counters, claims, see, rows, hung):
    pair = a, b = counters("a"), counters("b")
    for _ in range(5):
        claims.enter("c", segments=["s"])
    look(a, see)
    look(b, see)
    claims.enter("c", segments=["t"])
    look(b, see)
    assert judged(a, b) == [(1, 0), (0, 0)]

    rows.store.client().command("DROP TABLE early_claims SYNC")
    rows.store.client().command(read_schema().tables["early_claims"])
    rows.open(start=NOW - 9 * SECOND, seen=NOW - SECOND, **LATE)
    for collector in pair[::-1]:
        look(collector, see)
    assert judged(a, b) == [(1, 0), (1, 0)]
    assert claims.read(0, since_ns=0)[0] == 2, "each has claimed it once"


def test_an_end_is_found_by_a_collector_whose_clock_is_days_ahead_of_the_servers(claims, rows, hung):
    now = time.time_ns()
    rows.request(ended=now, segment="s", trace_id=hung["trace_id"], span_id=hung["span_id"], **LATE)
    claims.enter("b", segments=["s"])
    claims.enter(
        "a", counts=[EarlyCount(hung["trace_id"] + hung["span_id"], "chat", "", True, Process("engine", "i-1"), 7)]
    )
    assert claims.read(0, since_ns=now + 2 * 86_400 * SECOND) == (2, [])


def test_each_collector_knows_when_another_one_gave_a_request_up(counters, see, rows, clock):
    """Its incident lasts as long at each of them."""
    gone = rows.open(start=NOW - 90 * SECOND, seen=NOW - 60 * SECOND)
    a, b = counters("a"), counters("b")
    look(a, see)
    clock.now += 5 * SECOND
    look(b, see)
    key = gone["trace_id"] + gone["span_id"]
    assert [c.given_up_ns(key) for c in (a, b, counters("b"))] == [NOW] * 3
    assert a.given_up_ns("0" * 48) == 0
