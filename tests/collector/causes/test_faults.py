"""Faults of a known size on the real scheduler: the time that each added is found, and named first."""

import numpy as np
import pytest

from collector.causes.explain import explain_process
from collector.causes.learn import learn
from collector.causes.names import PARTS, load_causes
from tests.support.fault_catalogue import CATALOGUE, reference_run
from tests.support.simulated_engine import Law

LAW = Law()


@pytest.fixture(scope="module")
def reference():
    return learn(*reference_run(1, LAW).tables, former=None)


def by_part(found, tables, reference, limits=None):
    explained = explain_process(*tables, limits=limits, reference=reference)
    ttft, e2e = found.requests["ttft_ns"], found.requests["end"] - found.requests["start"]
    assert (explained.ttft_us.sum(1) == np.ceil(ttft / 1000)).all()
    assert ((explained.ttft_us + explained.rest_us).sum(1) == np.ceil(e2e / 1000)).all()
    return (explained.ttft_us.astype(float) + explained.rest_us) / 1e6, explained


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_the_time_that_a_fault_added_is_found_and_named_first(fault, reference):
    case = fault.make(1, LAW)
    parts, explained = by_part(case.faulty, fault.tables(case), reference, fault.limits)
    plain, _ = by_part(case.plain, case.plain.tables, reference)
    if not fault.causes:
        blamed = parts[:, [PARTS.index("stall"), PARTS.index("drift")]].sum()
        assert blamed < 0.01 * parts.sum()
        return
    columns = [PARTS.index(cause) for cause in fault.causes]
    added = (parts[case.rows] - plain)[case.injected != 0].sum(0)
    if case.culprits:
        guilty = list(case.culprits)
        truth = case.faulty.inflicted()[guilty].sum()
        assert explained.inflicted_us[guilty].sum() * 1e3 == pytest.approx(truth, rel=0.05)
    else:
        assert added[columns].sum() == pytest.approx(case.injected.sum() / 1e9, rel=0.05)
    groups = {}
    for cause, value in zip(load_causes().values(), added, strict=True):
        groups[cause.group] = groups.get(cause.group, 0) + value
    assert max(groups, key=groups.get) in fault.top
