"""Why one request waited: its reasons, the phase of each token's wait, others' prefills and the longest waits."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.causes.answer.waits import interference, interfering, longest_waits, waiting_phases, waits
from tests.collector.rows import NOW, SECOND, trace_id

MS = 10**6


def token(index, offset, wait, step=0):
    return {
        "token_index": index,
        "offset_ns": None if offset is None else offset * MS,
        "duration_ns": wait * MS,
        "step": step,
    }


def phase(name, offset, length):
    return {"name": name, "offset_ns": offset * MS, "duration_ns": length * MS}


def step(number, offset, length, prefill=0):
    counts = {"prefill_tokens": prefill, "decode_tokens": 2, "running": 3, "kv_blocks_evicted": None}
    return {"step": number, "offset_ns": offset * MS, "duration_ns": length * MS, **counts}


PHASES = [phase("queued", 0, 100), phase("prefill", 100, 200), phase("decode", 300, 200), phase("preempted", 500, 500)]
TOKENS = [token(0, 300, 300, 1), token(1, 500, 200, 2), token(2, 500, 0, 2), token(3, 1000, 500, 9)]


def numbers(steps, tokens, phases):
    return [one["step"] for one, flag in zip(steps, interfering(steps, tokens, phases), strict=True) if flag]


class TestReasons:
    def told(self, **row):
        waited = {"queue_ns": 750 * MS, "preempted_ns": 250 * MS}
        return [(wait.reason, wait.time_s) for wait in waits(waited | row)]

    def test_they_are_the_engines_and_the_rest_of_the_queue_longest_first(self):
        told = self.told(wait_kv_ns=240 * MS, wait_batch_ns=500 * MS, wait_tokens_ns=None, wait_priority_ns=0)
        assert told == [("batch", 0.5), ("step", 0.26), ("kv", 0.24)]

    def test_nobody_knows_them_when_the_engine_tells_none(self):
        assert self.told(wait_kv_ns=None, wait_batch_ns=0) == []
        assert waits({}) == []

    @pytest.mark.parametrize("longer_by", [0, 5 * MS])
    def test_a_reason_that_explains_all_of_the_wait_leaves_no_rest(self, longer_by):
        assert [reason for reason, _ in self.told(wait_priority_ns=SECOND + longer_by)] == ["priority"]

    def test_without_a_known_wait_there_is_no_rest(self):
        assert self.told(wait_tokens_ns=MS, queue_ns=None, preempted_ns=None) == [("tokens", 0.001)]


class TestPhases:
    def test_a_token_waits_in_the_phase_that_takes_most_of_its_wait(self):
        assert waiting_phases(TOKENS, PHASES) == ["prefill", "decode", "decode", "preempted"]
        assert waiting_phases([*reversed(TOKENS)], [*reversed(PHASES)]) == ["preempted", "decode", "decode", "prefill"]

    @pytest.mark.parametrize(("at", "name"), [(99, "queued"), (100, "queued"), (101, "prefill"), (1000, "preempted")])
    def test_a_token_without_a_wait_has_the_phase_of_its_end(self, at, name):
        assert waiting_phases([token(2, at, 0)], PHASES) == [name]

    def test_a_token_outside_of_all_phases_has_none(self):
        assert waiting_phases([token(0, 1500, 400), token(1, 0, 0)], PHASES) == [None, None]
        assert waiting_phases(TOKENS, []) == [None] * 4
        assert waiting_phases([], PHASES) == []

    def test_a_token_whose_time_is_not_known_has_none(self):
        assert waiting_phases([token(3, None, 700), TOKENS[0]], PHASES) == [None, "prefill"]

    @given(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=20),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6),
    )
    def test_it_is_the_phase_that_overlaps_the_wait_most(self, tokens, phases):
        """Also when tokens of several choices, and phases of a foreign sender, overlap each other."""
        tokens = [token(i, end, wait) for i, (end, wait) in enumerate(tokens)]
        phases = [phase(str(i), at, length) for i, (at, length) in enumerate(phases)]

        def share(token, phase):
            until, end = phase["offset_ns"] + phase["duration_ns"], token["offset_ns"]
            common = min(end, until) - max(end - token["duration_ns"], phase["offset_ns"])
            return max(common, 0), phase["offset_ns"] < end <= until

        for one, found in zip(tokens, waiting_phases(tokens, phases), strict=True):
            shares = [share(one, other) for other in phases]
            best = max(shares, default=(0, False))
            assert found == (str(shares.index(best)) if any(best) else None)

    def test_a_request_of_many_phases_and_tokens_takes_no_product_of_both(self):
        """20,000 phases and 200,000 tokens: 4 10⁹ pairs."""
        tokens = [token(i, i + 1, 1) for i in range(200_000)]
        phases = [phase("decode", 10 * i, 10) for i in range(20_000)]
        began = time.process_time()
        assert set(waiting_phases(tokens, phases)) == {"decode"}
        assert time.process_time() - began < 10


class TestInterference:
    def test_it_is_others_prefill_while_the_request_waits_for_tokens(self):
        own, others, before = step(1, 100, 200, prefill=40), step(2, 350, 100, prefill=300), step(0, 0, 50, prefill=9)
        idle, again, after = step(3, 460, 40), step(4, 600, 100, prefill=50), step(5, 1000, 50, prefill=7)
        untold = step(6, 700, 10, prefill=None)
        phases = [*PHASES[:3], phase("prefill", 600, 100), phase("decode", 700, 300)]
        steps = [before, own, others, idle, again, after, untold]
        assert numbers(steps, TOKENS, phases) == [2]
        assert interference(steps, interfering(steps, TOKENS, phases), TOKENS).model_dump() == {
            "steps": 1, "time_s": 0.1, "prefill_tokens": 300,
        }  # fmt: skip

    @pytest.mark.parametrize(("begin", "found"), [(349, []), (350, [7]), (351, [7])])
    def test_a_step_that_lies_in_an_own_prefill_by_more_than_half_is_the_requests_own(self, begin, found):
        phases = [phase("prefill", 300, 100)]
        assert numbers([step(7, begin, 100, prefill=9)], TOKENS, phases) == found

    def test_prefills_count_until_the_last_token_whose_time_is_known(self):
        steps = [step(7, 350, 100, prefill=9), step(8, 450, 100, prefill=9)]
        assert numbers(steps, [token(3, None, 700), token(1, 400, 100), TOKENS[0]], []) == [7]

    def test_the_last_token_is_that_of_the_longest_choice(self):
        steps = [step(7, 450, 100, prefill=9)]
        assert numbers(steps, [TOKENS[0], token(1, 900, 600), TOKENS[0], token(1, 400, 100)], []) == [7]

    @pytest.mark.parametrize(
        ("steps", "tokens"),
        [
            ([], TOKENS),
            ([step(1, 350, 9, None)], TOKENS),
            ([step(1, 350, 9, 3)], []),
            ([step(1, 350, 9, 3)], [token(0, None, 9)]),
        ],
    )
    def test_nobody_knows_it_without_prefills_or_without_times_of_tokens(self, steps, tokens):
        assert interference(steps, interfering(steps, tokens, []), tokens) is None

    def test_none_is_known_when_the_steps_tell_their_prefills(self):
        steps = [step(1, 350, 9, None), step(2, 380, 9, 0)]
        assert interference(steps, np.zeros(2, bool), TOKENS).model_dump() == {
            "steps": 0, "time_s": 0.0, "prefill_tokens": 0,
        }  # fmt: skip


class TestLongest:
    def test_the_first_token_is_left_out_and_the_step_is_named(self):
        steps = [step(9, 900, 100, prefill=7), step(None, 0, 1)]
        first, second, third = longest_waits(TOKENS, waiting_phases(TOKENS, PHASES), steps)
        assert first.model_dump() == {
            "index": 3, "offset_s": 1.0, "duration_s": 0.5, "phase": "preempted", "step": 9, "prefill_tokens": 7,
            "decode_tokens": 2, "running": 3, "kv_blocks_evicted": None,
        }  # fmt: skip
        assert (second.index, second.step, second.prefill_tokens, third.duration_s) == (1, 2, None, 0.0)

    def test_a_token_of_an_unknown_step_has_no_counts(self):
        (wait,) = longest_waits([token(3, None, 700, None)], [None], [step(None, 0, 1, prefill=7)])
        assert (wait.offset_s, wait.phase, wait.step, wait.prefill_tokens) == (None, None, None, None)

    def test_there_are_five_and_the_first_token_of_a_second_answer_is_none_of_them(self):
        answers = [token(0, 300, 300), token(1, 500, 200), token(0, 900, 900), *(token(i, 0, i) for i in range(1, 8))]
        found = longest_waits(answers, [None] * len(answers), [])
        assert [wait.duration_s for wait in found] == [0.2, 0.007, 0.006, 0.005, 0.004]


def test_the_answer_of_a_request_has_them(api, rows):
    trace = trace_id()
    made = rows.request(
        trace_id=trace, tenant="acme", e2e=SECOND, ended=NOW - SECOND, queue_ns=100 * MS, wait_kv_ns=60 * MS,
    )  # fmt: skip
    began = NOW - 2 * SECOND
    rows.phases(made, [("queued", 100 * MS), ("prefill", 200 * MS), ("decode", 700 * MS)])
    rows.tokens(made, [300_000, 200_000, 400_000])
    for number, at in enumerate((100, 550)):
        rows.step(start=began + at * MS, duration_ns=100 * MS, step=number, prefill_tokens=40)
    answer = api(f"requests/{trace}")
    assert answer["waits"] == [{"reason": "kv", "time_s": 0.06}, {"reason": "step", "time_s": 0.04}]
    assert [one["phase"] for one in answer["tokens"]] == ["prefill", "decode", "decode"]
    assert [one["interferes"] for one in answer["steps"]] == [False, True]
    assert answer["interference"] == {"steps": 1, "time_s": 0.1, "prefill_tokens": 40}
    assert [(one["index"], one["duration_s"]) for one in answer["longest_waits"]] == [(2, 0.4), (1, 0.2)]
