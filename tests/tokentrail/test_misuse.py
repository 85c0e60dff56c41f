"""Wrong calls of the SDK do not break a server, and the spans that they cost are counted."""

import copy
import pickle
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

from tests.tokentrail.support import MS, T0, start
from tokentrail import KvEvent, Phase, semconv
from tokentrail._record.request import UnrecordedRequest
from tokentrail.testing import MemoryTrail


@pytest.fixture
def tolerant():
    return MemoryTrail(strict=False)


def test_a_strict_trail_raises_what_a_tolerant_one_counts(trail, tolerant):
    tolerant.step(0, T0, T0, 5)
    tolerant.kv_event("explode", blocks=1, reason="r", step=0, start_ns=T0)
    assert tolerant.start_request(operation="chat", model="m", arrival_ns="noon").sampled is False
    assert tolerant.stats.errors == 3
    with pytest.raises(TypeError):
        trail.step(0, T0, T0, 5)


def test_ending_twice_keeps_the_first_end(trail):
    request = start(trail)
    request.end(T0 + MS)
    request.end(T0 + 9 * MS, finish_reason="length")
    trail.flush()
    request.end(T0 + 99 * MS)
    (span,) = trail.spans("chat m")
    assert span.duration_ns == MS
    assert semconv.FINISH_REASON not in span.attributes


def test_tokens_after_the_end_are_dropped_and_counted(trail):
    late, other = start(trail), start(trail)
    trail.step(0, T0, T0 + MS, [late, other])
    late.end(T0 + MS)
    trail.step(1, T0, T0 + 2 * MS, [late, other], counts=[2, 1])  # in the batch that ends it
    trail.flush()
    heir = start(trail)  # takes the slot
    trail.step(2, T0, T0 + 3 * MS, [late, other, heir])  # in a later one
    trail.flush()
    assert trail.stats.drops == {"late": 3}
    assert len(trail.spans(semconv.TOKEN_SPAN)) == 5
    (span,) = trail.spans("chat m")
    assert span.attributes[semconv.OUTPUT_TOKENS] == 1


def test_an_end_before_the_last_token_is_moved_there(trail):
    request = start(trail)
    trail.step(0, T0, T0 + 5 * MS, [request])
    request.end(T0 + 2 * MS)
    assert trail.spans("chat m")[0].duration_ns == 5 * MS


def test_an_end_before_arrival_is_a_request_of_no_length(trail):
    start(trail).end(T0 - MS)
    assert trail.spans("chat m")[0].duration_ns == 0
    assert trail.spans(semconv.PHASE_SPAN) == []


def test_an_unknown_phase_is_passed_over(tolerant):
    request = start(tolerant)
    request.phase("thinking", T0 + MS)
    request.phase("decode", T0 + 2 * MS)  # a phase by its value is a phase
    request.end(T0 + 3 * MS)
    assert sorted(p.attributes[semconv.PHASE_NAME] for p in tolerant.spans(semconv.PHASE_SPAN)) == [
        Phase.DECODE,
        Phase.QUEUED,
    ]
    assert tolerant.stats.errors == 1


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        ({"step": "one", "start_ns": T0, "end_ns": T0}, 3),
        ({"step": 1, "start_ns": None, "end_ns": T0}, 3),
        ({"step": 2**70, "start_ns": T0, "end_ns": T0}, 3),
        ({"step": 1, "start_ns": T0, "end_ns": T0, "counts": [1]}, 3),
        ({"step": 1, "start_ns": T0, "end_ns": T0, "counts": [1, -1]}, 3),
        ({"step": 1, "start_ns": T0, "end_ns": T0, "counts": [4, 10**12]}, 6),
        ({"step": 1, "start_ns": T0, "end_ns": T0, "counts": [2, "x"]}, 4),
    ],
)
def test_a_malformed_step_is_dropped_alone(tolerant, step, lost):
    requests = [start(tolerant), start(tolerant)]
    tolerant.step(0, T0, T0 + MS, requests)
    tolerant.step(emitted=requests, **step)
    tolerant.step(2, T0, T0 + 2 * MS, requests)
    assert [s.attributes[semconv.STEP] for s in tolerant.spans(semconv.STEP_SPAN)] == [0, 2]
    assert [t.duration_ns for t in tolerant.spans(semconv.TOKEN_SPAN)] == [MS, MS, MS, MS]
    stats = tolerant.stats
    assert stats.drops == {"malformed": lost}
    assert stats.accepted == stats.exported + stats.dropped == 8 + lost


