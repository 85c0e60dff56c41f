"""Series and goodput by the values of a column: each is the answer to the filter, and all together are the whole."""

import random

import pytest

from tests.collector.rows import NOW, SECOND

MS = 1_000_000
COLUMNS = ("model", "tenant", "variant", "engine", "slo_class", "vantage")


@pytest.fixture
def traffic(rows):
    pick = random.Random(5)
    rows.requests(
        [
            {"ended": NOW - pick.randrange(1, 600) * SECOND, "ttft_ns": pick.choice((MS, SECOND)), "tpot_ns": 1.0,
             "model": pick.choice("aabc"), "tenant": pick.choice(("", "x", "y", "z")),
             "weight": pick.choice((1.0, 1.0, 2.5)), "variant": pick.choice("vw"),
             "slo_class": pick.choice(("chat", "")), "status": pick.choice(("ok", "ok", "error")),
             "vantage": pick.choice(("server", "server", "client")), "service": pick.choice("st"),
             "instance": pick.choice("ij"), "process_tenant": pick.choice(("", "x"))}
            for _ in range(400)
        ]
    )  # fmt: skip
    for model in "abb":
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, model=model, slo_class="chat", tenant="x")
    for process in ("i", "j"):
        rows.step(start=NOW - 40 * SECOND, service="s", instance=process, running=3 if process == "i" else 5)
    return rows


def unset(answer):
    return {name: value for name, value in answer.items() if name not in ("groups", "groups_total")}


METRICS = ("requests", "ttft", "attainment", "goodput", "output_tokens")


@pytest.mark.parametrize(("column", "metric"), [(column, METRICS[i % 5]) for i, column in enumerate(COLUMNS)])
def test_a_series_of_a_group_is_that_of_its_filter(api, traffic, column, metric):
    asked = {"metric": metric, "step": "1m", "slo": "chat"} if column != "vantage" else {"metric": metric, "step": "1m"}
    answer = api("timeseries", **asked, group_by=column)
    assert unset(answer) == api("timeseries", **asked)
    if column == "vantage":  # a filter by it takes the rows as they are
        assert answer["groups_total"] == len(answer["groups"]) == 2
    assert {(one["service"], one["process_tenant"]) for one in answer["groups"]} == {(None, None)}
    for one in answer["groups"][::2] if column != "vantage" else ():
        alone = api("timeseries", **asked, **{column: one["value"]})
        assert [one[name] for name in ("points", "in_flight_violations", "estimated")] == [
            alone[name] for name in ("points", "in_flight_violations", "estimated")
        ]


def test_the_values_with_the_most_requests_are_listed_and_the_others_are_together(api, traffic):
    def counts(one):
        return sum(point["value"] * point["covered_s"] for point in one["points"])

    answer = api("timeseries", metric="requests", step="1m", group_by="model", top=1)
    first, others = answer["groups"]
    assert (first["value"], others["value"], answer["groups_total"]) == ("a", None, 3)
    assert counts(first) + counts(others) == pytest.approx(counts(answer))
    alone = {model: counts(api("timeseries", metric="requests", step="1m", model=model)) for model in "bc"}
    assert counts(others) == pytest.approx(sum(alone.values()))
    late = api("timeseries", metric="attainment", step="1m", group_by="model", top=1)
    assert [late["in_flight_violations"], *(one["in_flight_violations"] for one in late["groups"])] == [3, 1, 2]
    exact = api("timeseries", metric="requests", step="1m", group_by="model", top=3)
    in_order = sorted("bc", key=lambda model: -alone[model] - 2 * (model == "b"))
    assert [one["value"] for one in exact["groups"]] == ["a", *in_order]


def test_goodput_by_group_is_that_of_its_filter_and_the_others_are_the_rest(api, traffic):
    asked = {"ttft": "500ms"}
    answer = api("goodput", **asked, group_by="tenant", top=2)
    assert unset(answer) == api("goodput", **asked)
    *listed, others = answer["groups"]
    assert (len(listed), others["value"], answer["groups_total"]) == (2, None, 4)
    for one in listed:
        alone = api("goodput", ttft="500ms", tenant=one["value"])
        assert {name: one[name] for name in alone if name not in ("window", "thresholds")} == {
            name: value for name, value in alone.items() if name not in ("window", "thresholds")
        }
    for name in ("total", "good", "failed", "in_flight_violations"):
        of_all = sum(one["requests"][name] for one in answer["groups"])
        assert of_all == pytest.approx(answer["requests"][name])


def test_each_process_has_a_series_also_where_two_have_one_name(api, traffic):
    answer = api("timeseries", metric="requests", step="15m", group_by="instance")
    names = [(one["service"], one["value"], one["process_tenant"]) for one in answer["groups"]]
    assert len({*names}) == len(names) == answer["groups_total"] == 9  # eight, and the process of what is in flight
    value = sum(one["points"][0]["value"] for one in answer["groups"] if one["points"])
    assert value == pytest.approx(answer["points"][0]["value"])


def test_what_processes_tell_is_told_of_each(api, rows):
    for instance, running in (("i", 3), ("j", 5), ("k", 7)):
        rows.step(
            start=NOW - 40 * SECOND, service="s", instance=instance, running=running, waiting=running + 1,
            kv_blocks_used=running, kv_blocks_total=10,
        )  # fmt: skip
        rows.kv_event(start=NOW - 40 * SECOND, service="s", instance=instance, blocks=running)
    sampled = {"service": "q", "instance": "m", "process_tenant": "", "engine": "vllm", "kind": "gauge"}
    names = {"running": 9.0, "waiting": 10.0, "kv_usage": 0.9}
    rows.insert(
        "samples", [sampled | {"time": (NOW - 40 * SECOND) // 10**6, "name": n, "value": v} for n, v in names.items()]
    )
    rows.request(service="s", instance="j")
    for metric, expected in (
        ("running", {"j": 5, "i": 3, "k": 7, "m": 9}),
        ("waiting", {"j": 6, "i": 4, "k": 8, "m": 10}),
        ("kv_usage", {"j": 0.5, "i": 0.3, "k": 0.7, "m": 0.9}),
        ("kv_evictions", {"j": 5 / 30, "i": 3 / 30, "k": 7 / 30, "m": None}),
        ("preemptions", {"j": 1 / 30, "i": 1 / 30, "k": 1 / 30, "m": None}),
    ):
        answer = api("timeseries", metric=metric, step="30s", group_by="instance", top=4)
        values = {one["value"]: one["points"][0]["value"] if one["points"] else None for one in answer["groups"]}
        assert values == {name: pytest.approx(n) for name, n in expected.items()}, metric
        assert next(iter(values)) == "j"  # it has a request
        assert answer["groups_total"] == 4
    two = api("timeseries", metric="running", step="30s", group_by="instance", top=2)["groups"]
    assert [(one["value"], one["points"][0]["value"]) for one in two][::2] == [("j", 5), (None, 3 + 7)]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"metric": "running", "group_by": "model"}, "running is of engine processes: group_by=instance"),
        ({"metric": "ttft", "top": 3}, "is a number of groups: give group_by=variant or another column too"),
        ({"metric": "ttft", "group_by": "trace_id"}, "group_by"),
        ({"metric": "ttft", "group_by": "model", "top": 31}, "top"),
    ],
)
def test_what_cannot_be_grouped_is_refused(api, asked, told):
    answer = api.client.get("/api/v1/timeseries", params=asked)
    assert answer.status_code == 400
    assert told in answer.text
