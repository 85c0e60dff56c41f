"""`tokentrail explain` as text, from answers of the API."""

import io

import pytest
from rich.console import Console

from tokentrail.cli.explain import show, show_one
from tokentrail.cli.explained import lines

TRACE = "0123456789abcdef" * 2


def text(print_it, answer, *filters):
    printed = io.StringIO()
    print_it(Console(file=printed, width=300), answer, *filters)
    return printed.getvalue()


def without(attainment, points, kind="replay", *, low=0.799, high=0.806):
    return {"attainment": attainment, "points": points, "kind": kind, "low": low, "high": high}


def culprit(by, name, share, **fields):
    return {"by": by, "name": name, "time_s": 3.0, "share": share, "without": None} | fields


def part(cause, group, excess_s, share, **fields):
    return {
        "cause": cause, "group": group, "time_s": 3.28, "excess_s": excess_s, "share": share, "advice": "",
        "culprits": [], "exemplars": [], "without": None,
    } | fields  # fmt: skip


def group(name, causes, excess_s, share, **fields):
    return {
        "group": name, "causes": causes, "time_s": 3.28, "excess_s": excess_s, "share": share, "requests": 4,
        "without": None, "factor": None, "start": None, "end": None,
    } | fields  # fmt: skip


SPAN = {"start": "2026-11-20T14:31:00Z", "end": "2026-11-20T14:31:33.2Z"}
SLOW = {"start": "2026-11-20T14:31:00Z", "end": "2026-11-20T14:31:20Z"}
BURST = culprit("tenant", "burst", 0.9, requests=120, within_s=1.2)
PROCESS = culprit("process", "both-z1-0", 1.0)
ANSWER = {
    "window": {"start": "2026-11-20T14:00:00Z", "end": "2026-11-20T15:00:00Z"},
    "slo": "chat",
    "metric": None,
    "quantile": None,
    "value_s": None,
    "selected": {"requests": 195, "explained": 195, "failed": 0, "time_s": 900.0, "processes": ["both-z1-0"], **SPAN},
    "typical": {"text": "the middle half of good requests", "ttft_from_s": 0.08, "ttft_to_s": 0.1},
    "attainment": 0.77,
    "judged": 846,
    "sentence": "What 195 bad requests took …",
    "wrong": None,
    "parts": [
        part(
            "wait_batch", "waiting for a place", 458.0, 0.54,
            advice="Let more requests run at once, or add replicas.",
            culprits=[PROCESS, BURST | {"without": without(0.937, 16.7, low=0.93, high=0.94)}],
            exemplars=[{"trace_id": TRACE, "span_id": "aa", "time_s": 0.8, "excess_s": 0.7}],
        ),
        part("drift", "slow device", 251.0, 0.29, advice="Look at clocks.", culprits=[PROCESS]),
        part("batch", "others' answers", 80.0, 0.10, culprits=[culprit("tenant", "burst", 0.7)]),
        part("own_prompt", "own prompt", -0.5, 0.0),
        part("unexplained", "unexplained", 2.6, 0.003),
    ],
    "groups": [
        group("others' answers", ["batch"], 80.0, 0.10),
        group("own prompt", ["own_prompt"], -0.5, 0.0),
        group("slow device", ["drift"], 251.0, 0.29, factor=1.502, requests=0, without=without(0.803, 3.3), **SLOW),
        group("waiting for a place", ["wait_batch"], 458.0, 0.54, requests=149),
        group("unexplained", ["unexplained"], 2.6, 0.003, time_s=1.8),
    ],
    "without": [],
    "not_ended": [],
    "note": None,
    "without_hidden": None,
    "replay": {"requests": 846, "attainment": 0.77, "note": None},
    "levels": [{"level": "steps", "requests": 195, "engines": ["tokentrail"], "more": ""}],
    "models": [{"instance": "both-z1-0", "sigma": 0.04, "r2": 0.99,
                "start": "2026-11-20T14:25:00Z", "end": "2026-11-20T14:30:00Z"}],
    "slower": [],
}  # fmt: skip


