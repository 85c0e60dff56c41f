"""Recordings of real engines through the store: each request gets causes that add up to its stored latencies."""

import json

import pytest

from collector.base.status import IngestStatus
from collector.causes.split.names import PARTS
from collector.causes.stage.stage import Explainer
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.causes.stage.conftest import AT_ONCE, LATENCIES
from tests.support.recordings import DATA, Recording, replay

SGLANG = ("sglang-0.5.23", "sglang-0.5.23-kv-pressure", "sglang-0.5.23-retract")
VLLM = ("vllm-0.32", "vllm-0.32-kv-pressure")


@pytest.fixture(scope="module")
def status():
    return IngestStatus()


@pytest.fixture(scope="module")
def store(module_store, status):
    replay(module_store, "engine-h100")
    for name in SGLANG:
        Recording(f"sglang/{name}.tar.xz").replay(module_store)
    for name in VLLM:
        body = b"".join(file.read_bytes() for file in sorted((DATA / name / "traces").glob("*.bin")))
        insert_otlp(module_store, TRACES, body, name)
    assert Explainer(module_store, status, waits=AT_ONCE).run_once()
    return module_store


def seconds(store, cause, where="1"):
    sql = f"SELECT sum(ttft_{cause}_us + rest_{cause}_us) / 1e6 FROM causes FINAL WHERE {where}"
    return store.query(sql).result_rows[0][0]


def test_every_request_is_explained_once_and_adds_up_exactly(store, status):
    asked, found = (
        store.query(f"SELECT end, {key} AS key, {', '.join(LATENCIES)} FROM {table} ORDER BY end, key").result_rows
        for key, table in (("toUInt32(cityHash64(trace_id, span_id))", "requests"), ("request_key", "causes FINAL"))
    )
    assert found == asked
    assert len(found) > 700
    assert status.snapshot().explain_failures == 0


@pytest.mark.parametrize(("engine", "level"), [("tokentrail", "steps"), ("vllm", "estimated"), ("sglang", "phases")])
def test_each_engine_is_explained_as_far_as_it_tells(store, engine, level):
    sql = f"SELECT level, count() FROM causes FINAL WHERE engine = '{engine}' AND vantage = 'server' GROUP BY level"
    found = dict(store.query(sql).result_rows)
    assert max(found, key=found.get) == level, found


def test_nearly_all_time_of_an_engine_with_steps_is_explained(store):
    whole = sum(seconds(store, cause, "level = 'steps'") for cause in PARTS)
    assert seconds(store, "unexplained", "level = 'steps'") < 0.02 * whole


@pytest.fixture
def faults():
    found = json.loads((DATA / "engine-h100" / "truth.json").read_text())["faults"]
    return {fault["name"]: fault for fault in found}


def test_the_request_that_ran_while_the_process_was_stopped_has_that_time_as_a_stall(store, faults):
    sql = "SELECT max(ttft_stall_us + rest_stall_us) FROM causes FINAL WHERE end BETWEEN {0} AND {0} + 2"
    at = f"fromUnixTimestamp64Nano({faults['stop']['at_unix_ns']})"
    assert store.query(sql.format(at)).result_rows[0][0] == pytest.approx(faults["stop"]["ns"] / 1000, rel=0.05)


def test_waits_for_blocks_and_evictions_are_those_of_the_burst(store, faults):
    at = f"fromUnixTimestamp64Nano({faults['burst']['at_unix_ns']}) AND engine = 'tokentrail'"
    assert seconds(store, "wait_kv", f"end > {at}") > 20
    assert seconds(store, "preempted", f"end > {at}") > 5
    assert seconds(store, "wait_kv", f"end < {at}") == seconds(store, "preempted", f"end < {at}") == 0


def test_the_long_prompt_made_others_wait_longest_of_all_that_ran_beside_it(store, faults):
    sql = """
        SELECT input_tokens FROM requests WHERE (end, toUInt32(cityHash64(trace_id, span_id))) IN
        (
            SELECT end, request_key FROM causes FINAL WHERE end BETWEEN {0} - 5 AND {0} + 5
            ORDER BY inflicted_us DESC LIMIT 1
        )
    """
    at = f"fromUnixTimestamp64Nano({faults['long_prompt']['at_unix_ns']})"
    assert store.query(sql.format(at)).result_rows == [(faults["long_prompt"]["tokens"],)]
