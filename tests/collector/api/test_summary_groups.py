"""`/summary?group_by=…`: each group is the summary that its own filter gives, those with the most requests first."""

import random

import pytest

from tests.collector.rows import NOW, SECOND

HOUR = 3600 * SECOND
COLUMNS = ("tenant", "engine", "slo_class", "vantage")


def fill(rows, longest, *, weights=(1.0,)):
    """Requests of three variants and of none, some with tokens, and some that have not ended."""
    rng = random.Random(218)
    for variant, n in (("a", 30), ("b", 20), ("", 9), ("only cancelled", 3)):
        made = rows.requests(
            [
                {
                    "ended": NOW - 1 - rng.randrange(longest), "e2e": rng.randrange(SECOND, 20 * SECOND),
                    "variant": variant, "tenant": rng.choice(("", "acme")), "engine": rng.choice(("vllm", "sglang")),
                    "status": "cancelled" if variant == "only cancelled" else rng.choice(("ok", "ok", "ok", "error")),
                    "slo_class": rng.choice(("chat", "")), "output_tokens": rng.choice((None, 0, 1, 9)),
                    "weight": rng.choice(weights), "queue_ns": rng.choice((None, SECOND)),
                    "gap_ns": rng.choice((None, 0, 7)),
                }
                for _ in range(n)
            ]
        )  # fmt: skip
        for row in made[::2]:
            rows.tokens(row, [rng.randrange(1000, 90_000) for _ in range(4)])
    for age, variant in ((3, "a"), (3, "new"), (900, "a"), (900, "b")):
        rows.open(start=NOW - (age + 1) * SECOND, seen=NOW - age * SECOND, variant=variant, slo_class="chat")


def without(summary, *names):
    return {name: value for name, value in summary.items() if name not in names}


@pytest.mark.parametrize(
    ("start", "longest", "weights"),
    [("-15m", 900 * SECOND, (1.0, 4.0)), ("-9h", 9 * HOUR, (1.0,))],
)
def test_each_group_has_the_numbers_of_its_filter(api, rows, start, longest, weights):
    fill(rows, longest, weights=weights)
    answer = api("summary", start=start, group_by="variant", top=10)
    assert without(answer, "groups", "groups_total") == api("summary", start=start)
    assert [group["value"] for group in answer["groups"]] == ["a", "b", "", "only cancelled", "new"]
    assert answer["groups_total"] == 5
    for group in answer["groups"][len(weights) % 2 :: 2]:  # the other ones where requests are sampled
        alone = api("summary", start=start, variant=group["value"])
        assert without(group, "value") == approx(alone), group["value"]
    assert [group["requests"]["in_flight"] for group in answer["groups"]] == [1, 0, 0, 0, 1]


def approx(value):
    """The last digit may differ: the store adds and interpolates in another order."""
    if isinstance(value, dict):
        return {name: approx(one) for name, one in value.items()}
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_by_which_requests_are_filtered_groups_them(api, rows, column):
    fill(rows, 900 * SECOND)
    groups = api("summary", group_by=column)["groups"]
    assert sum(group["requests"]["total"] for group in groups) == api("summary")["requests"]["total"] == 62
    for group in groups[:2]:
        assert without(group, "value") == approx(api("summary", **{column: group["value"]}))


def test_the_groups_with_the_most_requests_are_listed_and_the_others_counted(api, rows):
    rows.requests([{"variant": name} for name in ("c", "b", "b", "a", "d", "d")])
    for asked, listed in (({"top": 2}, ["b", "d"]), ({"top": 3}, ["b", "d", "a"]), ({}, ["b", "d", "a", "c"])):
        answer = api("summary", group_by="variant", **asked)
        assert ([group["value"] for group in answer["groups"]], answer["groups_total"]) == (listed, 4)


def test_the_filters_hold_for_groups_too(api, rows):
    fill(rows, 900 * SECOND)
    answer = api("summary", group_by="variant", variant=["a", "b"], tenant="acme")
    assert {group["value"] for group in answer["groups"]} == {"a", "b"}
    for group in answer["groups"]:
        assert without(group, "value") == approx(api("summary", variant=group["value"], tenant="acme"))


def test_a_request_that_two_processes_reported_counts_once_in_its_servers_group(api, rows):
    server = {"request_id": "r-1", "variant": "int8"}
    client = {"request_id": "r-1", "variant": "app", "vantage": "client", "engine": "openai", "service": "app"}
    rows.requests([server, client, {"request_id": "r-2", "variant": "app", "vantage": "client", "engine": "openai"}])
    found = {g["value"]: g["requests"]["total"] for g in api("summary", group_by="variant")["groups"]}
    assert found == {"int8": 1, "app": 1}


def test_a_window_without_requests_has_no_groups(api, rows):
    answer = api("summary", group_by="tenant")
    assert (answer["groups"], answer["groups_total"]) == ([], 0)


def test_names_with_anything_in_them_are_groups(api, rows):
    names = ["it's", "aa\0", "aa", "\\", "{x:String}", "🔥", "x" * 300, "%"]
    made = rows.requests([{"model": name} for i, name in enumerate(names, 1) for _ in range(i)])
    rows.tokens(made[1], [5000, 7000])
    found = {group["value"]: group for group in api("summary", group_by="model")["groups"]}
    assert {name: group["requests"]["ok"] for name, group in found.items()} == {n: i for i, n in enumerate(names, 1)}
    assert {name: group["itl_s"]["count"] for name, group in found.items() if group["itl_s"]["count"]} == {"aa\0": 1}


@pytest.mark.parametrize(
    ("params", "field"),
    [({"group_by": "status"}, "group_by"), ({"top": 3}, "top"), ({"group_by": "model", "top": 0}, "top"),
     ({"group_by": "model", "top": 101}, "top"), ({"group_by": ""}, "group_by")],
)  # fmt: skip
def test_what_is_no_column_or_no_number_of_groups_is_refused(api, params, field):
    answer = api.client.get("/api/v1/summary", params=params)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)


def test_without_groups_the_answer_says_nothing_of_them(api, rows):
    assert "groups" not in api("summary")
