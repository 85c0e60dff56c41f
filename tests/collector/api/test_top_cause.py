"""The top cause of the bad requests of a burning SLO, beside what `/explain` says of the same requests."""

import pytest

from collector.causes.answer import request_times as explained
from collector.incidents import top_cause
from tests.collector.api.test_explain import chats, request
from tests.collector.api.test_explain import store as stored
from tests.collector.rows import NOW, SECOND

MS = 1_000_000

WAITS = {"ttft": {"own_prompt": 80, "wait_kv": 820}, "rest": {"batch": 150, "alone": 50}}
STALLS = {"ttft": {"own_prompt": 80, "stall": 720}, "rest": {"batch": 150, "alone": 50}}


def slow(parts, n, **fields):
    return [request(**parts, **{"slo_class": "chat", **fields}) for _ in range(n)]


def store(rows, many, **explained):
    """Store requests that ended a millisecond after one another."""
    apart = [({"ended": NOW - SECOND - i * MS, **fields}, causes) for i, (fields, causes) in enumerate(many)]
    return stored(rows, apart, **explained)


def top_causes(api, **asked):
    return {
        (one["slo"], one["tenant"]): one["top_cause"]
        for one in api("incidents", **asked)["incidents"]
        if one["cause"] == "slo_burn"
    }


def test_an_slo_that_burns_names_what_took_most_time_from_its_bad_requests(rows, api):
    store(rows, [*chats(136), *slow(WAITS, 30), *slow(STALLS, 10)])
    top = top_causes(api)["chat", None]
    assert top == {
        "cause": "wait_kv", "group": "waiting for KV", "share": pytest.approx((30 * 800 - 10 * 20) / 31_000, abs=0.01),
        "than": None,
        "sentence": "What 40 bad requests took beyond typical requests was 77 % waiting for KV, 23 % stall.",
    }  # fmt: skip
    told = api("explain", slo="chat", start="-1h")
    assert told["parts"][0]["cause"] == "wait_kv"
    assert told["sentence"].startswith(top["sentence"])


def test_a_slower_version_is_named_with_what_it_is_slower_than(rows, api):
    than = {"slower_than": "version", "slower_name": "build-771", "slower_by": 2.6, "slower_low": 2.5}
    slower = slow({"ttft": {"own_prompt": 80}, "rest": {"batch": 200, "slower": 2000}}, 30, variant="build-772")
    store(rows, [*chats(60), *[(fields, causes | than) for fields, causes in slower]])
    assert top_causes(api)["chat", None]["than"] == "× 2.6 against build-771"
    boxes = api("verdict")["boxes"]
    told = [one["why"] for box in boxes for one in (box, *box["inside"]) if one["slo"] == "chat"]
    assert told == [
        "Cause: slower by itself, × 2.6 against build-771 (97.56 % of what they took beyond good requests)."
    ]


def test_requests_count_by_weight(rows, api):
    good = [
        request(ttft={"own_prompt": 80, "wait_kv": waited}, rest=WAITS["rest"], slo_class="chat", weight=weight)
        for waited, weight in ((20, 1.0), (220, 9.0))
        for _ in range(10)
    ]
    store(rows, [*good, *slow(WAITS, 30, weight=7.0), *slow(STALLS, 10)])
    top = top_causes(api)["chat", None]
    waits, stalls = 30 * 7 * (820 - 220), 10 * 720
    assert (top["cause"], top["share"]) == ("wait_kv", pytest.approx((waits - 2200) / (waits - 2200 + stalls)))
    assert top["sentence"].startswith("What 220 bad requests took")


def test_typical_ones_are_good_also_when_nearly_all_are_bad(rows, api):
    store(rows, [*chats(3), *slow(WAITS, 97)])
    told = api("explain", slo="chat", start="-1h")["parts"][0]
    assert (told["cause"], told["excess_s"], told["share"]) == ("wait_kv", pytest.approx(97 * 0.8), 1.0)
    top = top_causes(api)["chat", None]
    assert (top["cause"], top["share"]) == ("wait_kv", 1.0)


def test_the_middle_half_of_the_good_ones_is_typical(rows, api):
    """Two of ten have a TTFT that the others have not, at each end."""
    ttfts = [10, 10, 100, 100, 100, 100, 100, 100, 480, 480]
    good = [request(ttft={"stall": ttft}, rest={"batch": 200}, slo_class="chat") for ttft in ttfts]
    store(rows, [*good, *[request(ttft={"stall": 520, "wait_kv": 430}, rest={"batch": 200}, slo_class="chat")] * 9])
    top = top_causes(api)["chat", None]
    assert (top["cause"], top["share"]) == ("wait_kv", pytest.approx(430 / (430 + 420))), "and not 520 - 146 of a stall"