@pytest.mark.parametrize("stranger", [None, SimpleNamespace(slot="x")], ids=["none", "with a slot"])
def test_a_request_that_is_none_is_dropped_with_its_step(tolerant, stranger):
    request = start(tolerant)
    tolerant.step(0, T0, T0 + MS, [request, stranger])
    tolerant.step(1, T0, T0 + 2 * MS, [request])
    tolerant.flush()
    assert tolerant.stats.drops == {"malformed": 2}
    assert len(tolerant.spans(semconv.TOKEN_SPAN)) == 1


@pytest.mark.parametrize("flushed", [True, False], ids=["with a slot there", "without"])
def test_a_request_of_another_trail_is_refused_and_counted(tolerant, flushed, caplog):
    other = MemoryTrail()
    own, stranger = start(tolerant), start(other)  # both get the first slot of their trail
    if flushed:
        other.flush()
    tolerant.step(0, T0, T0 + MS, [own, stranger], counts=[1, 3])
    tolerant.kv_event(KvEvent.EVICT, blocks=1, reason="preemption", step=0, start_ns=T0, request=stranger)
    assert [t.parent_id for t in tolerant.spans(semconv.TOKEN_SPAN)] == [own.span_id]
    assert tolerant.spans("tokentrail.kv.evict")[0].parent_id == 0
    assert tolerant.stats.drops == {"foreign": 3}
    assert "3 tokens whose request is a copy or of another trail" in caplog.text
    assert len(tolerant.spans(semconv.STEP_SPAN)) == 1
    stranger.end(T0 + MS)
    assert [s.span_id for s in other.spans("chat m")] == [stranger.span_id]


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda request: pickle.loads(pickle.dumps(request))],
    ids=["copy", "deep", "pickle"],
)
def test_a_copied_request_is_refused_and_counted(tolerant, copied, caplog):
    request = start(tolerant)
    tolerant.flush()
    twin = copied(request)
    tolerant.step(0, T0, T0 + MS, [request, twin])
    twin.phase(Phase.DECODE, T0)
    twin.token()
    twin.tokens([T0])
    twin.end(T0)
    tolerant.flush()
    assert tolerant.stats.drops == {"foreign": 1}
    assert tolerant.spans("chat m") == []
    assert (twin.trace_id, twin.span_id, twin.traceparent) == (request.trace_id, request.span_id, request.traceparent)
    assert all(f"{call} of a copied request" in caplog.text for call in ("a phase", "tokens", "the end"))
    assert tolerant.stats.errors == (4 if copied in (copy.copy, copy.deepcopy) else 0)  # no trail made the pickled one
    request.end(T0 + 2 * MS)
    (span,) = tolerant.spans("chat m")
    assert (span.duration_ns, span.attributes[semconv.OUTPUT_TOKENS]) == (2 * MS, 1)


def test_a_copy_of_an_unrecorded_request_records_nothing_either(tolerant):
    request = UnrecordedRequest(5, 6)
    for twin in (copy.copy(request), copy.deepcopy(request), pickle.loads(pickle.dumps(request))):
        tolerant.step(0, T0, T0, [twin])
        assert (twin.traceparent, twin.sampled) == (request.traceparent, False)
    tolerant.flush()
    assert tolerant.stats.drops == {}


@pytest.mark.parametrize("after_ms", [0, 1], ids=["at the end", "before it"])
def test_a_last_step_that_is_recorded_after_the_end_counts(trail, after_ms):
    request = start(trail)
    trail.step(0, T0, T0 + MS, [request])
    request.end(T0 + (3 + after_ms) * MS)
    trail.step(1, T0 + MS, T0 + 3 * MS, [request])
    (span,) = trail.spans("chat m")
    assert span.attributes[semconv.OUTPUT_TOKENS] == 2
    assert len(trail.spans(semconv.TOKEN_SPAN, parent=request)) == 2
    assert trail.stats.drops == {}


