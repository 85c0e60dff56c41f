"""The recorder alone: it turns the calls of an engine's hooks into rows, steps and phases."""

import logging
import os

import pytest

from tests.tokentrail.integrations.recorded import arrive, phases, rows, step, steps, tokens
from tests.tokentrail.support import MS, T0
from tokentrail import Phase, Status, semconv
from tokentrail.integrations import process
from tokentrail.integrations import recorder as module
from tokentrail.integrations.process import process_start_ns, wanted
from tokentrail.integrations.recorder import Incoming, incoming


def test_a_request_from_arrival_to_finish(recorder, trails):
    arrive(recorder, model="lora-a", attributes={semconv.REQUEST_MAX_TOKENS: 5})
    recorder.entered("a", Phase.PREFILL, T0 + 3 * MS)
    recorder.cached("a", 4)
    recorder.emitted(["a"], [1])
    step(recorder, T0 + 10 * MS, running=1, waiting=2, kv_used=3, kv_total=9)
    recorder.emitted(["a"], [3])
    recorder.finished("a", finish_reason="length")
    step(recorder, T0 + 20 * MS, running=0, waiting=0)

    [row] = trails[0].spans("chat lora-a")
    assert {key: row.attributes[key] for key in (
        semconv.PROVIDER_NAME, semconv.RESPONSE_ID, semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS,
        semconv.FINISH_REASON, semconv.STATUS, semconv.REQUEST_MAX_TOKENS,
    )} == {
        semconv.PROVIDER_NAME: "vllm", semconv.RESPONSE_ID: "chatcmpl-a", semconv.INPUT_TOKENS: 7,
        semconv.OUTPUT_TOKENS: 4, semconv.CACHED_TOKENS: 4, semconv.FINISH_REASON: "length", semconv.STATUS: "ok",
        semconv.REQUEST_MAX_TOKENS: 5,
    }  # fmt: skip
    assert (row.start_ns, row.duration_ns) == (T0, 22 * MS)
    assert tokens(trails[0], row) == [12, 10, 0, 0]
    assert phases(trails[0], row) == [("queued", 3), ("prefill", 9), ("decode", 10)]
    first, second = steps(trails[0])
    assert (first.start_ns, first.end_ns) == (T0 + 3 * MS, T0 + 10 * MS)
    assert (second.start_ns, second.end_ns) == (T0 + 10 * MS, T0 + 20 * MS)
    assert [first.attributes[key] for key in (semconv.STEP_RUNNING, semconv.STEP_WAITING, semconv.STEP_KV_USED)] == [
        1,
        2,
        3,
    ]
    assert [s.attributes[semconv.STEP] for s in (first, second)] == [0, 1]


def test_the_events_of_a_step_may_come_after_its_tokens_and_after_the_finish(recorder, trails):
    arrive(recorder)
    recorder.emitted(["a"], [1])
    recorder.finished("a", finish_reason="length")
    recorder.entered("a", Phase.PREFILL, T0 + 4 * MS)
    step(recorder, T0 + 10 * MS)
    [row] = rows(trails[0])
    assert phases(trails[0], row) == [("queued", 4), ("prefill", 8)]
    assert not recorder.is_open("a")


def test_a_preempted_request_goes_through_prefill_again(recorder, trails):
    arrive(recorder)
    recorder.entered("a", Phase.PREFILL, T0 + 1 * MS)
    recorder.cached("a", 0)
    recorder.emitted(["a"], [1])
    step(recorder, T0 + 10 * MS, later=0)
    recorder.emitted(["a"], [1])
    recorder.entered("a", Phase.PREEMPTED, T0 + 15 * MS)
    recorder.entered("a", Phase.PREFILL, T0 + 25 * MS)
    recorder.cached("a", 64)
    step(recorder, T0 + 30 * MS, later=0)
    recorder.emitted(["a"], [1])
    recorder.finished("a")
    step(recorder, T0 + 40 * MS, later=0)
    [row] = rows(trails[0])
    assert phases(trails[0], row) == [
        ("queued", 1), ("prefill", 9), ("decode", 5), ("preempted", 10), ("prefill", 5), ("decode", 10),
    ]  # fmt: skip
    assert row.attributes[semconv.PREEMPTIONS] == 1
    assert row.attributes[semconv.CACHED_TOKENS] == 0
    assert [s.attributes[semconv.STEP_PREEMPTED] for s in steps(trails[0])] == [0, 1, 0]


