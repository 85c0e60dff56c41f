"""The sentence of the moment, and the boxes behind it."""

import pytest

from collector.incidents.hit import Hit
from collector.incidents.wrong import NOT_YET
from tests.collector.api.test_explain import chats, request
from tests.collector.api.test_explain import store as stored
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
DAY = 86_400
STALLS = {"ttft": {"own_prompt": 80, "stall": 820}, "rest": {"batch": 150, "alone": 50}}


def slow(n, parts=None, **fields):
    return [request(**(parts or STALLS), **{"slo_class": "chat", **fields}) for _ in range(n)]


def store(rows, many, *, ago=1, **explained):
    """Store requests that ended a millisecond after one another, the last one so many seconds ago."""
    apart = [({"ended": NOW - ago * SECOND - i * MS, **fields}, causes) for i, (fields, causes) in enumerate(many)]
    return stored(rows, apart, **explained)


def told(answer):
    return {name: answer[name] for name in ("state", "sentence", "who", "why", "without", "slo", "tenant")}


def nested(answer):
    return [(box["kind"], [one["kind"] for one in box["inside"]]) for box in answer["boxes"]]


def pages(links):
    return [link["page"] for link in links]


def hang(rows, n, **fields):
    """`n` requests of a process that made its last step a minute ago. They waited 45 s."""
    rows.step(start=NOW - 60 * SECOND, instance="stuck")
    for _ in range(n):
        rows.open(start=NOW - 45 * SECOND, seen=NOW - SECOND, slo_class="chat", instance="stuck", **fields)


MISSED = "All missed TTFT: 900 ms at the median, 500 ms promised."


@pytest.fixture
def boxed(api, monkeypatch):
    """The verdict without who is hit and why, which take most of its time, for tests of its boxes."""
    monkeypatch.setattr("collector.incidents.verdict.hit", lambda *_: Hit(None, None, None))
    monkeypatch.setattr("collector.incidents.incidents.with_top_causes", lambda _reader, _window, found: found)
    return lambda **asked: api("verdict", **asked)


