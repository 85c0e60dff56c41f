"""A real collector whose writer stands still, and one that is killed: /metrics and the API agree."""

import re
import time
from typing import Any

from collector.app.service import Service
from collector.pipeline.settings import Settings
from tests.collector.rows import SECOND
from tests.support.collector import Collector
from tests.support.otlp import Request
from tests.support.stores import new_store
from tokentrail import semconv


def counted(live):
    """Judged, good and lost requests, as /metrics has them."""
    live.refresh()
    values = {metric.name: sum(values.values()) for metric, values in live.counters._series.counters.items()}
    names = "tokentrail_slo_requests_total", "tokentrail_slo_good_requests_total", "tokentrail_requests_lost_total"
    return [values.get(name, 0) for name in names]


def announcement(trace, at_ns, **attributes):
    request = Request()
    request.span(
        semconv.OPEN_SPAN, trace=trace, span=7, parent=1, start=at_ns - SECOND, ns=SECOND,
        attributes={semconv.OPERATION_NAME: "chat", "tokentrail.slo_class": "chat", **attributes},
    )  # fmt: skip
    return request.body()


def end(trace, at_ns):
    request = Request()
    request.span(
        "chat m", trace=trace, kind=2, start=at_ns - SECOND, ns=SECOND,
        attributes={semconv.OPERATION_NAME: "chat", "gen_ai.request.model": "m", "tokentrail.slo_class": "chat",
                    "gen_ai.usage.output_tokens": 5, "gen_ai.response.time_to_first_chunk": 0.1,
                    "tokentrail.time_to_first_token": 0.1},
    )  # fmt: skip
    return request.body()


SLOS = """
slos:
  - {name: chat, objective: "0.95", window: 30d, select: {slo_class: [chat]}, thresholds: {e2e: 60s}}
"""


def test_a_writer_that_stands_still_makes_no_lost_requests(tmp_path):
    """A real store, log and writer; the writer takes nothing for longer than a silence may last.

    The silence may last 4 s, so that a machine that stands still for a second or two makes none itself.
    """
    free = "127.0.0.1:0"
    slos = tmp_path / "slos.yaml"
    slos.write_text(SLOS)
    new_store(tmp_path / "data" / "store")
    service = Service(
        Settings(data_dir=tmp_path / "data", otlp_http=free, otlp_grpc=free, api=free, slos=slos,
                 lost_after_s=4.0, segment_age_s=0.05)
    )  # fmt: skip
    live: Any = next(stage for stage in service._stages if stage.name == "metrics")
    writer: Any = next(stage for stage in service._stages if stage.name == "traces writer")
    ingest: Any = next(stage for stage in service._stages if stage.name == "traces commit")
    service.start()
    try:

        def stored():
            return service.status.snapshot().wal_segments_pending == 0

        def wait(condition, timeout_s=120.0):
            deadline = time.monotonic() + timeout_s
            while not condition():
                assert time.monotonic() < deadline, f"{condition} did not come true\n{service.status.snapshot()}"
                time.sleep(0.02)

        def announce():
            ingest.submit(announcement(1, time.time_ns())).result()

        announce()
        wait(stored)

        def announce_for(duration_s):
            until = time.monotonic() + duration_s
            while time.monotonic() < until:
                announce()
                time.sleep(0.8)
                assert counted(live)[2] == 0

        with writer.paused(5):
            announce_for(6)
            assert "of traces wait for the store, the oldest for" in service.status.snapshot().behind
        announce_for(2.5)
        ingest.submit(end(1, time.time_ns())).result()
        wait(lambda: counted(live)[0] == 1)
        assert counted(live) == [1, 1, 0]
        assert service.status.snapshot().behind == ""
        (found,) = live._evaluate()
        assert (found.requests.good, found.requests.lost) == (1, 0)
    finally:
        assert service.stop() is True


def test_a_collector_that_is_killed_with_its_engine_says_what_the_store_says(tmp_path):
    slos = tmp_path / "slos.yaml"
    slos.write_text(SLOS)
    collector = Collector(tmp_path / "data", "--lost-after-s", "2", "--slos", str(slos)).start()

    def values():
        text = collector.get("/metrics").text
        names = "slo_requests_total", "slo_good_requests_total", "requests_lost_total"
        return [
            sum(float(n) for n in re.findall(rf"^tokentrail_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))
            for name in names
        ]

    def from_api():
        requests = collector.get("/api/v1/slos/chat").json()["requests"]
        judged = requests["total"] - requests["excused"] - requests["undetermined"] + requests["lost"]
        return [judged, requests["good"], requests["lost"]]

    try:
        for trace in range(1, 11):
            assert collector.post(end(trace, time.time_ns())).status_code == 200
        collector.wait_until(lambda: values() == [10, 10, 0])
        for trace in range(101, 106):
            assert collector.post(announcement(trace, time.time_ns())).status_code == 200
        for trace in range(11, 16):
            assert collector.post(end(trace, time.time_ns())).status_code == 200
        collector.kill()
        time.sleep(3)
        collector.start()
        collector.wait_until(lambda: values() == [20, 15, 5])
        assert from_api() == [20, 15, 5]
        assert collector.stop() == 0
        collector.start()
        assert values() == [20, 15, 5]
    finally:
        if collector.process.poll() is None:
            collector.kill()