def test_the_text_for_a_night():
    """What, who and when; the cause; what would be without it; a row a cause; what to do; how sure it is; what next."""
    assert lines(ANSWER) == [
        "77 % of 846 requests were good: 195 bad ones, from 14:31:00 to 14:31:33, all in both-z1-0.",
        "Cause: waiting for a place: 120 requests of tenant burst came within 1.20 s, while the device of both-z1-0 was"
        " 1.5 times as slow (14:31:00 to 14:31:20).",
        "  without the burst of tenant burst  93.7 % (93 % to 94 %) of the others would be good  (replay)",
        "  without the slow device            80.3 % (79.9 % to 80.6 %) would be good            (replay)",
        "cause                beyond typical  share  worst for  who",
        "waiting for a place  7 min 38 s      54 %   149        tenant burst: 90 % of the places while they waited",
        "slow device          4 min 11 s      29 %   0          both-z1-0",
        "others' answers      1 min 20 s      10 %   4          tenant burst: 70 % of the places",
        "as usual: own prompt; unexplained 1.80 s (0.2 %)",
        "do: limit tenant burst, or: let more requests run at once, or add replicas; then look at clocks",
        "sure: 195 of 195 step by step, by a law of 14:25:00 to 14:30:00 (scatter 4 %, explains 99 %);"
        " typical: the middle half of good requests, TTFT 80.0 ms to 100 ms",
    ]
    printed = text(show, ANSWER, {}).splitlines()
    assert printed[:-2] == lines(ANSWER)
    assert printed[-2].endswith(f"explain {TRACE}")
    when = "2026-11-20T14:00:00Z/2026-11-20T15:00:00Z"
    assert printed[-1].endswith(f" requests '{when} slo:chat verdict:bad'")
    of = {"model": ["a", "b c"], "label.region": ["eu"]}
    slowest = text(show, ANSWER | {"slo": None, "metric": "ttft", "quantile": 0.99}, of).splitlines()[-1]
    assert slowest.endswith(f" requests 'model:a model:\"b c\" label.region:eu {when} sort:ttft'")


def changed(**fields):
    """ANSWER with only first orders, and other fields."""
    first = without(0.85, 8.0, "first order")
    groups = [one | {"without": first if one["without"] else None} for one in ANSWER["groups"]]
    parts = [one | {"culprits": [who | {"without": None} for who in one["culprits"]]} for one in ANSWER["parts"]]
    return ANSWER | {"groups": groups, "parts": parts, "replay": None} | fields


def test_the_first_order_is_told_only_where_waits_are_a_fifth_at_most():
    assert not [line for line in lines(changed()) if "would be good" in line]
    few = [one | {"share": 0.2} if one["cause"] == "wait_batch" else one for one in changed()["parts"]]
    assert [line for line in lines(changed(parts=few)) if "would be good" in line] == [
        "  without the slow device  85 % would be good  (first order)"
    ]


@pytest.mark.parametrize(
    ("cause", "share", "kind", "is_told"),
    [
        ("drift", 0.29, "first order", True),
        ("batch", 0.02, "first order", True),
        ("batch", 0.001, "first order", False),
        ("stall", 0.001, "replay", True),
        ("alone", 0.6, "first order", False),
        ("alone", 0.6, "replay", False),
    ],
)
def test_nobody_is_told_to_do_without_what_took_no_longer_than_usual(cause, share, kind, is_told):
    """A short stall may have made the whole queue, which only a replay tells."""
    groups = [group(cause, [cause], 900.0 * share, share, without=without(0.99, 22.0, kind))]
    few = [part("wait_batch", "waiting for a place", 9.0, 0.01)]
    told = [line for line in lines(ANSWER | {"groups": groups, "parts": few}) if line.startswith("  without")]
    assert bool(told) is is_told


