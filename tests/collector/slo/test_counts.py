import numpy as np

from collector.slo.burn import Tally
from collector.slo.counts import Counts, judged

COUNTS = Counts(
    total=110,
    ok=90,
    good=70,
    undetermined=10,
    failed=15,
    cancelled=8,
    unknown=0,
    excused=5,
    unselected=0,
    in_flight=9,
    in_flight_violations=3,
    lost=2,
)


def test_judged_are_the_ended_that_were_good_or_bad_the_late_and_the_lost():
    assert judged(total=100, unselected=0, excused=5, undetermined=0, in_flight_violations=3, lost=2) == 100
    assert judged(total=100, unselected=0, excused=5, undetermined=0, in_flight_violations=30, lost=2) == 127
    assert judged(total=100, unselected=0, excused=5, undetermined=7, in_flight_violations=30, lost=2) == 120
    assert judged(total=1.0, unselected=0, excused=0, undetermined=0, in_flight_violations=0, lost=0) == 1
    late, unknown = np.array([[0, 1], [2, 3]]), np.array([[0, 0], [1, 0]])
    grid = judged(total=10, unselected=0, excused=1, undetermined=unknown, in_flight_violations=late, lost=4)
    assert grid.tolist() == [[13, 14], [14, 16]]


def test_a_tally_and_the_attainment_follow_from_counts():
    assert COUNTS.tally == Tally(judged=100, bad=30)
    assert COUNTS.attainment == 0.7


def test_without_anything_to_judge_attainment_is_undefined():
    nothing = Counts(
        total=7,
        ok=3,
        good=0,
        undetermined=3,
        failed=0,
        cancelled=4,
        unknown=0,
        excused=4,
        unselected=0,
        in_flight=9,
        in_flight_violations=0,
        lost=0,
    )
    assert nothing.attainment is None
    assert nothing.tally == Tally(0, 0)


def test_the_api_answers_with_the_counts_and_no_derived_field():
    assert set(COUNTS.model_dump()) == {
        "total", "ok", "good", "undetermined", "failed", "cancelled", "unknown", "excused", "unselected", "in_flight",
        "in_flight_violations", "lost",
    }  # fmt: skip
