"""The page itself: every metric, both formats, readiness."""

import re
import subprocess
import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from collector.metrics import metrics
from tests.collector.metrics.scraped import OPENMETRICS
from tests.collector.rows import SECOND


def test_every_metric_is_exposed(busy, clock):
    clock.now += 31 * SECOND
    exposed = {f.name: f for f in parse_openmetrics(busy.get("/metrics", headers=OPENMETRICS).text)}
    declared = {m.name.removesuffix("_total"): m for m in metrics.ALL}
    assert exposed.keys() == declared.keys()
    for name, metric in declared.items():
        assert (exposed[name].type, exposed[name].documentation) == (metric.kind, metric.help)
        labels = {label for s in exposed[name].samples for label in s.labels} - {"le"}
        assert labels == set(metric.labels), name


def test_the_classic_format_is_what_promtool_accepts(busy):
    answer = busy.get("/metrics", headers={"accept": "text/plain;version=0.0.4"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert {f.name for f in parse_text(answer.text)} >= {"tokentrail_slo_requests", "tokentrail_collector_ready"}
    checked = subprocess.run(["promtool", "check", "metrics"], input=answer.text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout + checked.stderr == ""


def test_readiness_and_health(api, ingest_status):
    for path, status, key in (("/healthz", 200, "status"), ("/readyz", 503, "reason")):
        answer = api.client.get(path)
        assert (answer.status_code, key in answer.json()) == (status, True)
    ingest_status.set_ready("start")
    assert api.client.get("/readyz").status_code == 200
    assert api.client.get("/readyz").json() == {"status": "ready"}
    ingest_status.wal_pending("traces", 800, 3_000_000, time.time_ns() - 100 * SECOND)
    degraded = api.client.get("/readyz")
    assert (degraded.status_code, degraded.json()["status"]) == (200, "degraded")
    assert re.fullmatch(r"3.0 MB of traces wait for the store, the oldest for 10\d s", degraded.json()["reason"])
    ingest_status.set_not_ready("store", "the disk is full")
    assert api.client.get("/readyz").status_code == 503
    assert api.client.get("/readyz").json()["reason"] == "the disk is full"


def test_labels_that_were_cut_or_left_out_are_counted(scrape, arrive):
    name = ("tokentrail_collector_labels_cut_total",)
    assert scrape()[name] == 0
    arrive(*({"labels": labels} for labels in ({"a": "x", "_cut": "3"}, {}, {"_cut": "no"}, {"_cut": "2"})))
    assert scrape()[name] == 5
    arrive({"labels": {"_cut": str(10**9)}})
    assert scrape()[name] == 5 + 1024  # a sender may say so itself


def test_a_page_has_a_bound_in_bytes_beyond_which_it_has_no_histograms_and_says_so(busy, monkeypatch, caplog):
    monkeypatch.setattr("collector.metrics.page.MOST_BYTES", 1000)
    short = busy.get("/metrics", headers=OPENMETRICS)
    families = [*parse_openmetrics(short.text)]
    assert {family.type for family in families} == {"counter", "gauge"}
    (left_out,) = [one for one in families if one.name == "tokentrail_collector_metrics_left_out_bytes"]
    monkeypatch.undo()
    more = len(busy.get("/metrics", headers=OPENMETRICS).content) - len(short.content)
    assert left_out.samples[0].value == pytest.approx(more, abs=100), "but for gauges of the moment"
    whole = busy.get("/metrics", headers={"accept": "text/plain;version=0.0.4"}).text
    assert "tokentrail_collector_metrics_left_out_bytes 0.0\n" in whole
    of_histograms = len(re.findall(r"^gen_ai_server_.*_bucket", whole, re.MULTILINE))
    assert left_out.samples[0].value > 100 * of_histograms > 0
    assert "/metrics leaves out histograms" in caplog.text
