"""What is stored of requests: one row each, whose parts add up to its latencies."""

import time
from dataclasses import replace

import numpy as np
import pytest

from collector.ask.template import render
from collector.causes.split.columns import Limits
from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.requests import UNKNOWN_US, explain_process
from collector.causes.stage.models import VERSION, References, kind_of
from collector.causes.stage.rows import rounded
from collector.causes.stage.stage import Explainer
from tests.collector.causes.stage.conftest import AT_ONCE
from tests.collector.rows import SECOND
from tests.support.simulated_engine import EPOCH, Faults, chats, run

AT = 1_700_000_400
"""The begin of ten minutes, unix seconds."""


def seconds(rows, cause):
    return sum(getattr(row, f"{part}_{cause}_us") for row in rows for part in ("ttft", "rest")) / 1e6


def test_every_request_is_explained_once_and_its_parts_add_up_to_its_latencies(
    traffic, explainer, latencies, explained, status
):
    traffic(segments=3)
    assert explainer.run_once()
    asked, found = latencies()
    assert found == asked
    assert len(asked) == 300
    for row in explained():
        assert row.level == "steps"
        assert sum(getattr(row, f"ttft_{cause}_us") for cause in PARTS) == row.ttft_us
        assert sum(getattr(row, f"rest_{cause}_us") for cause in PARTS) == row.e2e_us - row.ttft_us
    assert +status.snapshot().requests_explained == {"steps": 300}
    assert (status.snapshot().explain_failures, status.snapshot().explain_lag_s) == (0, 0)


def test_what_answers_filter_by_is_that_of_the_request(traffic, explainer, rows):
    names = (
        "engine, variant, vantage, operation, model, tenant, slo_class, labels, status, error_type, output_tokens,"
        " weight, ingested_at"
    )
    traffic(
        tenant="acme",
        model="llama",
        slo_class="chat",
        status="error",
        error_type="oom",
        weight=3.0,
        operation="chat",
        labels={"region": "eu", "tier": "gold"},
    )
    explainer.run_once()
    asked, found = (
        rows.store.query(f"SELECT end, {names} FROM {table} ORDER BY ALL").result_rows
        for table in ("requests", "causes FINAL")
    )
    assert found == asked