def test_where_nothing_typical_is_known_waits_are_a_share_of_the_time():
    groups = [one | {"excess_s": None, "share": None, "requests": None} for one in changed()["groups"]]
    parts = [one | {"excess_s": None, "share": None, "time_s": 1.0} for one in changed()["parts"]]
    waits = [one | {"time_s": 400.0} if one["cause"] == "wait_batch" else one for one in parts]
    told = [[line for line in lines(changed(groups=groups, parts=some, typical=None)) if "would be good" in line]
            for some in (parts, waits)]  # fmt: skip
    assert told == [["  without the slow device  85 % would be good  (first order)"], []]


def test_without_typical_requests_the_rows_are_ordered_by_their_time():
    groups = [one | {"excess_s": None, "share": None, "requests": None, "time_s": 300.0 * i} for i, one in
              enumerate(ANSWER["groups"][:3])]  # fmt: skip
    parts = [one | {"excess_s": None, "share": None} for one in ANSWER["parts"]]
    told = lines(changed(groups=groups, parts=parts, typical=None))
    first = next(i for i, line in enumerate(told) if line.split() == ["cause", "time", "share", "who"])
    few = lines(changed(groups=[groups[2], groups[0]], parts=parts, typical=None))
    assert "less than 1 % each: others' answers" in few, "of nothing is known what is usual"
    assert told[first + 1].split()[:5] == ["slow", "device", "10", "min", "67"]
    assert told[first + 2].split()[:5] == ["own", "prompt", "5", "min", "33"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"not_ended": [{"text": "engine i-1: 1 request waits\x1b[2J"}]},
         "not ended at 15:00:00: engine i-1: 1 request waits\\x1b[2J"),
        ({"note": "2 of 6 requests are not explained yet"}, "note: 2 of 6 requests are not explained yet"),
        ({"without_hidden": "40 % is not explained"}, "note: without a cause: 40 % is not explained"),
        ({"levels": [{"level": "estimated", "requests": 195, "more": "steps scatter by 42 %"}]},
         "195 by estimates from their phases: steps scatter by 42 %"),
        ({"without": [without(0.99, 22.0) | {"causes": ["drift", "stall"]}]},
         "  without drift, stall               99 % (79.9 % to 80.6 %) would be good              (replay)"),
        ({"replay": {"requests": 120, "note": "only the newest"}}, "note: 120 requests were replayed: only the newest"),
        ({"selected": ANSWER["selected"] | {"failed": 3, "processes": ["a", "b"]}},
         "77 % of 846 requests were good: 195 bad ones (3 failed), from 14:31:00 to 14:31:33, in a, b."),
        ({"selected": ANSWER["selected"] | {"start": "2026-11-19T14:31:00Z", "processes": ["a"] * 4}},
         "77 % of 846 requests were good: 195 bad ones, from 2026-11-19 14:31:00 to 14:31:33, in 4 processes."),
        ({"metric": "ttft", "quantile": 0.99, "value_s": 1.5},
         "The slowest 1 % by ttft (1.50 s or longer): 195 requests, from 14:31:00 to 14:31:33, all in both-z1-0."),
        ({"slower": [{"instance": "both-z1-0", "text": "× 2.6 against build-771"}],
          "groups": [group("slower by itself", ["slower"], 9.0, 1.0)]},
         "Cause: both-z1-0 is slower by itself: × 2.6 against build-771."),
        ({"models": []},
         "sure: 195 of 195 step by step, by a law of their own time or of a sister process;"
         " typical: the middle half of good requests, TTFT 80.0 ms to 100 ms"),
        ({"models": [*ANSWER["models"], ANSWER["models"][0] | {"sigma": 0.2, "r2": None, "instance": "b"}]},
         "sure: 195 of 195 step by step, by 2 laws, the worst of b (scatter 20 %);"
         " typical: the middle half of good requests, TTFT 80.0 ms to 100 ms"),
    ],
)  # fmt: skip
def test_what_else_is_told(change, line):
    assert line in lines(ANSWER | change)


