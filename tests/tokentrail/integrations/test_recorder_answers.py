"""The recorder of an engine, for requests with several answers: one row each, with a choice for each answer."""

from tests.tokentrail.integrations.recorded import arrive, phases, rows, step
from tests.tokentrail.support import MS, T0
from tokentrail import Phase, Status, semconv


def children(recorder, n=2, **given):
    for index in range(n):
        arrive(recorder, f"{index}_a", request_id="chatcmpl-a", choices=n, index=index, parent="a", **given)


def test_answers_of_one_request_are_one_row_with_a_choice_each(recorder, trails):
    children(recorder)
    for key, at in (("0_a", 3), ("1_a", 9)):
        recorder.entered(key, Phase.PREFILL, T0 + at * MS)
    recorder.emitted(["0_a"], [1])
    step(recorder, T0 + 10 * MS, later=0)
    recorder.emitted(["0_a", "1_a"], [1, 1])
    recorder.finished("0_a", finish_reason="stop")
    step(recorder, T0 + 20 * MS, later=0)
    assert rows(trails[0]) == []
    recorder.emitted(["1_a"], [1])
    recorder.finished("1_a", finish_reason="length")
    step(recorder, T0 + 30 * MS, later=0)
    [row] = rows(trails[0])
    assert (row.attributes[semconv.OUTPUT_TOKENS], row.attributes[semconv.CHOICE_COUNT]) == (4, 2)
    assert row.attributes[semconv.FINISH_REASONS] == ["stop", "length"]
    assert row.duration_ns == 30 * MS
    assert phases(trails[0], row) == [("queued", 3), ("prefill", 7), ("decode", 20)]
    found = [(s.attributes[semconv.CHOICE_INDEX], s.duration_ns / MS) for s in trails[0].spans(semconv.TOKEN_SPAN)]
    assert sorted(found) == [(0, 10), (0, 10), (1, 10), (1, 20)]


def test_the_prefill_of_a_later_answer_is_no_phase_of_its_request(recorder, trails):
    children(recorder)
    recorder.entered("0_a", Phase.PREFILL, T0 + 3 * MS)
    recorder.emitted(["0_a"], [1])
    step(recorder, T0 + 10 * MS, later=0)
    recorder.entered("1_a", Phase.PREFILL, T0 + 12 * MS)
    recorder.emitted(["0_a", "1_a"], [1, 1])
    for key in ("0_a", "1_a"):
        recorder.finished(key)
    step(recorder, T0 + 20 * MS, later=0)
    [row] = rows(trails[0])
    assert phases(trails[0], row) == [("queued", 3), ("prefill", 7), ("decode", 10)]


def test_a_preempted_answer_is_a_phase_of_its_request(recorder, trails):
    children(recorder)
    recorder.entered("0_a", Phase.PREFILL, T0 + 3 * MS)
    recorder.emitted(["0_a", "1_a"], [1, 1])
    step(recorder, T0 + 10 * MS, later=0)
    recorder.entered("1_a", Phase.PREEMPTED, T0 + 12 * MS)
    recorder.entered("1_a", Phase.PREFILL, T0 + 18 * MS)
    recorder.emitted(["1_a"], [1])
    for key in ("0_a", "1_a"):
        recorder.finished(key)
    step(recorder, T0 + 20 * MS, later=0)
    [row] = rows(trails[0])
    assert row.attributes[semconv.PREEMPTIONS] == 1
    assert phases(trails[0], row) == [("queued", 3), ("prefill", 7), ("decode", 2), ("preempted", 6), ("prefill", 2)]


def test_an_aborted_answer_ends_its_request(recorder, trails, clock):
    children(recorder)
    clock.advance(5 * MS)
    recorder.aborted("0_a", status=Status.CANCELLED, finish_reason="abort")
    recorder.aborted("1_a", status=Status.CANCELLED, finish_reason="abort")
    [row] = rows(trails[0])
    assert (row.attributes[semconv.STATUS], row.duration_ns) == ("cancelled", 5 * MS)
    assert not recorder.is_open("1_a")


def test_a_failed_answer_fails_its_request_at_once(recorder, trails):
    children(recorder)
    recorder.finished("1_a", status=Status.ERROR, error_type="engine_error", finish_reason="error")
    step(recorder, T0 + 5 * MS)
    assert [row.attributes[semconv.STATUS] for row in rows(trails[0])] == ["error"]


def test_answers_of_two_engines_keep_all_their_tokens(recorder, trails):
    recorder.several = True
    children(recorder)
    recorder.emitted(["0_a"], [1])
    step(recorder, T0 + 10 * MS, engine=1)
    recorder.emitted(["1_a"], [2])
    step(recorder, T0 + 12 * MS)
    recorder.finished("0_a")
    step(recorder, T0 + 20 * MS, engine=1)
    recorder.finished("1_a")
    step(recorder, T0 + 22 * MS)
    [row] = rows(trails[1])
    assert rows(trails[0]) == []
    assert row.attributes[semconv.OUTPUT_TOKENS] == 3


def test_two_requests_with_several_answers_are_two(recorder, trails):
    children(recorder)
    for index in range(2):
        arrive(recorder, f"{index}_b", choices=2, index=index, parent="b")
    children(recorder)  # an id that was used before
    assert len(recorder._open) == 4
    assert recorder._shared == {}
