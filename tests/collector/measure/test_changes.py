"""`/changes`: what a service has for the first time."""

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
    assert variant["compare"] == "at=2026-11-21T09:51:39Z&span=1h"
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


def test_what_a_service_had_within_a_week_is_not_new_and_longer_ago_is(changes, rows):
    rows.requests(
        [
            _request(6 * 86_400, variant="v1"),
            _request(3600, variant="v2"),
            _request(100, variant="v1"),
            _request(9 * 86_400, variant="v3"),
            _request(50, variant="v3"),
        ]
    )
    assert changes() == [("variant", "v3", ["v1", "v2"])]


def test_without_requests_there_are_no_changes_and_a_tenant_sees_its_own(changes, rows):
    assert changes() == []
    rows.requests([_request(5000, variant="v1", tenant="x"), _request(100, variant="v2", tenant="y")])
    assert changes() == [("variant", "v2", ["v1"])]
    assert changes(tenant="y") == []
