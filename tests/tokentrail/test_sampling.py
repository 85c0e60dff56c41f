"""Tail sampling keeps the requests that matter, and a weight that keeps counts true."""

import json
from math import sqrt
from typing import Any

import pytest

from tests.tokentrail.support import MS, T0, start
from tokentrail import Phase, Sampling, Settings, Status, semconv
from tokentrail.testing import MemoryTrail

NONE = Sampling(rate=0.0)


def trail_with(clock=None, **sampling):
    return MemoryTrail(clock=clock, sampling=Sampling(**sampling))


def kept(trail):
    return [span.attributes.get(semconv.SAMPLING_WEIGHT, 1.0) for span in trail.spans("chat m")]


def test_everything_is_kept_by_default_and_stands_for_itself(trail):
    for _ in range(50):
        start(trail).end(T0)
    assert trail.stats.left_out == 0
    assert len(trail.spans("chat m")) == 50
    assert not any(semconv.SAMPLING_WEIGHT in span.attributes for span in trail.spans())


@pytest.mark.parametrize(
    ("given", "kept_"),
    [
        ({"error_type": "x"}, True),
        ({"status": Status.ERROR}, True),
        ({"status": Status.CANCELLED}, False),
        ({}, False),
    ],
)
def test_errors_are_always_kept(given, kept_):
    trail = trail_with(rate=0.0)
    start(trail).end(T0, **given)
    assert kept(trail) == ([1.0] if kept_ else [])
    assert trail.stats.left_out == (not kept_)


def test_preempted_requests_are_always_kept():
    trail = trail_with(rate=0.0)
    request = start(trail)
    request.phase(Phase.PREEMPTED, T0 + MS)
    request.end(T0 + 2 * MS)
    assert kept(trail) == [1.0]


@pytest.mark.parametrize(
    ("threshold", "tokens_ms", "kept_"),
    [
        ({"ttft_s": 0.010}, [10, 60], False),
        ({"ttft_s": 0.010}, [11, 12], True),
        ({"tpot_s": 0.010}, [50, 60, 70], False),
        ({"tpot_s": 0.010}, [50, 60, 71], True),
        ({"tpot_s": 0.010}, [50], False),
        ({"e2e_s": 0.070}, [50, 70], False),
        ({"e2e_s": 0.070}, [50, 71], True),
        ({"ttft_s": 0.010}, [], True),
    ],
)
def test_slow_requests_are_always_kept(threshold, tokens_ms, kept_):
    trail = trail_with(rate=0.0, **threshold)
    request = start(trail)
    request.tokens([T0 + at * MS for at in tokens_ms])
    request.end(T0 + max(tokens_ms, default=20) * MS)
    assert kept(trail) == ([1.0] if kept_ else [])


def test_a_tenant_has_a_rate_of_its_own():
    trail = trail_with(rate=0.0, tenants={"acme": 1.0, "half": 0.5})
    for tenant in ("acme", "half", "other", ""):
        for _ in range(100):
            start(trail, tenant=tenant).end(T0)
    spans = trail.spans("chat m")
    tenants = [span.attributes[semconv.TENANT] for span in spans]
    assert tenants.count("acme") == 100
    assert 40 <= tenants.count("half") <= 60
    assert set(tenants) == {"acme", "half"}
    weights = {span.attributes[semconv.TENANT]: span.attributes.get(semconv.SAMPLING_WEIGHT) for span in spans}
    assert weights == {"acme": None, "half": 2.0}


def test_a_sample_of_ten_percent_gives_the_goodput_within_its_error():
    """2,000 requests, of which 300 are slow and 100 fail. The good ones are estimated from the weights."""
    trail = trail_with(rate=0.1, ttft_s=0.5)
    for i in range(2_000):
        request = start(trail)
        request.token(at_ns=T0 + (600 if i % 20 < 3 else 100) * MS)
        request.end(T0 + 700 * MS, error_type="x" if i % 20 == 19 else "")
    spans = trail.spans("chat m")
    bad = [s for s in spans if s.attributes[semconv.TIME_TO_FIRST_TOKEN] > 0.5 or semconv.ERROR_TYPE in s.attributes]
    assert (len(bad), sum(s.attributes.get(semconv.SAMPLING_WEIGHT, 1) for s in bad)) == (400, 400)
    good = [s.attributes[semconv.SAMPLING_WEIGHT] for s in spans if s not in bad]
    error = sqrt(sum(weight * (weight - 1) for weight in good))
    assert abs(sum(good) - 1_600) <= 3 * error < 480
    assert trail.stats.left_out == 2_000 - len(spans)


