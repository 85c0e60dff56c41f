"""Why requests waited: by the scheduler's word, by its counts, by its limits, or by what was seen."""

import numpy as np
import pytest

from collector.causes.split.columns import Limits
from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from tests.support.fault_catalogue import untold
from tests.support.simulated_engine import EPOCH, MS, Faults, Load, S, chats, run

REASONS = ("batch", "kv", "tokens")
CROWDS = {
    "batch": {"max_seqs": 6},
    "kv": {"blocks": 120, "watermark_blocks": 0},
    "tokens": {"budget": 40},
}


@pytest.fixture(scope="module")
def reference():
    return learn(*run(chats(300, seed=8), seed=8).tables, former=None)


@pytest.fixture(scope="module", params=CROWDS)
def crowd(request):
    return request.param, run(chats(250, seed=9), seed=9, **CROWDS[request.param])


def waits(found):
    both = found.ttft_us.astype(float)
    return {reason: both[:, PARTS.index(f"wait_{reason}")].sum() / 1e6 for reason in REASONS}


def test_the_scheduler_names_them(crowd, reference):
    name, found = crowd
    told = waits(explain_process(*found.tables, reference=reference))
    for reason in REASONS:
        assert told[reason] == pytest.approx(found.waited(reason).sum() / 1e9, rel=0.03, abs=0.1)
    assert max(told, key=told.get) == name


def test_steps_tell_the_counts_of_those_who_wait(crowd, reference):
    name, found = crowd
    requests = untold(found).requests
    counted = waits(explain_process(requests, found.phases, found.steps, reference=reference))
    assert counted[name] == pytest.approx(found.waited(name).sum() / 1e9, rel=0.05)


def test_elimination_finds_the_reason_by_the_limits(crowd, reference):
    name, found = crowd
    settings = {"max_seqs": 32, "budget": 512} | CROWDS[name]
    limits = Limits(max_seqs=settings["max_seqs"], max_batched_tokens=settings["budget"])
    guessed = waits(explain_process(*untold(found).tables, limits=limits, reference=reference))
    assert guessed[name] == pytest.approx(found.waited(name).sum() / 1e9, rel=0.1)


def test_without_limits_the_largest_step_that_was_seen_tells_them():
    found = run(chats(250, seed=9), seed=9, **CROWDS["batch"])
    guessed = waits(explain_process(*untold(found).tables))
    assert guessed["batch"] == pytest.approx(found.waited("batch").sum() / 1e9, rel=0.05)


def test_a_quiet_time_does_not_hide_the_limits_that_busier_traffic_told():
    """The busiest step of the quiet time has fewer sequences than may run, so they cannot be what was waited for."""
    busy = run(chats(250, seed=9), seed=9, max_seqs=6)
    reference = learn(*busy.tables, former=None)
    short = chats(60, seed=3, rate=3, prompt=(100, 0.5, 300), answer=(80, 0.5, 200))
    quiet = run(short, seed=3, blocks=33, watermark_blocks=0)
    assert max(len(step.decoding) for step in quiet.truth) < 6
    assert quiet.waited("kv").sum() > S
    found = waits(explain_process(*untold(quiet).tables, reference=reference))
    assert found["batch"] == 0
    assert found["kv"] == pytest.approx(quiet.waited("kv").sum() / 1e9, rel=0.2)


def test_the_wait_of_preempted_requests_for_their_next_step_is_no_wait_for_the_first(reference):
    found = run(chats(250, seed=9), seed=9, blocks=120, watermark_blocks=0)
    preempted = found.phases["name"] == "preempted"
    assert preempted.any()
    told = np.nansum(found.requests["wait_kv_ns"]) / 1e9
    first = found.waited("kv").sum() / 1e9
    assert first < told - 0.1
    explained = explain_process(*found.tables, reference=reference)
    assert waits(explained)["kv"] == pytest.approx(first, rel=0.03)


def test_what_is_told_of_a_later_preemption_does_not_displace_the_reason_of_the_first_wait():
    rows = {"key": [1], "start": [EPOCH], "end": [EPOCH + S], "ttft_ns": [200 * MS]}
    told = {"wait_tokens_ns": [60 * MS], "wait_kv_ns": [300 * MS]}
    lengths = {"queued": 100, "prefill": 100, "decode": 300, "preempted": 300, "prefill again": 200}
    ends = np.cumsum(list(lengths.values())) * MS
    phases = {
        "key": [1] * 5,
        "start": EPOCH + ends - np.array(list(lengths.values())) * MS,
        "duration_ns": np.array(list(lengths.values())) * MS,
        "name": [name.split()[0] for name in lengths],
    }
    assert waits(explain_process(rows | told, phases, {})) == {"batch": 0, "kv": 0, "tokens": 0.06}


def test_a_freeze_in_a_queue_is_a_stall_and_no_wait(reference):
    freezes = tuple((second * S, 2 * S) for second in (5, 10, 15))
    found = run(chats(250, seed=9), seed=9, max_seqs=5, faults=Faults(freezes=freezes))
    explained = explain_process(*found.tables, reference=reference)
    both = explained.ttft_us.astype(float) + explained.rest_us
    assert both[:, PARTS.index("stall")].sum() / 1e6 == pytest.approx(found.faulty().sum() / 1e9, rel=0.01)
    assert waits(explained)["batch"] < found.waited("batch").sum() / 1e9 - 10


def test_the_rest_of_the_running_step_is_busy_with_answers_or_with_the_prompts_of_others(reference):
    """A request comes in the middle of a step that computes the answer of another, then one in a step of a prompt."""
    load = Load(
        [0, S, 2 * S, 3 * S, 3 * S + 10 * MS], [[1] * 20, [2] * 20, [3] * 20, [4] * 500, [5] * 20], [500, 5, 5, 5, 5]
    )
    found = run(load)
    explained = explain_process(*found.tables, reference=reference)
    ttft = explained.ttft_us / 1e3
    assert ttft[1, PARTS.index("busy")] > 0
    assert ttft[1, PARTS.index("others_prompts")] == 0
    assert ttft[4, PARTS.index("others_prompts")] > 5


def test_a_request_that_failed_while_it_waited_has_waited_until_then(reference):
    found = run(chats(100, seed=9), seed=9, max_seqs=2)
    long = int(found.waited("batch").argmax())
    cut = int(found.requests["start"][long] + 2 * S)
    requests = {name: column[[long]].copy() for name, column in found.requests.items()}
    requests |= {
        name: np.array(value)
        for name, value in {
            "end": [cut],
            "ttft_ns": [None],
            "output_tokens": [0],
            "wait_batch_ns": [2 * S - MS],
        }.items()
    }
    phases = {"key": requests["key"], "start": requests["start"], "duration_ns": [2 * S], "name": ["queued"]}
    explained = explain_process(requests, phases, found.steps, reference=reference)
    assert explained.level.tolist() == ["steps"]
    assert explained.ttft_us.sum() == 2_000_000
    assert explained.ttft_us[0, PARTS.index("wait_batch")] > 1_900_000
    assert explained.rest_us.sum() == 0
