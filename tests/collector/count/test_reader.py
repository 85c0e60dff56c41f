"""What one answer reads: one time, one tenant, and each question of its parts once."""

from itertools import count
from types import SimpleNamespace

import pytest

from collector.ask.queries import Queries
from collector.ask.window import Window
from collector.count.evaluation import open_requests
from collector.count.reader import Reader, Source
from collector.slo.burn import load_windows
from collector.slo.file import SloFile
from collector.sql.fragment import FALSE, TRUE, Fragment, Table
from tests.collector.rows import NOW, SECOND

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
SLOS = """
slos:
  - {name: all, objective: "0.9", window: 30d, thresholds: {e2e: 60s}}
  - {name: both, objective: "0.9", window: 7d, select: {tenant: [acme, globex]}, thresholds: {e2e: 60s}}
  - {name: theirs, objective: "0.9", window: 90d, select: {tenant: [globex]}, thresholds: {e2e: 60s}}
"""


ROWS = {"table": Table("requests"), "in_window": TRUE}


@pytest.fixture
def asked():
    """The filters and ends of the questions that the store was asked."""
    return []


@pytest.fixture
def reading(tmp_path, asked):
    """Makes a reader for a tenant. Every time that it asks for is later than the one before."""
    file = tmp_path / "slos.yaml"
    file.write_text(SLOS)
    ticks = count(NOW)

    def answer(sql, parameters, _):
        asked.append((sql.rpartition("AND ")[2].strip(), parameters["end_ns"]))
        total = parameters["end_ns"]
        return SimpleNamespace(column_names=["total"], result_rows=[(total,)], result_columns=[[total]])

    def made(tenant, store=None):
        source = Source(
            Queries(store or SimpleNamespace(query=answer)), SloFile(file), load_windows(), 30 * SECOND,
            clock=ticks.__next__, heard_until=ticks.__next__, complete_until=ticks.__next__, given_up_ns=lambda _: 0,
        )  # fmt: skip
        return Reader(source, tenant)

    return made


def test_its_times_are_read_once_and_those_of_the_next_answer_anew(reading):
    """Up to when an answer is complete is known before any row is read: one that takes long is no more complete."""
    first, second = reading(""), reading("")
    times = [first.now_ns, first.heard_until_ns]
    assert first.complete_ns < second.complete_ns < times[0] < times[1]
    assert [first.now_ns, first.heard_until_ns] == times
    assert second.now_ns > times[-1]


def test_a_tenant_sees_its_slos_and_no_name_of_another(reading):
    assert [slo.name for slo in reading("").slos] == ["all", "both", "theirs"]
    assert [(slo.name, slo.select.get("tenant")) for slo in reading("acme").slos] == [
        ("all", None),
        ("both", ("acme",)),
    ]
    assert reading("").tenant_filter == TRUE
    assert [*reading("acme").tenant_filter.parameters.values()] == [["acme"]]


def test_its_parts_ask_the_store_each_question_once_and_the_next_answer_asks_anew(reading, asked):
    for reader in (reading(""), reading("acme")):
        asked.clear()
        for filtered, end_ns in ((TRUE, 1), (FALSE, 1), (TRUE, 2), (TRUE, 1)):
            (row,) = reader.queries.rows("rows_in_window", {**ROWS, "filter": filtered}, start_ns=0, end_ns=end_ns)
            assert row == {"total": end_ns}
            row["total"] = -1  # a part may change its rows
            assert [
                *reader.queries.columns("rows_in_window", {**ROWS, "filter": TRUE}, start_ns=0, end_ns=7)["total"]
            ] == [7]
        assert asked == [("(true)", 1), ("(true)", 7), ("(false)", 1), ("(true)", 2)]


@pytest.mark.parametrize("hours", [(5, 1, 1), (1, 5, 1)])
def test_its_parts_share_the_requests_that_have_not_ended(reading, rows, hours):
    """One was lost half an hour ago, another one three hours ago."""
    for minutes in (30, 180):
        rows.open(start=NOW - 4 * HOUR, seen=NOW - minutes * MINUTE, model="m")
    rows.open(start=NOW - HOUR, seen=NOW - 1)
    reader = reading("", rows.store)
    lost = {
        (model, h): open_requests(reader, Window(NOW - h * HOUR, NOW, Fragment(f"model IN ('m', '{model}')")))
        for model in ("m", "other")
        for h in hours
    }
    assert {key: (found.size, int(found.is_lost.sum())) for key, found in lost.items()} == {
        (model, h): (3, 2) if h == 5 else (2, 1) for model in ("m", "other") for h in hours
    }
    earlier = Window(NOW - 5 * HOUR, NOW - 2 * HOUR, Fragment("model IN ('m', 'm')"))
    assert open_requests(reader, earlier).is_lost.tolist().count(True) == 1