def test_an_idle_engine_has_no_step_that_lasts_as_long_as_the_idleness(recorder, trails):
    arrive(recorder)
    recorder.emitted(["a"], [1])
    recorder.finished("a")
    step(recorder, T0 + 10 * MS, running=0, waiting=0)
    arrive(recorder, "b", T0 + 500 * MS)
    arrive(recorder, "c", T0 + 501 * MS)
    step(recorder, T0 + 510 * MS, running=2, waiting=0)  # a part of a prefill: no token, no event
    step(recorder, T0 + 520 * MS, running=0, waiting=1)
    step(recorder, T0 + 530 * MS, running=0, waiting=0)
    step(recorder, T0 + 900 * MS)  # nothing says when it began
    assert [(s.start_ns - T0) / MS for s in steps(trails[0])] == [0, 500, 510, 520, 900]


def test_a_known_duration_goes_before_what_is_derived(recorder, trails):
    arrive(recorder)
    step(recorder, T0 + 10 * MS, running=1)
    step(recorder, T0 + 30 * MS, duration_ns=4 * MS, running=1)
    assert [s.duration_ns / MS for s in steps(trails[0])] == [10, 4]


def test_without_numbers_an_engine_is_busy_while_requests_are_open(recorder, trails):
    arrive(recorder)
    step(recorder, T0 + 10 * MS)
    recorder.finished("a")
    step(recorder, T0 + 20 * MS, running=None)
    step(recorder, T0 + 90 * MS)
    assert [(s.start_ns - T0) / MS for s in steps(trails[0])] == [0, 10, 90]


def test_an_abort_ends_now_and_keeps_the_tokens_of_the_step_under_way(recorder, trails, clock):
    arrive(recorder)
    recorder.emitted(["a"], [1])
    clock.advance(12 * MS)
    recorder.aborted("a", status=Status.CANCELLED, finish_reason="abort")
    recorder.aborted("a", status=Status.ERROR)
    recorder.emitted(["a"], [1])
    step(recorder, T0 + 10 * MS)
    [row] = rows(trails[0])
    assert (row.attributes[semconv.STATUS], row.duration_ns) == ("cancelled", 12 * MS)
    assert tokens(trails[0], row) == [12]


def test_requests_that_nobody_announced_are_ignored(recorder, trails):
    recorder.emitted(["x"], [1])
    recorder.entered("x", Phase.PREFILL, T0)
    recorder.entered("x", Phase.PREEMPTED, T0)
    recorder.cached("x", 1)
    recorder.finished("x")
    recorder.aborted("x")
    step(recorder, T0 + MS)
    [one] = steps(trails[0])
    assert one.attributes[semconv.STEP_PREEMPTED] == 0


def test_an_engine_that_dies_fails_what_is_open_but_not_what_was_finished(recorder, trails, clock):
    arrive(recorder)
    arrive(recorder, "b")
    recorder.emitted(["a"], [1])
    recorder.finished("a", finish_reason="stop")
    clock.advance(5 * MS)
    recorder.end_all(status=Status.ERROR, error_type="EngineDeadError")
    assert [(r.attributes[semconv.STATUS], r.attributes.get(semconv.ERROR_TYPE)) for r in rows(trails[0])] == [
        ("ok", None), ("error", "EngineDeadError"),
    ]  # fmt: skip


def test_a_key_may_be_used_again_before_the_step_is_over(recorder, trails):
    arrive(recorder)
    recorder.finished("a")
    arrive(recorder, at=T0 + MS)
    step(recorder, T0 + 2 * MS)
    assert recorder.is_open("a")
    assert len(rows(trails[0])) == 1


