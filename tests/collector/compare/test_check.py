"""`/check`: a gate that says good, worse or not decided, and errs as rarely when it is asked all the time."""

import math
from dataclasses import replace

import numpy as np
import pytest

from collector.compare.chance import Sample
from collector.compare.check import overall
from collector.compare.evidence import Share, against_latency, against_objective, against_share, drifts, evidence
from collector.compare.ran import Ran
from collector.compare.sides import bad_samples
from collector.compare.wandering import BLOCKS
from tests.collector.rows import NOW, SECOND

MS = 1_000_000


@pytest.fixture
def check(api):
    """The gate, which calls what it saw for five minutes good."""
    asked = {"slo": "chat", "least_time": "5m"}
    return lambda **params: api("check", **asked, **{name.replace("__", "."): v for name, v in params.items()})


def _requests(n, bad, **fields):
    """Requests of the SLO `chat` over ten minutes, of which some are bad, spread evenly."""
    every = n / bad if bad else math.inf
    return [
        {
            "ended": NOW - 60 * SECOND - i * 600 * SECOND // n, "e2e": 2 * SECOND, "slo_class": "chat", "tpot_ns": 1e7,
            "ttft_ns": 900 * MS if bad and i % every < 1 else 100 * MS + i % 97 * MS, **fields,
        }
        for i in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "verdict", "value"), [(10, "good", 1), (300, "worse", -1), (105, "not decided", 0), (0, "good", 1)]
)
def test_requests_are_good_worse_or_undecided_beside_an_objective(check, rows, bad, verdict, value):
    rows.requests([*_requests(2000, bad), *_requests(500, 500, slo_class="batch")])
    got = check()
    assert (got["verdict"], got["value"]) == (verdict, value)
    assert got["requests"]["total"] == 2000
    (number,) = got["numbers"]
    assert number["name"] == "bad share"
    assert number["a"] == pytest.approx(0.05)
    assert number["b"] == pytest.approx(bad / 2000)


def test_the_objective_and_the_relevant_difference_are_arguments(check, rows):
    rows.requests(_requests(2000, 105))
    assert check(objective=0.9)["verdict"] == "good"
    assert check(objective=0.99)["verdict"] == "worse"
    assert check(relevant=1.0)["verdict"] == "good"


def test_no_traffic_is_not_decided_and_says_why(check, rows):
    got = check()
    assert (got["verdict"], got["value"]) == ("not decided", 0)
    assert got["reason"] == "no request of the window was judged: is traffic on its way, and does the SLO select it?"
    rows.requests(_requests(300, 0))
    assert check(variant="new", against__variant="baseline")["reason"].startswith("no request of new was judged")
    misspelt = check(variant="basline")
    assert misspelt["empty"] == "basline"
    assert misspelt["reason"].endswith("no request has the variant basline: did you mean baseline?")
    assert check(variant="baseline", against__variant="old")["reason"].startswith("no request of old was judged")
    assert check(variant="baseline", against__variant="old")["verdict"] != "worse"


def test_a_variant_is_compared_with_another_one(check, rows):
    quick, slow = _requests(3000, 30, variant="old"), _requests(3000, 30, variant="new")
    rows.requests([*quick, *[{**r, "ttft_ns": int(r["ttft_ns"] * 1.5), "e2e": 3 * SECOND} for r in slow]])
    got = check(variant="new", against__variant="old", quantile=0.9)
    assert got["verdict"] == "worse"
    names = {number["name"]: number for number in got["numbers"]}
    assert names["P90 TTFT"]["verdict"] == "worse"
    assert names["P90 TTFT"]["b"] == pytest.approx(1.5 * names["P90 TTFT"]["a"], rel=0.02)
    assert got["reason"].startswith("P90 TTFT 2")
    back = check(variant="old", against__variant="new", quantile=0.9)
    assert back["verdict"] == "good", back["numbers"]
    assert back["reason"] == "no number is worse by 20 %: 3\u202f000 and 3\u202f000 judged requests"


