"""The synthetic day: each of its five faults stands in the answers at its time, with its cause."""

import pytest
from fastapi.testclient import TestClient

from collector.measure.times import parse_moment
from collector.slo.model import load_slos
from collector.status import IngestStatus
from collector.store import Store
from tests.support.api import build_shared_api
from tests.support.day import SLOS, new_day

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """The day, and a function that asks the API."""
    folder = tmp_path_factory.mktemp("day") / "store"
    day = new_day(folder, fresh_s=86_400)
    store = Store.open(f"chdb://{folder}")
    app, _ = build_shared_api(store, load_slos(SLOS), IngestStatus(), lost_after_s=30.0, clock=lambda: day.end)
    client = TestClient(app)

    def get(path, start=day.start, end=day.end, **asked):
        answer = client.get(f"/api/v1/{path}", params={"start": start / SECOND, "end": end / SECOND, **asked})
        assert answer.status_code == 200, answer.text
        return answer.json()

    yield day, get
    store.close()


def causes(answer):
    return {part["cause"]: part["share"] for part in answer["parts"]}


def test_every_request_is_explained_by_the_steps_of_its_process(lived):
    """Also those of many hours that came in one segment."""
    _, get = lived
    asked = get("explain", metric="e2e", quantile=0)
    levels = {level["level"]: level["requests"] for level in asked["levels"]}
    assert asked["selected"]["requests"] == asked["selected"]["explained"]
    assert levels["steps"] > 0.97 * sum(levels.values())


@pytest.mark.parametrize(
    ("since", "until", "slo", "cause"),
    [
        ((2, 40), (3, 20), "batch", "cold_start"),
        ((8, 0), (9, 10), "chat", "wait_batch"),
        ((10, 0), (10, 45), "chat", "wait_kv"),
        ((12, 2), (13, 1), "chat", "own_prompt"),
    ],
)
def test_the_cause_of_each_fault_is_the_largest_at_its_time(lived, since, until, slo, cause):
    day, get = lived
    asked = get("explain", day.at(*since), day.at(*until), slo=slo)
    found = causes(asked)
    assert max(found, key=found.get) == cause, asked["sentence"]


def test_the_deploy_is_of_acmes_long_prompts_on_the_new_version(lived):
    day, get = lived
    found = get("differences", day.at(12, 4), day.at(13, 1), slo="chat")["differences"]
    named = {one["conditions"][0]["dimension"] for one in found[:6]}
    assert {"input_tokens", "variant"} & named, found[:6]
    changed = [one for one in get("changes")["changes"] if one["dimension"] == "variant"]
    assert [(one["service"], one["value"], one["before"]) for one in changed] == [("llama-70b", "v2.4", ["v2.3"])]


def test_the_incidents_of_the_day_are_the_hang_the_storm_and_the_starts(lived):
    _, get = lived
    found = [(one["cause"], one["instance"], one["firing"]) for one in get("incidents")["incidents"]]
    assert ("engine_hung", "sglang-a-91ee", True) in found
    assert ("kv_eviction", "vllm-a-7f9c", False) in found
    assert {instance for cause, instance, _ in found if cause == "cold_start"} == {
        "sglang-b-5e77", "vllm-a-c2e1", "vllm-b-9e30",
    }  # fmt: skip


def test_burns_count_as_if_the_collector_had_been_there(lived):
    """Requests that came when they ended, and not all when the store was made."""
    _, get = lived
    burns = [one for one in get("incidents")["incidents"] if one["cause"] == "slo_burn" and one["slo"] == "chat"]
    assert burns
    assert all("100 % of the requests" not in one["detail"] for one in burns)


def test_the_burns_of_the_day_are_its_faults_from_their_change_on(lived):
    day, get = lived
    found = [one for one in get("incidents")["incidents"] if (one["cause"], one["slo"]) == ("slo_burn", "chat")]
    began = [parse_moment(one["start"]).ns for one in reversed(found)]
    faults = [day.at(3, 2), day.at(8, 30), day.at(10, 21), day.at(12, 3)]  # cold start, burst, KV storm, deploy
    assert [abs(ns - fault) < 120 * SECOND for ns, fault in zip(sorted(began), faults, strict=True)] == [True] * 4
    assert [one["firing"] for one in found] == [True, False, False, False]
    assert get("incidents", day.at(8), day.at(9))["incidents"][-1]["requests_affected"] > 100


@pytest.mark.parametrize(
    ("at", "said", "first"),
    [
        ((3, 20), "Cause: cold start", "cold_start"),
        ((8, 40), "Cause: waiting for a place", "slo_burn"),
        ((10, 40), "Cause: waiting for KV", "kv_eviction"),
        ((12, 40), "are of variant v2.4", "change"),
        (None, "makes no progress", "engine_hung"),
    ],
    ids=["cold start", "burst", "KV storm", "deploy", "hang"],
)
def test_the_verdict_names_each_fault_at_its_time(lived, at, said, first):
    """An agent, the command line and the page ask this first."""
    day, get = lived
    end = day.end if at is None else day.at(*at)
    answer = get("verdict", end - 3600 * SECOND, end)
    assert answer["state"] == "broken"
    box, *_ = answer["boxes"]
    assert box["kind"] == first
    assert [one for one in (box, *box["inside"]) if one["kind"] == "slo_burn"]
    assert said in " ".join(filter(None, (answer["who"], answer["why"], box["title"])))
