"""Tail sampling keeps the requests that matter, and a weight that keeps counts true."""

import json
from math import sqrt
from typing import Any

import pytest
from numpy import uint64
from numpy.random import default_rng

from tests.tokentrail.support import MS, T0, start
from tokentrail import Phase, Sampling, Settings, Status, Thresholds, semconv
from tokentrail.testing import MemoryTrail, SequentialIds

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
        ({"gap_s": 0.010}, [50, 60, 61], False),
        ({"gap_s": 0.010}, [50, 60, 71], True),
        ({"gap_s": 0.010}, [50], False),
        ({"gap_s": 0.010}, [], False),
        ({"first_visible_s": 0.010}, [11], True),
        ({"first_visible_s": 0.010}, [9], False),
    ],
)
def test_slow_requests_are_always_kept(threshold, tokens_ms, kept_):
    trail = trail_with(rate=0.0, thresholds=[Thresholds(**threshold)])
    request = start(trail)
    request.tokens([T0 + at * MS for at in tokens_ms])
    request.end(T0 + max(tokens_ms, default=20) * MS)
    assert kept(trail) == ([1.0] if kept_ else [])


@pytest.mark.parametrize("late_ms", [499, 501, 100, 99])
def test_each_class_and_tenant_has_thresholds_of_its_own(late_ms):
    trail = trail_with(
        rate=0.0,
        thresholds=[
            Thresholds(slo_class="chat", ttft_s=0.5),
            Thresholds(slo_class="chat", tenant="acme", ttft_s=0.1),
            Thresholds(tenant="acme", e2e_s=0.5),
            Thresholds(slo_class="completion", ttft_s=0.099),
        ],
    )
    for slo_class in ("chat", "completion", "batch", ""):
        for tenant in ("acme", "other", ""):
            request = start(trail, slo_class=slo_class, tenant=tenant)
            request.token(at_ns=T0 + late_ms * MS)
            request.end(T0 + late_ms * MS)
    found = {
        (span.attributes.get(semconv.SLO_CLASS, ""), span.attributes.get(semconv.TENANT, ""))
        for span in trail.spans("chat m")
    }
    completion = {("completion", tenant) for tenant in ("acme", "other", "")}
    expected = {
        99: set(),
        100: completion,
        499: {*completion, ("chat", "acme")},
        501: {
            *completion,
            *(("chat", tenant) for tenant in ("acme", "other", "")),
            *((slo_class, "acme") for slo_class in ("batch", "")),
        },
    }
    assert found == expected[late_ms]


def test_tpot_counts_the_tokens_that_the_end_tells():
    """The collector divides by the same number."""
    trail = trail_with(rate=0.0, thresholds=[Thresholds(tpot_s=0.010)])
    for output_tokens, number in ((3, "missed"), (4, "met"), (1, "without"), (None, "recorded")):
        request = start(trail, request_id=number)
        request.tokens([T0, T0 + 30 * MS])
        request.end(T0 + 30 * MS, output_tokens=output_tokens)
    found = [span.attributes[semconv.RESPONSE_ID] for span in trail.spans("chat m")]
    assert found == ["missed", "recorded"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"slo_class": "chat"},
        {"ttft_s": 0},
        {"tpot_s": -1},
        {"e2e_s": float("nan")},
        {"e2e_s": float("inf")},
        {"ttft_s": "1"},
    ],
)
def test_thresholds_that_are_none_are_refused(given):
    with pytest.raises(ValueError, match="threshold"):
        Thresholds(**given)


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


class GivenIds(SequentialIds):
    def __init__(self, span_ids):
        super().__init__()
        self._span_ids = iter(span_ids)


