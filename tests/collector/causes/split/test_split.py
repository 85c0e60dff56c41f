"""What is not usual in a step: stalls, a slow device, copies of blocks, and work that no step had before."""

import numpy as np
import pytest

from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from tests.support.simulated_engine import EPOCH, MS, Faults, Law, Load, S, chats, run


@pytest.fixture(scope="module")
def reference():
    return learn(*run(chats(350, seed=8), seed=8).tables, former=None)


def seconds(found, *parts):
    both = found.ttft_us.astype(float) + found.rest_us
    return float(both[:, [PARTS.index(part) for part in parts]].sum() / 1e6)


def test_a_slowness_of_a_few_steps_is_found_as_well_as_a_small_one_of_many(reference):
    for faults in (Faults(slow=((10 * S, 10 * S + S, 2.0),)), Faults(slow=((5 * S, 35 * S, 1.08),))):
        found = run(chats(300, seed=9), seed=9, faults=faults)
        explained = explain_process(*found.tables, reference=reference)
        assert seconds(explained, "drift", "stall") == pytest.approx(found.faulty().sum() / 1e9, rel=0.1)
        assert seconds(explained, "drift") > 4 * seconds(explained, "stall")


def test_a_faster_device_is_no_fault(reference):
    found = run(chats(300, seed=9), seed=9, law=Law(step=6 * MS, sequence=0.2 * MS))
    explained = explain_process(*found.tables, reference=reference)
    assert seconds(explained, "drift", "stall", "unexplained") == 0


def test_beyond_the_longest_prompt_that_is_known_an_excess_is_unexplained(reference):
    assert reference.most_of("prompt_tokens") <= 512
    longer = Load([S, S + 10 * MS], [[1] * 10, [2] * 1900], [200, 5])
    for law, within in ((Law(), 0.0), (Law(attention=30.0), 0.03)):
        found = run(longer, law=law, budget=2048)
        explained = explain_process(*found.tables, reference=reference)
        assert seconds(explained, "stall") == 0
        assert (seconds(explained, "unexplained") > within) is (law.attention > 0)


def test_many_sequences_more_than_known_are_still_judged(reference):
    crowd = Load([S + i * 20 * MS for i in range(60)], [[i + 1] * 20 for i in range(60)], [120] * 60)
    usual = run(crowd, max_seqs=64)
    assert max(len(step.decoding) for step in usual.truth) > 1.5 * reference.most_of("sequences")
    frozen = run(crowd, max_seqs=64, faults=Faults(freezes=((2 * S, 400 * MS),)))
    quiet, found = (explain_process(*one.tables, reference=reference) for one in (usual, frozen))
    assert seconds(quiet, "drift", "stall") < 0.01 * seconds(quiet, *PARTS)
    assert seconds(found, "stall") == pytest.approx(frozen.faulty().sum() / 1e9, rel=0.1)


def test_a_stall_while_a_request_is_preempted_is_a_stall_and_the_rest_is_its_preemption(reference):
    frozen = Faults(freezes=((4480 * MS, S // 2),))
    found = run(chats(200, seed=9), seed=9, blocks=120, watermark_blocks=0, faults=frozen)
    phases, request = found.phases, 39
    (preempted_ns,) = phases["duration_ns"][(phases["name"] == "preempted") & (phases["key"] == request)]
    times = dict(zip(PARTS, explain_process(*found.tables, reference=reference).rest_us[request].tolist(), strict=True))
    assert times["stall"] == pytest.approx(500_000, rel=0.001)
    assert times["preempted"] == pytest.approx(preempted_ns / 1000 - 500_000, rel=0.001)


def test_prompts_that_are_computed_again_are_the_requests_own_and_no_part_of_its_ttft(reference):
    found = run(chats(200, seed=9), seed=9, blocks=120, watermark_blocks=0)
    first = found.requests["start"] + found.requests["ttft_ns"] - EPOCH
    true = sum(time for step in found.truth for number, _, time in step.chunks if step.start >= first[number]) / 1e9
    explained = explain_process(*found.tables, reference=reference)
    assert true > 0.2
    assert seconds(explained, "recompute") == pytest.approx(true, rel=0.03)
    assert explained.ttft_us[:, PARTS.index("recompute")].sum() == 0


def test_copies_of_blocks_are_neither_work_nor_a_stall(reference):
    found = run(chats(300, seed=9), seed=9, blocks=120, watermark_blocks=0, host_blocks=1000)
    copied = found.kv_events["duration_ns"] > 0
    assert copied.sum() > 10
    explained = explain_process(*found.tables, kv_events=found.kv_events, reference=reference)
    ignorant = explain_process(*found.tables, reference=reference)
    assert seconds(explained, "kv_transfer") > seconds(ignorant, "kv_transfer")
    assert seconds(explained, "stall", "drift") < seconds(explained, *PARTS) * 0.005
    start, length = found.kv_events["start"][copied], found.kv_events["duration_ns"][copied]
    there = (found.requests["start"][:, None] <= start) & (found.requests["end"][:, None] >= start + length)
    phases = found.phases["duration_ns"][found.phases["name"] == "kv_transfer"].sum()
    at_most = (there * length).sum() + phases
    assert seconds(explained, "kv_transfer") <= at_most / 1e9


def test_drafts_are_work_of_the_batch():
    steps = 400
    random = np.random.default_rng(1)
    drafted = random.integers(0, 6, steps).astype(float)
    duration = ((10 + 0.5 * drafted) * MS * np.exp(random.normal(0, 0.01, steps))).astype(np.int64)
    start = EPOCH + np.cumsum(duration) - duration
    columns = {
        "start": start,
        "duration_ns": duration,
        "decode_tokens": np.full(steps, 2.0),
        "running": np.full(steps, 2.0),
        "prefill_tokens": np.zeros(steps),
        "drafted_tokens": drafted,
    }
    whole = int(start[-1] + duration[-1])
    requests = {"key": [1, 2], "start": [EPOCH] * 2, "end": [whole] * 2, "ttft_ns": [MS] * 2, "input_tokens": [0, 0]}
    phases = {"key": [1, 2], "start": [EPOCH] * 2, "duration_ns": [whole - EPOCH] * 2, "name": ["decode"] * 2}
    model = learn(requests, phases, columns, former=None)
    assert model.coefficients[-1] == pytest.approx(0.5 * MS, rel=0.05)
    found = explain_process(requests, phases, columns, reference=model)
    assert set(found.level) == {"steps"}
    drafts = 0.5 * drafted.sum() / 1e3
    assert found.rest_us[:, PARTS.index("batch")].sum() / 1e6 > drafts * 0.9