@pytest.mark.parametrize(
    ("name", "causes", "culprits", "words"),
    [
        ("others' prompts", ["others_prompts"], [culprit("request", "abcd, 60", 0.8), culprit("tenant", "a", 0.95)],
         "others' prompts, most of it abcd, 60 of tenant a"),
        ("others' prompts", ["others_prompts"], [culprit("request", "abcd", 0.1), culprit("tenant", "a", 0.7)],
         "others' prompts, 70 % of it tenant a's"),
        ("waiting for KV", ["wait_kv"], [culprit("tenant", "a", 0.67)],
         "waiting for KV: tenant a had 67 % of the KV blocks"),
        ("waiting for KV", ["wait_kv"], [culprit("tenant", "a", 0.66), culprit("tenant", "b", 0.34)], "waiting for KV"),
        ("waiting for a place", ["wait_batch"], [culprit("tenant", "a", 0.4), culprit("tenant", "b", 0.35)],
         "waiting for a place"),
        ("stall", ["stall"], [PROCESS], "stall in both-z1-0"),
        ("stall", ["stall"], [culprit("process", "a", 0.6)], "stall"),
        ("others' prompts", ["others_prompts"], [culprit("tenant", "another tenant", None)], "others' prompts"),
    ],
)  # fmt: skip
def test_a_cause_in_words(name, causes, culprits, words):
    one = {"parts": [part(causes[0], name, 9.0, 1.0, culprits=culprits)], "groups": [group(name, causes, 9.0, 1.0)]}
    assert lines(ANSWER | one)[1] == f"Cause: {words}."


def test_the_second_cause_is_joined_by_what_it_is():
    both = [group("waiting for KV", ["wait_kv"], 9.0, 0.6), group("cold start", ["cold_start"], 6.0, 0.4)]
    assert lines(ANSWER | {"groups": both})[1] == "Cause: waiting for KV, and cold start."
    held = [part("wait_kv", "waiting for KV", 6.0, 0.4, culprits=[culprit("tenant", "a", 0.7)])]
    told = lines(ANSWER | {"parts": held, "groups": [both[1] | {"excess_s": 10.0}, both[0]]})[1]
    assert told == "Cause: cold start, while waiting for KV: tenant a had 70 % of the KV blocks."


def test_the_same_requests_are_left_out_once():
    same = [
        culprit("request", "abcd", 0.8, without=without(0.9, 13.0)),
        culprit("tenant", "a", 0.9, without=without(0.9, 13.0)),
    ]
    parts = [part("others_prompts", "others' prompts", 9.0, 1.0, culprits=same)]
    told = lines(ANSWER | {"parts": parts, "groups": [group("others' prompts", ["others_prompts"], 9.0, 1.0)]})
    assert [line for line in told if "would be good" in line] == [
        "  without request abcd  90 % (79.9 % to 80.6 %) of the others would be good  (replay)"
    ]


@pytest.mark.parametrize(
    ("share", "more", "is_told"), [(0.67, {}, True), (0.6, {}, False), (0.4, {"requests": 120, "within_s": 1.2}, True)]
)
def test_a_tenant_with_its_usual_part_is_not_told_as_worth_leaving_out(share, more, is_told):
    """Fewer requests of anybody make a queue shorter."""
    one = culprit("tenant", "a", share, without=without(0.9, 13.0), **more)
    parts = [part("wait_batch", "waiting for a place", 9.0, 1.0, advice="Add replicas.", culprits=[one])]
    told = lines(ANSWER | {"parts": parts, "groups": [group("waiting for a place", ["wait_batch"], 9.0, 1.0)]})
    assert any(line.startswith("  without the") for line in told) == is_told
    assert any(line.startswith("do: limit tenant a") for line in told) == is_told