def test_nothing_is_said_where_nothing_is_explained(rows, api):
    store(rows, [*chats(20), *slow(WAITS, 20)], explained=range(20))
    assert not any(top_causes(api).values())


def test_requests_at_the_level_none_are_neither_bad_nor_typical_and_those_of_phases_are(rows, api):
    def store_at(level, many):
        found = rows.requests([{"ended": NOW - SECOND - i, **fields} for i, (fields, _) in enumerate(many)])
        rows.causes([(row, {**causes, "level": level}) for row, (_, causes) in zip(found, many, strict=True)])

    store_at("none", [*chats(30), *slow(STALLS, 40)])
    assert not any(top_causes(api).values())
    store_at("phases", slow(WAITS, 20))
    assert not any(top_causes(api).values()), "none is typical"
    store_at("phases", chats(10))
    top = top_causes(api)["chat", None]
    assert (top["cause"], top["share"]) == ("wait_kv", 1.0)
    assert top["sentence"].startswith("What 20 bad requests took")


def test_the_few_that_ended_say_nothing_of_those_that_are_lost(rows, api):
    store(rows, [*chats(20), *slow(WAITS, 20, ended=NOW - 90 * SECOND)])
    for _ in range(21):
        rows.open(start=NOW - 200 * SECOND, seen=NOW - 100 * SECOND, slo_class="chat")
    assert top_causes(api)["chat", None] is None
    store(rows, slow(WAITS, 1, ended=NOW - 80 * SECOND))
    assert top_causes(api)["chat", None]["cause"] == "wait_kv"


def test_requests_that_failed_at_once_took_no_longer(rows, api):
    failed = request(ttft={"own_prompt": 8, "wait_kv": 2}, rest={}, tokens=0, status="error", slo_class="chat")
    store(rows, [*chats(20), *[failed] * 20])
    assert not any(top_causes(api).values())


def test_the_sentence_says_how_many_failed(rows, api):
    failed = request(ttft={"wait_kv": 900}, rest={}, tokens=0, status="error", slo_class="chat")
    store(rows, [*chats(20), *slow(WAITS, 20), *[failed] * 7])
    assert top_causes(api)["chat", None]["sentence"].startswith("What 27 bad requests (7 failed) took")


def test_bad_requests_before_the_burn_began_and_those_of_other_classes_are_left_out(rows, api):
    old = NOW - 3000 * SECOND
    store(rows, slow(STALLS, 10, ended=old))
    rows.requests([{"slo_class": "chat", "ended": NOW - 5 * 3600 * SECOND}] * 6000)
    rows.requests([{"slo_class": "chat", "ended": NOW - s * SECOND} for s in range(1000, 2900)])
    store(rows, [*chats(30), *slow(WAITS, 60), *slow(STALLS, 90, slo_class="batch")])
    top = top_causes(api)["chat", None]
    assert (top["cause"], top["share"]) == ("wait_kv", pytest.approx(1.0))
    assert top["sentence"].startswith("What 60 bad requests took")


HOUR = 3600 * SECOND


def burning_since(rows, hours):
    """Good requests of a day, and bad ones of every ten minutes of the last hours, that the SLO burns."""
    rows.requests([{"slo_class": "chat", "ended": NOW - s * 60 * SECOND} for s in range(60 * hours, 1440)])
    rows.requests([{"slo_class": "chat", "ended": NOW - s * 600 * SECOND, "e2e": 6 * SECOND} for s in range(6 * hours)])


@pytest.mark.parametrize(
    ("hours", "stalls"), [(3, 70), (5, 70), (8, 0)], ids=["three hours", "five hours", "its last six of eight hours"]
)
def test_a_burn_of_hours_is_judged_by_all_of_them(rows, api, hours, stalls):
    burning_since(rows, hours)
    store(rows, [*chats(30), *slow(WAITS, 30)])
    store(rows, slow(STALLS, 70, ended=NOW - hours * HOUR + 300 * SECOND))
    top = top_causes(api)["chat", None]
    assert top["sentence"].startswith(f"What {30 + stalls} bad requests took")
    assert top["cause"] == ("stall" if stalls else "wait_kv")


def test_a_burn_whose_explained_requests_are_older_than_its_last_hour_has_a_cause(rows, api):
    burning_since(rows, 5)
    ago = NOW - 2 * HOUR
    store(rows, [*chats(30, ended=ago), *slow(WAITS, 30, ended=ago)])
    assert top_causes(api)["chat", None]["cause"] == "wait_kv"


