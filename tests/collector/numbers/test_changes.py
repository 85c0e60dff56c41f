"""`/changes`: what a service has for the first time."""

from urllib.parse import parse_qsl

import pytest

from tests.collector.rows import NOW, SECOND

DAY = 86_400 * SECOND


@pytest.fixture
def changes(api):
    def found(**params):
        return [(c["dimension"], c["value"], c["before"]) for c in api("changes", **params)["changes"]]

    return found


def _request(ago_s, e2e=SECOND, **fields):
    return {"ended": NOW - ago_s * SECOND, "e2e": e2e, **fields}


def test_new_models_variants_and_processes_are_changes_and_old_ones_are_not(api, changes, rows):
    rows.requests(
        [
            _request(5000, variant="v1", model="llama", instance="a"),
            _request(600, variant="v1", model="llama", instance="a"),
            _request(500, variant="v2", model="llama", instance="b"),
            _request(400, variant="v2", model="qwen", instance="b"),
            _request(300, variant="v1", model="llama", instance="a"),
        ]
    )
    assert changes() == [("variant", "v2", ["v1"]), ("process", "b", []), ("model", "qwen", ["llama"])]
    (variant, *_) = api("changes")["changes"]
    assert variant["at"] == "2026-11-21T09:51:39Z"
    assert dict(parse_qsl(variant["compare"])) == {"at": variant["at"], "span": "1h", "service": "engine"}
    assert api("compare", **dict(parse_qsl(variant["compare"])))["b"]["requests"]["total"] == 3
    assert variant["requests"] == 2
    assert variant["service"] == "engine"
    assert changes(end="-450s") == [("variant", "v2", ["v1"]), ("process", "b", [])]
    assert changes(start="-450s") == [("model", "qwen", ["llama"])]


def test_a_service_that_begins_is_no_change_and_neither_are_others_values(changes, rows):
    rows.requests(
        [
            _request(5000, service="a", variant="v1", instance="i"),
            _request(500, service="b", variant="v1", instance="i"),
            _request(400, service="b", variant="v2", instance="i"),
        ]
    )
    assert changes() == [("variant", "v2", ["v1"])]


def test_what_a_new_service_has_in_its_first_minute_is_what_it_begins_with(changes, rows):
    first = [_request(500, model="llama"), _request(445, model="qwen"), _request(439, model="phi")]
    rows.requests(first)
    assert changes() == [("model", "phi", ["llama", "qwen"])]
    rows.request(**_request(3 * 86_400, model="llama"))
    assert [value for _, value, _ in changes()] == ["qwen", "phi"], "a service that was there before has new models"


def _kinds(api, **params):
    return [(one["kind"], one["value"]) for one in api("changes", **params)["changes"] if one["dimension"] == "variant"]


def test_a_rollback_and_a_promotion_are_told(api, rows):
    """v2 in place of v1, and v1 again; then v3 with few requests, which becomes that of most."""
    times = {"v1": [(30, 24), (20, 8)], "v2": [(24, 20)], "v3": [(12, 0)]}
    many = [
        _request(int(hours * 3600) - minute * 60, variant=variant, instance="a")
        for variant, stretches in times.items()
        for start, end in stretches
        for hours, minute in [(start, m) for m in range(0, int((start - end) * 60), 1 if variant != "v3" else 6)]
    ]
    promoted = [_request(8 * 3600 - i * 30, variant="v3", instance="a") for i in range(900)]
    rows.requests([*many, *promoted])
    told = [
        ("gone", "v1"), ("first seen", "v2"), ("gone", "v2"), ("back", "v1"), ("first seen", "v3"), ("gone", "v1"),
        ("most", "v3"),
    ]  # fmt: skip
    assert _kinds(api, start="-2d") == told
    assert _kinds(api, start="-21h") == told[2:], "what is told does not depend on the window"
    assert _kinds(api, start="-9h") == told[5:]


def test_what_has_most_by_chance_or_for_some_minutes_is_no_change(api, rows):
    """Two variants with half of the traffic each, of which one has a little more for half an hour, and a batch."""
    halves = [
        _request(8 * 3600 - i * 20, variant="ab"[(i % 30 < 17) ^ (i // 90 % 2)], instance="a") for i in range(8 * 180)
    ]
    nightly = [
        _request(hours * 3600 - 450 + i, variant="v2", instance="n", service="batch")
        for hours in (6, 4)
        for i in range(300)
    ]
    steady = [_request(20 * 3600 - i * 60, variant="v1", instance="n", service="batch") for i in range(20 * 60)]
    rows.requests([*halves, *nightly, *steady])
    assert _kinds(api, start="-7h") == [("first seen", "v2"), ("gone", "v2"), ("back", "v2"), ("gone", "v2")]
    rows.requests([_request(3600 - i * 8, variant="a", instance="a") for i in range(400)])
    assert _kinds(api, start="-2h") == [("most", "a")]


def test_what_comes_by_times_is_back_in_each_window(api, rows):
    steady = [_request(half * 1800, variant="v1", instance="a") for half in range(40 * 24)]
    batch = [_request(3600 + days * 86_400 + i, variant="b", instance="a") for days in (0, 8, 16) for i in range(3)]
    rows.requests([*steady, *batch])
    assert _kinds(api, start="-5h") == [("back", "b")]
    told = _kinds(api, start="-19d")
    assert [kind for kind, value in told if value == "b"] == ["first seen", "gone", "back", "gone", "back"]


def test_what_was_longer_ago_is_back(changes, rows):
    rows.requests(
        [
            _request(6 * 86_400, variant="v1"),
            _request(3600, variant="v2"),
            _request(100, variant="v1"),
            _request(9 * 86_400, variant="v3"),
            _request(50, variant="v3"),
        ]
    )
    assert changes() == [("variant", "v1", ["v2"]), ("variant", "v3", ["v2", "v1"])]


def test_without_requests_there_are_no_changes_and_a_tenant_sees_its_own(changes, rows):
    assert changes() == []
    rows.requests([_request(5000, variant="v1", tenant="x"), _request(100, variant="v2", tenant="y")])
    assert changes() == [("variant", "v2", ["v1"])]
    assert changes(tenant="y") == []