class TestBroken:
    def test_it_says_who_why_and_what_without(self, rows, api):
        store(rows, chats(300, variant="v1"), ago=7000)
        store(rows, [*chats(20, variant="v1"), *slow(64, variant="kv"), *slow(6, variant="v1")], ago=100)
        answer = api("verdict")
        assert told(answer) == {
            "state": "broken",
            "sentence": "chat is not kept: 22.22 % good in the last 20 min, 95 % promised. Since 09:58 UTC.",
            "who": "91.42 % of the bad requests are of variant kv (of the good 0 %).",
            "why": f"{MISSED} Cause: stall (100 % of what they took beyond good requests).",
            "without": "Without it, 100 % since then would be good instead of 22.22 %.",
            "slo": "chat",
            "tenant": None,
        }
        first, *_ = answer["links"]
        assert first["title"] == "See the 70 requests"
        assert api("requests", **first["params"])["total"] == 70
        assert answer["slos"] == api("slos")["slos"]
        assert answer["firing_outside"] == 0
        others = api("verdict", tenant="nobody")
        assert others["firing_outside"] > 0
        assert [slo["requests"]["total"] for slo in others["slos"]] == [0] * len(others["slos"])
        assert nested(answer) == [("change", ["slo_burn"])]
        (change,) = answer["boxes"]
        assert (change["bad"], change["instance"], change["title"]) == (64, None, "engine has a new variant: kv")
        assert answer["since_ns"] == change["inside"][0]["since_ns"] == NOW - 100 * SECOND - 89 * MS
        assert pages(answer["links"]) == ["explore", "compare", "tail", "runbook"]
        api("compare", **answer["links"][1]["params"])

    def test_a_variant_that_serves_all_along_explains_no_burn(self, rows, api):
        store(rows, chats(10, variant="v1"), ago=890)
        store(rows, chats(300, variant="v2"), ago=800)
        store(rows, slow(70, variant="v2"), ago=20)
        answer = api("verdict")
        assert nested(answer) == [("slo_burn", []), ("change", [])]
        assert answer["who"] is None
        assert pages(answer["links"]) == ["explore", "tail", "runbook"]

    @pytest.mark.parametrize(("hours", "kinds"), [(0.9, ["change"]), (1.5, ["slo_burn"])])
    def test_a_change_explains_what_begins_soon_after_it(self, rows, boxed, hours, kinds):
        store(rows, chats(100, variant="v1"), ago=5 * 3600)
        store(rows, chats(100, variant="v1"), ago=round(hours * 3600) + 100)
        for ago in (round(hours * 3600) + 90, 2500):  # so that it is not back after an hour
            store(rows, [*chats(1, variant="v2"), *chats(1, variant="v1")], ago=ago)
        store(rows, [*slow(40, variant="v2"), *chats(4, variant="v1")], ago=20)
        answer = boxed()
        assert [box["kind"] for box in answer["boxes"]] == kinds, "one before the window is told for its burn alone"
        assert ("compare" in pages(answer["links"])) == (hours < 1)

    def test_a_change_explains_the_burn_that_it_began_and_not_the_next_one(self, rows, boxed):
        store(rows, chats(100, variant="v1"), ago=5 * 3600)
        store(rows, [*slow(40, variant="v2"), *chats(100, variant="v1")], ago=2 * 3600)
        store(rows, chats(600, variant="v1"), ago=1800)
        for ago in (4000, 1800):
            store(rows, [*chats(1, variant="v2"), *chats(1, variant="v1")], ago=ago)
        store(rows, slow(90, variant="v2"), ago=20)
        found = nested(boxed(start="-3h"))
        assert found == [("slo_burn", []), ("change", ["slo_burn"])]

    def test_a_process_that_starts_is_the_cause_and_not_that_it_is_new(self, rows, boxed):
        store(rows, chats(50, instance="old"), ago=300)
        rows.cold_start(start=NOW - 100 * SECOND, duration=60 * SECOND, instance="new")
        store(rows, [*slow(20, instance="new", e2e=60 * SECOND), *slow(4, instance="old")], ago=35)
        assert nested(boxed()) == [("cold_start", ["slo_burn"])]
        rows.clear()
        store(rows, chats(50, instance="old"), ago=300)
        store(rows, [*slow(20, instance="new"), *slow(4, instance="old")], ago=35)
        answer = boxed()
        assert nested(answer) == [("process", ["slo_burn"])], "none of its starts is known"
        assert answer["boxes"][0]["instance"] == "new"

    def test_requests_of_a_process_that_hangs_have_not_ended(self, rows, api):
        store(rows, chats(4, instance="works"), ago=200)
        hang(rows, 18)
        answer = api("verdict")
        assert nested(answer) == [("engine_hung", ["slo_burn"])]
        (hung,) = answer["boxes"]
        assert (hung["service"], hung["instance"], hung["bad"]) == ("engine", "stuck", 18)
        assert hung["sentence"] == "Since 09:59 UTC. Requests open: 18. There was no step in 30 s or longer."
        assert answer["state"] == "broken"
        assert answer["why"].startswith("None of them has ended. engine stuck: 18 requests wait for a first token")
        assert answer["why"].endswith(
            "the longest for 45.0 s; its last step began 1 min ago with 0 running and 0 waiting."
        )
        assert pages(answer["links"]) == ["explore", "engines", "tail", "runbook"]

    def test_a_burn_of_which_less_is_of_a_process_stands_beside_it(self, rows, api):
        """The few that ended have a cause of their own, which is not that of the burn."""
        store(rows, [*chats(10, instance="works"), *slow(13, instance="works")], ago=20)
        hang(rows, 18)
        answer = api("verdict")
        assert nested(answer) == [("engine_hung", []), ("slo_burn", [])]
        assert answer["boxes"][1]["why"] is answer["without"] is None
        assert pages(answer["boxes"][1]["links"]) == ["explore", "tail", "runbook"], "of its two lists the first one"
        assert answer["why"].startswith("Most of them have not ended. engine stuck: 18 requests wait")
        told = api("explain", slo="chat")["sentence"]
        assert told.startswith("18 bad requests have not ended: engine stuck: 18 requests wait for a first token")
        assert ". What 13 bad requests took beyond typical requests was 100 % stall." in told
        store(rows, slow(5, instance="works"), ago=10)
        assert api("verdict")["boxes"][1]["why"].startswith("Cause: stall"), "as many ended"

    def test_causes_stand_before_symptoms(self, rows, boxed):
        rows.cold_start(start=NOW - 100 * SECOND, duration=90 * SECOND, instance="new")
        rows.kv_event(start=NOW - 40 * SECOND, instance="full")
        hang(rows, 2)
        rows.open(start=NOW - 300 * SECOND, seen=NOW - 200 * SECOND, instance="dead")
        store(rows, [*chats(10), *slow(80)], ago=20)
        rows.cold_start(start=NOW - 100 * SECOND, duration=80 * SECOND, instance="another")
        boxes = boxed()["boxes"]
        kinds = [box["kind"] for box in boxes]
        assert kinds == ["engine_lost", "engine_hung", "kv_eviction", *["cold_start"] * 2, "slo_burn"]
        assert [box["instance"] for box in boxes[3:5]] == ["another", "new"], "by name, of the same moment"

    def test_what_is_over_before_or_begins_after_explains_nothing(self, rows, boxed):
        store(rows, chats(100), ago=3000)
        rows.cold_start(start=NOW - 800 * SECOND, duration=100 * SECOND)
        store(rows, slow(40), ago=100)
        assert not any(inside for _, inside in nested(boxed())), "its process has them all, later"
        rows.clear()
        store(rows, [*chats(10), *slow(40)], ago=300)
        rows.cold_start(start=NOW - 100 * SECOND, duration=50 * SECOND)
        assert not any(inside for _, inside in nested(boxed()))

    def test_who_is_hit_is_told_of_the_burn_beside_the_time_before_it(self, rows, api):
        """A variant that has nearly all requests since, and a few bad ones of another shortly before."""
        store(rows, chats(300, variant="v1"), ago=250)
        store(rows, slow(4, variant="v0"), ago=240)
        store(rows, [*chats(3, variant="v2"), *slow(90, variant="v2")], ago=100)
        answer = api("verdict")
        assert answer["who"] == "98.9 % of the bad requests are of variant v2 (of the good 0.99 %)."

    def test_who_is_told_of_all_hours_of_a_burn_or_of_the_last_one_of_very_many(self, rows, api, monkeypatch):
        store(rows, chats(300, variant="v1"), ago=5 * 3600)
        store(rows, slow(64, variant="kv"), ago=3 * 3600)
        for ago in range(100, 3 * 3600, 600):
            store(rows, slow(2, variant="v1"), ago=ago)
        assert api("verdict")["who"] == "64 % of the bad requests are of variant kv (of the good 0 %)."
        monkeypatch.setattr("collector.incidents.hit._MOST_REQUESTS", 50)
        assert api("verdict", end=NOW / SECOND + 60)["who"] is None

    def test_the_worst_of_several_is_told_and_the_others_are_named(self, rows, boxed):
        store(rows, [*chats(20), *slow(80, status="error")], ago=100)
        answer = boxed()
        assert answer["sentence"].startswith("chat is not kept: 20 % good in the last 20 min, 95 % promised.")
        assert answer["sentence"].endswith(" Not kept either: all.")

    def test_what_takes_no_longer_failed(self, rows, api):
        failed = {"ttft": {"own_prompt": 8, "wait_kv": 2}, "rest": {}, "tokens": 0, "status": "error"}
        store(rows, [*chats(20), *slow(80, failed, error_type="queue_full")], ago=100)
        answer = api("verdict")
        assert answer["why"] == answer["boxes"][0]["why"] == "All ended with the error queue_full."
        assert "ended with the error queue_full" in answer["who"]
        assert answer["without"] is None

    def test_the_box_of_a_burn_says_what_most_failed_with_and_not_why_the_rest_was_slow(self, rows, api):
        failed = {"ttft": {"own_prompt": 8}, "rest": {}, "tokens": 0, "status": "error"}
        store(rows, [*chats(20), *slow(70, failed, error_type="oom"), *slow(30)], ago=100)
        box = next(one for one in api("verdict")["boxes"] if one["slo"] == "chat")
        assert (box["group"], box["why"].partition(". ")[0]) == (None, "70 % ended with the error oom")
        hang(rows, 150)
        boxes = [one for box in api("verdict")["boxes"] for one in (box, *box["inside"])]
        assert [one["why"] for one in boxes if one["slo"] == "chat"] == [None], "most have not ended"

    def test_nothing_is_said_of_a_cause_without_which_nothing_would_be_better(self, rows, api):
        never = {"ttft": {"own_prompt": 600, "stall": 900}, "rest": {"batch": 150, "alone": 50}}
        store(rows, [*chats(20), *slow(80, never)], ago=100)
        answer = api("verdict")
        assert ("promised. Cause: stall" in answer["why"], answer["without"]) == (True, None)
        assert "Without" not in api("explain", slo="chat")["sentence"]

    def test_who_and_why_are_remembered_for_a_minute_and_all_else_is_of_the_moment(self, rows, api, clock):
        store(rows, [*chats(20, variant="v1"), *slow(80, variant="v2")], ago=100)
        first = api("verdict")
        store(rows, slow(200, variant="v1"), ago=90)
        second = api("verdict")
        assert second["sentence"].startswith("chat is not kept: 6.66 % good")
        clock.advance(60 * SECOND)
        third = api("verdict")
        assert [one["without"].split(" of ")[1] for one in (first, second, third)] == ["20 %.", "20 %.", "6.66 %."]
        assert api("verdict", tenant="none")["who"] is None, "another filter is another question"

    def test_what_is_not_explained_yet_is_told_so(self, rows, api):
        store(rows, [*chats(20), *slow(80)], ago=100, explained=())
        assert api("verdict")["why"] == f"{MISSED} {NOT_YET}"