def test_a_late_token_is_logged(trail, caplog):
    request = start(trail)
    request.end(T0 + MS)
    trail.step(1, T0, T0 + 2 * MS, [request])
    trail.flush()
    trail.step(2, T0, T0 + 2 * MS, [request])
    trail.flush()
    assert trail.stats.drops == {"late": 2}
    assert "dropped 1 tokens whose request had ended" in caplog.text
    assert "copy" not in caplog.text
    assert trail.stats.errors == 0


def test_text_that_is_no_unicode_and_numbers_that_do_not_fit(trail):
    request = start(
        trail, model="m\udcff", tenant="a\udce9", request_id="\ud800",
        attributes={"seed": 2**64, "big": -(2**63), "words": ["x", "\ud800"],
                    "none": None, "np": np.float32(0.5), "odd": Fraction(1, 3)},
    )  # fmt: skip
    request.end(T0 + MS, finish_reason="\ud800", error_type="\ud800")
    trail.flush()
    trail.kv_event(KvEvent.EVICT, blocks=2**70, reason="\ud800", step=-1, start_ns=T0)
    (span,) = trail.spans("chat m?")
    seen = span.attributes
    assert (seen[semconv.TENANT], seen["seed"], seen["big"]) == ("a?", str(2**64), -(2**63))
    assert (seen["words"], seen["np"], seen["odd"]) == (["x", "?"], 0.5, 1 / 3)
    assert "none" not in seen
    (evict,) = trail.spans("tokentrail.kv.evict")
    assert evict.attributes == {semconv.KV_REASON: "?", semconv.KV_BLOCKS: 2**56 - 1, semconv.STEP: 0}


class Broken(dict):
    """Fails at every use."""

    def __str__(self):
        raise RuntimeError("broken")

    __len__ = __iter__ = keys = __str__


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        ({"error_type": Broken()}, 0),  # it is known by the name of its type
        ({"response_model": Broken(), "response_id": Broken()}, 0),
        ({"finish_reasons": Broken()}, 1),
        ({"attributes": Broken()}, 1),
    ],
    ids=["error", "texts", "reasons", "attributes"],
)
def test_an_end_ends_its_request_whatever_it_is_given(tolerant, given, errors):
    request = start(tolerant)
    request.end(T0 + MS, **given)
    (span,) = tolerant.spans("chat m")
    assert (span.duration_ns, tolerant.stats.errors) == (MS, errors)
    failed = "error_type" in given
    assert span.attributes[semconv.STATUS] == ("error" if failed else "ok")
    assert span.attributes.get(semconv.ERROR_TYPE) == ("Broken" if failed else None)


def test_an_array_of_finish_reasons_is_a_sequence_of_them(trail):
    start(trail).end(T0 + MS, finish_reasons=np.array(["stop", "length"]))
    (span,) = trail.spans("chat m")
    assert span.attributes[semconv.FINISH_REASONS] == ["stop", "length"]


def test_an_end_takes_none_for_a_text_that_the_answer_did_not_have(trail):
    request = start(trail, kind=SpanKind.CLIENT)
    request.end(
        T0 + MS, error_type=None, finish_reason=None, finish_reasons=None, response_model=None, response_id=None
    )
    (span,) = trail.spans("chat m")
    assert not {semconv.RESPONSE_MODEL, semconv.RESPONSE_ID, semconv.ERROR_TYPE, semconv.FINISH_REASONS} & {
        *span.attributes
    }
    assert (span.attributes[semconv.STATUS], trail.stats.errors) == ("ok", 0)


@pytest.mark.parametrize(("code", "error"), [(0, None), (False, None), (500, "500")])
def test_a_code_of_0_is_no_error(code, error, trail):
    start(trail).end(T0 + MS, error_type=code)
    (span,) = trail.spans("chat m")
    expected = ("error" if error else "ok", error)
    assert (span.attributes[semconv.STATUS], span.attributes.get(semconv.ERROR_TYPE)) == expected


