"""The synthetic day: each of its five faults stands in the answers at its time, with its cause."""

from functools import cache

import pytest

from tests.support.day_api import day_api
from tokentrail.shared.formatting import instant
from tokentrail.shared.moments import parse_moment

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """The day, and a function that asks the API."""
    with day_api(tmp_path_factory.mktemp("day") / "store") as (day, ask):

        @cache  # the whole day is asked by several tests
        def get(path, start=day.start, end=day.end, **asked):
            return ask(path, start=start / SECOND, end=end / SECOND, **asked)

        yield day, get


def time_of(text):
    return instant(text).timestamp() * SECOND


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
        ((12, 2), (13, 1), "chat", "slower"),
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
    changed = [one for one in get("changes")["changes"] if one["dimension"] == "variant" and one["before"]]
    assert [(one["service"], one["value"], one["before"]) for one in changed] == [("llama-70b", "v2.4", ["v2.3"])]


def test_a_burst_is_of_those_who_made_it_before_it_is_of_their_waiting(lived):
    day, get = lived
    found = get("differences", day.at(8), day.at(9), slo="chat")["differences"]
    assert {"dimension": "tenant", "value": "globex"} in found[0]["conditions"]
    told = [[*one["also"], *(f"{of['dimension']} {of['value']}" for of in one["conditions"])] for one in found]
    assert "longest_wait batch" not in told[0], found
    assert any(text.startswith("batch_at_arrival at least") for texts in told for text in texts), found


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
    assert max(one["requests_affected"] for one in get("incidents", day.at(8), day.at(9))["incidents"]) > 100


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


def test_the_process_that_hangs_stands_first_and_is_not_hidden_behind_its_service(lived):
    day, get = lived
    found = get("processes")
    first, *others = found["processes"]
    assert (first["instance"], first["state"], first["in_flight"]) == ("sglang-a-91ee", "hangs", 18)
    assert day.at(13, 1) < time_of(first["since"]) <= day.at(13, 2) + SECOND
    assert found["processes_total"] == len(day.processes()) == 1 + len(others)
    states = {one["instance"]: (one["state"], one["in_flight"]) for one in others}
    assert states["sglang-b-5e77"] == ("ok", 0), "of the same service"
    assert states["vllm-a-7f9c"] == ("quiet", 0), "it was replaced at 12:00"


def test_the_numbers_of_a_process_are_those_of_its_own_requests_and_steps(lived):
    day, get = lived
    (one,) = (one for one in get("processes")["processes"] if one["instance"] == "vllm-a-7f9c")
    planned = {process.instance: requests for process, requests in day.processes()}
    assert one["requests"] == len(planned["vllm-a-7f9c"])
    assert one["preemptions"] > 20
    assert 0.02 < one["step_p50_s"] < one["step_p99_s"]
    assert one["ttft_p99_s"] > 1 > one["attainment"]
    curves = [one[f"{name}_curve"] for name in ("running", "waiting", "kv")]
    assert [len(curve) for curve in curves] == [40, 40, 40]
    assert max(value for value in curves[2] if value is not None) > 0.95, "the storm"
    assert curves[0][-1] is None, "it runs no more"


def test_filters_choose_processes(lived):
    _, get = lived
    found = get("processes", model="smollm2-1.7b")["processes"]
    assert {one["instance"] for one in found} == {"tt-a-11aa", "tt-b-22bb"}


def test_a_process_is_shown_step_by_step_with_its_requests(lived):
    day, get = lived
    begin, end = day.at(13, 1), day.at(13, 4)
    found = get("processes/timeline", begin, end, service="qwen-8b", instance="sglang-a-91ee")
    steps = found["steps"]
    assert found["steps_total"] == len(steps["step"]) > 20
    assert steps["step"] == sorted(steps["step"])
    assert begin + steps["offset_s"][-1] * SECOND < day.at(13, 2) + SECOND, "it hangs"
    still_open = [one for one in found["requests"] if one["status"] == "in_flight"]
    assert len(still_open) == 18
    assert {one["tenant"] for one in still_open} == {"acme"}
    ended = [one for one in found["requests"] if one["status"] == "ok"]
    assert ended
    assert all(sum(p["duration_s"] for p in one["phases"]) == pytest.approx(one["e2e_s"], abs=1e-6) for one in ended)
    assert get("processes/timeline", begin, end, service="qwen-8b", instance="tt-a-11aa")["steps_total"] == 0


def test_a_request_that_ended_behind_the_window_is_there_once(lived):
    day, get = lived
    found = get("processes/timeline", day.at(10, 22), day.at(10, 22.5), service="llama-70b", instance="vllm-a-7f9c")
    ids = [one["span_id"] for one in found["requests"]]
    assert len(ids) == len(set(ids)) == found["requests_total"]
    assert {one["status"] for one in found["requests"]} <= {"ok", "error", "cancelled"}


def test_more_than_an_hour_step_by_step_is_refused(lived):
    day, get = lived
    with pytest.raises(AssertionError, match="must be an hour before end at most"):
        get("processes/timeline", day.at(10), day.at(11) + SECOND, service="llama-70b", instance="vllm-a-7f9c")
    get("processes/timeline", day.at(10), day.at(11), service="llama-70b", instance="vllm-a-7f9c")


def test_a_request_tells_what_a_typical_one_takes_and_what_people_call_its_causes(lived):
    day, get = lived
    slowest = get("requests", day.at(12, 4), day.at(13, 1), sort="ttft", slo="chat", verdict="bad", limit=1)[
        "requests"
    ][0]
    told = get(f"requests/{slowest['trace_id']}", day.at(12), day.end)["explained"]
    assert told["typical_ttft_s"] < 0.5 < 1 < slowest["ttft_s"]
    assert told["typical_rest_s"] == pytest.approx(0.029 * (slowest["output_tokens"] - 1), rel=0.5)
    assert {"own prompt", "others' prompts"} & {cause["group"] for cause in told["causes"]}
    assert all(cause["colour"].startswith("#") for cause in told["causes"])
