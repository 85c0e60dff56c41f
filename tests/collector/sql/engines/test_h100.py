"""A run of our engine on an H100, recorded with faults at known times, against its clients' clock and its truth."""

import json
import statistics

import pytest

from tests.support.recordings import DATA, client_lines, replay, rows_of

RUN = "engine-h100"


@pytest.fixture(scope="module")
def recorded(engine_store):
    replay(engine_store, RUN)
    return engine_store


@pytest.fixture(scope="module")
def truth():
    faults = json.loads((DATA / RUN / "truth.json").read_text())["faults"]
    return {fault["name"]: fault for fault in faults}


def test_every_request_and_token_as_its_client_saw_it(recorded):
    rows, later = rows_of(recorded), []
    for line in client_lines(RUN):
        row = rows.pop(line["response_id"])
        assert (row["status"], row["input_tokens"], row["output_tokens"]) == ("ok", line["input"], line["output"])
        later.append(line["chunks"][0] - row["ttft_ns"])
    assert not rows
    assert min(later) >= 0, "a client cannot see a token before it is made"
    assert statistics.median(later) < 3e6
    assert recorded.query("SELECT count() FROM tokens").result_rows == [(60864,)]


def test_a_stopped_process_is_one_long_step(recorded, truth):
    sql = "SELECT max(duration_ns), argMax(toUnixTimestamp64Nano(start), duration_ns) FROM steps"
    [(longest, begun)] = recorded.query(sql).result_rows
    assert 0 <= longest - truth["stop"]["ns"] < 10e6
    assert abs(begun - truth["stop"]["at_unix_ns"]) < 50e6


def test_a_burst_of_long_answers_waits_for_blocks_and_preempts(recorded, truth):
    sql = "SELECT min(toUnixTimestamp64Nano(start)), sum(preempted) FROM steps WHERE preempted > 0"
    [(first, preempted)] = recorded.query(sql).result_rows
    assert first > truth["burst"]["at_unix_ns"]
    assert preempted == 24


def test_work_stays_below_the_measured_peaks(recorded):
    """MFU and MBU of each step are shares."""
    sql = "SELECT max(compute_ns / device_ns), max(memory_ns / device_ns) FROM steps WHERE device_ns > 0"
    [(mfu, mbu)] = recorded.query(sql).result_rows
    assert 0.2 < mfu < 1
    assert 0.3 < mbu < 1
