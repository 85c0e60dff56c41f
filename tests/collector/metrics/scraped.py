"""Samples of a scrape, and what tests ask of them."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.collector.rows import SECOND

MS = 1_000_000
OPENMETRICS = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
CHAT = {"slo_class": "chat", "e2e": SECOND, "ttft_ns": 100 * MS, "tpot_ns": 10.0 * MS}


def samples_of(answer):
    """Samples by name and labels, through the independent parser. A process without a tenant has no such label."""
    assert answer.status_code == 200, answer.text
    return {
        (s.name, *(f"{k}={v}" for k, v in sorted(s.labels.items()) if v or k != "process_tenant")): s.value
        for family in parse_openmetrics(answer.text)
        for s in family.samples
    }


def slo(samples, name="chat"):
    return tuple(
        samples[f"tokentrail_slo_{kind}_total", f"slo={name}", "tenant="] for kind in ("requests", "good_requests")
    )


def running_now(live):
    """Running requests by instance, after a segment was stored."""
    live.counters.on_segment(f"a segment of {live._clock()}")
    live.refresh()
    (samples,) = ([*f.samples] for f in live.families[1] if f.name == "tokentrail_requests_running")
    return {s.labels["service_instance_id"]: s.value for s in samples}


def ended_of(tenant, live):
    """Requests of a tenant that ended well, as they are published."""
    (samples,) = ([*f.samples] for f in live.families[0] if f.name == "tokentrail_requests")
    asked = {"tenant": tenant, "status": "ok"}
    return [s.value for s in samples if s.name.endswith("_total") and asked.items() <= s.labels.items()]
