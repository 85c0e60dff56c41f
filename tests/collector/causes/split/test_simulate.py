"""The simulation of the scheduler does what the real one does, to the microsecond and the step."""

from dataclasses import replace

import numpy as np
import pytest

from collector.causes.split.simulate import Device, Scheduling, simulate
from tests.support.simulated_engine import EPOCH, MS, US, Faults, Law, Load, S, chats, run

EXACT = Law(context=1 * US, attention=2 * US, noise=0, gap=0)
"""Steps of whole microseconds."""
REAL = replace(EXACT, step=EXACT.step + 400)
"""The real engine's clock cuts off what is below a microsecond: this, and not one microsecond by a rounding error."""
MIXED = chats(150, rate=16, seed=3)


def device(law, **more):
    return Device((law.step, law.prompt, 0.0, law.token, 0.0, law.attention, law.sequence, law.context, 0.0), **more)


def simulated(real, law=EXACT, **hindered):
    requests = real.requests
    tokens = (requests[f"{name}_tokens"] for name in ("input", "output", "cached"))
    return simulate(
        real.scheduling, device(law, **hindered), (requests["start"] - EPOCH).astype(float), *map(np.nan_to_num, tokens)
    )


def assert_same(real, found):
    assert found.steps == len(real.truth)
    np.testing.assert_array_equal(found.first, real.requests["start"] - EPOCH + real.requests["ttft_ns"])
    np.testing.assert_array_equal(found.end, real.requests["end"] - EPOCH)


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({}, False),
        ({"max_seqs": 6}, False),
        ({"budget": 40}, False),
        ({"blocks": 190, "watermark_blocks": 0}, True),
        ({"blocks": 120, "watermark_blocks": 1, "budget": 64}, True),
        ({"blocks": 500, "block_size": 4, "watermark_blocks": 0, "max_seqs": 12}, True),
        ({"blocks": 1500, "block_size": 1, "watermark_blocks": 3}, True),
        ({"chunked_prefill": False, "budget": 200}, False),
        ({"static_batching": True, "max_seqs": 8}, False),
        ({"static_batching": True, "blocks": 100, "watermark_blocks": 0}, False),
    ],
    ids=str,
)
def test_the_simulation_makes_the_steps_of_the_real_scheduler(settings, preempts):
    real = run(MIXED, law=REAL, **settings)
    assert ("preempted" in real.phases["name"]) == preempts
    assert_same(real, simulated(real))


def test_beyond_so_many_tokens_of_prompts_each_takes_more():
    at, answer, slope = np.zeros(3), np.ones(3), 7.0
    law = Device((0.0, 5.0, 100.0, 1.0, slope, 0.0, 0.0, 0.0, 0.0))
    found = simulate(Scheduling(8, 512), law, at, np.array([200.0, 100.0, 400.0]), answer)
    first = 5 + 3 * 100 + 512 + slope * (512 - 256)
    assert found.end.tolist() == [first, first, first + 5 + 100 + 188]


def test_nothing_is_computed_until_the_model_is_loaded():
    real = run(MIXED, law=REAL, faults=Faults(ready=3 * S))
    assert_same(real, simulated(real, closed=[(0.0, 3.0 * S)]))


def test_a_step_under_way_rests_while_the_device_is_closed_and_an_idle_device_loses_nothing():
    alone = Load([10 * MS], [[1] * 16], [3])
    free = run(alone, law=REAL)
    first, end = free.truth[0], free.requests["end"][0] - EPOCH
    closed = [(0.0, 5.0 * MS), (first.start + 1.0 * MS, first.start + 41.0 * MS), (2.0 * S, 9.0 * S)]
    found = simulated(free, closed=closed)
    assert found.first[0] == first.end + 40 * MS
    assert found.end[0] == end + 40 * MS


def test_steps_that_start_in_a_slow_time_take_as_many_times_as_long():
    since, until = 5 * S, 20 * S
    real = run(MIXED, law=REAL, faults=Faults(slow=((since, until, 2.0),)))
    assert_same(real, simulated(real, slow=[(0.0, 1.0 * S, 1.0), (since, until, 2.0)]))


def test_ratios_and_gaps_follow_one_another_and_begin_again():
    free = run(Load([0], [[1] * 16], [4]), law=REAL)
    lengths = [step.end - step.start for step in free.truth]
    found = simulated(free, ratios=(1.0, 2.0, 3.0), gaps=(7.0, 0.0, 5.0))
    assert found.end[0] == lengths[0] + 7 + 2 * lengths[1] + 3 * lengths[2] + 5 + lengths[3]


def test_a_cell_has_a_factor_of_its_own():
    free = run(Load([0], [[1] * 16], [3]), law=REAL)
    lengths = [step.end - step.start for step in free.truth]
    assert simulated(free, factors={1: 2.0}).end[0] == lengths[0] + 2 * lengths[1] + 2 * lengths[2]
    assert simulated(free, factors={1016: 3.0}).end[0] == 3 * lengths[0] + lengths[1] + lengths[2]


def test_tokens_of_the_prefix_cache_are_not_computed_and_the_last_one_always_is():
    plain = Scheduling(8, 64)
    at, prompt, answer = np.zeros(2), np.array([48.0, 48.0]), np.array([1.0, 1.0])
    law = device(Law(step=0, prompt=0, token=1, sequence=0, context=0))
    assert simulate(plain, law, at, prompt, answer, np.array([0.0, 32.0])).end.tolist() == [64, 64]
    assert simulate(plain, law, at, prompt, answer, np.array([48.0, 48.0])).end.tolist() == [32, 32]


@pytest.mark.parametrize("limits", [{"max_seqs": 0}, {"max_batched_tokens": 3}, {"kv_blocks": 0}, {"block_size": 0}])
def test_limits_with_which_no_engine_runs_are_refused(limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        Scheduling(**{"max_seqs": 4, "max_batched_tokens": 64, **limits})


def test_a_request_fits_if_the_cache_has_blocks_for_all_of_it():
    assert Scheduling(4, 64, kv_blocks=3).fits(np.array([1.0, 48.0, 49.0])).tolist() == [True, True, False]
    assert Scheduling(4, 64).fits(np.array([1e12])).all()
