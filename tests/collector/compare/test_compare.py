"""`/compare`: two sets of requests whose difference is known."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from collector.compare.chance import difference, share
from tests.collector.rows import NOW, SECOND
from tokentrail.cli.compare import show
from tokentrail.shared.formatting import count, duration, significant

MS = 1_000_000


def _requests(rng, n, *, slower=1.0, prompt=500.0, first=NOW - 800 * SECOND, span=700 * SECOND, **fields):
    prompts = np.maximum(rng.lognormal(np.log(prompt), 0.6, n), 1)
    ttft = (30 + 0.2 * prompts) * rng.lognormal(0, 0.25, n) * slower * MS
    ended = first + np.sort(rng.random(n)) * span
    return [
        {
            "ended": int(end), "e2e": int(t) + 2 * SECOND, "ttft_ns": int(t), "tpot_ns": 20.0 * MS,
            "output_tokens": 101, "input_tokens": int(p), "slo_class": "chat", **fields,
        }
        for end, t, p in zip(ended, ttft, prompts, strict=True)
    ]  # fmt: skip


@pytest.fixture
def compare(api):
    return lambda **params: api("compare", **{name.replace("__", "."): value for name, value in params.items()})


def test_a_slower_variant_is_named_with_its_interval_and_the_same_one_is_not(compare, rows):
    rng = np.random.default_rng(1)
    old, new = _requests(rng, 3000, variant="old"), _requests(rng, 3000, variant="new", slower=2.0)
    rows.requests([*old, *new, *_requests(rng, 3000, variant="twin")])
    got = compare(a__variant="old", b__variant="new")
    assert got["kind"] == "worse"
    assert got["verdict"].startswith("new is slower than old: P99 TTFT × ")
    assert got["verdict"].endswith(
        "3\u202f000 and 3\u202f000 requests, like for like by prompt tokens, cached tokens and output tokens"
    )
    for level in ("p50", "p90", "p95", "p99"):
        interval = got["ratios"]["ttft"][level]
        assert interval["low"] < 2.0 < interval["high"]
    assert got["a"]["ttft_s"]["p99"] == pytest.approx(np.percentile([r["ttft_ns"] for r in old], 99) / 1e9, rel=1e-9)
    missed = [np.mean([r["ttft_ns"] > 500 * MS for r in side]) for side in (old, new)]
    assert got["attainment"]["estimate"] == pytest.approx(missed[0] - missed[1], abs=0.01), "like for like"
    assert got["attainment"]["low"] < missed[0] - missed[1] < got["attainment"]["high"]
    assert got["warnings"] == []
    twin = compare(a__variant="old", b__variant="twin")
    assert twin["kind"] == "not decided"
    assert compare(a__variant="twin", b__variant="old", relevant=0.14)["kind"] == "not decided"
    assert compare(a__variant="old", b__variant="twin", relevant=0.3)["kind"] == "same", "as all ends are in 30 %"
    assert twin["ratios"]["ttft"]["p50"]["low"] < 1 < twin["ratios"]["ttft"]["p50"]["high"]
    back = compare(a__variant="new", b__variant="old")
    assert back["kind"] == "better"
    assert back["ratios"]["ttft"]["p50"]["estimate"] == pytest.approx(1 / got["ratios"]["ttft"]["p50"]["estimate"])


def test_the_longest_gap_decides_too_and_waits_for_tokens_are_weighed_by_request(compare, rows):
    """New has longer answers, whose tokens take longer: like for like, its tokens take twice as long."""
    rng = np.random.default_rng(10)

    def side(variant, answers, slower):
        made = []
        for r in _requests(rng, 2000, variant=variant):
            n = int(rng.choice(answers))
            gaps = (20 + 2 * n) * slower * MS * rng.lognormal(0, 0.3) * rng.lognormal(0, 0.1, n - 1)
            told = {"output_tokens": n, "tpot_ns": 2e7 * rng.lognormal(0, 0.3), "e2e": 3 * SECOND}
            made.append(({**r, **told, "gap_ns": int(gaps.max())}, [r["ttft_ns"] // 1000, *(gaps // 1000).astype(int)]))
        for stored, (_, durations) in zip(rows.requests([r for r, _ in made]), made, strict=True):
            rows.tokens(stored, durations)
        return made

    old, new = side("old", (4, 6, 8), 1.0), side("new", (6, 8, 10), 2.0)
    got = compare(a__variant="old", b__variant="new")
    assert got["kind"] == "worse"
    assert "new is slower than old: P99 longest gap × " in got["verdict"]
    assert got["b"]["gap_s"]["p99"] == pytest.approx(np.percentile([r["gap_ns"] for r, _ in new], 99) / 1e9, rel=1e-9)
    waits = [[us for _, durations in one for us in durations[1:]] for one in (old, new)]
    assert got["b"]["itl_s"]["count"] == len(waits[1])
    for name in ("gap", "itl"):
        interval = got["ratios"][name]["p90"]
        assert (
            interval["low"] < 2.0 < interval["high"] < 2.0 * np.percentile(waits[1], 90) / np.percentile(waits[0], 90)
        )
    alone = np.diff(np.log([got["ratios"]["itl"]["p90"][bound] for bound in ("low", "high")]))[0]
    of_requests = np.diff(np.log([got["ratios"]["tpot"]["p90"][bound] for bound in ("low", "high")]))[0]
    assert 0.7 * of_requests < alone < 1.5 * of_requests, "tokens of one request are not independent"
    assert any(line.startswith("P99 longest gap") and "× " in line for line in _shown(got).splitlines())
    rows.requests([*_requests(rng, 400, variant="without")])
    half = compare(a__variant="old", b__variant="without")
    assert {"gap", "itl"}.isdisjoint(half["ratios"])
    assert half["b"]["gap_s"]["p99"] is None


def test_longer_prompts_alone_are_no_slower_server(compare, rows):
    rng = np.random.default_rng(2)
    rows.requests([*_requests(rng, 2000, variant="old"), *_requests(rng, 2000, variant="new", prompt=900.0)])
    got = compare(a__variant="old", b__variant="new")
    assert got["b"]["ttft_s"]["p50"] > 1.5 * got["a"]["ttft_s"]["p50"]
    assert got["ratios"]["ttft"]["p50"]["high"] < 1.1
    assert not (got["kind"] == "worse" and "TTFT" in got["verdict"])
    assert got["mix"]["input"]["differs"]
    assert any(warning.startswith("the prompt tokens differ (medians 49") for warning in got["warnings"])


@pytest.mark.parametrize(
    ("shares", "times", "slower", "kind", "named"),
    [
        # Simpson: B has fewer requests of the tenant whose requests are slow, and is slower for each of both.
        pytest.param((0.6, 0.2), 3.0, (1.5, 1.5), "worse", {}, id="another mix, worse for each"),
        pytest.param((0.5, 0.5), 3.0, (2.0, 0.5), "mixed", {"heavy": "worse", "light": "better"}, id="equal mixes"),
        pytest.param((0.3, 0.6), 3.0, (2.0, 0.5), "mixed", {"heavy": "worse", "light": "better"}, id="another mix"),
        # All of the smaller part's are quicker than most of the others: no percentile of all moves.
        pytest.param((0.15, 0.15), 0.2, (2.5, 1.0), "same", {"heavy": "worse"}, id="a part that is no tail"),
    ],
)
def test_parts_of_the_traffic_with_another_verdict_are_named_whether_their_mix_differs_or_not(
    shares, times, slower, kind, named, compare, rows
):
    rng = np.random.default_rng(31)
    for variant, part, each in (("old", shares[0], (1.0, 1.0)), ("new", shares[1], slower)):
        for tenant, of_all, by in (("heavy", part, times * each[0]), ("light", 1 - part, each[1])):
            rows.requests(_requests(rng, int(4000 * of_all), variant=variant, tenant=tenant, slower=by))
    got = compare(a__variant="old", b__variant="new", relevant=0.5)
    assert got["kind"] == kind
    assert {one["value"]: one["kind"] for one in got["strata"] if one["kind"] != "same"} == named
    for value, verdict in named.items():
        assert f"tenant {value} alone: {verdict}" in got["warnings"]
    assert any(note.startswith("the mix of tenant differs") for note in got["warnings"]) == (shares[0] != shares[1])


def test_a_mix_is_of_what_both_sides_have_and_differs_by_more_than_chance(compare, rows):
    """Each is of another tenant, and of another region or told on one side alone, which is no mix."""
    rng = np.random.default_rng(32)
    for variant, heavy, slower, labels in (
        ("old", 212, 1.0, {"region": "eu"}),
        ("new", 188, 2.0, {"region": "us", "beta": "1"}),
    ):
        for tenant, n in (("heavy", heavy), ("light", 400 - heavy)):
            for told in (labels, {"region": labels["region"]}):
                some = _requests(rng, n // 2, variant=variant, tenant=tenant, labels=told, slower=slower)
                rows.requests(some)
    got = compare(a__variant="old", b__variant="new")
    assert got["verdict"].endswith("prompt tokens, cached tokens, output tokens and tenant")
    assert not [note for note in got["warnings"] if note.startswith("the mix of")], "53 and 47 % of 400 are by chance"


def test_requests_of_one_tenant_go_together_where_there_are_many_tenants(compare, rows):
    """Each tenant has a pace of its own: 600 requests of twelve tell as much as twelve, and not 3 times as much."""
    rng = np.random.default_rng(33)
    for variant in ("old", "new"):
        for tenant in range(12):
            slower = rng.lognormal(0, 1.0)
            rows.requests(_requests(rng, 50, variant=variant, tenant=f"t{tenant}", slower=slower))
    interval = compare(a__variant="old", b__variant="new")["ratios"]["ttft"]["p50"]
    assert np.log(interval["high"] / interval["low"]) > 0.6


def test_few_requests_decide_nothing_and_say_how_many_would(compare, rows):
    rng = np.random.default_rng(3)
    rows.requests([*_requests(rng, 150, variant="old"), *_requests(rng, 150, variant="new")])
    got = compare(a__variant="old", b__variant="new", relevant=0.3)
    assert got["kind"] == "not decided"
    more = got["more_requests"]
    assert (
        f"about {count(more['a'])} more requests of old and {count(more['b'])} of new would show a difference of 30 %"
        in got["verdict"]
    )
    assert got["ratios"]["ttft"]["p99"]["low"] is None
    assert got["ratios"]["ttft"]["p99"]["high"] is None
    total = 150 + more["a"]
    rows.clear()
    rows.requests([*_requests(rng, total, variant="old"), *_requests(rng, total, variant="new", slower=1.3)])
    assert compare(a__variant="old", b__variant="new", relevant=0.3)["kind"] == "worse"


def test_before_and_after_are_times_of_one_service(compare, rows):
    rng = np.random.default_rng(4)
    rows.requests(
        [
            *_requests(rng, 1500, first=NOW - 7000 * SECOND, span=600 * SECOND),
            *_requests(rng, 1500, first=NOW - 700 * SECOND, span=600 * SECOND, slower=1.5),
        ]
    )
    around = compare(at="-1h", slo_class="chat")
    got = compare(a__start="-2h", a__end="-1h", b__start="-1h", b__end="now", slo_class="chat")
    assert around == got
    assert got["kind"] == "worse"
    assert got["a"]["name"] == "2026-11-21T08:00:00Z to 2026-11-21T09:00:00Z"
    assert got["a"]["ran_s"] == pytest.approx(602, abs=3)
    assert got["a"]["requests_per_s"] == pytest.approx(1500 / got["a"]["ran_s"])
    assert got["a"]["output_tokens_per_s"] == pytest.approx(1500 * 101 / got["a"]["ran_s"])
    assert got["a"]["running"] == pytest.approx(1500 * 2.15 / 602, rel=0.05)


@pytest.mark.parametrize("at", ["-2h", "2026-11-21T08:00:00Z"])
def test_both_sides_of_a_moment_begin_and_end_there(at, compare, rows):
    rows.requests(_requests(np.random.default_rng(4), 600, first=NOW - 9000 * SECOND, span=6000 * SECOND))
    got = compare(at=at, span="10m")
    windows = [(got[side]["window"]["start"][11:16], got[side]["window"]["end"][11:16]) for side in "ab"]
    assert windows == [("07:50", "08:00"), ("08:00", "08:10")]
    assert sum(got[side]["requests"]["total"] for side in "ab") == pytest.approx(120, abs=20)


def test_a_rate_is_over_the_time_in_which_a_side_ran(compare, rows):
    rng = np.random.default_rng(5)
    early = _requests(rng, 200, variant="old", first=NOW - 7200 * SECOND, span=300 * SECOND)
    late = _requests(rng, 200, variant="old", first=NOW - 900 * SECOND, span=300 * SECOND)
    rows.requests([*early, *late, *_requests(rng, 50, variant="new", first=NOW - 900 * SECOND, span=60 * SECOND)])
    got = compare(start="-3h", a__variant="old", b__variant="new")
    assert got["a"]["ran_s"] == pytest.approx(60, abs=5)
    assert got["b"]["ran_s"] == pytest.approx(62, abs=3)
    cut = "both sides are of the time in which both ran, 2026-11-21T09:4"
    assert got["warnings"][0].startswith(cut), "old ran before and after, which says nothing about new"
    own = compare(a__variant="old", a__start="-3h", b__variant="new", b__start="-15m")
    assert own["a"]["ran_s"] == pytest.approx(604, abs=5), "without pauses, and not cut where times are asked for"


def test_the_failed_count_for_attainment_and_have_no_latency(compare, rows):
    rng = np.random.default_rng(6)
    failed = [{**r, "status": "error", "error_type": "queue_full"} for r in _requests(rng, 400, variant="new")]
    rows.requests([*_requests(rng, 400, variant="old"), *_requests(rng, 400, variant="new"), *failed])
    got = compare(a__variant="old", b__variant="new")
    assert got["kind"] == "worse"
    assert "new is worse than old: attainment -49.39 points (" in got["verdict"], "like for like: -49.38 as they are"
    assert got["b"]["ttft_s"]["count"] == 400


def test_sampled_requests_count_by_their_weight(compare, rows):
    rng = np.random.default_rng(7)
    every, other = _requests(rng, 4000, variant="old"), _requests(rng, 4000, variant="new", slower=1.5)
    sampled = [
        {**r, "weight": 1.0 if r["ttft_ns"] > 300 * MS else 4.0}
        for r in other
        if r["ttft_ns"] > 300 * MS or rng.random() < 0.25
    ]
    rows.requests([*every, *sampled])
    got = compare(a__variant="old", b__variant="new")
    for level in ("p50", "p90", "p99"):
        interval = got["ratios"]["ttft"][level]
        assert interval["low"] < 1.5 < interval["high"]
    assert got["b"]["requests"]["total"] == pytest.approx(4000, rel=0.05)
    counts = [got[side]["requests"] for side in "ab"]
    of_all = difference(*(share(one["good"], one["total"]) for one in counts))
    assert got["attainment"]["low"] < of_all.low < of_all.high < got["attainment"]["high"], "some tell no more than all"


def test_requests_that_stand_for_none_are_not_compared(compare, rows):
    """Their sender kept them to look at, and not to count."""
    rng = np.random.default_rng(7)
    kept = _requests(rng, 300, variant="new", weight=0.0, slower=9.0)
    rows.requests([*_requests(rng, 300, variant="old"), *kept])
    got = compare(a__variant="old", b__variant="new")
    assert (got["kind"], got["ratios"], got["b"]["requests"]["total"]) == ("not decided", {}, 0)
    rows.requests(_requests(rng, 300, variant="new"))
    got = compare(a__variant="old", b__variant="new")
    assert got["ratios"]["ttft"]["p50"]["low"] < 1 < got["ratios"]["ttft"]["p50"]["high"]


def test_a_side_without_requests_is_not_decided_and_an_unknown_value_is_no_zero(compare, rows):
    rng = np.random.default_rng(8)
    rows.requests([*_requests(rng, 50, variant="old", input_tokens=None, cached_tokens=None, output_tokens=None)])
    got = compare(a__variant="old", b__variant="gone")
    assert got["kind"] == "not decided"
    assert got["ratios"] == {}
    assert got["attainment"] is None
    assert got["b"]["requests_per_s"] is None
    assert got["warnings"] == ["gone has no request that ended in its time", "no request has the variant gone"]
    rows.requests([*_requests(rng, 50, variant="new")])
    half = compare(a__variant="old", b__variant="new")
    assert "one side does not tell its prompt tokens, so requests are not compared by them" in half["warnings"]
    assert half["mix"]["input"]["a"] is None


def test_sides_that_other_slos_judge_have_no_difference_of_attainment(compare, rows):
    """The promise to `batch` is one that all keep, and that to `chat` one that a part of the same requests misses."""
    rng = np.random.default_rng(12)
    rows.requests([*_requests(rng, 2000, variant="old", slower=1.6), *_requests(rng, 2000, variant="new", slower=1.6)])
    both = compare(a__variant="old", b__variant="new")
    assert both["attainment"]["low"] < 0 < both["attainment"]["high"]
    rows.requests(_requests(rng, 2000, variant="batch", slower=1.6, slo_class="batch"))
    got = compare(a__variant="old", b__variant="batch")
    assert got["a"]["attainment"] < 0.96 < got["b"]["attainment"] == 1
    assert (got["attainment"], got["kind"]) == (None, "not decided")
    assert "other SLOs judge the requests of old than those of batch, so attainment is not compared" in got["warnings"]
    rows.requests(_requests(rng, 400, variant="batch", slower=9.0))
    part = compare(a__variant="old", b__variant="batch")
    assert part["attainment"]["high"] < -0.3, "of those that one SLO judges, most are bad"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"b__variant": "nwe"}, "no request has the variant nwe: did you mean new?"),
        ({"b__label.team": "serch"}, "no request has the label.team serch: did you mean search?"),
        ({"b__label.taem": "search"}, "no request has the label taem: did you mean team?"),
        ({"model": "lama", "b__variant": "new"}, "no request has the model lama: did you mean llama?"),
    ],
)
def test_a_side_that_is_empty_says_which_name_no_request_has_and_what_is_like_it(asked, told, compare, rows):
    rng = np.random.default_rng(9)
    for variant in ("old", "new"):
        rows.requests(_requests(rng, 20, variant=variant, model="llama", labels={"team": "search"}))
    got = compare(a__variant="old", **asked)
    assert told in got["warnings"]
    assert not any("old" in note for note in got["warnings"] if note.startswith("no request has"))


def test_processes_are_compared_by_their_instances(compare, rows):
    rng = np.random.default_rng(4)
    for n, name in ((300, "one"), (200, "two"), (100, "three")):
        rows.requests(_requests(rng, n, instance=name))
    got = compare(a__instance="one", b__instance=["two", "three"])
    assert [(got[side]["name"], got[side]["requests"]["total"]) for side in "ab"] == [("one", 300), ("two, three", 300)]
    assert compare(b__instance="two")["a"]["requests"]["total"] == 600


def test_a_comparison_says_how_its_sides_differ_and_takes_each_filter_once(api, rows):
    get = lambda **params: api.client.get("/api/v1/compare", params=params)  # noqa: E731
    assert "say how the sides differ" in get().text
    assert get().status_code == 400
    assert get(**{"a.variant": "old", "a.colour": "red"}).status_code == 400
    twice = api.client.get("/api/v1/compare?a.variant=x&a.start=-1h&a.start=-2h")
    assert twice.status_code == 400
    assert "a.start" in twice.text
    assert get(**{"a.variant": "old", "b.start": "now", "b.end": "-1h"}).status_code == 400


def test_the_terminal_shows_the_verdict_and_each_ratio_with_its_interval(compare, rows):
    rng = np.random.default_rng(9)
    rows.requests([*_requests(rng, 700, variant="old"), *_requests(rng, 700, variant="new[b]", slower=2.0)])
    answer = compare(a__variant="old", b__variant="new[b]")
    text = _shown(answer)
    assert text.startswith(answer["verdict"])
    p99 = answer["ratios"]["ttft"]["p99"]
    line = next(line for line in text.splitlines() if line.startswith("P99 TTFT"))
    assert f"× {significant(p99['estimate'])} ({significant(p99['low'])} to {significant(p99['high'])})" in line
    assert duration(answer["a"]["ttft_s"]["p99"]) in line
    assert "new[b]" in text
    missed = answer["attainment"]["estimate"] * 100
    assert f"−{-missed:.2f} points" in text
    empty = _shown(compare(a__variant="old", b__variant="gone"))
    assert "not decided" in empty
    assert "P99 TTFT" in empty


def _shown(answer):
    output = StringIO()
    show(Console(width=200, file=output), answer)
    return output.getvalue()
