"""Faults of a known size on the real scheduler: the time of each is found and named first; a replay leaves it out."""

import numpy as np
import pytest

from collector.causes.split.learn import learn
from collector.causes.split.names import PARTS, load_causes
from collector.causes.split.replay import LEAVABLE, replay
from collector.causes.split.requests import explain_process
from tests.support.fault_catalogue import CATALOGUE, made, reference_run
from tests.support.simulated_engine import MS, Law

LAW = Law()
THRESHOLDS = ({"ttft": 150 * MS, "tpot": 20 * MS}, {"ttft": 100 * MS, "tpot": 15 * MS})


@pytest.fixture(scope="module")
def reference():
    return learn(*reference_run(1, LAW).tables, former=None)


def by_part(found, tables, reference, limits=None):
    explained = explain_process(*tables, limits=limits, reference=reference)
    ttft, e2e = found.requests["ttft_ns"], found.requests["end"] - found.requests["start"]
    assert (explained.ttft_us.sum(1) == np.ceil(ttft / 1000)).all()
    assert ((explained.ttft_us + explained.rest_us).sum(1) == np.ceil(e2e / 1000)).all()
    return (explained.ttft_us.astype(float) + explained.rest_us) / 1e6, explained


@pytest.fixture(scope="module")
def plain_parts(reference):
    """The parts of a run without a fault, of which many faults share one."""
    found = {}

    def parts(run):
        if id(run) not in found:
            found[id(run)], _ = by_part(run, run.tables, reference)
        return found[id(run)]

    return parts


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_the_time_that_a_fault_added_is_found_and_named_first(fault, reference, plain_parts):
    case = made(fault)
    parts, explained = by_part(case.faulty, fault.tables(case), reference, fault.limits)
    plain = plain_parts(case.plain)
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


def replayed(found, reference, **options):
    return replay(*found.tables, scheduling=found.scheduling, kv_events=found.kv_events, reference=reference, **options)


REPLAYED = {fault.causes: fault for fault in reversed(CATALOGUE) if fault.replayed}
"""The first fault of each set of causes: a replay leaves out the same ones for the others."""


@pytest.mark.parametrize("fault", REPLAYED.values(), ids=lambda fault: fault.name)
def test_a_replay_tells_the_attainment_with_a_fault_and_without_it(fault, reference):
    case = made(fault)
    without = replayed(case.faulty, reference, without=LEAVABLE & {*fault.causes}, left_out=case.added)
    again = replayed(case.faulty, reference, replays=0)
    for limits in THRESHOLDS:
        truly, found = case.plain.good(**limits).mean(), without.attainment(case.added, **limits)
        assert found.attainment == pytest.approx(truly, abs=0.02)
        assert found.low <= truly <= found.high
        assert found.requests == len(case.rows)
        with_it = again.attainment(case.added, **limits)
        assert with_it.attainment == pytest.approx(case.faulty.good(**limits).mean(), abs=0.02)


def test_what_is_not_left_out_stays(reference):
    """Only the stall goes, and the slow device stays."""
    both = made(next(fault for fault in CATALOGUE if fault.name == "slow × 1.5, 30 s")).faulty
    limits, nobody = THRESHOLDS[0], np.zeros(len(both.requests["start"]))
    stays, goes = (
        replayed(both, reference, without=causes, replays=0).attainment(nobody, **limits)
        for causes in (["stall", "cold_start", "gap", "wait_kv"], ["drift"])
    )
    assert stays.attainment == pytest.approx(both.good(**limits).mean(), abs=0.02)
    assert goes.attainment > stays.attainment + 0.2
