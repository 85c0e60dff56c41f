"""vLLM recorded from inside, through the store: waits by elimination, preemptions, and how far that explains."""

import pytest

from collector.base.status import IngestStatus
from collector.causes.stage.stage import Explainer
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.causes.stage.conftest import AT_ONCE, LATENCIES
from tests.tokentrail.integrations.conftest import fresh_plugin
from tests.tokentrail.integrations.test_vllm_tape import load, play

TAPES = {"pressure": {"estimated": 32}, "mixed": {"estimated": 48, "phases": 12}}


@pytest.fixture(scope="module", params=TAPES)
def tape(request, module_store):
    """A tape, played to the hooks, whose spans are stored and explained."""
    with pytest.MonkeyPatch.context() as monkeypatch, fresh_plugin(monkeypatch) as plugin:
        (trail,) = play(*load(request.param), plugin, monkeypatch).trails
    for table in ("requests", "phases", "steps", "kv_events", "causes", "cold_starts", "explained_segments"):
        module_store.client().command(f"TRUNCATE TABLE {table}")
    assert trail.flush(5)
    insert_otlp(module_store, TRACES, b"".join(trail.transport.bodies), request.param)
    status = IngestStatus()
    assert Explainer(module_store, status, waits=AT_ONCE).run_once()
    assert status.snapshot().explain_failures == 0
    return request.param


@pytest.fixture
def seconds(module_store):
    def seconds(*terms, table="causes FINAL"):
        return module_store.query(f"SELECT sum({' + '.join(terms)}) / 1e6 FROM {table}").result_rows[0][0]

    return seconds


def test_every_request_adds_up_and_is_explained_as_far_as_vllm_tells(tape, module_store):
    """Steps have no number of prompt tokens without vLLM's iteration details, so no law of steps can be made."""
    asked, found = (
        module_store.query(
            f"SELECT end, {key} AS key, {', '.join(LATENCIES)} FROM {table} ORDER BY end, key"
        ).result_rows
        for key, table in (("toUInt32(cityHash64(trace_id, span_id))", "requests"), ("request_key", "causes FINAL"))
    )
    assert found == asked
    levels = module_store.query("SELECT level, count() FROM causes FINAL GROUP BY level").result_rows
    assert dict(levels) == TAPES[tape]


def test_time_without_blocks_and_in_the_queue_is_named(tape, seconds):
    lost = seconds("ifNull(preempted_ns, 0) / 1000", table="requests")
    assert seconds("ttft_preempted_us", "rest_preempted_us") == pytest.approx(lost, rel=0.001)
    queued = seconds("ifNull(queue_ns, 0) / 1000", table="requests")
    waits = seconds("ttft_wait_batch_us", "ttft_wait_kv_us", "ttft_wait_tokens_us")
    if tape == "pressure":
        assert lost > 20
        assert seconds("ttft_wait_kv_us") > 0.9 * waits, "few blocks, and not places, are what it lacked"
        assert waits == pytest.approx(queued, rel=0.03)
    else:
        assert (lost, waits) == (0, 0), "nobody waited"