def test_what_a_replay_says_is_in_vain_is_told_and_not_advised():
    groups = [one | {"without": without(0.77, 0.0)} if one["factor"] else one for one in ANSWER["groups"]]
    told = lines(ANSWER | {"groups": groups})
    assert "  without the slow device            77 % (79.9 % to 80.6 %) would be good              (replay)" in told
    assert "do: limit tenant burst, or: let more requests run at once, or add replicas" in told
    last = lines(changed(groups=groups))[-2]
    assert last == "do: limit tenant burst, or: let more requests run at once, or add replicas; then look at clocks"


def test_what_was_wrong_comes_before_its_cause():
    (headline, *before), (same, told, *after) = lines(ANSWER), lines(ANSWER | {"wrong": "All missed TTFT."})
    assert (headline, told, before) == (same, "All missed TTFT.", after)
    none_explained = {"selected": ANSWER["selected"] | {"explained": 0}, "parts": [], "groups": []}
    assert lines(ANSWER | none_explained)[1] == "None of them is explained yet."


def test_nothing_is_bad():
    nothing = {"selected": {"requests": 0}, "not_ended": [], "sentence": "No request is bad.", "parts": []}
    assert text(show, nothing, {}) == "No request is bad.\n"
    waits = ANSWER | {"selected": ANSWER["selected"] | {"requests": 0}, "parts": [], "groups": [], "levels": []}
    told = lines(waits | {"not_ended": [{"text": "engine i-1: 1 request waits"}], "sentence": "1 has not ended."})
    assert told == ["1 has not ended.", "not ended at 15:00:00: engine i-1: 1 request waits"]


def test_one_request():
    row = {"model": "m", "status": "ok", "ttft_s": 0.9, "e2e_s": 5.0, "trace_id": TRACE}
    who = [culprit("tenant", "burst", 0.9), culprit("process", "i-1", 1.0), culprit("process", "i-2", 1.0)]
    causes = [
        {"cause": "batch", "of": "rest", "time_s": 4.0, "excess_s": 0.01, "culprits": []},
        {"cause": "wait_kv", "of": "ttft", "time_s": 0.82, "excess_s": 0.8, "culprits": who},
        {"cause": "stall", "of": "rest", "time_s": 0.09, "excess_s": 0.09, "culprits": []},
        {"cause": "gap", "of": "ttft", "time_s": 0.0001, "excess_s": None, "culprits": []},
    ]
    told = text(show_one, {"request": row, "explained": {"level": "steps", "causes": causes}}).splitlines()
    assert told == [
        f"m · ok · TTFT 900 ms · E2E 5.00 s · trace {TRACE}",
        "cause    of        beyond typical  time     who",
        "wait_kv  TTFT      800 ms          820 ms   tenant burst 3.00 s, i-1 3.00 s",
        "stall    the rest  90.0 ms         90.0 ms",
        "as usual: batch, gap",
        "sure: explained step by step",
        told[-1],
    ]
    unknown = [one | {"excess_s": None} for one in [*causes, causes[1] | {"of": "rest", "time_s": 0.001}]]
    told = text(show_one, {"request": row, "explained": {"level": "steps", "causes": unknown}}).splitlines()
    assert told[-3] == "less than 1 % each: gap", "a cause that has a row is in no other line"
    assert told[-1].endswith(f"request {TRACE}")
    ranged = culprit("request", "abcd, 7 tokens in 1 step", 1.0, low_s=0.5, high_s=1.5)
    one = {"cause": "others_prompts", "of": "rest", "time_s": 1.0, "excess_s": 1.0, "culprits": [ranged]}
    for level, said in (("estimated", "500 ms to 1.50 s"), ("steps", "3.00 s")):
        assert f"1 step {said}\n" in text(show_one, {"request": row, "explained": {"level": level, "causes": [one]}})
    assert "not explained yet" in text(show_one, {"request": row, "explained": {"level": None, "causes": []}})
    assert "has not ended" in text(show_one, {"request": row, "explained": None})
