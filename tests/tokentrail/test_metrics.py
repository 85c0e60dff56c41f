"""The books and the histograms through opentelemetry-sdk's reader, against values computed from the calls."""

import gc
from bisect import bisect_left
from collections import Counter
from types import SimpleNamespace

import pytest
from opentelemetry.metrics import _internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import SpanKind

from tests.tokentrail.support import MS, T0, start
from tokentrail import Sampling, Status, Thresholds, Trail, TrailStats
from tokentrail._build import metrics
from tokentrail._pipeline import Pipeline
from tokentrail.testing import MemoryTrail, MemoryTransport, SendResult, SendStatus

TTFT, TPOT = "gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"
DURATION = "gen_ai.server.request.duration"
ATTRIBUTES = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "tokentrail",
    "gen_ai.request.model": "m",
    "gen_ai.response.model": "m",
}
BOUNDARIES = {  # https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/
    TTFT: [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0],
    TPOT: [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
    DURATION: [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92],
}


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
def now(monkeypatch):
    """The monotonic clock of the readings: each call of `pass_time` makes them due."""
    seconds = [0.0]
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: seconds[0]))

    def pass_time():
        seconds[0] += metrics.READING_S

    return pass_time


def points(reader, name):
    """The data points of a metric."""
    data = reader.get_metrics_data()
    return [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def histogram(reader, name):
    """(count, sum in ms, bucket counts) by attributes."""
    return {
        tuple(sorted(point.attributes.items())): (point.count, round(point.sum * 1_000, 6), list(point.bucket_counts))
        for point in points(reader, name)
    }


def expected(name, values_ms, **attributes):
    buckets = Counter(bisect_left(BOUNDARIES[name], value / 1_000) for value in values_ms)
    given = ATTRIBUTES | {key.replace("__", "."): value for key, value in attributes.items()}
    counts = [buckets[i] for i in range(len(BOUNDARIES[name]) + 1)]
    return {tuple(sorted(given.items())): (len(values_ms), round(sum(values_ms), 6), counts)}


def book(reader, name):
    """The values of an observable instrument by `error.type`, of the only trail."""
    found = points(reader, name)
    assert len({point.attributes["otel.component.name"] for point in found}) == 1
    return {point.attributes.get("error.type", ""): point.value for point in found}


def test_the_histograms_hold_the_latencies_of_requests(reader, provider):
    trail = MemoryTrail(meter_provider=provider)
    for ttft_ms, gap_ms, tokens in ((10, 5, 3), (11, 20, 2), (400, 30, 1), (12_000, 3_000, 4)):
        request = start(trail)
        last = T0 + ttft_ms * MS
        request.tokens([last + i * gap_ms * MS for i in range(tokens)])
        request.end(last + (tokens - 1) * gap_ms * MS + MS)
    trail.flush()
    assert histogram(reader, TTFT) == expected(TTFT, [10, 11, 400, 12_000])
    assert histogram(reader, TPOT) == expected(TPOT, [5, 20, 3_000])
    assert histogram(reader, DURATION) == expected(DURATION, [21, 32, 401, 21_001])
    for name, boundaries in BOUNDARIES.items():
        assert [list(point.explicit_bounds) for point in points(reader, name)] == [boundaries]


def test_requests_that_sampling_leaves_out_are_in_the_histograms(reader, provider):
    trail = MemoryTrail(meter_provider=provider, sampling=Sampling(rate=0.0, thresholds=[Thresholds(ttft_s=1)]))
    for _ in range(5):
        request = start(trail)
        request.token(at_ns=T0 + 2 * MS)
        request.end(T0 + 3 * MS)
    trail.flush()
    assert trail.stats.left_out == 5
    assert histogram(reader, TTFT) == expected(TTFT, [2] * 5)
    assert histogram(reader, DURATION) == expected(DURATION, [3] * 5)


def test_failures_and_cancellations_have_a_type_and_only_a_duration(reader, provider):
    trail = MemoryTrail(meter_provider=provider)
    for given in ({}, {"error_type": "oom"}, {"status": Status.ERROR}, {"status": Status.CANCELLED}):
        request = start(trail)
        request.tokens([T0 + MS, T0 + 2 * MS])
        request.end(T0 + 3 * MS, **given)
    trail.flush()
    assert histogram(reader, TTFT) == expected(TTFT, [1])
    assert histogram(reader, TPOT) == expected(TPOT, [1])
    assert histogram(reader, DURATION) == {
        **expected(DURATION, [3]),
        **expected(DURATION, [3], error__type="oom"),
        **expected(DURATION, [3], error__type="_OTHER"),
        **expected(DURATION, [3], error__type="cancelled"),
    }


def test_a_request_without_a_token_has_a_duration_alone(reader, provider, caplog):
    trail = MemoryTrail(meter_provider=provider)
    start(trail).end(T0 + 3 * MS, output_tokens=5)
    trail.flush()
    assert histogram(reader, TTFT) == histogram(reader, TPOT) == {}
    assert caplog.text == ""  # opentelemetry-sdk logs and ignores values below 0
    assert histogram(reader, DURATION) == expected(DURATION, [3])


def test_tpot_counts_the_tokens_that_the_end_tells(reader, provider):
    trail = MemoryTrail(meter_provider=provider)
    request = start(trail)
    request.tokens([T0 + MS, T0 + 10 * MS])
    request.end(T0 + 10 * MS, output_tokens=4)
    trail.flush()
    assert histogram(reader, TPOT) == expected(TPOT, [3])


def test_the_attributes_are_those_of_the_semantic_conventions(reader, provider):
    trail = MemoryTrail(meter_provider=provider)
    attributes = {"server.address": "10.0.0.7", "server.port": 8000, "user.id": "u"}
    given = {"provider": "vllm", "tenant": "acme", "slo_class": "chat", "request_id": "r"}
    start(trail, attributes=attributes, **given).end(T0 + MS, response_model="m-2026", response_id="x")
    trail.flush()
    assert histogram(reader, DURATION) == expected(
        DURATION,
        [1],
        gen_ai__provider__name="vllm",
        gen_ai__response__model="m-2026",
        server__address="10.0.0.7",
        server__port=8000,
    )


def test_a_name_that_is_too_long_makes_no_series(reader, provider):
    trail = MemoryTrail(meter_provider=provider)
    for length in (1_024, 1_025, 1_025):
        start(trail, model="m" * length).end(T0 + MS)
    trail.flush()
    counts = {dict(key).get("gen_ai.request.model"): n for key, (n, _, _) in histogram(reader, DURATION).items()}
    assert counts == {"m" * 1_024: 1, None: 2}


@pytest.mark.parametrize("kind", [SpanKind.CLIENT, SpanKind.INTERNAL])
def test_a_client_is_no_server(reader, provider, kind):
    trail = MemoryTrail(meter_provider=provider)
    start(trail, kind=kind).end(T0 + MS)
    trail.flush()
    assert histogram(reader, DURATION) == {}


def test_names_that_clients_choose_cannot_make_series_without_limit(reader, provider, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_SERIES", 3)
    trail = MemoryTrail(meter_provider=provider)
    for number in (0, 1, 2, 3, 4, 0):
        start(trail, model=f"m{number}").end(T0 + MS)
    trail.flush()
    counts = {dict(key).get("gen_ai.request.model"): n for key, (n, _, _) in histogram(reader, DURATION).items()}
    assert counts == {"m0": 2, "m1": 1, "m2": 1, None: 2}
    assert {("otel.metric.overflow", True)} <= {item for key in histogram(reader, DURATION) for item in key}


def test_an_attribute_of_an_odd_type_is_text(reader, provider, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_SERIES", 1)
    trail = MemoryTrail(meter_provider=provider)
    for _ in range(2):
        start(trail, attributes={"server.address": ["a"]}, model=None).end(T0 + MS)
    trail.flush()
    ((attributes, (requests, *_)),) = histogram(reader, DURATION).items()
    assert (dict(attributes)["server.address"], requests) == ("['a']", 2)
    assert "gen_ai.request.model" not in dict(attributes)


def test_the_books_are_those_of_the_stats_and_balance(reader, provider, now):
    """Each span that was given is in one place."""
    answers = [SendResult(SendStatus.DELIVERED, rejected=1), SendResult(SendStatus.REFUSED, "400")]
    trail = MemoryTrail(
        *answers, meter_provider=provider, sampling=Sampling(token_rate=0.0), strict=False, max_queue_spans=1_000
    )
    requests = [start(trail) for _ in range(3)]
    trail.step(0, T0, T0 + MS, requests)
    trail.flush()
    trail.step("x", T0, T0 + MS, requests)
    requests[0].end(T0 + MS)
    trail.flush()
    trail.step(1, T0, T0 + MS, requests)  # a token for a request that has ended
    trail.flush()
    trail.transport.answers = [SendResult(SendStatus.RETRY, "503")]
    trail.step(2, T0, T0 + MS, [])
    trail.flush(0)
    trail.step(3, T0, T0 + MS, requests[1:])
    stats = trail.stats
    assert set(stats.drops) == {"rejected", "refused", "malformed", "late"}
    assert min(stats.exported, stats.queued, stats.pending, stats.sampled_out, stats.errors) > 0

    exported = {"": stats.exported, "rejected": stats.drops["rejected"], "refused": stats.drops["refused"]}
    assert book(reader, "otel.sdk.exporter.span.exported") == exported
    processed = book(reader, "otel.sdk.processor.span.processed")
    assert processed == {"": sum(exported.values()), "malformed": stats.drops["malformed"], "late": 1}
    assert book(reader, "otel.sdk.processor.span.queue.size") == {"": stats.queued}
    assert book(reader, "otel.sdk.processor.span.queue.capacity") == {"": 1_000}
    sdk = {
        name: book(reader, f"tokentrail.sdk.{name}")[""]
        for name in ("span.accepted", "span.pending", "span.sampled_out", "request.left_out", "request.abandoned")
    }
    assert list(sdk.values()) == [stats.accepted, stats.pending, stats.sampled_out, 0, 0]
    assert book(reader, "tokentrail.sdk.errors") == {"": stats.errors}
    waiting = stats.queued + sdk["span.pending"] + sdk["span.sampled_out"]
    assert sdk["span.accepted"] == sum(processed.values()) + waiting

    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    sums = {metric.name: metric.data for metric in scope.metrics if metric.name not in BOUNDARIES}
    falling = {name.rpartition("span.")[2] for name, data in sums.items() if not data.is_monotonic}
    assert falling == {"queue.size", "queue.capacity", "pending"}, "a rate of the others is one of events"


def test_requests_that_nobody_ended_or_sampling_left_out_are_in_the_books(reader, provider, now):
    trail = MemoryTrail(meter_provider=provider, sampling=Sampling(rate=0.0))
    start(trail).end(T0)
    abandoned = start(trail)
    trail.shutdown()
    assert abandoned.ended.error_type == "abandoned"
    assert book(reader, "tokentrail.sdk.request.left_out") == {"": 1}
    assert book(reader, "tokentrail.sdk.request.abandoned") == {"": 1}


@pytest.mark.parametrize(
    ("reasons", "error_types"),
    [
        ({"buffer_full": 2, "displaced": 3}, {"queue_full": 5}),
        ({"shutdown": 2}, {"already_shutdown": 2}),
        ({"foreign": 2, "late": 1}, {"foreign": 2, "late": 1}),
    ],
)
def test_drops_have_the_error_types_of_the_semantic_conventions(reader, provider, now, reasons, error_types):
    trail = MemoryTrail(meter_provider=provider)
    for reason, spans in reasons.items():
        trail._exporter.drop(spans, reason)
    assert book(reader, "otel.sdk.processor.span.processed") == {"": 0, **error_types}
    assert book(reader, "otel.sdk.exporter.span.exported") == {"": 0}


def test_one_reading_serves_all_instruments_of_a_collection(reader, provider, now, monkeypatch):
    read = []
    monkeypatch.setattr(Pipeline, "stats", property(lambda self: read.append(1) or TrailStats()))
    trail = MemoryTrail(meter_provider=provider)
    reader.get_metrics_data()
    now()
    reader.get_metrics_data()
    assert len(read) == 2
    assert trail.stats == TrailStats()


def test_each_trail_of_a_provider_is_a_component_until_it_is_gone(reader, provider, now):
    trails = [MemoryTrail(meter_provider=provider) for _ in range(2)]
    trails[1].step(0, T0, T0, [])
    found = {
        point.attributes["otel.component.name"]: (point.value, point.attributes["otel.component.type"])
        for point in points(reader, "tokentrail.sdk.span.accepted")
    }
    assert sorted(found.values()) == [(0, "tokentrail"), (1, "tokentrail")]
    trails.pop()
    gc.collect()
    assert [point.value for point in points(reader, "tokentrail.sdk.span.accepted")] == [0]
    MemoryTrail(meter_provider=provider)
    assert len(metrics.metrics_of(provider)._watched) == 2


def test_a_provider_that_fails_does_not_cost_the_span(provider, monkeypatch):
    trail = MemoryTrail(meter_provider=provider, strict=False)
    monkeypatch.setattr(trail._pipeline._metrics._duration, "record", lambda *_: 1 / 0)
    start(trail).end(T0 + MS)
    assert len(trail.spans("chat m")) == 1
    assert (trail.stats.errors, trail.stats.drops) == (1, {})


def test_a_global_provider_that_is_not_installed_is_named_and_costs_the_metrics_alone(monkeypatch, caplog):
    monkeypatch.setattr(_internal, "_METER_PROVIDER", None)
    monkeypatch.setenv("OTEL_PYTHON_METER_PROVIDER", "elsewhere")
    caplog.clear()
    metrics.Metrics(None)
    assert "OTEL_PYTHON_METER_PROVIDER is not usable" in caplog.messages[-1]


def test_the_constructor_takes_a_provider(reader, provider):
    trail = Trail(meter_provider=provider, transport=MemoryTransport(), background=False, clock=lambda: T0)
    start(trail).end(T0 + MS)
    trail.flush()
    assert histogram(reader, DURATION) == expected(DURATION, [1])


def test_without_a_provider_nothing_is_recorded_and_nothing_fails(trail):
    request = start(trail)
    request.token(at_ns=T0 + MS)
    request.end(T0 + MS)
    trail.flush()
    assert (trail.stats.errors, len(trail.spans("chat m"))) == (0, 1)


def test_requests_are_recorded_as_soon_as_the_global_provider_is_set(trail, monkeypatch, reader, provider):
    api = _internal._ProxyMeterProvider()
    monkeypatch.setattr(metrics, "get_meter", lambda name, *_: api.get_meter(name))
    monkeypatch.setattr(trail._pipeline, "_metrics", late := metrics.Metrics(None))
    trail._pipeline._assembler._ended_requests._on_end = late.record
    for _ in range(2):
        start(trail).end(T0 + MS)
        trail.flush()
        api.on_set_meter_provider(provider)
    assert histogram(reader, DURATION) == expected(DURATION, [1])