def test_requests_go_on_in_the_trail_of_the_engine_that_answers(recorder, trails):
    recorder.several = True
    arrive(recorder)
    arrive(recorder, "b")
    recorder.entered("b", Phase.PREFILL, T0 + MS)
    recorder.emitted(["b"], [1])
    step(recorder, T0 + 10 * MS, engine=1, kv_used=5)
    recorder.emitted(["a"], [1])
    step(recorder, T0 + 11 * MS, kv_used=2)
    recorder.emitted(["b"], [1])
    recorder.finished("b")
    step(recorder, T0 + 20 * MS, engine=1, kv_used=6)
    recorder.finished("a")
    step(recorder, T0 + 21 * MS)
    used = [[s.attributes.get(semconv.STEP_KV_USED) for s in steps(trails[i])] for i in (0, 1)]
    assert used == [[2, None], [5, 6]]
    assert [[s.attributes[semconv.STEP] for s in steps(trails[i])] for i in (0, 1)] == [[0, 1], [0, 1]]
    [a], [b] = rows(trails[0]), rows(trails[1])
    assert (a.attributes[semconv.RESPONSE_ID], b.attributes[semconv.RESPONSE_ID]) == ("chatcmpl-a", "chatcmpl-b")
    assert tokens(trails[1], b) == [12, 10]
    assert phases(trails[1], b) == [("queued", 1), ("prefill", 11), ("decode", 10)]


def test_the_middleware_knows_the_arrival_the_tenant_and_the_class(recorder, trails):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    seen = Incoming(T0 - 5 * MS, "chat", [(b"traceparent", parent.encode())], "acme", "gold")
    token = incoming.set(seen)
    arrive(recorder, operation="generate_content", carrier={})
    incoming.reset(token)
    recorder.finished("a")
    step(recorder, T0 + 5 * MS)
    [row] = rows(trails[0])
    assert seen.recorded
    assert row.start_ns == T0 - 5 * MS
    assert (row.attributes[semconv.TENANT], row.attributes[semconv.SLO_CLASS]) == ("acme", "gold")
    assert f"{row.trace_id:032x}" in parent


def test_a_refused_request_is_an_error_with_its_status(recorder, trails, clock):
    clock.advance(3 * MS)
    recorder.refused(Incoming(T0, "chat", [], "acme", "gold"), 503)
    [row] = rows(trails[0])
    assert (row.attributes[semconv.STATUS], row.attributes[semconv.ERROR_TYPE], row.duration_ns) == (
        "error",
        "503",
        3 * MS,
    )
    assert (row.attributes[semconv.TENANT], row.attributes[semconv.SLO_CLASS]) == ("acme", "gold")
    assert semconv.INPUT_TOKENS not in row.attributes


def test_a_fault_switches_off_once_and_ends_what_is_open_as_cancelled(recorder, trails, caplog):
    class Engine:
        def work(self, value):
            return value + 1

    told = []
    recorder.on_fault = lambda: told.append("off")

    def broken(owner, result, value):
        told.append((result, value))
        raise RuntimeError("mine")

    Engine.work = recorder.after(Engine.work, broken)
    arrive(recorder)
    recorder.emitted(["a"], [1])
    with caplog.at_level(logging.ERROR):
        assert [Engine().work(1), Engine().work(5)] == [2, 6]
        recorder.fault()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "mine" in caplog.text
    assert told == [(2, 1), "off"]
    assert not recorder.on
    assert [row.attributes[semconv.STATUS] for row in rows(trails[0])] == ["cancelled"]


def test_an_error_of_the_engine_itself_passes_and_is_no_fault(recorder):
    class Engine:
        def work(self):
            raise KeyError("theirs")

    Engine.work = recorder.after(Engine.work, lambda *_: pytest.fail("called after an error"))
    with pytest.raises(KeyError):
        Engine().work()
    assert recorder.on