def test_a_longer_gap_is_worse_though_each_token_is_as_quick_on_average(check, rows):
    quick, frozen = (_requests(2000, 20, variant=name, gap_ns=50 * MS) for name in ("old", "new"))
    rows.requests([*quick, *[{**r, "gap_ns": 900 * MS if i % 5 else 50 * MS} for i, r in enumerate(frozen)]])
    got = check(variant="new", against__variant="old", quantile=0.9)
    assert got["verdict"] == "worse"
    assert {number["name"] for number in got["numbers"] if number["verdict"] == "worse"} == {"P90 longest gap"}
    assert got["reason"] == "P90 longest gap 900 ms, not 50.0 ms: 2\u202f000 and 2\u202f000 judged requests"


def test_good_needs_requests_of_both_sides_in_one_time_and_for_long_enough(check, rows):
    often = lambda since, n, seconds=200, **of: [  # noqa: E731
        {**row, "ended": NOW - (since - i * seconds // n) * SECOND, **of}
        for i, row in enumerate(_requests(n, 0))
    ]  # fmt: skip
    rows.requests([*often(300, 800, variant="young"), *often(300, 800, variant="smoke")])
    rows.requests([*often(7000, 1, variant="smoke"), *often(9000, 500, 9000, variant="beside")])
    # One request hours ago, or a window of days, is no time in which a variant was seen.
    for asked in ({"variant": "young"}, {"variant": "smoke"}, {"variant": "smoke", "against__variant": "beside"}):
        got = check(start="-2d", **asked)
        assert (got["verdict"], got["seen_s"] < 300) == ("not decided", True), (asked, got)
        assert "good needs 5 min of traffic, of which 3 min" in got["reason"]
    # v1, v2, v1: while v2 ran, v1 did not, so they are compared at their own times.
    rows.requests([*often(6000, 800, 1500, variant="v1"), *often(4500, 800, 1500, variant="v2")])
    rows.requests(often(3000, 800, 1500, variant="v1"))
    got = check(start="-3h", variant="v2", against__variant="v1")
    assert (got["requests"]["total"], got["empty"]) == (800, None)
    assert "800 and 1\u202f600 judged requests" in got["reason"]
    assert got["warnings"] == ["the sides ran at different times, so what else changed in time counts too"]
    assert 1400 <= got["seen_s"] <= 1500
    assert against_share([], Share(0, 3000), 0.05, 0.2, 1).verdict == "not decided", "one request is no other side"


def test_a_side_that_has_just_begun_is_compared_with_a_minute_of_the_other_one(api, check, rows):
    rows.requests(_requests(600, 0, variant="old"))
    rows.request(ended=NOW - 300 * SECOND, variant="new", slo_class="chat")
    got = check(variant="new", against__variant="old")
    assert (got["verdict"], got["empty"], got["requests"]["total"]) == ("not decided", None, 1)
    assert "1 and 60 judged requests" in got["reason"]
    rows.clear()
    rows.requests([r for r in _requests(600, 0, variant="old") if not 200 < (NOW - r["ended"]) / SECOND < 400])
    rows.request(ended=NOW - 300 * SECOND, variant="new", slo_class="chat")
    for asked in ({"variant": "new", "against__variant": "old"}, {"variant": "old", "against__variant": "new"}):
        got = check(**asked)
        assert (got["empty"], "no request has" in got["reason"]) == ("old", False), "it has others at other times"
    notes = api("compare", **{"a.variant": "old", "b.variant": "new"})["warnings"]
    assert [note[:24] for note in notes] == ["both sides are of the ti", "old has no request that "]


def test_two_sides_are_seen_where_both_ran_without_a_pause():
    ran = lambda *minutes: Ran(None, None, np.array(minutes, np.int64))  # noqa: E731
    a, b = ran(0, 10, 25, 41, 42, 50), ran(5, 20, 30, 45, 60, 61)
    assert a.stretches() == [(0, 25), (41, 50)]
    assert b.stretches() == [(5, 61)]
    assert a.seen_s(b) == b.seen_s(a) == (20 + 9) * 60
    assert (a.seen_s(), a.seen_s(ran()), ran(3).seen_s()) == (34 * 60, 0.0, 0.0)


@pytest.mark.parametrize(
    ("known", "verdict", "against", "told"),
    [
        (0, "not decided", "not decided", "99 %"),  # but for those that missed a threshold, which are known to be bad
        (800, "not decided", "not decided", "59.4 %"),
        (1996, "good", "good", None),  # so few that it does not matter how they ended
    ],
)
def test_requests_of_which_nobody_tells_how_they_ended_are_neither_good_nor_bad(
    known, verdict, against, told, api, check, rows
):
    """The judged ones among them are bad alone, so a source that tells no status would look worse than it is."""
    silent = [r if i < known else {**r, "status": "unknown"} for i, r in enumerate(_requests(2000, 20, variant="new"))]
    rows.requests([*_requests(2000, 20, variant="old"), *silent])
    alone, beside = check(variant="new"), check(variant="new", against__variant="old", quantile=0.9)
    assert (alone["verdict"], beside["verdict"]) == (verdict, against)
    compared = api("compare", **{"a.variant": "old", "b.variant": "new"})
    assert compared["kind"] not in {"worse", "mixed"}
    assert compared["attainment"]["low"] < 0 < compared["attainment"]["high"]
    notes = [] if told is None else [f"nobody tells whether {told} of the requests of new were good or bad"]
    for answer in (alone, beside, compared):
        assert [note for note in answer["warnings"] if note.startswith("nobody")] == notes
    rows.requests([{**r, "status": "error"} for r in _requests(9000, 0, variant="new")])
    assert check(variant="new")["verdict"] == check(variant="new", against__variant="old")["verdict"] == "worse"


def test_undetermined_requests_of_the_other_side_may_have_been_bad(check, rows):
    rows.requests([{**r, "status": "unknown"} if i % 2 else r for i, r in enumerate(_requests(2000, 0, variant="old"))])
    rows.requests(_requests(2000, 200, variant="new"))
    assert check(variant="new", against__variant="old")["numbers"][0]["verdict"] == "not decided"
    rows.requests([{**r, "status": "error"} for r in _requests(20_000, 0, variant="new")])
    assert check(variant="new", against__variant="old")["numbers"][0]["verdict"] == "worse", "91 % are more than half"


def test_a_time_is_compared_with_an_earlier_one(check, rows):
    earlier = [{**r, "ended": r["ended"] - 7200 * SECOND} for r in _requests(1500, 15)]
    rows.requests([*earlier, *_requests(1500, 300)])
    got = check(against__start="-3h", against__end="-1h")
    assert got["verdict"] == "worse"
    assert got["reason"].startswith("bad share 20 %, not 1 %")


def test_a_status_tells_the_verdict_to_those_who_read_no_answer(api, rows):
    def statuses(**params):
        of = {}
        for wish in ("good", "not_worse", "worse"):
            answer = api.client.post("/api/v1/check", params={"slo": "chat", "ok_if": wish, **params})
            of[wish] = answer.status_code
        return answer.json()["verdict"], of

    assert statuses() == ("not decided", {"good": 412, "not_worse": 200, "worse": 412})
    rows.requests(_requests(2000, 300))
    assert statuses() == ("worse", {"good": 412, "not_worse": 412, "worse": 200})
    assert statuses(objective=0.5, least_time="5m") == ("good", {"good": 200, "not_worse": 200, "worse": 412})
    ask = lambda **params: api.client.get("/api/v1/check", params=params).status_code  # noqa: E731
    assert ask(slo="chat") == 200
    assert (ask(slo="gone"), ask(), ask(slo="chat", objective=1), ask(slo="chat", ok_if="fine")) == (404, 400, 400, 400)


def test_bad_requests_that_came_together_are_weaker_evidence(check, rows):
    rows.requests(_requests(2000, 125))
    spread = check()["numbers"][0]
    rows.clear()
    burst = _requests(2000, 0)
    rows.requests([{**r, "ttft_ns": 900 * MS} if 500 <= i < 625 else r for i, r in enumerate(burst)])
    at_once = check()["numbers"][0]
    assert at_once["b"] == pytest.approx(spread["b"])
    assert at_once["evidence_of_worse"] < spread["evidence_of_worse"]


def test_a_gate_that_is_asked_each_minute_rarely_convicts_the_innocent_and_finds_the_slow():
    rng = np.random.default_rng(3)
    ended = {1.0: 0, 1.5: 0}
    for slower in ended:
        for _ in range(30):
            a, b = (rng.lognormal(0, 0.8, 3000) * factor for factor in (1.0, slower))
            for n in range(100, 3001, 100):
                pair = tuple(Sample(x[:n], np.ones(n), np.ones((1, n)), np.arange(n) * BLOCKS // n) for x in (a, b))
                if against_latency("P90 TTFT", pair, 0.9, 0.2, 3).verdict == "worse":
                    ended[slower] += 1
                    break
    assert ended[1.0] <= 2
    assert ended[1.5] >= 27


@pytest.mark.parametrize(
    ("first", "last", "slower", "together", "verdict"),
    [
        (1.0, 1.8, 1.0, False, False),  # B ran after A, and all became slower all the time
        (1.8, 1.0, 1.0, False, False),
        (1.0, 1.0, 1.5, False, True),  # B is slower, from its first request on
        (1.0, 1.8, 1.5, True, True),  # at one time, both became slower alike
    ],
)
def test_what_drifts_is_no_release_where_the_sides_ran_at_other_times(first, last, slower, together, verdict):
    rng, n = np.random.default_rng(9), 3000
    half, blocks = np.linspace(0, 1, n), np.arange(n) * BLOCKS // n
    of_a, of_b = (half, half) if together else (half / 2, 0.5 + half / 2)
    a, b = (rng.lognormal(0, 0.4, n) * (first + (last - first) * when) * by for when, by in ((of_a, 1), (of_b, slower)))
    pair = tuple(
        Sample(values, np.ones(n), np.ones((1, n)), blocks + (0 if together else BLOCKS * place), seconds=5400.0)
        for place, values in enumerate((a, b))
    )
    drifting = drifts([pair])
    assert drifting == (not together and first != last)
    told = against_latency("P99 TTFT", pair, 0.99, 0.2, 5, drifts=drifting)
    assert told.verdict == ("worse" if verdict else "not decided")
    bad = tuple(replace(side, values=(side.values > 3.0) * 1.0) for side in pair)
    shares = against_share([bad], Share(30, n), 0.05, 0.2, 5, drifts=drifting)
    assert shares.verdict == ("worse" if verdict else "not decided")


def test_the_same_latencies_are_good_once_there_are_enough():
    rng = np.random.default_rng(4)
    pair = tuple(
        Sample(rng.lognormal(0, 0.8, 9000), np.ones(9000), np.ones((1, 9000)), np.arange(9000) * BLOCKS // 9000)
        for _ in "ab"
    )
    assert against_latency("P90 TTFT", pair, 0.9, 0.3, 3).verdict == "good"
    few = tuple(
        Sample(s.values[:100], s.weights[:100], s.features[:, :100], np.arange(100) * BLOCKS // 100) for s in pair
    )
    assert against_latency("P90 TTFT", few, 0.9, 0.3, 3).verdict == "not decided"


def test_a_share_that_is_larger_than_the_other_sides_is_worse_even_within_the_objective():
    def judged(bad_of_a, bad_of_b, budget):
        """10,000 requests of each side, bad ones spread evenly over the blocks of time."""
        of = [np.arange(10_000) % (10_000 // max(bad, 1)) < (bad > 0) for bad in (bad_of_a, bad_of_b)]
        blocks = np.arange(10_000) * BLOCKS // 10_000
        pair = tuple(Sample(bad * 1.0, np.ones(10_000), np.ones((1, 10_000)), blocks) for bad in of)
        return against_share([pair], Share(bad_of_b, 10_000), budget, 0.2, 1)

    assert judged(10, 100, 0.05).verdict == "worse"
    assert judged(10, 10, 0.05).verdict == "good"
    assert judged(10, 10, 0.0001).verdict == "not decided"
    assert judged(5000, 2000, 0.0001).verdict == "good"
    assert judged(2000, 2000, 0.0001).verdict == "good"
    assert against_share([], Share(0, 0), 0.05, 0.2, 1).verdict == "not decided"


def test_one_worse_number_is_worse_and_only_all_good_ones_are_good():
    good, bad, open_ = (against_objective(Share(h, 2000), 0.05, 0.2) for h in (10, 300, 105))
    assert [n.verdict for n in (good, bad, open_)] == ["good", "worse", "not decided"]
    assert overall([good, bad, open_]) == "worse"
    assert overall([good, open_]) == "not decided"
    assert overall([good, good]) == "good"
    assert overall([]) == "not decided"


@pytest.mark.parametrize("p", [0.5, 0.05])
@pytest.mark.parametrize("sign", [1, -1])
def test_evidence_that_is_looked_at_after_each_request_rarely_convicts_the_innocent(p, sign):
    rng, larger = np.random.default_rng(11), lambda hits, n: evidence(hits, n, p, sign) > math.log(20)
    convicted = 0
    for _ in range(100):
        hits = np.cumsum(rng.random(1500) < p)
        convicted += any(larger(int(hits[n - 1]), n) for n in range(10, 1500, 10))
    assert convicted <= 9
    for n, shift in ((20_000, 0.02), (400, 0.2)):  # little by many, and much by few
        assert larger(n * min(p + sign * shift, p * 3) if sign > 0 else n * max(p - shift, p / 3), n)
    assert evidence(0, 0, p, sign) == 0
    assert evidence(1000 * p * (1 - sign * 0.5), 1000, p, sign) == 0, "the other side is no evidence"


def _steady(share, minutes):
    """Two requests a second, of which bad ones come evenly."""
    number = np.arange(minutes * 120)
    bad, block = np.floor((number + 1) * share) - np.floor(number * share), number * BLOCKS // len(number)
    judged = np.bincount(block).astype(float)
    moved = (np.bincount(block, bad) - judged * bad.mean()) / len(number)
    return Share(float(bad.sum()), float(len(number)), moved, minutes * 60.0, judged)


@pytest.mark.parametrize(
    ("share", "minutes", "verdict"),
    [(0.1, 2, "not decided"), (0.1, 4, "worse"), (0.05, 50, "not decided"), (0.05, 60, "good"), (0.03, 40, "good")],
)
def test_worse_is_told_early_and_good_is_doubted_where_traffic_may_yet_wander(share, minutes, verdict):
    assert against_objective(_steady(share, minutes), 0.05, 0.2).verdict == verdict


def test_a_release_that_is_half_as_slow_again_is_told_by_its_first_thousand_requests():
    rng = np.random.default_rng(8)
    blocks, told = np.arange(1000) * BLOCKS // 1000, []
    for slower in (1.0, 1.5):
        pairs = [
            [Sample(by * rng.lognormal(0, 0.8, 1000), np.ones(1000), np.ones((1, 1000)), blocks, seconds=500.0)
             for by in (1.0, slower)] for _ in range(10)
        ]  # fmt: skip
        told.append([against_latency("P99 TTFT", (a, b), 0.99, 0.2, 5).verdict == "worse" for a, b in pairs])
    assert (sum(told[0]), sum(told[1])) == (0, 10)


def test_undetermined_requests_of_both_sides_are_supposed_to_be_the_opposite():
    n = 400
    open_ = (np.arange(n) % 2).astype(float)
    side = {
        "bad": np.where(open_ == 1, np.nan, 0.0), "undetermined": open_, "slos": np.zeros(n), "weight": np.ones(n),
        "input": np.full(n, 9.0), "cached": np.zeros(n), "end": np.arange(n) * 1.0,
    }  # fmt: skip
    shares = [[float(one.values.mean()) for one in pair] for pair in bad_samples(side, side)]
    assert shares == [[0.0, 0.0], [0.0, 0.5], [0.5, 0.0]]
