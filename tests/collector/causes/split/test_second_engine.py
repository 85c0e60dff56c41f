"""An engine of a shape that the rules were not made for: each of its faults is named, with its size and culprit."""

from dataclasses import replace

import numpy as np
import pytest

from collector.causes.split.judge import Laws
from collector.causes.split.names import PARTS, load_causes
from collector.causes.split.reasons import REASONS
from tests.support.second_engine import LAW, SHOWN, law_of, victims_of, worst_of
from tests.support.second_engine import explained as of_second


def by_part(explained):
    return (explained.ttft_us.astype(float) + explained.rest_us) / 1e6


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_wrong_is_found_with_its_size_and_nothing_else_is_blamed(name):
    case = SHOWN[name](1, LAW)
    explained = of_second(case)
    times = by_part(explained)
    assert set(explained.level) == {"steps"}
    e2e = case.run.requests["end"] - case.run.requests["start"]
    assert (np.rint(times.sum(1) * 1e6) == np.ceil(e2e / 1000)).all()
    unusual = ("drift", "stall", "slower", "drafts")
    others = [PARTS.index(cause) for cause in unusual if cause not in case.causes]
    assert times[:, others].sum() < 0.01 * times.sum()
    if case.causes:
        found = times[:, [PARTS.index(cause) for cause in case.causes]].sum()
        assert found == pytest.approx(case.injected.sum() / 1e9, rel=case.within)
        groups = {load_causes()[cause].group for cause in case.causes if times[:, PARTS.index(cause)].sum() > found / 2}
        assert groups <= set(case.top)
    fact = explained.slower
    assert (fact and fact.kind) == (case.slower and case.slower[0])
    if fact:
        assert fact.low < fact.ratio < fact.high
        assert fact.ratio == pytest.approx(case.slower[1], rel=0.03)
    if case.culprit is not None:
        blamed = [worst_of(case, victim) for victim in victims_of(case)]
        assert len(blamed) >= 3
        assert set(blamed) == {case.culprit}


def test_a_fault_of_a_process_that_has_its_sisters_law_alone_is_a_fault():
    """It is not always slower, so its sister's law judges it."""
    case = SHOWN["slow × 1.5, 7 s"](1, LAW)
    explained = of_second(replace(case, laws=Laws(sister=case.laws.own)))
    assert explained.slower is None
    found = by_part(explained)[:, [PARTS.index("drift"), PARTS.index("stall")]].sum()
    assert found == pytest.approx(case.injected.sum() / 1e9, rel=0.05)


def test_a_process_that_always_scatters_is_not_judged_by_its_sisters_steady_law():
    """Its steps have the same median, and half of them are far longer or shorter: that is its machine, and no fault."""
    case = SHOWN["no fault"](1, replace(LAW, noise=0.6))
    explained = of_second(replace(case, laws=Laws(sister=law_of(1, LAW))))
    assert explained.model is None
    assert {REASONS[reason] for reason in explained.reason} == {"scatter"}
    assert by_part(explained)[:, [PARTS.index("drift"), PARTS.index("stall")]].sum() == 0


def test_the_size_of_a_slow_device_in_a_burst_is_within_its_error():
    """Nobody saw the law hold with so many sequences, and the error says so."""
    case = SHOWN["burst of 100 on a device slow × 1.5"](1, LAW)
    explained = of_second(case)
    found = by_part(explained)[:, [PARTS.index("drift"), PARTS.index("stall")]].sum()
    assert abs(found - case.injected.sum() / 1e9) < explained.error_us.sum() / 1e6 < 0.3 * found
