"""`/labels`: the values that requests have, with their numbers."""

from collections import Counter

from tests.collector.rows import NOW, SECOND


def test_each_value_has_its_requests_and_the_commonest_is_first(api, rows):
    made = rows.requests(
        [
            {
                "model": f"m{i % 3 // 2}",
                "tenant": f"t{i % 7}",
                "status": "error" if i % 5 == 0 else "ok",
                "variant": "v[1] 'x'",
            }
            for i in range(40)
        ]
    )
    rows.request(model="old", ended=NOW - 3600 * SECOND)
    got = api("labels")
    assert got["window"]["end"] == "2026-11-21T10:00:00Z"
    for name in ("model", "tenant", "status", "variant", "slo_class", "instance"):
        assert {v["value"]: v["requests"] for v in got["labels"][name]} == Counter(r[name] for r in made)
        counts = [v["requests"] for v in got["labels"][name]]
        assert counts == sorted(counts, reverse=True)
    assert [v["value"] for v in api("labels", start="-2h", model="old")["labels"]["model"]] == ["old"]


def test_a_dimension_with_many_values_has_the_commonest(api, rows):
    rows.requests([{"tenant": f"t{i % 10 if i < 50 else i}"} for i in range(90)])
    tenants = api("labels", limit=10)["labels"]["tenant"]
    assert [v["requests"] for v in tenants] == [5] * 10
    assert {v["value"] for v in tenants} == {f"t{i}" for i in range(10)}


def test_without_requests_there_are_no_values_and_a_weight_is_no_request(api, rows):
    assert api("labels")["labels"]["model"] == []
    rows.requests([{"weight": 2.5}])
    assert api("labels")["labels"]["model"] == [{"value": "m", "requests": 2.5}]
