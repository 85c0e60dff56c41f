"""Histograms of latencies, their buckets and exemplars."""

import time

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.samples import Exemplar

from collector.ask.queries import Queries
from collector.metrics.filled import FilledTables
from collector.metrics.histograms import bucket_edges
from collector.metrics.series import Histogram
from collector.metrics.store_counters import StoreCounters
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.metrics.scraped import MS, OPENMETRICS
from tests.collector.rows import NOW, SECOND
from tests.support.otlp import Request
from tests.support.recordings import join


def test_histograms_hold_exactly_the_requests_that_ended_ok(scrape, arrive):
    made = [
        {"e2e": 80 * SECOND, "ttft_ns": int(t) * MS, "tpot_ns": float(t) * MS / 7}
        for t in (1, 2, 99, 100, 101, 499, 500, 501, 20_000)
    ]
    left = {"status": "cancelled", "ttft_ns": MS, "output_tokens": None}
    arrive(*made, {"status": "error", "ttft_ns": MS}, left, {"output_tokens": 1, "ttft_ns": MS})
    samples = scrape()

    def buckets(metric):
        return {
            float(next(x for x in key if x.startswith("le="))[3:]): value
            for key, value in samples.items()
            if key[0] == f"{metric}_bucket"
        }

    ttft = [r["ttft_ns"] / 1e9 for r in made] + [0.001]
    assert buckets("gen_ai_server_time_to_first_token_seconds") == {
        le: np.sum(np.array(ttft) <= le) for le in buckets("gen_ai_server_time_to_first_token_seconds")
    }
    assert {0.001, 0.5, 10.0, np.inf} <= buckets("gen_ai_server_time_to_first_token_seconds").keys()
    tpot = buckets("gen_ai_server_time_per_output_token_seconds")
    values = np.array([r["tpot_ns"] for r in made])
    assert tpot == {le: np.sum(values <= le * 1e9) for le in tpot}
    assert 60.0 in buckets("gen_ai_server_request_duration_seconds")  # an SLO's threshold, which no convention advises
    labels = [f"{name}={value}" for name, value in sorted(
        {"gen_ai_request_model": "m", "engine": "tokentrail", "service_name": "engine", "variant": "baseline",
         "tenant": "", "slo_class": "", "vantage": "server", "gen_ai_operation_name": "chat",
         "gen_ai_provider_name": "tokentrail"}.items())]  # fmt: skip
    assert samples["gen_ai_server_time_to_first_token_seconds_count", *labels] == 10
    assert samples["gen_ai_server_time_to_first_token_seconds_sum", *labels] == pytest.approx(sum(ttft))
    assert samples["tokentrail_requests_total", *sorted([*labels, "status=ok"])] == 10
    assert samples["tokentrail_tokens_total", *sorted([*labels, "gen_ai_token_type=output"])] == 101


@pytest.mark.parametrize("over", [0, 10, 20, 30])
def test_a_value_is_in_the_first_bucket_whose_edge_it_does_not_exceed(over):
    histogram = Histogram([10, 20, 30])
    histogram.add(over, 1, 5.0, Exemplar({"trace_id": "1"}, 5.0))
    assert histogram.counts.index(1) == over // 10


def test_the_edges_are_those_that_the_conventions_advise():
    advised_s = {
        "ttft": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80",
        "tpot": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5",
        "e2e": "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92",
    }
    for name, edges_ns in bucket_edges([]).items():
        assert [ns / SECOND for ns in edges_ns] == [float(edge) for edge in advised_s[name].split()]


def test_requests_of_one_token_are_counted_as_an_engine_sends_them(rows):
    """No time passes between one token, and a division by no gap is below the NULL of such a TPOT."""
    spans = [("vllm.llm_engine", "llm_request"), ("sglang server", " Req 1"), ("other", "chat m"), ("tokentrail", "m")]
    bodies = []
    for trace, (scope, name) in enumerate(spans, start=1):
        request = Request(scope=scope)
        for first_s in (0.6, 0.2):
            said = dict.fromkeys(FIRST_TOKEN, first_s) | dict.fromkeys(ONE_TOKEN, 1) | OF_ENGINES
            request.span(name, trace=trace, span=int(first_s * 10), ns=600 * MS, kind=2, attributes=said)
        bodies.append(request.body())
    insert_otlp(rows.store, TRACES, b"".join(bodies), "one-token")
    join(rows.store)
    queries = Queries(rows.store)
    counters = StoreCounters(queries, FilledTables(queries), [], clock=time.time_ns)
    for (segment,) in rows.store.query("SELECT DISTINCT segment FROM requests").result_rows:
        counters.on_segment(segment)
    counters.count_segments()
    samples = [sample for family in counters.families()[0] for sample in family.samples]
    counted = {s.labels["engine"] for s in samples if s.name == "tokentrail_requests_total"}
    assert counted == {"vllm", "sglang", "genai", "tokentrail"}
    assert not [s for s in samples if s.name.startswith("gen_ai_server_time_per_output_token")]


FIRST_TOKEN = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
ONE_TOKEN = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
OF_GENAI = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
OF_ENGINES = OF_GENAI | {"gen_ai.latency.e2e": 0.6, "module": "sglang::request"}


def test_exemplars_lead_from_a_bucket_to_a_trace(client, arrive, rows):
    arrive({"trace_id": "ab" * 16, "ttft_ns": 123 * MS}, {"trace_id": "cd" * 16, "ttft_ns": 700 * MS})
    text = client.get("/metrics", headers=OPENMETRICS).text
    found = {
        (s.exemplar.labels["trace_id"], s.exemplar.value)
        for family in parse_openmetrics(text)
        for s in family.samples
        if s.exemplar and s.name == "gen_ai_server_time_to_first_token_seconds_bucket"
    }
    assert found == {("ab" * 16, 0.123), ("cd" * 16, 0.7)}


def test_the_exemplar_is_the_latest_of_its_bucket(client, arrive):
    times = [("aa" * 16, 3, SECOND), ("bb" * 16, 1, 20 * SECOND), ("cc" * 16, 2, 3 * SECOND)]
    arrive(*({"trace_id": t, "ttft_ns": 123 * MS, "ended": NOW - ago, "e2e": e2e} for t, ago, e2e in times))
    families = parse_openmetrics(client.get("/metrics", headers=OPENMETRICS).text)
    exemplars = [s.exemplar for family in families for s in family.samples if "first_token" in s.name and s.exemplar]
    assert [exemplar.labels["trace_id"] for exemplar in exemplars] == ["bb" * 16]


def test_a_failure_has_a_duration_and_a_type(arrive, scrape):
    arrive({"status": "error", "error_type": "timeout", "e2e": SECOND}, {"status": "error"}, {})
    counts = {key: n for key, n in scrape().items() if key[0] == "gen_ai_server_request_duration_seconds_count"}
    by_type = {part[11:]: n for key, n in counts.items() for part in key if part.startswith("error_type=")}
    assert by_type == {"": 1, "_OTHER": 1, "timeout": 1}