def test_time_that_a_fault_added_is_found_by_a_reference_of_the_service(traffic, explainer, explained, rows, simulated):
    """The process is new; another one of its service and variant was learned from before."""
    frozen = run(
        chats(300, seed=4), seed=4, faults=Faults(freezes=((8 * SECOND, SECOND // 2), (20 * SECOND, SECOND // 2)))
    )
    model = learn(*simulated.tables, former=None)
    at = {
        "at": 1_700_000_000,
        "service": "engine",
        "instance": "i-0",
        "process_tenant": "",
        "variant": "baseline",
        "model": "m",
        "version": VERSION,
    }
    traffic(frozen)
    end_s = rows.store.query("SELECT toUnixTimestamp(min(end)) FROM requests").result_rows[0][0]
    rows.insert("step_models", [{**at, "at": end_s // 600 * 600 - 1200, **model.row()}])
    explainer.run_once()
    found = explained()
    assert {row.model_at.timestamp() for row in found} == {end_s // 600 * 600 - 1200}
    assert seconds(found, "stall") == pytest.approx(frozen.faulty().sum() / 1e9, rel=0.05)


@pytest.mark.parametrize(
    ("of_model", "of_requests", "judges"),
    [
        ({}, {}, True),
        ({"variant": "int8"}, {}, False),
        ({"model": "another"}, {}, False),
        ({"process_tenant": "bolt"}, {}, False),
        ({"process_tenant": "bolt"}, {"process_tenant": "acme"}, False),
        ({"process_tenant": "acme"}, {"process_tenant": "acme"}, True),
        ({}, {"process_tenant": "acme"}, True),
    ],
)
def test_only_a_law_of_the_same_model_variant_and_tenant_judges_another_process(
    rows, simulated, of_model, of_requests, judges
):
    """One tenant's process may be judged by one that serves everybody, and not the other way round."""
    of_process = {"service": "engine", "variant": "baseline", "model": "m", "process_tenant": ""}
    row = of_process | {"instance": "i-0", "version": VERSION, "at": AT} | of_model
    rows.insert("step_models", [{**row, **learn(*simulated.tables, former=None).row()}])
    found = References(rows.store, ["engine"], AT + 600).of(1, kind_of(of_process | of_requests))
    assert (found.at_s, found.own) == (AT if judges else 0, None)
    assert (found.version is not None) == ("variant" in of_model)


@pytest.mark.parametrize(("then", "judges"), [({}, "own"), ({"model": "adapter"}, "sister"), ({"variant": "int8"}, "")])
def test_a_process_that_served_another_model_is_judged_by_its_law_of_then(rows, simulated, then, judges):
    """An adapter's name is a model too; one of another speed is judged by itself."""
    of_process = {"service": "engine", "variant": "baseline", "model": "m", "process_tenant": ""}
    row = of_process | {"instance": "i-0", "version": VERSION, "at": AT} | then
    rows.insert("step_models", [{**row, **learn(*simulated.tables, former=None).row()}])
    asked = {"services": ["engine"], "version": VERSION, "before_s": AT + 600}
    process = rows.store.query(render("causes/stage/models", {}), asked).first_row[0]
    found = References(rows.store, ["engine"], AT + 600).of(process, kind_of(of_process))
    assert [name for name in ("own", "sister") if getattr(found, name)] == ([judges] if judges else [])
    assert found.sister is None or found.sister.is_other


def test_a_process_is_judged_by_a_law_of_another_version_of_the_explainer_no_more(rows, simulated):
    row = {"service": "engine", "variant": "v", "model": "m", "process_tenant": "", "instance": "i-0", "at": AT}
    rows.insert("step_models", [{**row, "version": VERSION - 1, **learn(*simulated.tables, former=None).row()}])
    assert References(rows.store, ["engine"], AT + 600).of(1, kind_of(row)).sister is None


def test_requests_of_other_processes_are_apart(traffic, explainer, explained, latencies):
    traffic(segment="a")
    traffic(segment="b", instance="i-2", steps=False)
    traffic(segment="c", process_tenant="acme", steps=False)
    traffic(segment="d", vantage="client", steps=False)
    explainer.run_once()
    asked, found = latencies()
    assert found == asked
    levels = [
        {row.level for row in explained(where)}
        for where in (
            "instance = 'i-1' AND process_tenant = '' AND vantage = 'server'",
            "instance = 'i-2'",
            "process_tenant = 'acme'",
            "vantage = 'client'",
        )
    ]
    assert levels == [{"steps"}, {"estimated"}, {"estimated"}, {"none"}]


def test_requests_beside_those_of_a_segment_are_taken_into_account(traffic, explainer, explained, status):
    """Half of the requests come first. Whose prompt was in a step is known of both halves, so causes are the same."""
    traffic(segments=2)
    explainer.run_once()
    together = {row.end: seconds([row], "others_prompts") for row in explained()}
    assert sum(together.values()) > 1
    inflicted = sum(row.inflicted_us for row in explained()) / 1e6
    assert inflicted == pytest.approx(sum(together.values()), rel=0.1)


def test_a_few_requests_are_estimated_by_those_before_them(traffic, explainer, explained, rows):
    traffic(segments=30, steps=False)
    earlier = [[f"s{number}"] for number in range(29)]
    rows.store.client().insert("explained_segments", earlier, ["segment"])
    explainer.run_once()
    assert [row.level for row in explained()] == ["estimated"] * 10


def test_a_request_with_unknown_numbers_is_explained_too(rows, explainer, explained):
    request = rows.request(
        ttft_ns=None, output_tokens=None, tpot_ns=None, segment="x", ended=_now(), ingested_at=_now()
    )
    none = rows.request(ttft_ns=None, output_tokens=0, tpot_ns=None, segment="x", ended=_now(), ingested_at=_now())
    explainer.run_once()
    assert len(explained()) == 2
    assert {row.first_token for row in explained()} == {"none", "unknown"}
    for row in explained():
        assert row.ttft_unexplained_us == row.e2e_us == request["e2e_ns"] // 1000 == none["e2e_ns"] // 1000
        assert (row.level, row.reason, row.inflicted_us, row.error_us) == ("none", "no_phases", None, None)
    assert {row.ttft_us for row in explained()} == {0, UNKNOWN_US}


def test_an_unusual_time_per_token_survives(rows, explainer, latencies):
    for tpot in ({"tpot_ns": None, "tpot_at_most_ns": 7e6}, {"tpot_ns": 1.0}, {"tpot_ns": None}, {"tpot_ns": 5e12}):
        rows.request(segment="x", ended=_now(), ingested_at=_now(), **tpot)
    explainer.run_once()
    asked, found = latencies()
    assert found == asked


def test_a_model_is_learned_once_from_ten_minutes_that_have_been_over_for_two(traffic, rows, status):
    clock = [time.time()]
    stage = Explainer(rows.store, status, waits=AT_ONCE, clock=lambda: clock[0])
    period_end_s = clock[0] // 600 * 600 - 600
    traffic(ago_s=clock[0] - period_end_s + 60)
    columns = "service, instance, variant, model, n, r2 > 0.5, toUnixTimestamp(at)"
    found = []
    for after_s in (119, 120, 130):
        clock[0] = period_end_s + after_s
        stage.run_once()
        found.append(rows.store.query(f"SELECT {columns} FROM step_models").result_rows)
    steps = rows.store.query("SELECT count() FROM steps").result_rows[0][0]
    learned = ("engine", "i-1", "baseline", "m", steps, 1, period_end_s - 600)
    assert found == [[], [learned], [learned]]


def test_limits_are_those_of_the_last_start_of_the_process(traffic, explainer, rows, monkeypatch):
    given = []

    def noted(*tables, limits, **more):
        given.append(limits)
        return explain_process(*tables, limits=limits, **more)

    monkeypatch.setattr("collector.causes.stage.stage.explain_process", noted)
    traffic()
    now = time.time_ns()
    for ago_s, told in ((900, (64, 512)), (800, (32, None)), (-100, (1, 1))):
        limits = dict(zip(("max_seqs", "max_batched_tokens"), told, strict=True))
        rows.cold_start(start=now - ago_s * SECOND, duration=SECOND, **limits)
        rows.cold_start(start=now - ago_s * SECOND, duration=SECOND, phase="load_weights", max_seqs=7)
        rows.cold_start(start=now - ago_s * SECOND, duration=SECOND, instance="i-2", max_seqs=8)
    explainer.run_once()
    assert given == [Limits(32, 512)]


def test_requests_that_were_queued_while_their_process_started_waited_for_its_cold_start(
    traffic, explainer, explained, rows
):
    """The engine tells the span of its start, and no phase of it."""
    cold = run(chats(80, seed=4), seed=4, faults=Faults(ready=5 * SECOND))
    names, times = cold.phases["name"], cold.phases["duration_ns"]
    truth_s = times[names == "cold_start"].sum() / 1e9
    untold = {**cold.phases, "name": np.where(names == "cold_start", "queued", names)}
    sent = traffic(replace(cold, phases=untold))
    began = EPOCH + sent.shift
    for start, end, fields in ((-9, 5, {}), (-900, -890, {}), (6, 9, {}), (-9, 7, {"instance": "i-2"})):
        rows.cold_start(start=began + start * SECOND, duration=(end - start) * SECOND, **fields)
    explainer.run_once()
    assert truth_s > 50
    assert seconds(explained(), "cold_start") == pytest.approx(truth_s, rel=0.001)


def test_parts_keep_their_sums_when_they_are_rounded():
    rng = np.random.default_rng(1)
    parts = (10 ** (rng.random((500, 19)) * 9)).astype(np.int64) * (rng.random((500, 19)) > 0.5)
    found = rounded(parts, 10)
    assert (found.sum(1) == parts.sum(1)).all()
    assert (found >= 0).all()
    others = np.arange(19) != parts.argmax(1)[:, None]
    assert (np.abs(found - parts)[others] <= parts[others] / 512).all()
    assert rounded(np.array([[1003, 70000]]), 8).tolist() == [[1000, 70003]]
    assert rounded(np.array([[1000, 70000], [0, 0]]), 8).tolist() == [[1000, 70000], [0, 0]]


def _now():
    return time.time_ns()


def test_who_asks_is_told_of_each_segment_that_is_explained(explainer, traffic):
    told = []
    explainer.on_explained(told.append)
    traffic(segments=2)
    assert explainer.run_once()
    assert sorted({*told}) == ["s0", "s1"]
