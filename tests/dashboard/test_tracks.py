"""The tracks of the component `trail`, and the sentences of the page Request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import pytest

from dashboard import tracks, why
from dashboard.components.trail import COLOURS
from dashboard.views import request_head
from tokentrail.shared.parameters import Threshold

NAMES = list(COLOURS)
START = "2026-11-26T10:00:00Z"
COLUMNS = (
    "offset_s", "duration_s", "step", "prefill_tokens", "decode_tokens", "running", "waiting", "kv_blocks_used",
    "kv_blocks_total",
)  # fmt: skip
NOW = datetime(2026, 11, 26, 10, 0, 30, tzinfo=UTC)


def phase(name, offset, length):
    return {"name": name, "offset_s": offset, "duration_s": length}


def token(index, offset, wait, phase="decode"):
    return {"index": index, "offset_s": offset, "duration_s": wait, "step": index, "phase": phase}


def step(number, offset, length, **more):
    return {
        "step": number, "offset_s": offset, "duration_s": length, "prefill_tokens": 0, "decode_tokens": 2, "running": 2,
        "waiting": 3, "kv_blocks_used": 1, "kv_blocks_total": 4, "waiting_for_batch": None, "waiting_for_tokens": 0,
        "waiting_for_kv": 2, "waiting_for_priority": 1, "interferes": False,
    } | more  # fmt: skip


def request(**more):
    return {
        "trace_id": "aa" * 16, "span_id": "bb" * 8, "start": START, "status": "ok", "error_type": "", "e2e_s": 1.0,
        "ttft_s": 0.3, "tpot_s": 0.35, "tpot_at_most_s": None, "output_tokens": 3, "input_tokens": 1200,
        "cached_tokens": 0, "verdicts": [],
    } | more  # fmt: skip


def trail(own=None, **more):
    empty = {"phases": [], "tokens": [], "steps": [], "events": []}
    return {"request": request(**(own or {}))} | empty | more


def lane(number, begin, length, **more):
    return {
        "trace_id": f"{number:032x}", "span_id": f"{number:016x}", "offset_s": begin, "e2e_s": length, "ttft_s": 0.1,
        "status": "ok", "tenant": "acme", "input_tokens": 10, "output_tokens": 5,
        "phases": [phase("decode", 0.0, length)],
    } | more  # fmt: skip


def timeline(*lanes, start=START, **steps):
    nothing = {name: [] for name in COLUMNS}
    return {
        "window": {"start": start, "end": "2026-11-26T10:02:00Z", "seconds": 120.0},
        "steps": nothing | steps,
        "steps_total": len(steps.get("step", ())),
        "requests": list(lanes),
        "requests_total": len(lanes),
    }


def miss(threshold, limit, value):
    return {"threshold": threshold, "limit_s": limit, "value_s": value, "over_s": value - limit}


def bad(*misses, slo="chat"):
    return {"slo": slo, "verdict": "bad", "missed": list(misses)}


def drawn(picture):
    return {track["name"]: track for track in picture.tracks}


def cause(group, of, time, excess=None, culprits=()):
    return {
        "cause": group, "group": group, "colour": "#000000", "of": of, "time_s": time, "excess_s": excess,
        "culprits": list(culprits),
    }  # fmt: skip


class TestRequest:
    def test_there_is_a_track_for_what_is_known_and_no_picture_of_nothing(self):
        assert tracks.of_request(trail(), None, NOW) is None
        phases = [phase("queued", 0.0, 0.1), phase("decode", 0.1, 0.9)]
        assert [*drawn(tracks.of_request(trail(phases=phases), None, NOW))] == ["phases"]
        whole = trail(phases=phases, tokens=[token(0, 0.3, 0.3)], steps=[step(1, 0.1, 0.2)])
        found = tracks.of_request(whole, timeline(lane(1, 0.0, 1.0)), NOW)
        assert [*drawn(found)] == ["phases", "tokens", "steps", "others here", "KV cache"]
        assert found.height == 34 + sum(track["height"] + 8 for track in found.tracks)

    def test_tokens_of_which_the_time_is_not_known_are_left_out(self):
        tokens = [token(0, 0.3, 0.3, "queued"), token(1, None, 0.1), token(2, None, 0.1)]
        found = drawn(tracks.of_request(trail(tokens=tokens), None, NOW))["tokens"]
        assert (found["ends"], found["first"]) == ([0.3], 0)
        assert [NAMES[place] for place in found["colours"]] == ["queued"]

    def test_a_step_says_who_was_beside_the_request_and_what_the_waiting_lack(self):
        found = drawn(tracks.of_request(trail(steps=[step(7, 0.1, 0.2, interferes=True)]), None, NOW))
        assert found["steps"]["more"] == ["; 2 running, 3 waiting (2 for kv, 1 for priority)"]
        assert found["KV cache"]["values"] == [0.25]

    def test_steps_with_prompts_of_others_are_shaded_behind_the_tokens(self):
        steps = [step(1, 0.1, 0.2, interferes=True), step(2, 0.4, 0.1)]
        found = drawn(tracks.of_request(trail(tokens=[token(0, 0.3, 0.3)], steps=steps), None, NOW))
        assert found["tokens"]["shades"] == [(0.1, 0.2)]

    @pytest.mark.parametrize(
        ("phase", "steps", "colour"),
        [
            ("decode", [], "decode"),
            ("decode", [(0.3, 0.2)], "others"),  # all of the wait from 0.3 to 0.5
            ("decode", [(0.39, 0.3)], "others"),  # more than half of it
            ("decode", [(0.45, 0.3)], "decode"),  # a quarter
            ("decode", [(0.3, 0.06), (0.4, 0.05)], "others"),  # two steps, half of it together
            ("decode", [(0.1, 0.2), (0.5, 0.2)], "decode"),  # before and after it
            ("preempted", [(0.3, 0.2)], "preempted"),
            (None, [(0.3, 0.2)], "wait"),
        ],
    )
    def test_a_token_has_the_colour_of_what_took_its_wait(self, phase, steps, colour):
        tokens = [token(0, 0.3, 0.3, "prefill"), token(1, 0.5, 0.2, phase)]
        shading = [step(i, start, length, interferes=True) for i, (start, length) in enumerate(steps)]
        picture = tracks.of_request(trail(tokens=tokens, steps=shading), None, NOW)
        assert [NAMES[place] for place in drawn(picture)["tokens"]["colours"]] == ["prefill", colour]
        words = {"others": "others' prompts", "wait": "other"}.get(colour, colour)
        assert {*picture.legend} == {"prefill", words}

    def test_waits_are_drawn_between_the_decade_of_the_least_and_beyond_the_most(self):
        def axis(*waits, **more):
            tokens = [token(i, 0.1 * i, wait) for i, wait in enumerate(waits)]
            found = drawn(tracks.of_request(trail(more, tokens=tokens), None, NOW))["tokens"]
            return found["low"], found["high"], found["limit"]

        assert axis(0.5, 0.02, 0.0) == (pytest.approx(0.01), pytest.approx(0.8), None)
        assert axis(0.0) == (pytest.approx(0.01), pytest.approx(0.016), None), "no wait is longer than 0"
        missed = [bad(miss("gap", 3.0, 4.0)), bad(miss("gap", 2.0, 4.0), miss("ttft", 0.1, 0.5), slo="b")]
        assert axis(0.5, 1.0, verdicts=missed) == (pytest.approx(0.1), pytest.approx(3.2), 2.0)

    @pytest.mark.parametrize(
        ("missed", "at"),
        [
            ([miss("ttft", 0.2, 0.3)], [0.2]),
            ([miss("e2e", 0.8, 1.0)], [0.8]),
            ([miss("tpot", 0.25, 0.35)], [0.8]),  # the last of three tokens was due two gaps behind the first
            ([miss("ttft", 0.2, 0.3), miss("e2e", 0.8, 1.0)], [0.2, 0.8]),
            ([miss("gap", 0.25, 0.4)], [0.75]),  # the third token came at 0.9, 0.4 behind the second
            ([miss("first_visible", 0.6, 0.7)], [0.6]),
            ([], []),
        ],
    )
    def test_a_red_line_is_where_a_threshold_was_missed(self, missed, at):
        phases = [phase("decode", 0.0, 1.0)]
        tokens = [token(0, 0.3, 0.3), token(1, 0.5, 0.2), token(2, 0.9, 0.4)]
        found = tracks.of_request(trail({"verdicts": [bad(*missed)]}, phases=phases, tokens=tokens), None, NOW)
        assert [mark["at"] for mark in found.marks if not mark["dashed"]] == pytest.approx(at)
        assert [mark["label"] for mark in found.marks if mark["dashed"]] == ["first token 300 ms"]

    def test_two_slos_with_one_threshold_have_one_line_and_a_tpot_without_tokens_has_none(self):
        own = {"verdicts": [bad(miss("ttft", 0.2, 0.3)), bad(miss("ttft", 0.2, 0.3), slo="all")]}
        phases = [phase("decode", 0.0, 1.0)]
        assert len([m for m in tracks.of_request(trail(own, phases=phases), None, NOW).marks if not m["dashed"]]) == 1
        unknown = {"verdicts": [bad(miss("tpot", 0.2, 0.3), miss("gap", 0.2, 0.3))], "output_tokens": None}
        assert not [m for m in tracks.of_request(trail(unknown, phases=phases), None, NOW).marks if not m["dashed"]]

    def test_one_in_flight_goes_on_until_now_and_shows_the_last_step_of_its_process(self):
        own = {"status": "in_flight", "e2e_s": None, "ttft_s": None}
        found = tracks.of_request(trail(own, steps=[step(1, 0.5, 0.5)]), None, NOW)
        assert found.end_s == pytest.approx(30 * 1.01)
        assert [(mark["at"], mark["label"]) for mark in found.marks] == [(1.0, "last step")]
        done = tracks.of_request(trail(steps=[step(1, 0.5, 0.5)]), None, NOW)
        assert done.end_s == pytest.approx(1.01)
        assert "last step" not in {mark["label"] for mark in done.marks}

    def test_names_from_outside_stay_on_one_short_line(self):
        hostile = "a\nb\u202e" + "x" * 5000
        bar = drawn(tracks.of_request(trail(phases=[phase(hostile, 0.0, 1.0)]), None, NOW))["phases"]["bars"][0]
        assert "\n" not in bar[4]
        assert "\u202e" not in bar[4]
        assert len(bar[4]) <= 40
        assert NAMES[bar[3]] == "wait"


class TestLanes:
    def test_requests_share_a_lane_when_they_do_not_overlap(self):
        found = drawn(tracks.of_process(timeline(lane(1, 0.0, 2.0), lane(2, 1.0, 2.0), lane(3, 2.0, 1.0)), []))
        assert [bar[0] for bar in found["requests"]["bars"]] == [0, 1, 0]
        assert found["requests"]["rows"] == 2

    def test_the_request_itself_is_none_of_the_others_and_times_are_on_its_axis(self):
        own = lane(1, 5.0, 1.0) | {"trace_id": "aa" * 16, "span_id": "bb" * 8}
        others = timeline(own, lane(2, 1.0, 2.0), start="2026-11-26T10:00:02Z")
        found = drawn(tracks.of_request(trail(phases=[phase("decode", 0, 1)]), others, NOW))["others here"]["bars"]
        assert [(bar[1], bar[5][0]) for bar in found] == [(3.0, f"{2:032x}")]

    def test_one_that_has_not_ended_is_red_from_its_arrival_on(self):
        still_open = lane(1, 3.0, 60.0, status="in_flight", phases=[], input_tokens=None)
        (bar,) = drawn(tracks.of_process(timeline(still_open), []))["requests"]["bars"]
        assert (bar[1], bar[2], NAMES[bar[3]], bar[4]) == (3.0, 60.0, "open", "00000000 acme: in flight")

    def test_too_many_at_once_are_counted(self):
        found = tracks.of_process(timeline(*(lane(n, 0.0, 1.0) for n in range(30))), [])
        assert found.lanes_left_out == 6
        assert drawn(found)["requests"]["rows"] == 24


class TestProcess:
    def test_without_anything_there_is_no_picture(self):
        assert tracks.of_process(timeline(), []) is None

    def test_a_cold_start_shows_its_sub_phases_from_when_it_began(self):
        start = {"start": "2026-11-26T10:00:10Z", "phases": [phase("load_weights", 1.0, 5.0)]}
        (bar,) = drawn(tracks.of_process(timeline(), [start]))["cold start"]["bars"]
        assert (bar[1], bar[2], bar[4]) == (11.0, 5.0, "load weights")

    def test_a_process_with_open_requests_shows_where_it_stopped(self):
        steps = {
            "offset_s": [1.0, 2.0], "duration_s": [0.5, 0.5], "step": [1, 2], "prefill_tokens": [5, None],
            "decode_tokens": [0, 1], "running": [1, 1], "waiting": [0, 4], "kv_blocks_used": [1, None],
            "kv_blocks_total": [4, 4],
        }  # fmt: skip
        still_open = lane(1, 3.0, 60.0, status="in_flight", phases=[])
        found = tracks.of_process(timeline(still_open, **steps), [])
        assert [(mark["at"], mark["dashed"]) for mark in found.marks] == [(2.5, False)]
        assert drawn(found)["KV cache"]["values"] == [0.25]
        assert drawn(found)["steps"]["more"] == ["; 1 running, 0 waiting", "; 1 running, 4 waiting"]
        assert tracks.of_process(timeline(lane(1, 0.0, 1.0), **steps), []).marks == []


class TestWhy:
    def explained(self, *causes, ttft=0.05, rest=0.06):
        return {"level": "steps", "causes": list(causes), "typical_ttft_s": ttft, "typical_rest_s": rest}

    def test_the_first_line_says_what_was_missed_by_whom(self):
        one = request(verdicts=[bad(miss("ttft", 1.0, 11.0)), {"slo": "all", "verdict": "good", "missed": []}])
        assert why.verdict(one) == "bad for chat: TTFT 11.0 s, 1.00 s promised"
        failed = request(status="error", error_type="queue_full", verdicts=[bad()])
        assert why.verdict(failed) == "bad for chat: it ended as error (queue\\_full)"
        assert why.verdict(request()) == "No SLO selects this request"
        good = [{"slo": slo, "verdict": "good", "missed": []} for slo in ("chat", "all")]
        assert why.verdict(request(verdicts=good)) == "good for chat, all"

    def test_the_causes_are_those_of_the_part_that_was_missed(self):
        culprit = {"by": "request", "name": "ab, 9 tokens", "trace_id": "ab", "span_id": "cd", "time_s": 3.0}
        explained = self.explained(
            cause("own prompt", "ttft", 7.0, 6.9),
            cause("others' prompts", "ttft", 4.0, 4.0, [culprit | {"name": "less", "time_s": 1.0}, culprit]),
            cause("others' answers", "rest", 50.0, 50.0),
            cause("host gap", "ttft", 0.1, 0.1),
        )  # fmt: skip
        late = request(verdicts=[bad(miss("ttft", 1.0, 11.0))])
        assert why.why(late, explained) == (
            "Why: own prompt 7.00 s (1\u202f200 tokens, 0 cached)"
            " + others' prompts 4.00 s (most by [ab, 9 tokens](/request?trace_id=ab&span_id=cd))."
        )
        slow = request(verdicts=[bad(miss("tpot", 0.1, 0.3))])
        assert why.why(slow, explained) == "Why: others' answers 50.0 s."

    @pytest.mark.parametrize("threshold", get_args(Threshold))
    def test_each_threshold_has_the_causes_of_its_part(self, threshold):
        explained = self.explained(cause("own prompt", "ttft", 7.0, 6.9), cause("others' answers", "rest", 50.0, 50.0))
        told = why.why(request(verdicts=[bad(miss(threshold, 0.1, 0.3))]), explained)
        assert ("own prompt" in told, "others' answers" in told) == {
            "ttft": (True, False), "tpot": (False, True), "gap": (False, True), "e2e": (True, True),
            "first_visible": (True, True),
        }[threshold]  # fmt: skip

    def test_a_good_request_and_one_that_is_not_explained_have_no_why(self):
        good = request(verdicts=[{"slo": "chat", "verdict": "good", "missed": []}])
        assert why.why(good, self.explained(cause("own prompt", "ttft", 7.0, 6.9))) == ""
        late = request(verdicts=[bad(miss("ttft", 1.0, 11.0))])
        assert why.why(late, None) == ""
        assert why.why(late, self.explained()) == ""

    def test_three_causes_are_named_that_have_a_tenth_of_what_is_beyond_typical(self):
        late = request(verdicts=[bad(miss("ttft", 1.0, 11.0))])
        names = ("waiting", "others' prompts", "host gap", "cold start")
        for excess, named in (((9.0, 1.0), 2), ((9.1, 0.9), 1), ((3.0, 3.0, 2.0, 2.0), 3)):
            causes = [cause(name, "ttft", 10.0, s) for name, s in zip(names, excess, strict=False)]
            assert why.why(late, self.explained(*causes)).count("10.0 s") == named

    def test_causes_that_people_call_by_one_name_are_added_up_and_ordered_by_what_is_beyond_typical(self):
        explained = self.explained(
            cause("alone", "rest", 9.0, 0.1), cause("waiting", "ttft", 1.0, 1.0), cause("waiting", "rest", 2.0, 2.0)
        )
        found = [(one.name, one.ttft_s, one.rest_s, one.excess_s) for one in why.groups(explained)]
        assert found == [("waiting", 1.0, 2.0, 3.0), ("alone", 0, 9.0, 0.1)]

    def test_without_a_typical_request_the_longest_stands_first(self):
        explained = self.explained(cause("a", "ttft", 1.0), cause("b", "ttft", 2.0), ttft=None, rest=None)
        assert [(one.name, one.excess_s) for one in why.groups(explained)] == [("b", None), ("a", None)]
        assert why.typical(request(), explained) == ""

    def test_a_typical_request_is_named_beside_this_one(self):
        text = why.typical(request(), self.explained())
        assert "TTFT 50.0 ms, TPOT 30.0 ms" in text
        assert "this one 300 ms, TPOT 350 ms" in text
        assert "TPOT 30" not in why.typical(request(output_tokens=1), self.explained())


BOUNDS = (("at_least", "0ns"), ("at_most", "9000000000ns"))


@pytest.mark.parametrize(("at", "slower", "faster"), [(0, 1, None), (1, 2, 0), (299, None, 298)])
def test_the_next_slower_and_faster_request_are_found_among_any_number(monkeypatch, at, slower, faster):
    latencies = [2.0 + n / 1000 for n in range(300)]

    def fetch(query):
        asked = dict(query.params)
        low, high = (float(asked.get(name, other).removesuffix("ns")) / 1e9 for name, other in BOUNDS)
        found = sorted((s for s in latencies if low <= s <= high), reverse=asked.get("order") != "asc")
        rows = [{"trace_id": f"{s:.3f}", "span_id": "s"} for s in found[: int(asked["limit"])]]
        return {"requests": rows}

    monkeypatch.setattr(request_head, "fetch", fetch)
    told = request_head.neighbours([], {"ttft_s": latencies[at], "span_id": "s"}, "ttft")
    expected = [None if n is None else f"{latencies[n]:.3f}" for n in (slower, faster)]
    assert [one and one["trace_id"] for *_, one in told] == expected
