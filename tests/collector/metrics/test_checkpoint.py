"""Series in memory, and what of them is on the disk for the next process."""

import pytest
from prometheus_client.samples import Exemplar

from collector.metrics import checkpoint, histograms, metrics
from collector.metrics.checkpoint import Checkpoint, dump_series, load_series
from collector.metrics.early import EarlyRequests
from collector.metrics.series import Series
from collector.metrics.slo_counters import SloCounters
from collector.slo.model import Slo

A, B = ("m", "a", ""), ("m", "b", "")
LABELS = ("m",) * len(metrics.TTFT.labels)


@pytest.fixture
def series():
    series = Series()
    series.add(metrics.LOST, A, 3, at_s=100.0)
    series.add(metrics.LOST, B, 4, at_s=200.0)
    series.set(metrics.IN_FLIGHT, A, 7)
    series.histogram(metrics.TTFT, LABELS, [10, 20], at_s=300.0).add(10, 2, 31, Exemplar({}, 1.0, 1.0))
    return series


def test_the_next_process_has_the_same_values_times_and_scraped_series(series):
    scraped = {(metrics.LOST, A), (metrics.TTFT, LABELS)}
    found, seen = load_series(dump_series(series, scraped))
    assert (found.counters, found.gauges, found.created, seen) == (
        {metrics.LOST: {A: 3, B: 4}}, {metrics.IN_FLIGHT: {A: 7}}, series.created, scraped,
    )  # fmt: skip
    histogram = found.histograms[metrics.TTFT][LABELS]
    assert ([*histogram.edges], histogram.counts, histogram.sum_ns) == ([10, 20], [0, 2, 0], 31)


def test_counters_of_a_version_whose_processes_had_no_tenant_go_on():
    def saved(metric, *labels):
        return [metric.name, labels, 100.0, True, 7]

    request = ("m", "chat", "vllm", "vllm", "s", "v", "t", "c", "server")
    state = {"counters": [saved(metrics.LOST, "s", "i"), saved(metrics.KV_EVICTED, "s", "i", "preemption"),
                          saved(metrics.REQUESTS, *request, "ok"), saved(metrics.LOST, "s")]}  # fmt: skip
    found, _ = load_series(state)
    assert found.counters == {
        metrics.LOST: {("s", "i", ""): 7},
        metrics.KV_EVICTED: {("s", "i", "", "preemption"): 7},
        metrics.REQUESTS: {(*request, "", "ok"): 7},
    }


def test_a_segment_is_counted_once_wherever_a_process_dies_while_it_saves(tmp_path, monkeypatch):
    before = Checkpoint(tmp_path)
    for segment in ("7", "7", "8"):
        before.note(segment)
    assert before.load() == ({}, ["7", "8"])

    def dies_behind_the_first(path, content):
        monkeypatch.setattr(checkpoint, "write_durably", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        path.write_bytes(content)

    monkeypatch.setattr(checkpoint, "write_durably", dies_behind_the_first)
    with pytest.raises(OSError, match="killed"):
        before.save({"counted": ["7"]}, ["8"])
    state, uncounted = Checkpoint(tmp_path).load()
    assert (state["counted"], uncounted) == (["7"], ["8"])


def test_the_series_of_one_process_go_with_the_times_of_their_beginning(series):
    series.drop(metrics.LOST.labels, A)
    assert (series.counters, series.gauges) == ({metrics.LOST: {B: 4}}, {metrics.IN_FLIGHT: {}})
    assert series.created == {(metrics.LOST, B): 200.0, (metrics.TTFT, LABELS): 300.0}
    series.add(metrics.LOST, A, 1)
    assert (metrics.LOST, A) not in series.created


def test_an_slo_that_is_gone_from_the_file_has_no_series_so_that_its_alert_fires():
    before = Series()
    for labels, n in {("gone", ""): 7, ("gone", "acme"): 3, ("kept", "acme"): 4}.items():
        for metric in (metrics.SLO_REQUESTS, metrics.SLO_GOOD, metrics.SLO_UNDETERMINED):
            before.add(metric, labels, n, at_s=100.0)
    before.set(metrics.SLO_IN_FLIGHT, ("gone",), 1)
    series, _ = load_series(dump_series(before, set()))
    kept = Slo.model_validate({"name": "kept", "objective": "0.9", "window": "30d", "thresholds": {"e2e": "1s"}})
    SloCounters(series, [kept], EarlyRequests(()), lambda: 5 * 10**9)
    assert series.counters == {
        metric: {("kept", "acme"): 4, ("kept", ""): 0}
        for metric in (metrics.SLO_REQUESTS, metrics.SLO_GOOD, metrics.SLO_UNDETERMINED)
    }
    assert series.gauges == {metrics.SLO_IN_FLIGHT: {}}
    assert {labels for _, labels in series.created} == {("kept", "acme"), ("kept", "")}


def test_a_largest_value_is_news_when_it_grows():
    series = Series()
    assert [series.raise_to(metrics.LAST_PREEMPTION, A, value) for value in (5, 5, 4, 6)] == [True, False, False, True]


def test_a_histogram_begins_again_when_the_thresholds_have_changed():
    series, edges = Series(), histograms.bucket_edges([])
    for name in ("ttft", "e2e"):
        metric = {"ttft": metrics.TTFT, "e2e": metrics.E2E}[name]
        series.histogram(metric, LABELS, edges[name]).counts[0] = 1
    histograms.drop_old_histograms(series, {**edges, "e2e": [*edges["e2e"], 10**15]})
    assert {metric: [*values] for metric, values in series.histograms.items()} == {
        metrics.TTFT: [LABELS],
        metrics.E2E: [],
    }


def test_error_types_beyond_a_limit_count_as_other():
    series, edges = Series(), histograms.bucket_edges([])
    row = {"status": "error", "latest": (b"\0" * 16, None, None, 5), "at_ns": 1, "n": 1, "e2e_over": 0, "e2e_sum": 5}
    for n in range(60):
        histograms.add_latencies(series, edges, row | {"error_type": f"type {n:02}"}, LABELS, 1)
    found = [labels[-1] for labels in series.histograms[metrics.E2E]]
    assert found == [*(f"type {n:02}" for n in range(50)), "_OTHER"]
    assert sum(series.histograms[metrics.E2E][*LABELS, "_OTHER"].counts) == 10


def test_a_type_of_an_error_has_1024_characters_at_most():
    series, edges = Series(), histograms.bucket_edges([])
    row = {"status": "error", "latest": (b"\0" * 16, None, None, 5), "at_ns": 1, "n": 1, "e2e_over": 0, "e2e_sum": 5}
    for length in (1024, 1025):
        histograms.add_latencies(series, edges, row | {"error_type": "e" * length}, LABELS, 1)
    assert [labels[-1] for labels in series.histograms[metrics.E2E]] == ["e" * 1024, "_OTHER"]
