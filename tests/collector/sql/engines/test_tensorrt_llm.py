"""Spans that TensorRT-LLM's own tracing functions made, driven by hand, against what was fed in."""

import pytest

from tests.support.recordings import NS, Recording, assert_agreement, billed, phases_partition, rows_of, tokens_of

AGG, DISAGG = "agg", "disagg"


@pytest.fixture(scope="module")
def runs(engine_store):
    found, before = {}, set()
    for name in (AGG, DISAGG):
        recording = Recording(f"tensorrt_llm/hand-driven-{name}.tar.xz")
        recording.replay(engine_store)
        rows = rows_of(engine_store)
        found[name] = recording, {int(key): row for key, row in rows.items() if key not in before}
        before = set(rows)
    return found


def pairs(run):
    """Each line of the client with its row. A request that was not sampled has no row."""
    recording, rows = run
    return [(line, rows[line["ids"][-1]]) for line in recording.client if line["ids"][-1] in rows]


@pytest.mark.parametrize(("run", "requests"), [(AGG, 26), (DISAGG, 30)])
def test_every_sampled_request_is_one_row(runs, run, requests):
    assert len(pairs(runs[run])) == len(runs[run][1]) == requests
    assert {(row["engine"], row["status"]) for _, row in pairs(runs[run])} == {("tensorrt_llm", "ok")}
    sampled = [line for line in runs[run][0].client if run == DISAGG or not (line["traceparent"] or "").endswith("-00")]
    assert len(sampled) == requests


@pytest.mark.parametrize("run", [AGG, DISAGG])
def test_ttft_e2e_and_tokens_are_those_that_were_fed_in(runs, run):
    found = pairs(runs[run])
    assert_agreement([(line["chunks"][0] - row["ttft_ns"]) * NS for line, row in found], median_s=0.001, most_s=0.007)
    assert_agreement([(line["end_ns"] - row["e2e_ns"]) * NS for line, row in found], median_s=0.002, most_s=0.006)
    for line, row in found:
        assert tokens_of(row) == billed(line)
        assert row["finish_reason"] == line["finish_reason"]
        assert row["cached_tokens"] is None
        assert row["preemptions"] is None


def test_phases_partition_every_request(engine_store, runs):
    assert phases_partition(engine_store) == 26 + 30
    for line, row in pairs(runs[AGG]):
        assert row["queue_ns"] * NS == pytest.approx(line["queue_s"], abs=1e-6)
        assert row["prefill_ns"] == row["ttft_ns"] - row["queue_ns"]
        assert row["decode_ns"] == row["e2e_ns"] - row["ttft_ns"]
        assert row["kv_transfer_ns"] == 0
    for line, row in pairs(runs[DISAGG]):
        assert row["kv_transfer_ns"] * NS == pytest.approx(line["kv_transfer_s"], abs=2e-3)
        assert row["queue_ns"] + row["prefill_ns"] + row["kv_transfer_ns"] + row["decode_ns"] == row["e2e_ns"]
        assert min(row["queue_ns"], row["prefill_ns"], row["decode_ns"]) > 0


def test_nothing_is_left_unclaimed(engine_store, runs):
    assert engine_store.query("SELECT name, count() FROM spans GROUP BY name").result_rows == []