def test_stamps_up_to_the_one_that_could_not_be_made_are_kept(tolerant):
    def stamps():
        yield T0 + MS
        raise RuntimeError("broken")

    request = start(tolerant)
    request.tokens(stamps())
    request.end(T0 + 2 * MS)
    assert [token.end_ns for token in tolerant.spans(semconv.TOKEN_SPAN)] == [T0 + MS]
    assert tolerant.stats.errors == 1


def test_a_list_that_the_engine_reuses_is_copied(trail):
    one, two = start(trail), start(trail)
    emitted, counts = [one], [2]
    trail.step(0, T0, T0 + MS, emitted, counts=counts)
    emitted[:], counts[:] = [two], [1]
    trail.step(1, T0, T0 + MS, emitted, counts=counts)
    parents = [t.parent_id for t in trail.spans(semconv.TOKEN_SPAN)]
    assert sorted(parents) == sorted([one.span_id] * 2 + [two.span_id])


def test_after_shutdown_everything_is_refused_and_counted(trail):
    open_ = start(trail)
    assert trail.shutdown()
    trail.step(0, T0, T0, [open_])
    trail.kv_event(KvEvent.EVICT, blocks=1, reason="r", step=0, start_ns=T0)
    assert (trail.stats.pending, trail.stats.drops) == (0, {"shutdown": 3})
    assert start(trail).sampled is False
    open_.end(T0 + MS)  # it has ended as abandoned
    trail.flush()
    stats = trail.stats
    assert (stats.drops, stats.abandoned) == ({"shutdown": 3}, 1)  # the step, its token, the event
    assert stats.accepted == stats.exported + stats.dropped
    assert stats.pending == 0


def test_drops_hold_no_zeros(trail):
    trail._exporter.drop(0, "late")
    assert trail.stats.drops == {}


def test_a_malformed_step_does_not_move_the_ends_of_its_batch(tolerant):
    """Requests end between steps: one that was dropped must not count as one that the request could still get."""
    request, other = start(tolerant), start(tolerant)
    tolerant.step("first", T0, T0 + MS, [request])
    tolerant.step(1, T0, T0 + MS, [request, other])
    request.end(T0 + MS)
    tolerant.step(2, T0, T0 + 2 * MS, [request, other])
    tolerant.flush()
    assert tolerant.stats.drops == {"malformed": 2, "late": 1}
    (span,) = tolerant.spans("chat m")
    assert span.attributes[semconv.OUTPUT_TOKENS] == 1
    assert span.duration_ns == MS


def test_a_batch_of_malformed_steps_alone_is_dropped(tolerant):
    request = start(tolerant)
    tolerant.step("first", T0, T0 + MS, [request])
    request.end(T0 + MS)
    tolerant.flush()
    assert tolerant.stats.drops == {"malformed": 2}
    assert len(tolerant.spans("chat m")) == 1


def test_a_step_that_ends_before_it_starts_has_no_duration(trail):
    trail.step(0, T0 + 2 * MS, T0 + MS, [])
    (span,) = trail.spans(semconv.STEP_SPAN)
    assert (span.start_ns, span.end_ns) == (T0 + 2 * MS, T0 + 2 * MS)


def test_kv_events_with_and_without_a_victim_in_one_batch(trail):
    victim, stamps = start(trail), {"blocks": 1, "reason": "preemption", "start_ns": T0}
    for step, request in enumerate((None, victim, None, victim)):
        trail.kv_event(KvEvent.EVICT, step=step, request=request, **stamps)
    parents = {span.attributes[semconv.STEP]: span.parent_id for span in trail.spans("tokentrail.kv.evict")}
    assert parents == {0: 0, 1: victim.span_id, 2: 0, 3: victim.span_id}
    traces = {span.attributes[semconv.STEP]: span.trace_id for span in trail.spans("tokentrail.kv.evict")}
    assert traces[1] == traces[3] == victim.trace_id
    assert traces[0] == traces[2] != victim.trace_id
