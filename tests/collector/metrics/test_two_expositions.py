"""Rules and dashboards say of the pages of two collectors on one store what they say of the page of one collector."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from alerts.engine_packs import packs
from alerts.generate import generate
from collector.ask.queries import Queries
from collector.base.status import IngestStatus
from collector.incidents.top_cause import Reason
from collector.keep.usage import Usage
from collector.metrics.filled import FilledTables
from collector.metrics.live import Live
from collector.metrics.page import MetricsPage
from collector.metrics.present import Processes
from collector.metrics.store_counters import StoreCounters
from collector.slo.model import load_slos
from collector.store.definitions import read_schema
from collector.store.early_claims import EarlyClaims
from tests.alerts.test_dashboards import BOARDS
from tests.collector.rows import NOW, SECOND

GROWS = re.compile(r"_(total|bucket|count|sum)$")
ENGINE = 'engine="vllm",service="svc",instance="e"'
OF_ENGINE = {
    "requests_running": "1x60",
    "requests_waiting": "8x60",
    "generation_tokens_total": "5x60",
    "up": "1x10 0x50",
}
"""Samples of engines are in the store, so both collectors expose them. Twice 8 waiting requests would be a queue."""
WHY = [Reason("chat", None, "All missed TTFT.", {"wait_kv": 0.9, "batch": 0.1}, ())]
DISK = {"host": "", "name": "default", "path": "/", "free_bytes": 40 * 10**9, "total_bytes": 100 * 10**9}
FIRE = {
    "TokentrailEngineLost": 1, "TokentrailEngineHung": 1, "TokentrailKvCacheFull": 1, "TokentrailKvCacheEvictions": 1,
    "EngineNoProgress": 1, "EngineNotReady": 1, "TokentrailSloBurn": 1,
    "EngineColdStarts": 0, "EngineQueueGrowth": 0,
}  # fmt: skip


@pytest.fixture
def open_collector(rows, slos_file, clock, tmp_path):
    """Opens a collector by its name; `shared` ones agree on who counts a request that has not ended."""
    rows.store.client().command("DROP TABLE early_claims SYNC")
    rows.store.client().command(read_schema().tables["early_claims"])

    def opened(name, *, shared):
        folder = tmp_path / name
        folder.mkdir()
        asks, usage, slos = Queries(rows.store), Usage(rows.store, folder), load_slos(slos_file)
        usage.disks = lambda: [DISK]  # other programs fill the real one between two pages
        claims = EarlyClaims(rows.store) if shared else None
        filled = FilledTables(asks)
        counters = StoreCounters(asks, filled, slos, clock=clock, folder=folder, claims=claims)
        processes = Processes(asks, filled, lost_after_ns=30 * SECOND)
        live = Live(
            counters, processes, asks, usage, lambda: slos, list, lambda _: WHY,
            clock=clock, heard_until=clock, shared_store=shared,
        )  # fmt: skip
        status = IngestStatus()
        return live, MetricsPage(live, status, usage, heard_until=clock)

    return opened


def test_a_collector_that_stores_nothing_exposes_what_the_other_one_stores(open_collector, rows, clock):
    live, _ = open_collector("a", shared=True)
    live.refresh()
    clock.now += 10 * SECOND
    rows.open(start=clock.now - SECOND, seen=clock.now)
    process = {"service": "s", "instance": "e", "engine": "vllm", "name": "running", "kind": "gauge"}
    rows.insert("samples", [process | {"time": (clock.now - SECOND) // 10**6, "value": 3.0}])
    live.refresh()
    found = {(f.name, *s.labels.values()): s.value for f in live.families[1] for s in f.samples}
    assert found["tokentrail_requests_in_flight", "engine", "i-1", ""] == 1
    assert found["tokentrail_engine_requests_running", "vllm", "s", "e", ""] == 3


def happens(rows, clock):
    """Five minutes of trouble, in two segments."""
    for segment, bad in (("1", 2), ("2", 7)):
        found = rows.requests(
            [
                {
                    "queue_ns": SECOND // 10,
                    "slo_class": "chat",
                    "status": "error" if i < bad else "ok",
                    "segment": segment,
                    "ended": clock.now - 1,
                }
                for i in range(10)
            ]
        )
        rows.causes([(row, {"ttft_wait_kv_us": 400_000}) for row in found])
        rows.cold_start(start=clock.now - 9 * SECOND, duration=SECOND, segment=segment)
        rows.cold_start(start=clock.now - 9 * SECOND, duration=SECOND, segment=segment, instance="i-2")
    for i, segment in enumerate("1111111222222"):
        rows.kv_event(start=clock.now - i - 1, segment=segment)
    rows.step(start=clock.now - 2 * SECOND, running=60, waiting=4, kv_blocks_used=98, kv_blocks_total=100)
    rows.step(start=clock.now - 80 * SECOND, instance="hung")
    rows.open(start=clock.now - 90 * SECOND, seen=clock.now - SECOND, instance="hung")
    rows.open(start=clock.now - 90 * SECOND, seen=clock.now - 50 * SECOND, instance="dead")


@pytest.fixture
def pages(open_collector, rows, clock):
    """The pages of the collectors `a` and `b`, and of `c`, which counts both segments."""
    clock.now = NOW - 60 * SECOND
    opened = {name: open_collector(name, shared=name != "c") for name in "abc"}
    clock.now = NOW
    happens(rows, clock)
    for name, segments in {"a": "1", "b": "2", "c": "12"}.items():
        for segment in segments:
            opened[name][0].counters.on_segment(segment)
            opened[name][0].counters.on_explained(segment)
    for _ in range(2):  # a series is 0 in the first scrape that has it
        texts = {}
        for name, (live, page) in opened.items():
            live.refresh()
            texts[name] = page.text(generate_latest, "text/plain").decode()
    return texts


def input_series(pages):
    """The pages as promtool wants them: after 105 s, counters jump from 0 to their values."""
    for name, text in pages.items():
        own = f'cluster="{"one" if name == "c" else "two"}",collector="{name}",job="tokentrail-collector"'
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join([*(f'{key}="{value}"' for key, value in sample.labels.items()), own])
                value = f"{sample.value:f}"
                values = f"0x6 {value}x60" if GROWS.search(sample.name) else f"{value}x60"
                yield {"series": f"{sample.name}{{{labels}}}", "values": values}
        for metric, values in OF_ENGINE.items():
            yield {"series": f"tokentrail_engine_{metric}{{{ENGINE},{own}}}", "values": values}


def same(of_two, of_one):
    """PromQL that is 1 when both have the same series with the same values, and at least one."""
    two, one = (f"(sum without (cluster) ({expr}))" for expr in (of_two, of_one))
    return f"count({two} == {one}) == bool count({one}) and (count({two}) == count({one}))"


def test_two_collectors_say_what_one_says(pages, slos_file, tmp_path):
    files = generate(load_slos(slos_file)) | {"pack.yml": packs()["tokentrail"]}
    for name, text in files.items():
        (tmp_path / name).write_text(re.sub(r"\n  interval: .*", "", text))
    asked = []
    for board in BOARDS.values():
        for panel in board["panels"]:
            for target in panel["targets"]:
                if "$cluster" in target["expr"] and "{{instance}}" not in target["legendFormat"]:
                    expr = re.sub(r"\$(service|slo)\b", ".*", target["expr"]).replace("$__rate_interval", "5m")
                    asked.append(same(expr.replace("$cluster", "two"), expr.replace("$cluster", "one")))
    assert len(asked) > 30
    by = "sum by (alertname, severity, slo, service_name, service_instance_id, service, instance)"
    alerts = 'ALERTS{{alertstate="firing",alertname!~".*(Collector|Unwatched).*",cluster="{}"}}'
    checks = [(expr, "4m") for expr in asked]
    checks += [(same(*(f"{by} ({alerts.format(cluster)})" for cluster in ("two", "one"))), "6m")]
    tests = [{"expr": expr, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]} for expr, at in checks]
    for alert, n in FIRE.items():
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing",cluster="two"}})'
        at = "14m" if alert == "TokentrailKvCacheFull" else "6m"  # full for ten minutes, and not for one
        tests.append({"expr": firing, "eval_time": at, "exp_samples": [{"labels": "{}", "value": n}] if n else []})
    content = {
        "rule_files": [*files],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": [*input_series(pages)], "promql_expr_test": tests}],
    }
    path = Path(tmp_path / "test.yml")
    path.write_text(yaml.safe_dump(content, width=10**6))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
