import numpy as np

from collector.slo.burn import Tally
from collector.slo.counts import Counts, judged

COUNTS = Counts(total=100, ok=80, good=70, failed=15, cancelled=5, in_flight=9, in_flight_violations=3, lost=2)


def test_judged_are_the_ended_that_were_not_cancelled_the_late_and_the_lost():
    assert judged(total=100, cancelled=5, in_flight_violations=3, lost=2) == 100
    assert judged(total=100, cancelled=5, in_flight_violations=30, lost=2) == 127
    grid = judged(total=10, cancelled=1, in_flight_violations=np.array([[0, 1], [2, 3]]), lost=4)
    assert grid.tolist() == [[13, 14], [15, 16]]


def test_a_tally_and_the_attainment_follow_from_counts():
    assert COUNTS.tally == Tally(judged=100, bad=30)
    assert COUNTS.attainment == 0.7


def test_without_anything_to_judge_attainment_is_undefined():
    nothing = Counts(total=4, ok=0, good=0, failed=0, cancelled=4, in_flight=9, in_flight_violations=0, lost=0)
    assert nothing.attainment is None
    assert nothing.tally == Tally(0, 0)


def test_the_api_answers_with_the_counts_and_no_derived_field():
    assert set(COUNTS.model_dump()) == {
        "total", "ok", "good", "failed", "cancelled", "in_flight", "in_flight_violations", "lost",
    }  # fmt: skip
