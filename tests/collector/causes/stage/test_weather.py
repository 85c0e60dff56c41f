"""Steps that come late, restarts, a store that is away, two collectors, and rows that nobody expects."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from collector.base.status import IngestStatus
from collector.base.store_errors import StoreUnavailableError
from collector.causes.split.requests import explain_process
from collector.causes.stage.backlog import Waits
from collector.causes.stage.stage import Explainer
from collector.keep.expiry import Expiry
from collector.store.retention import parse_retention
from tests.collector.causes.stage.conftest import AT_ONCE
from tests.collector.rows import SECOND
from tests.support.stores import LazyStore

PATIENT = Waits(soon_s=3600.0, patience_s=3600.0)


def levels(rows):
    sql = "SELECT level, count() FROM causes FINAL GROUP BY level ORDER BY level"
    return dict(rows.store.query(sql).result_rows)


def lacked(rows):
    return {reason for (reason,) in rows.store.query("SELECT DISTINCT reason FROM causes FINAL").result_rows}


@pytest.mark.parametrize("stored_ago_s", [0, 700])
def test_requests_wait_for_their_steps(traffic, explainer, rows, status, stored_ago_s):
    patient = Explainer(rows.store, status, waits=PATIENT)
    sent = traffic(steps=False, ingested_at=time.time_ns() - stored_ago_s * SECOND)
    patient.run_once()
    assert levels(rows) == {}
    time.sleep(1)
    assert status.snapshot().explain_lag_s >= stored_ago_s + 1
    sent.put_steps()
    patient.run_once()
    assert levels(rows) == {"steps": 300}
    assert status.snapshot().explain_lag_s == 0


def test_a_process_without_steps_is_explained_when_the_patience_is_over(traffic, explainer, rows):
    traffic(steps=False)
    explainer.run_once()
    assert levels(rows) == {"estimated": 300}


@pytest.mark.parametrize("steps", [False, True])
def test_requests_that_clients_alone_measured_are_no_fault(traffic, explainer, rows, status, caplog, steps):
    """No request of the process is known, with which its steps could be joined."""
    traffic(vantage="client", steps=steps)
    explainer.run_once()
    assert levels(rows) == {"none": 300}
    assert rows.store.query("SELECT DISTINCT toString(reason) FROM causes FINAL").result_rows == [("client",)]
    assert status.snapshot().explain_failures == 0
    assert caplog.text == ""


def test_steps_that_come_late_replace_what_was_explained_without_them(traffic, rows, status, latencies):
    """The first traffic shows that the process tells its steps."""
    explainer = Explainer(rows.store, status, waits=Waits(soon_s=0.0, patience_s=0.0, late_s=3600.0))
    traffic(segment="first", ago_s=100)
    explainer.run_once()
    late = traffic(segment="late", steps=False)
    explainer.run_once()
    assert levels(rows) == {"steps": 300, "estimated": 300}
    assert status.snapshot().explain_lag_s == 0
    explainer.run_once()
    assert sum(status.snapshot().requests_explained.values()) == 600, "not in every round"
    late.put_steps()
    explainer.run_once()
    explainer.run_once()
    assert levels(rows) == {"steps": 600}
    assert sum(status.snapshot().requests_explained.values()) == 900
    asked, found = latencies()
    assert found == asked


def test_requests_that_came_before_there_was_a_law_are_explained_again(traffic, rows, simulated, status, latencies):
    """A first request, explained by its 40 steps alone, has a law as soon as others have run behind it."""
    first = int(np.argsort(simulated.requests["end"])[0])
    early = replace(simulated, steps={name: column[:40] for name, column in simulated.steps.items()})
    waits = Waits(soon_s=0.0, patience_s=0.0, late_s=900.0, law_s=(60.0, 300.0))
    explainer = Explainer(rows.store, status, waits=waits)
    sent = traffic(
        early,
        only=lambda row: row["segment"] == f"s{first}",
        segments=300,
        ago_s=400.0,
        ingested_at=time.time_ns() - 30 * SECOND,
    )
    assert explainer.run_once()
    assert (levels(rows), lacked(rows)) == ({"phases": 1}, {"few_steps"})
    sent.run = replace(simulated, steps={name: column[40:400] for name, column in simulated.steps.items()})
    sent.put_steps()
    explainer.run_once()
    assert levels(rows) == {"phases": 1}, "not in every round"
    rows.store.client().command(
        "ALTER TABLE requests UPDATE ingested_at = ingested_at - INTERVAL 40 SECOND WHERE 1 SETTINGS mutations_sync = 2"
    )
    explainer.run_once()
    assert (levels(rows), lacked(rows)) == ({"steps": 1}, {"none"})
    assert rows.store.query("SELECT count() FROM explained_segments").result_rows == [(1,)]
    explainer.run_once()
    assert sum(status.snapshot().requests_explained.values()) == 2


def test_what_never_comes_is_waited_for_until_the_end_of_patience_and_explained_once(traffic, rows, status):
    explainer = Explainer(rows.store, status, waits=Waits(soon_s=0.0, patience_s=0.0, late_s=20.0))
    traffic(steps=False, ingested_at=time.time_ns() - 10 * SECOND)
    for _ in range(2):
        explainer.run_once()
    assert rows.store.query("SELECT count() FROM explained_segments").result_rows == [(0,)]
    rows.store.client().command(
        "ALTER TABLE requests UPDATE ingested_at = ingested_at - INTERVAL 20 SECOND WHERE 1 SETTINGS mutations_sync = 2"
    )
    explainer.run_once()
    assert rows.store.query("SELECT count() FROM explained_segments").result_rows == [(1,)]
    assert status.snapshot().requests_explained["estimated"] == 300
    assert lacked(rows) == {"no_steps"}


@pytest.mark.parametrize("ago_s", [(7200.0, 5400.0), (3000.0, 900.0)])
def test_requests_that_come_late_have_a_law_of_their_time(traffic, rows, status, ago_s, monkeypatch):
    """The collector has learned from all periods up to now when the rows of two hours, or of 15 minutes, ago come."""
    monkeypatch.setattr("collector.causes.stage.models._MOST", 1)
    explainer = Explainer(rows.store, status, waits=AT_ONCE)
    assert explainer.run_once()
    for i, then_s in enumerate(ago_s):
        traffic(ago_s=then_s, segment=str(then_s))
        assert not explainer.run_once()
        assert levels(rows) == ({"steps": 300 * i} if i else {}), "there may be more periods to learn from"
        while not explainer.run_once():
            pass
    assert levels(rows) == {"steps": 600}
    judged = "SELECT uniqExact(model_at), min(toUnixTimestamp(model_at)) > 0 FROM causes FINAL"
    assert rows.store.query(judged).result_rows[0][1] == 1
    assert rows.store.query("SELECT count() FROM step_models").result_rows[0][0] >= 2


def test_a_segment_with_late_requests_beside_those_of_now_is_late(traffic, rows, status):
    explainer = Explainer(rows.store, status, waits=AT_ONCE)
    assert explainer.run_once()
    traffic(ago_s=3000.0, segment="both")
    for instance in ("i-1", "i-2"):
        traffic(segment="both", steps=False, only=lambda row: row["input_tokens"] > 600, instance=instance)
    explainer.run_once()
    assert rows.store.query("SELECT count() > 0 FROM step_models").result_rows == [(1,)]


def test_a_period_of_too_few_steps_is_learned_from_when_the_rest_of_them_come(traffic, rows, status, simulated):
    """An outage of 50 minutes began when 40 of its steps had come."""
    explainer = Explainer(rows.store, status, waits=AT_ONCE)
    ago_s = time.time() - (time.time() // 600 * 600 - 2700)  # all of it is within ten minutes
    few, rest = (
        replace(simulated, steps={name: column[some] for name, column in simulated.steps.items()})
        for some in (slice(40), slice(40, None))
    )
    sent = traffic(few, ago_s=ago_s, segment="first", only=lambda row: row["input_tokens"] > 600)
    explainer.run_once()
    count = "SELECT count() FROM step_models"
    assert rows.store.query(count).result_rows == [(0,)]
    sent.run = rest
    sent.put_steps()
    traffic(ago_s=ago_s, segment="late", steps=False)
    explainer.run_once()
    assert rows.store.query(count).result_rows == [(1,)]


def test_coarser_rows_do_not_replace_finer_ones(traffic, explainer, rows, status):
    traffic()
    explainer.run_once()
    client = rows.store.client()
    client.command("TRUNCATE TABLE explained_segments")
    client.command("TRUNCATE TABLE steps")
    Explainer(rows.store, status, waits=AT_ONCE).run_once()
    assert status.snapshot().requests_explained["estimated"] == 300
    assert levels(rows) == {"steps": 300}


class DyingStore(LazyStore):
    """A store whose process dies at the command that marks segments."""

    def command(self, sql, parameters):
        raise KeyboardInterrupt


def test_a_restart_between_the_rows_and_their_mark_repeats_the_rows_and_nothing_counts_twice(traffic, rows, latencies):
    traffic(segments=3)
    rows.store.client()
    dying = DyingStore(rows.store._dsn)
    with pytest.raises(KeyboardInterrupt):
        Explainer(dying, IngestStatus(), waits=AT_ONCE).run_once()
    dying.close()
    assert levels(rows) == {"steps": 300}
    again = IngestStatus()
    Explainer(rows.store, again, waits=AT_ONCE).run_once()
    assert again.snapshot().requests_explained["steps"] == 300
    asked, found = latencies()
    assert found == asked


def test_after_a_restart_nothing_is_explained_again(traffic, explainer, rows):
    traffic(segments=3)
    explainer.run_once()
    status = IngestStatus()
    assert Explainer(rows.store, status, waits=AT_ONCE).run_once()
    assert sum(status.snapshot().requests_explained.values()) == 0


def test_two_collectors_at_once_leave_one_row_of_each_request(traffic, rows, latencies):
    traffic(segments=6)
    stages = [Explainer(rows.store, IngestStatus(), waits=AT_ONCE) for _ in range(2)]
    threads = [threading.Thread(target=stage.run_once) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    asked, found = latencies()
    assert found == asked
    assert len(found) == 300


def test_a_collector_leaves_the_segments_of_another_one_alone_for_a_while(traffic, rows, monkeypatch):
    monkeypatch.setattr(type(rows.store), "embedded", property(lambda _: False))
    traffic(segments=2)
    status = IngestStatus()
    stage = Explainer(rows.store, status, waits=Waits(soon_s=0.0, patience_s=0.0, late_s=0.0, others_s=3600.0))
    stage.on_segment("s1")
    stage.run_once()
    assert sum(status.snapshot().requests_explained.values()) == 150
    other = IngestStatus()
    Explainer(rows.store, other, waits=AT_ONCE).run_once()
    assert sum(other.snapshot().requests_explained.values()) == 150


def test_a_store_that_is_away_is_tried_again_and_counted(traffic, explainer, rows, status, monkeypatch):
    traffic()
    rows.store.client()
    with monkeypatch.context() as away:
        away.setattr(rows.store, "binary", lambda *_: (_ for _ in ()).throw(StoreUnavailableError("away")))
        with pytest.raises(StoreUnavailableError):
            explainer.run_once()
        assert levels(rows) == {}
    explainer.run_once()
    assert levels(rows) == {"steps": 300}


def test_the_same_rows_twice_are_explained_once(traffic, explainer, rows, latencies):
    traffic()
    rows.store.client().command("INSERT INTO requests SELECT * REPLACE ('again' AS segment) FROM requests")
    explainer.run_once()
    assert levels(rows) == {"steps": 300}


@pytest.mark.parametrize("jump_s", [-100 * 86400, -3600, 3600, 3 * 86400])
def test_a_collectors_clock_that_jumps_leaves_nothing_out(traffic, rows, jump_s):
    clock = [time.time()]
    stage = Explainer(rows.store, IngestStatus(), waits=AT_ONCE, clock=lambda: clock[0])
    traffic(segment="before")
    stage.run_once()
    clock[0] += jump_s
    traffic(segment="during", steps=False)
    stage.run_once()
    clock[0] -= jump_s
    traffic(segment="after", steps=False)
    stage.run_once()
    assert sum(levels(rows).values()) == 900


def test_requests_of_clocks_that_are_far_off_are_explained(traffic, explainer, rows, latencies):
    """An engine's clock is behind by 40 days, another one's ahead by half a day."""
    traffic(segment="behind", ago_s=40 * 86400)
    traffic(segment="ahead", ago_s=-43000, instance="i-2", steps=False)
    explainer.run_once()
    asked, found = latencies()
    assert found == asked
    assert levels(rows) == {"steps": 300, "estimated": 300}


def test_numbers_that_no_rule_expects_leave_one_process_unexplained(
    traffic, explainer, rows, status, monkeypatch, caplog
):
    traffic(segment="good")
    rows.request(
        segment="good",
        instance="odd",
        ended=time.time_ns(),
        ingested_at=time.time_ns(),
        input_tokens=2**32 - 1,
        e2e=2**62,
    )
    real = explain_process

    def fails(requests, *tables, **more):
        if len(requests["key"]) == 1:
            raise ValueError("no rule expects this")
        return real(requests, *tables, **more)

    monkeypatch.setattr("collector.causes.stage.stage.explain_process", fails)
    explainer.run_once()
    assert levels(rows) == {"steps": 300, "none": 1}
    assert status.snapshot().explain_failures == 1
    assert "engine odd cannot be explained" in caplog.text


def test_a_segment_that_the_store_refuses_is_given_up_and_the_others_are_not(traffic, explainer, rows, status, caplog):
    traffic(segments=3)
    ((last_ns,),) = rows.store.query("SELECT toUnixTimestamp64Nano(max(end)) FROM requests").result_rows
    rows.store.client().command(
        f"ALTER TABLE causes ADD CONSTRAINT c CHECK end < fromUnixTimestamp64Nano({last_ns}::Int64)"
    )
    try:
        for _ in range(8):
            try:
                if explainer.run_once() and sum(levels(rows).values()) == 200:
                    break
            except Exception:
                continue
    finally:
        rows.store.client().command("ALTER TABLE causes DROP CONSTRAINT c")
    refused = rows.store.query("SELECT segment FROM explained_segments WHERE refused != ''").result_rows
    assert refused == [("s2",)]
    assert "of segment s2 cannot be explained" in caplog.text


def test_a_tenants_causes_go_with_its_requests_and_are_not_made_again(traffic, explainer, rows, status):
    traffic(segment="old", ago_s=3 * 86400, tenant="acme")
    traffic(segment="kept", ago_s=3 * 86400, tenant="other", instance="i-2", steps=False)
    explainer.run_once()
    Expiry(rows.store, parse_retention("acme/requests=1d"), status).run_once()
    assert levels(rows) == {"estimated": 300}
    explainer.run_once()
    assert levels(rows) == {"estimated": 300}


def test_causes_of_a_tenant_whose_requests_are_gone_go_too(traffic, explainer, rows, status):
    """The explainer may write a row after the retention has removed its request."""
    traffic(ago_s=3 * 86400, tenant="acme")
    explainer.run_once()
    rows.store.client().command("TRUNCATE TABLE requests")
    Expiry(rows.store, parse_retention("acme/requests=1d"), status).run_once()
    assert levels(rows) == {}


def test_old_causes_and_models_go_by_their_own_retention(traffic, explainer, rows, status):
    traffic(ago_s=4 * 86400)
    traffic(segment="new", steps=False)
    explainer.run_once()
    Expiry(rows.store, parse_retention("causes=1d,step_models=1d"), status).run_once()
    assert sum(levels(rows).values()) == 300
    assert rows.store.query("SELECT count() FROM requests").result_rows == [(600,)]


def test_a_pause_holds_the_next_insert(traffic, explainer, rows):
    traffic()
    with explainer.paused(5):
        worker = threading.Thread(target=explainer.run_once)
        worker.start()
        worker.join(2)
        assert worker.is_alive()
        assert levels(rows) == {}
        with pytest.raises(TimeoutError, match="explainer"), explainer.paused(0.01):
            pass
    worker.join(120)
    assert levels(rows) == {"steps": 300}