def test_one_that_is_over_is_judged_by_all_of_its_hours(rows, api):
    burning_since(rows, 8)
    rows.requests([{"slo_class": "chat", "ended": NOW - s * SECOND} for s in range(4 * 3600)])
    ago = 5 * HOUR
    store(rows, [*chats(30, ended=NOW - ago), *slow(WAITS, 30, ended=NOW - ago)])
    store(rows, slow(STALLS, 70, ended=NOW - 7 * HOUR))
    (over,) = (one for one in api("incidents", start="-12h")["incidents"] if one["slo"] == "chat")
    assert (over["firing"], over["top_cause"]["cause"]) == (False, "stall")


@pytest.mark.parametrize("hours_before", [2, 20])
def test_where_all_are_bad_good_ones_of_before_are_typical(rows, api, hours_before):
    store(rows, chats(30, ended=NOW - hours_before * HOUR))
    store(rows, slow(WAITS, 30))
    assert top_causes(api)["chat", None]["cause"] == "wait_kv"


def test_the_time_asked_for_and_the_filters_hold(rows, api):
    store(rows, [*chats(30, tenant="a"), *slow(WAITS, 30, tenant="a")])
    store(rows, [*chats(30, tenant="b"), *slow(STALLS, 60, tenant="b")])
    assert top_causes(api, tenant="a")["chat", None]["cause"] == "wait_kv"
    assert top_causes(api)["chat", None]["cause"] == "stall"
    before = NOW - 600 * SECOND
    store(rows, [*chats(30, ended=before), *slow(WAITS, 300, ended=before)])
    assert top_causes(api, end="-9m")["chat", None]["cause"] == "wait_kv"


def test_burns_that_are_over_name_what_it_was_then(rows, api, monkeypatch):
    rows.requests([{"slo_class": "chat", "ended": NOW - s * 30 * SECOND} for s in range(2000)])
    store(rows, [*chats(60), *slow(STALLS, 90)])
    for hours_ago, parts in ((9, WAITS), (5, STALLS)):
        ended = NOW - hours_ago * 3600 * SECOND
        store(rows, [*chats(30, ended=ended - 600 * SECOND), *slow(parts, 300, ended=ended)])

    def burned():
        found = api("incidents", start="-12h")["incidents"]
        over = [(one["start"][11:13], one["top_cause"]) for one in found if one["slo"] and not one["firing"]]
        return {hour: top and top["cause"] for hour, top in over}

    assert burned() == {"05": "stall", "01": "wait_kv"}
    boxes = api("verdict", start="-12h")["boxes"]
    burns = [one for box in boxes for one in (box, *box["inside"]) if one["slo"]]
    assert {box["since_ns"] // 3_600_000_000_000 % 24: box["why"] for box in burns if not box["firing"]} == {
        5: "Cause: stall (100 % of what they took beyond good requests).",
        1: "Cause: waiting for KV (100 % of what they took beyond good requests).",
    }
    monkeypatch.setattr(top_cause, "MOST_PAST", 1)
    assert burned() == {"05": "stall", "01": None}, "the newest"


class TestOfEachTenant:
    @pytest.fixture
    def slos_file(self, slo_of_each_tenant):
        return slo_of_each_tenant

    def test_it_is_of_the_tenants_own_requests(self, rows, api):
        store(rows, [*chats(500, tenant="big"), *slow(STALLS, 4, tenant="big")])
        store(rows, [*chats(6, tenant="small"), *slow(WAITS, 20, tenant="small")])
        found = top_causes(api)
        assert found.keys() == {("each", "small")}
        assert found["each", "small"]["sentence"].startswith("What 20 bad requests took")
        assert found["each", "small"]["cause"] == "wait_kv"


def test_of_very_many_some_stand_for_the_others(rows, api, monkeypatch):
    store(rows, [*chats(300), *slow(WAITS, 300)])
    whole = top_causes(api)["chat", None]
    monkeypatch.setattr(explained, "MOST_JUDGED", 100)
    some = top_causes(api)["chat", None]
    assert (some["cause"], some["share"]) == (whole["cause"], pytest.approx(whole["share"]))
    named = int(some["sentence"].split()[1])
    assert named % 6 == 0
    assert 150 < named < 450


def test_other_incidents_are_their_own_cause(rows, api):
    rows.cold_start(start=NOW - 100 * SECOND, duration=30 * SECOND)
    (incident,) = api("incidents")["incidents"]
    assert (incident["cause"], incident["top_cause"]) == ("cold_start", None)