def test_requests_beyond_the_limit_are_counted_and_said_once(recorder, monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    for key in "abcd":
        arrive(recorder, key)
    assert (recorder.unrecorded, recorder.is_open("b"), recorder.is_open("c")) == (2, True, False)
    assert len(caplog.records) == 1


def test_an_output_without_tokens_does_not_end_a_prefill(recorder, trails):
    arrive(recorder)
    recorder.entered("a", Phase.PREFILL, T0 + 1 * MS)
    recorder.emitted(["a"], [0])
    step(recorder, T0 + 10 * MS, later=0)
    recorder.emitted(["a"], [1])
    recorder.finished("a")
    step(recorder, T0 + 20 * MS, later=0)
    [row] = rows(trails[0])
    assert phases(trails[0], row) == [("queued", 1), ("prefill", 19)]


def test_a_request_stays_with_the_only_engine_that_there_was(recorder, trails):
    arrive(recorder)
    recorder.emitted(["a"], [1])
    step(recorder, T0 + 10 * MS)
    recorder.several = True
    recorder.emitted(["a"], [2])
    recorder.finished("a")
    step(recorder, T0 + 20 * MS, engine=1)
    [row] = rows(trails[0])
    assert row.attributes[semconv.OUTPUT_TOKENS] == 3


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"TOKENTRAIL_VLLM": "true"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "TOKENTRAIL_VLLM": " FALSE "}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "TOKENTRAIL_VLLM": "0"}, False),
    ],
)
def test_recording_is_wanted_where_an_endpoint_or_the_switch_says_so(environment, expected):
    assert wanted("TOKENTRAIL_VLLM", environment) is expected


def test_the_start_of_this_process_is_before_now_and_after_the_machine_s():
    import time

    from tokentrail import now_ns

    age_s = (now_ns() - process_start_ns()) / 1e9
    assert 0 < age_s < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_active_recorder_is_the_one_that_records(recorder):
    module.activate(recorder)
    assert module.active() is recorder
    recorder.on = False
    assert module.active() is None
    module.activate(None)
    assert module.active() is None


def test_a_trail_of_an_engine_names_it(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    one, two = process.engine_trail("vllm"), process.engine_trail("vllm", 1)
    resources = [dict(trail._provider.resource.attributes) for trail in (one, two)]
    one.shutdown(0)
    two.shutdown(0)
    assert [(r["service.name"], r[semconv.ENGINE]) for r in resources] == [("vllm", "vllm")] * 2
    assert resources[1]["service.instance.id"] == resources[0]["service.instance.id"] + "-1"


def test_processes_that_share_engines_give_them_common_names(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    name = process.siblings_name()
    trails = [process.engine_trail("vllm", index, name) for index in (0, 1)]
    found = [trail._provider.resource.attributes["service.instance.id"] for trail in trails]
    for trail in trails:
        trail.shutdown(0)
    assert found == [name, f"{name}-1"]
    assert process.siblings_name() == name, "it follows from the parent alone"
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert process.siblings_name() not in ("", name)
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)  # no such process: its start is not known
    assert process.siblings_name() not in ("", name)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine")
    assert process.siblings_name() == "", "what the user calls them is common to them"


def test_processes_that_share_an_engine_number_their_steps_apart(recorder, trails):
    recorder.rank, recorder.sharing, recorder.knows_all = 1, 3, False
    arrive(recorder)
    recorder.emitted(["a"], [1])
    step(recorder, T0 + 10 * MS)
    recorder.entered("a", Phase.PREEMPTED, T0 + 15 * MS)
    recorder.emitted(["a"], [1])
    recorder.finished("a")
    step(recorder, T0 + 20 * MS)
    assert [span.attributes[semconv.STEP] for span in steps(trails[0])] == [1, 4]
    assert not any(semconv.STEP_PREEMPTED in span.attributes for span in steps(trails[0])), "others had some too"
    [row] = rows(trails[0])
    assert row.attributes[semconv.PREEMPTIONS] == 1
