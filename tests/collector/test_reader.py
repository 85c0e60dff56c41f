"""What one answer reads: one time, one tenant, and each question of an answer of many parts once."""

from itertools import count
from types import SimpleNamespace

import pytest

from collector.measure.reader import Reader, Source
from collector.measure.times import Moment
from collector.slo.burn import load_windows
from collector.slo.model import load_slos
from collector.sql.fragment import TRUE
from tests.collector.rows import NOW

DAY = 24 * 3600 * 10**9
SLOS = """
slos:
  - {name: all, objective: "0.9", window: 30d, thresholds: {e2e: 60s}}
  - {name: both, objective: "0.9", window: 7d, select: {tenant: [acme, globex]}, thresholds: {e2e: 60s}}
  - {name: theirs, objective: "0.9", window: 90d, select: {tenant: [globex]}, thresholds: {e2e: 60s}}
"""


@pytest.fixture
def asked():
    """The names of the queries that the store was asked."""
    return []


@pytest.fixture
def reading(tmp_path, asked):
    """Makes a reader for a tenant. Every time that it asks for is later than the one before."""
    file = tmp_path / "slos.yaml"
    file.write_text(SLOS)
    ticks = count(NOW)
    queries = SimpleNamespace(rows=lambda query, *_, **given: asked.append(query) or [{"n": 1, **given}])
    source = Source(
        queries, load_slos(file), load_windows(), 30 * 10**9,
        clock=ticks.__next__, heard_until=ticks.__next__, complete_until=ticks.__next__, given_up_ns=lambda _: 0,
    )  # fmt: skip

    return lambda tenant: Reader(source, tenant)


def test_its_times_are_read_once_and_those_of_the_next_answer_anew(reading):
    first, second = reading(""), reading("")
    times = [first.now_ns, first.complete_ns, first.heard_until_ns]
    assert times == sorted({*times})
    assert [first.now_ns, first.complete_ns, first.heard_until_ns] == times
    assert second.now_ns > times[-1]


def test_a_tenant_sees_its_slos_and_no_name_of_another(reading):
    assert [slo.name for slo in reading("").slos] == ["all", "both", "theirs"]
    assert [(slo.name, slo.select.get("tenant")) for slo in reading("acme").slos] == [
        ("all", None),
        ("both", ("acme",)),
    ]
    assert reading("").tenant_filter == TRUE
    assert [*reading("acme").tenant_filter.parameters.values()] == [["acme"]]


def test_an_answer_of_many_parts_asks_once_and_another_asks_each_time(reading, asked):
    alone, parts = reading(""), reading("")
    parts.answer_in_parts(Moment(0, relative=True))
    assert (alone.in_parts, parts.in_parts) == (False, True)
    for reader, times in ((alone, 2), (parts, 1)):
        asked.clear()
        for _ in range(2):
            (row,) = reader.queries.rows("vantages", {"filter": TRUE}, end_ns=1)
            assert row == {"n": 1, "end_ns": 1}
        assert asked == ["vantages"] * times


def test_it_reads_requests_in_flight_since_the_longest_window_that_its_caller_sees(reading):
    for tenant, days in (("", 90), ("acme", 30), ("globex", 90)):
        reader = reading(tenant)
        reader.answer_in_parts(Moment(-DAY, relative=True))
        assert reader.open_since_ns == reader.now_ns - (days + 1) * DAY
    early = reading("")
    early.answer_in_parts(Moment(5 * DAY, relative=False))
    assert early.open_since_ns == 0