class TestOther:
    def test_kept(self, rows, api):
        store(rows, chats(100))
        answer = api("verdict")
        assert told(answer) == {
            "state": "kept",
            "sentence": "All 2 SLOs are kept. Budget left: chat 100 %. Nothing fires.",
            **dict.fromkeys(("who", "why", "without", "slo", "tenant")),
        }
        assert (answer["boxes"], answer["links"], answer["since_ns"], answer["last_request_ns"]) == ([], [], None, None)

    def test_an_slo_without_requests_is_not_kept_and_an_incident_fires(self, rows, api):
        rows.requests([{"slo_class": "batch"}] * 100)
        rows.kv_event(start=NOW - 40 * SECOND)
        assert api("verdict")["sentence"] == (
            "1 of 2 SLOs is kept; of chat nothing is judged. Budget left: all 100 %. 1 other incident fires."
        )

    def test_a_budget_that_is_spent_is_not_hidden_by_a_good_hour(self, rows, api):
        store(rows, [*chats(50), *slow(50)], ago=2 * DAY)
        store(rows, chats(100))
        answer = api("verdict")
        assert told(answer)["sentence"] == (
            "chat is kept now (100 % good in the last hour), and not kept over 30 d:"
            " its budget is spent since 19 Nov 09:59 UTC."
        )
        assert (answer["state"], answer["since_ns"]) == ("spent", NOW - (2 * DAY + 60) * SECOND)
        listed, explained = answer["links"]
        assert api("requests", **listed["params"])["total"] == 50
        assert api("explain", **explained["params"])["selected"]["requests"] == 50
        quiet = api("verdict", start="-31h", end="-30h")
        assert (quiet["state"], quiet["slos"][0]["budget_left"] < 0) == ("quiet", True)

    def test_a_budget_is_spent_in_the_minute_in_which_what_was_left_of_it_is(self, rows, api):
        for minutes, bad in ((50, 6), (10, 6)):
            store(rows, [*chats(94), *slow(bad)], ago=2 * DAY + minutes * 60)
        store(rows, chats(1))
        assert "its budget is spent since 19 Nov 09:49 UTC" in api("verdict")["sentence"], "10 bad of 201 are allowed"

    @pytest.mark.parametrize(
        ("good", "text"),
        [
            (0, "no request of the last hour is judged."),
            (90, "90 % were good in the last hour, 95 % promised."),
        ],
    )
    def test_and_a_bad_hour_or_none_is_told(self, rows, api, good, text):
        store(rows, [*chats(50), *slow(50)], ago=4 * DAY)
        store(rows, [*chats(good), *slow(good // 9), *slow(1, slo_class="batch")])
        answer = api("verdict")
        since = "17 Nov 09:59 UTC"
        assert answer["sentence"] == f"chat is not kept over 30 d: its budget is spent since {since}, and {text}"
        assert answer["since_ns"] == NOW - (4 * DAY + 60) * SECOND

    def test_a_budget_is_spent_when_more_are_bad_than_it_allows_and_not_with_the_first_one(self, rows, api):
        for days, bad in ((5, 4), (4, 4), (3, 4), (2, 4), (1, 1)):
            store(rows, [*chats(40), *slow(bad)], ago=days * DAY)
        store(rows, chats(1))
        assert "its budget is spent since 18 Nov 09:59 UTC" in api("verdict")["sentence"], (
            "11.05 bad of 221 are allowed"
        )

    def test_in_danger(self, rows, api):
        store(rows, chats(200, weight=100.0), ago=20 * DAY, explained=())
        store(rows, [*chats(80), *slow(20)], ago=100)
        answer = api("verdict")
        assert answer["state"] == "danger"
        assert answer["sentence"] == (
            "chat is kept, and its budget ends in 7 d 8 h at this rate."
            " Over 1 d it burned 4.00 times as fast as allowed."
        )
        assert answer["why"] == f"{MISSED} Cause: stall (100 % of what they took beyond good requests)."

    def test_a_budget_that_ends_within_a_day_is_in_danger_also_while_no_rule_fires(self, rows, api):
        store(rows, chats(40), ago=2 * DAY, explained=())
        store(rows, [*chats(18), *slow(3)], ago=800)
        answer = api("verdict")
        assert (answer["state"], answer["boxes"], answer["why"]) == ("danger", [], None)
        assert answer["sentence"] == "chat is kept, and its budget ends in 4 h 8 min at this rate."

    def test_two_bad_requests_of_a_few_are_no_danger(self, rows, api):
        store(rows, [*chats(39), *slow(2)])
        answer = api("verdict")
        assert answer["slos"][0]["exhausted_in_s"] < DAY
        assert answer["state"] == "kept"

    def test_quiet(self, rows, api):
        answer = api("verdict")
        assert told(answer)["sentence"] == "No request ended in this range. None has ended yet."
        assert (answer["state"], answer["last_request_ns"], answer["since_ns"]) == ("quiet", None, None)
        for hours, tenant in ((12, "b"), (30, "a"), (48, "b")):
            rows.request(ended=NOW - hours * 3600 * SECOND, tenant=tenant)
        rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, tenant="a")
        answer = api("verdict")
        assert answer["sentence"] == "No request ended in this range. The last one: 20 Nov 22:00 UTC. In flight: 1."
        assert answer["last_request_ns"] == NOW - DAY // 2 * SECOND
        of_b = api("verdict", end="-25h", start="-26h", tenant="b")
        assert of_b["last_request_ns"] == NOW - 2 * DAY * SECOND
        assert (
            of_b["sentence"] == "No request that fits the filters ended in this range. The last one: 19 Nov 10:00 UTC."
        )
        nobody = api("verdict", tenant="c")["sentence"]
        assert nobody == "No request ended in this range. None that fits the filters ended before."


class TestWithoutSlos:
    @pytest.fixture
    def slos_file(self, tmp_path):
        path = tmp_path / "slos.yaml"
        path.write_text(
            'slos: [{name: none, objective: "0.9", window: 30d, select: {model: [x]}, thresholds: {e2e: 1s}}]'
        )
        return path

    def test_requests_that_no_slo_selects(self, rows, api):
        rows.requests([{}] * 3)
        answer = api("verdict")
        assert (answer["state"], answer["sentence"]) == ("not_judged", "3 requests, none judged: no SLO selects them.")
        assert answer["why"].startswith("The SLO selected 0 of 3 requests of the last day: none has model in (x)")


class TestOfEachTenant:
    @pytest.fixture
    def slos_file(self, slo_of_each_tenant):
        return slo_of_each_tenant

    def test_the_tenant_that_is_hit_is_told_and_its_requests_alone_are_explained(self, rows, api):
        store(rows, chats(500, tenant="big"), ago=50)
        store(rows, slow(9, tenant="big", model="c"), ago=20)
        store(rows, [*chats(6, tenant="small", model="a"), *slow(40, tenant="small", model="b")], ago=20)
        answer = api("verdict")
        assert answer["sentence"].startswith("each for small is not kept: 13.04 % good in the last ")
        assert (answer["slo"], answer["tenant"]) == ("each", "small")
        assert answer["who"] == "100 % of the bad requests are of model b (of the good 0 %)."
        assert answer["without"] == "Without it, 100 % since then would be good instead of 13.04 %."
        first, *_ = answer["links"]
        assert api("requests", **first["params"])["total"] == 40
        (tail,) = [link for link in answer["links"] if link["page"] == "tail"]
        assert api("explain", **tail["params"])["selected"]["requests"] == 40

    def test_of_those_that_hang_the_tenants_own_count(self, rows, boxed):
        store(rows, [*chats(500, tenant="big"), *chats(4, tenant="small", instance="works")], ago=100)
        hang(rows, 2, tenant="small")
        store(rows, slow(12, tenant="small", instance="works"), ago=20)
        hang(rows, 30, tenant="big")
        boxes = boxed()["boxes"]
        of_small = [one for box in boxes for one in (box, *box["inside"]) if one["tenant"] == "small"]
        assert [one["kind"] for one in of_small] == ["slo_burn"]
        assert of_small[0] in boxes, "2 of its 14 bad requests hang"

    def test_an_slo_with_one_tenant_is_told_of_that_tenant(self, rows, boxed):
        store(rows, [*chats(6, tenant="only"), *slow(40, tenant="only")], ago=20)
        answer = boxed()
        assert (answer["slo"], answer["tenant"]) == ("each", "only")

    def test_an_slo_that_is_broken_to_all_is_told_before_its_tenants(self, rows, boxed):
        store(rows, [*chats(20, tenant="a"), *slow(40, tenant="a")], ago=50)
        store(rows, [*chats(30, tenant="b"), *slow(20, tenant="b")], ago=20)
        answer = boxed()
        assert (answer["slo"], answer["tenant"]) == ("each", None)