def test_only_some_requests_have_token_spans_and_all_have_their_counts():
    trail = trail_with(token_rate=0.25)
    requests = [start(trail) for _ in range(200)]
    trail.step(0, T0, T0 + MS, requests)
    for request in requests:
        request.token(2, T0 + 3 * MS)
        request.end(T0 + 3 * MS)
    spans = trail.spans("chat m")
    assert [span.attributes[semconv.OUTPUT_TOKENS] for span in spans] == [3] * 200
    assert kept(trail) == [1.0] * 200
    tokens = trail.spans(semconv.TOKEN_SPAN)
    traced = {token.parent_id for token in tokens}
    assert len(tokens) == 3 * len(traced)
    assert 40 <= len(traced) <= 60
    assert sorted(t.duration_ns // MS for t in tokens if t.parent_id == min(traced)) == [0, 1, 2]
    steps = [token.attributes.get(semconv.STEP) for token in tokens if token.parent_id == min(traced)]
    assert steps == [0, None, None]


def test_a_request_that_is_left_out_leaves_no_span_at_all(clock):
    trail = trail_with(clock, rate=0.0, e2e_s=10)
    request = start(trail)
    trail.flush()
    request.phase(Phase.DECODE, T0 + MS)
    trail.step(0, T0, T0 + MS, [request])
    trail.flush()
    request.end(T0 + 2 * MS)
    assert [span.name for span in trail.spans()] == [semconv.STEP_SPAN]
    stats = trail.stats
    assert (stats.left_out, stats.sampled_out, stats.accepted, stats.exported) == (1, 2, 3, 1)  # its token and itself


def test_a_request_is_announced_when_it_is_certain_to_be_kept(clock):
    trail = trail_with(clock, rate=0.0, ttft_s=1, e2e_s=10)
    hung, streaming = start(trail), start(trail)
    streaming.token(at_ns=T0 + MS)
    clock.now = T0 + 1_000 * MS
    trail.flush()
    assert trail.spans(semconv.OPEN_SPAN) == []
    clock.now = T0 + 1_001 * MS
    assert [span.parent_id for span in trail.spans(semconv.OPEN_SPAN)] == [hung.span_id]
    clock.now = T0 + 10_001 * MS
    assert {span.parent_id for span in trail.spans(semconv.OPEN_SPAN)} == {hung.span_id, streaming.span_id}
    hung.end(T0 + MS)  # an end that lies in the past: the announcement still needs one
    assert kept(trail) == [1.0]


def test_an_abandoned_request_is_kept_as_the_error_that_it_is(clock):
    trail = trail_with(clock, rate=0.0)
    request = start(trail)
    trail.flush()
    del request
    trail.flush()
    (span,) = trail.spans("chat m")
    assert span.attributes[semconv.ERROR_TYPE] == semconv.ABANDONED
    assert (trail.stats.abandoned, trail.stats.left_out) == (1, 0)


def test_a_request_that_is_too_old_ends_although_nobody_announced_it(clock):
    trail = MemoryTrail(clock=clock, sampling=NONE, max_request_age_s=10)
    request = start(trail)
    trail.flush()
    clock.now = T0 + 10_001 * MS
    trail.flush()
    trail.flush()
    assert request.ended.error_type == semconv.ABANDONED
    assert trail.spans(semconv.OPEN_SPAN) == []
    assert kept(trail) == [1.0]


def test_a_request_that_is_chosen_is_announced_at_once():
    trail = trail_with(rate=0.0, tenants={"acme": 1.0})
    start(trail, tenant="acme")
    start(trail)
    assert len(trail.spans(semconv.OPEN_SPAN)) == 1


def test_two_processes_decide_alike(trail):
    one, two = trail_with(rate=0.5), trail_with(rate=0.5)
    for t in (one, two):
        for number in range(100):
            start(t, request_id=str(number)).end(T0)
    chosen = [[span.attributes[semconv.RESPONSE_ID] for span in t.spans("chat m")] for t in (one, two)]
    assert chosen[0] == chosen[1]
    assert 40 <= len(chosen[0]) <= 60


@pytest.mark.parametrize(
    "rates", [{"rate": 1.1}, {"rate": -0.1}, {"token_rate": float("nan")}, {"tenants": {"acme": 2}}]
)
def test_a_rate_that_is_none_is_refused(rates):
    with pytest.raises(ValueError, match="not between 0 and 1"):
        Sampling(**rates)


def test_the_environment_gives_the_same_as_code():
    given: dict[str, Any] = {
        "rate": 0.1,
        "tenants": {"acme": 1},
        "token_rate": 0.5,
        "ttft_s": 0.5,
        "tpot_s": 0.1,
        "e2e_s": 30,
    }
    assert Settings.from_env({"TOKENTRAIL_SAMPLING": json.dumps(given)}).sampling == Sampling(**given)


@pytest.mark.parametrize("value", ["0.1", "{", '{"rate": 2}', '{"rates": 1}', '{"tenants": 5}', '{"rate": "x"}', "[]"])
def test_a_sampling_that_is_none_is_told_and_everything_kept(value, caplog):
    assert Settings.from_env({"TOKENTRAIL_SAMPLING": value}).sampling == Sampling()
    (record,) = caplog.records
    assert "TOKENTRAIL_SAMPLING" in record.message
    assert value in record.message