def ids_of_all_draws(n):
    """Span ids for which sampling draws 0, 1/n, 2/n, …: each decision as often as it is probable."""
    inverse = pow(semconv.TOKEN_ID_STRIDE, -1, 1 << 64)
    return [((i << 64) // n + (1 << 11)) * inverse % (1 << 64) for i in range(n)]


def outcomes():
    """Requests of every outcome: (name, arguments of their start, their events)."""

    def answered(ms, **ended):
        return lambda trail, clock, request: (request.token(at_ns=T0 + ms * MS), request.end(T0 + ms * MS, **ended))

    def announced_late(trail, clock, request):
        """Its first token was recorded only after it had been announced as late, and was not late."""
        clock.now = T0 + 600 * MS
        trail.flush()
        answered(100)(trail, clock, request)

    def preempted(trail, clock, request):
        request.phase(Phase.PREEMPTED, T0 + MS)
        answered(100)(trail, clock, request)

    return [
        ("good", {"slo_class": "chat"}, answered(100)),
        ("slow", {"slo_class": "chat"}, answered(600)),
        ("slow in another class", {"slo_class": "batch"}, answered(600)),
        ("failed", {}, answered(100, error_type="x")),
        ("cancelled", {}, answered(100, status=Status.CANCELLED)),
        ("preempted", {}, preempted),
        ("of a tenant with a rate of its own", {"tenant": "half"}, answered(100)),
        ("of a tenant that is left out but for its misses", {"tenant": "none", "slo_class": "chat"}, answered(600)),
        ("announced as late and in time", {"slo_class": "chat"}, announced_late),
    ]


@pytest.mark.parametrize(("given", "happens"), [pytest.param(*rest, id=name) for name, *rest in outcomes()])
def test_the_expected_weight_of_a_request_is_one(clock, given, happens):
    """Horvitz and Thompson: over all draws, weight times probability of being kept is 1 for every outcome. So each sum
    of weights has the true count as its expectation.
    """
    draws = 100
    sampling = Sampling(
        rate=0.1, tenants={"half": 0.5, "none": 0.0}, thresholds=[Thresholds(slo_class="chat", ttft_s=0.5)]
    )
    trail = MemoryTrail(clock=clock, sampling=sampling)
    trail._provider.id_generator = GivenIds(ids_of_all_draws(draws))
    for request in [start(trail, **given) for _ in range(draws)]:
        happens(trail, clock, request)
    assert sum(kept(trail)) == pytest.approx(draws)
    assert len(kept(trail)) in (10, 50, 100)


def test_a_rate_of_0_keeps_nobody_and_a_rate_of_1_everybody():
    inverse = pow(semconv.TOKEN_ID_STRIDE, -1, 1 << 64)
    for span_id in (inverse, -inverse % (1 << 64)):  # the lowest draw, 0, and the highest
        for rate, chosen in ((0.0, False), (1.0, True)):
            trail = trail_with(rate=rate, token_rate=0.5)
            trail._provider.id_generator = GivenIds([span_id])
            start(trail).end(T0)
            assert kept(trail) == [1.0] * chosen


@pytest.mark.parametrize("rate", [0.1, 0.25])
def test_a_sample_gives_goodput_and_attainment_within_the_stated_error(rate):
    """20 samples of a known population. The error that docs/sdk.md states, √Σ w·(w − 1), is the one that the
    estimates of many independent samples have.
    """
    z = []
    for sample in range(20):
        trail = trail_with(rate=rate, thresholds=[Thresholds(slo_class="chat", ttft_s=0.5)])
        trail._provider.id_generator = GivenIds(default_rng(sample).integers(1, 1 << 64, 260, uint64).tolist())
        for i in range(260):
            request = start(trail, slo_class="chat" if i % 2 else "batch")
            request.token(at_ns=T0 + (600 if i % 20 < 3 else 100) * MS)
            request.end(T0 + 700 * MS, error_type="x" if i % 20 == 19 else "")
        spans = trail.spans("chat m")
        assert trail.stats.left_out == 260 - len(spans)
        weights = {True: [], False: []}
        for span in spans:
            missed = span.attributes[semconv.SLO_CLASS] == "chat" and span.attributes[semconv.TIME_TO_FIRST_TOKEN] > 0.5
            good = not missed and semconv.ERROR_TYPE not in span.attributes
            weights[good].append(span.attributes.get(semconv.SAMPLING_WEIGHT, 1))
        assert sum(weights[False]) == len(weights[False]) == 26  # one of 20 slow and in chat, one of 20 failed
        error = sqrt(sum(weight * (weight - 1) for weight in weights[True]))
        z.append((sum(weights[True]) - 234) / error)
    assert abs(sum(z) / len(z)) < 3 / sqrt(len(z))
    assert 0.5 < sqrt(sum(one * one for one in z) / len(z)) < 1.5


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
    trail = trail_with(clock, rate=0.0, thresholds=[Thresholds(e2e_s=10)])
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
    trail = trail_with(clock, rate=0.0, thresholds=[Thresholds(tpot_s=0.001, ttft_s=1), Thresholds(e2e_s=10)])
    hung, streaming = start(trail), start(trail)
    streaming.tokens([T0 + MS, T0 + 900 * MS])  # so far slower than its TPOT allows, which its end must show
    clock.now = T0 + 1_000 * MS
    trail.flush()
    assert trail.spans(semconv.OPEN_SPAN) == []
    clock.now = T0 + 1_001 * MS
    assert [span.parent_id for span in trail.spans(semconv.OPEN_SPAN)] == [hung.span_id]
    clock.now = T0 + 10_001 * MS
    assert {span.parent_id for span in trail.spans(semconv.OPEN_SPAN)} == {hung.span_id, streaming.span_id}
    hung.end(T0 + MS)  # an end that lies in the past: the announcement still needs one
    assert kept(trail) == [0.0]


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
    chat = {"slo_class": "chat", "ttft_s": 0.5, "tpot_s": 0.1}
    acme = {"tenant": "acme", "e2e_s": 30}
    given: dict[str, Any] = {"rate": 0.1, "tenants": {"acme": 1}, "token_rate": 0.5}
    read = Settings.from_env({"TOKENTRAIL_SAMPLING": json.dumps({**given, "thresholds": [chat, acme]})}).sampling
    assert read == Sampling(**given, thresholds=(Thresholds(**chat), Thresholds(**acme)))


@pytest.mark.parametrize(
    "value",
    [
        "0.1",
        "{",
        "[]",
        '{"rate": 2}',
        '{"rates": 1}',
        '{"tenants": 5}',
        '{"rate": "x"}',
        '{"thresholds": 5}',
        '{"thresholds": {"chat": {"ttft_s": 1}}}',
        '{"thresholds": [{"ttft_s": "1"}]}',
        '{"thresholds": [{"slo_class": "chat"}]}',
        '{"ttft_s": 1}',
    ],
)
def test_a_sampling_that_is_none_is_told_and_everything_kept(value, caplog):
    assert Settings.from_env({"TOKENTRAIL_SAMPLING": value}).sampling == Sampling()
    (record,) = caplog.records
    assert "TOKENTRAIL_SAMPLING" in record.message
    assert value in record.message


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0.1", 'write an object, such as {"rate": 0.1}'),
        ("[]", 'write an object, such as {"rate": 0.1}'),
        ('{"rate": "x"}', "the sampling rate rate='x' is not between 0 and 1"),
    ],
)
def test_the_log_says_what_is_wrong_with_a_sampling(value, reason, caplog):
    Settings.from_env({"TOKENTRAIL_SAMPLING": value})
    assert f"is not usable: {reason};" in caplog.text
