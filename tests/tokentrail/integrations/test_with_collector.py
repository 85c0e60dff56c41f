"""Rows of an engine that is recorded from inside say which engine it is, in flight and afterwards."""

import pytest

from tests.support.collector import Collector
from tests.tokentrail.support import MS
from tokentrail import Phase, now_ns
from tokentrail.integrations.process import engine_trail
from tokentrail.integrations.recorder import EngineRecorder

pytestmark = pytest.mark.e2e


def test_rows_say_the_engine(tmp_path, monkeypatch):
    with Collector(tmp_path / "data") as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.urls["otlp-http"])
        monkeypatch.setenv("TOKENTRAIL_STRICT", "true")
        recorder = EngineRecorder("vllm", "m", lambda _: engine_trail("vllm"))
        arrival = now_ns() - 100 * MS
        with recorder.trail().cold_start("m", start_ns=arrival - 50 * MS):
            pass
        given = {"operation": "chat", "request_id": "chatcmpl-1", "arrival_ns": arrival, "input_tokens": 3}
        for index in range(2):
            recorder.arrived(f"{index}_a", **given, choices=2, index=index, parent="a")
        recorder.arrived("b", **given | {"request_id": "chatcmpl-2"})
        for key in ("0_a", "1_a"):
            recorder.entered(key, Phase.PREFILL, arrival + 2 * MS)
            recorder.finished(key, finish_reason="stop")
        recorder.emitted(["0_a", "1_a"], [1, 1])
        recorder.stepped(0, emitted_ns=arrival + 10 * MS, end_ns=arrival + 9 * MS, running=2, kv_used=4, kv_total=9)
        assert recorder.trail().flush(20)
        path = f"/api/v1/requests/{recorder._open['b'].request.trail.trace_id:032x}"
        collector.wait_until(lambda: collector.get(path).status_code == 200)
        opened = collector.get(path).json()["request"]
        [row] = collector.get("/api/v1/requests?start=-15m").json()["requests"]
        [start] = collector.get("/api/v1/cold_starts?start=-15m").json()["cold_starts"]
        seen = collector.get(f"/api/v1/requests/{row['trace_id']}").json()
        recorder.trail().shutdown(5)
    assert [(one["request_id"], one["engine"], one["status"]) for one in (row, opened)] == [
        ("chatcmpl-1", "vllm", "ok"), ("chatcmpl-2", "vllm", "in_flight"),
    ]  # fmt: skip
    assert (start["engine"], start["model"]) == ("vllm", "m")
    assert (row["ttft_s"], row["output_tokens"]) == (0.010, 2)
    assert [(s["kv_blocks_used"], s["duration_s"]) for s in seen["steps"]] == [(4, 0.007)]
