"""The page Engines without a browser: its sentence, its rows, and what one process did step by step."""

import re
from base64 import b64decode

import pytest

from dashboard.views import engines, tiles
from tests.dashboard.test_tracks import lane, phase, timeline

END = "2026-11-26T10:15:00Z"
WINDOW = {"start": "2026-11-26T10:00:00Z", "end": END, "complete_until": END}


def process(**more):
    return {
        "service": "s", "instance": "i", "process_tenant": "", "variant": "v", "engine": "vllm", "models": ["m", "n"],
        "state": "ok", "since": "2026-11-26T10:06:00Z", "first_seen": "2026-11-26T09:00:00Z", "last_seen": END,
        "running": 2, "waiting": 0, "in_flight": 3, "kv_usage": 0.5, "preemptions": 1, "requests": 1204,
        "running_curve": [1, None, 4], "waiting_curve": [], "kv_curve": [0.25, 2.0], "step_p50_s": 0.02,
        "step_p99_s": None, "ttft_p99_s": 1.0, "attainment": 0.5, "output_tokens_per_s": None, "beside": None,
    } | more  # fmt: skip


UNTOLD = {
    "service": "s", "process_tenant": "",
    "tells": [
        {"what": "steps", "told": "none", "reason": "it has none", "ways": ["patch it", "ask"]},
        {"what": "KV", "told": "none", "reason": "", "ways": []},
        {"what": "phases", "told": "all", "reason": "", "ways": []},
    ],
}  # fmt: skip
START = {
    "service": "s", "instance": "i", "process_tenant": "", "engine": "vllm", "model": "",
    "start": "2026-11-26T10:05:30Z", "duration_s": 9.0, "status": "error", "error_type": "oom",
    "phases": [phase("device_init", 0.0, 1.0), phase("load_weights", 1.0, 8.0)],
}  # fmt: skip


def shown(show, processes, total=None, steps_total=0, **query):
    """The page, and the texts on it."""
    drawn = timeline(lane(1, 0.0, 1.0), offset_s=[1.0], duration_s=[0.5], step=[1], prefill_tokens=[5],
                     decode_tokens=[0], running=[1], waiting=[0], kv_blocks_used=[1], kv_blocks_total=[4])  # fmt: skip
    answers = {
        "processes": {"window": WINDOW, "processes": processes, "processes_total": total or len(processes)},
        "engines": {"engines": [UNTOLD]},
        "cold_starts": {"cold_starts": [START, START | {"instance": "k"}] if processes else []},
        "processes/timeline": drawn | {"steps_total": steps_total},
    }
    page = show("engines", lambda path: answers.get(path, {"slos": [], "labels": {}}), utc="true", **query)
    assert not page.exception
    return page, [one.value for one in (*page.markdown, *page.caption, *page.info)]


def test_the_table_has_a_row_for_each_process_and_what_its_engine_does_not_tell(show):
    page, texts = shown(show, [process(), process(instance="", state="lost", service="t")], total=5, table="true")
    table, starts = (frame.value for frame in page.dataframe)
    first, second = table.to_dict("records")
    assert next(iter(first)) == "process", "what a row is about stands first"
    curves = {name: first.pop(name) for name in ("batch", "queue", "KV")}
    assert first == {
        "process": "i", "state": "ok", "service": "s", "variant": "v", "running": 2, "open": 3, "KV used": 50.0,
        "preempted": 1, "step P50": 0.02, "step P99": None, "TTFT P99": 1.0, "good": 50.0,
        "tokens/s": None, "requests": 1204, "engine": "vllm", "model": "m, n",
        "first seen": "2026-11-26 09:00:00 UTC", "instance": "i", "does not tell": "steps, KV",
    }  # fmt: skip
    assert (second["process"], second["state"], second["does not tell"]) == ("t", "✕ LOST 9 min", "")
    assert [*starts["spent on"]] == ["load_weights 8.00 s, device_init 1.00 s"] * 2
    assert (starts["result"][0], starts["model"][0]) == ("error oom", "–")
    assert any(text.startswith("3 more processes are not shown") for text in texts)
    assert "- s, steps: it has none; patch it, or ask" in [text.replace("\\", "") for text in texts]
    assert all(image.startswith("data:image/svg+xml;base64,") for image in curves.values())


def test_long_names_of_a_service_are_told_without_what_they_share():
    def named(*instances, **more):
        return engines.names([process(instance=one, **more) for one in instances])

    assert named("llama-70b-7f9c-abcde", "llama-70b-7f9c-xyz") == ["…abcde", "…xyz"]
    assert named("gpu-1", "gpu-2") == ["gpu-1", "gpu-2"]
    assert named("llama-70b-7f9c-abcde") == ["llama-70b-7f9c-abcde"], "nothing to tell it from"
    assert named("some-long-name-9", "some-long-name-91") == ["…9", "…91"], "names are cut where a part begins"
    assert named("", "", process_tenant="acme") == ["s of acme", "s of acme"]


def test_the_process_of_the_url_is_shown_for_two_minutes_around_its_moment(show):
    asked = []
    for query in ({}, {"at": "2026-11-26T10:05:00Z"}, {"at": "noon"}):
        page, texts = shown(show, [process(), process(instance="k")], sel="s/i", steps_total=7, **query)
        asked.append([params for path, params in show.asked if path == "processes/timeline"][-1])
    assert [(one["start"][11:19], one["end"][11:19]) for one in asked] == [
        ("10:05:00", "10:07:00"), ("10:04:00", "10:06:00"), ("10:14:00", "10:16:00"),
    ]  # fmt: skip
    assert asked[0]["instance"] == "i"
    assert any(text.startswith("The newest 1 of 7 steps are drawn.") for text in texts)
    page.button(key="steps-‹ earlier").click().run()
    assert page.query_params["at"] == "2026-11-26T10:13:00Z"
    page.button(key="steps-close").click().run()
    assert "sel" not in page.query_params
    assert not any("two minutes from" in text for text in shown(show, [process()], sel="s/k")[1])


def test_a_range_without_processes_says_so(show):
    page, texts = shown(show, [])
    assert texts[-1] == "No engine process gave a sign of life in this range."
    assert not page.dataframe


def test_the_sentence_names_the_first_three_in_trouble():
    well, quiet = process(), process(state="quiet")
    assert engines.sentence([well] * 1204) == "1\u202f204 processes: 1204 work."
    assert engines.sentence([well, quiet]) == "2 processes: 1 work, 1 are quiet."
    hangs, lost = process(state="hangs", instance="h"), process(state="lost", instance="", service="l")
    assert engines.sentence([hangs, lost, well]) == (
        ":red[●] h makes no step, 3 requests open; l went silent, 3 requests open. Of the other 1 process, 1 work."
    )
    assert engines.sentence([hangs] * 4).count("makes no step") == 3


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("25T23:59:55", "0 s"), ("26T00:00:59.9", "59 s"), ("26T00:01:00", "1 min"), ("26T00:59:59", "59 min"),
        ("26T01:00:00", "1 h"), ("26T23:59:59", "23 h"), ("27T00:00:00", "1 d"),
    ],
)  # fmt: skip
def test_a_time_ago_has_one_unit(end, told):
    assert tiles.since("2026-11-26T00:00:00Z", f"2026-11-{end}Z") == told


def test_a_curve_has_gaps_where_nothing_is_known_and_says_its_most():
    def drawn(*args, **more):
        svg = b64decode(engines.curve(*args, **more).partition("base64,")[2]).decode()
        return re.search(r'd="([^"]*)"', svg)[1], re.search(r"<title>(.*)</title>", svg)[1]

    assert drawn([4, 0, None, 2], "#000", 3, "n") == (
        "M0.0 2.0h21.0L21.0 20.0h21.0M63.0 11.0h21.0", "n: at most 4, now 3",
    )  # fmt: skip
    assert drawn([0.5, 2.0], "#000", None, "n", top=1.0) == ("M0.0 11.0h42.0L42.0 2.0h42.0", "n: at most 1")
    assert drawn([], "#000", None, "n") == ("", "n: at most 1")


def slow(ratio=2.7, low=2.5, **more):
    return {"ratio": ratio, "low": low, "high": 2.9, "siblings": 2, "is_slow": low is not None and low > 1.1} | more


def drawn(*processes):
    html = tiles.of_services(processes, END, None)
    return [re.sub(r"<[^>]*>", "", tile).strip() for tile in html.split("<a ")[1:]], html


def test_tiles_stand_by_service_and_say_how_a_process_compares_with_its_siblings(show):
    page, texts = shown(
        show,
        [
            process(instance="pod-b", beside=slow()), process(instance="", service="t", state="lost"),
            process(instance="pod-a", beside=slow(1.0, 0.98), ttft_p99_s=None, attainment=None, kv_usage=None),
        ],
        model="m",
    )  # fmt: skip
    html = "".join(element.proto.body for element in page.get("html"))
    heads = re.findall(r"<h4>(.*?)</h4>", html)
    assert [re.sub("<[^>]*>", "", head) for head in heads] == [
        "s 2 processes, the time of a step beside their siblings", "t 1 process",
    ]  # fmt: skip
    looks = re.findall(r'class="tt-tile (\w+)" href="([^"]*)"', html)
    assert looks == [
        ("warn", "/engines?utc=true&amp;model=m&amp;sel=s%2Fpod-b"),
        ("quiet", "/engines?utc=true&amp;model=m&amp;sel=s%2Fpod-a"),
        ("bad", "/engines?utc=true&amp;model=m&amp;sel=t"),
    ]
    assert "<i>pod-</i>b</span></span><span><b>× 2.7</b> step P50 20.0 ms</span>" in html
    assert "<small>TTFT P99 1.00 s · 50 % good · KV 50 %</small>" in html
    assert "<small>–</small>" in html
    assert "<b>✕ LOST 9 min</b> · 3 open" in html
    assert 'title="pod-b: × 2.7 the step time of its 2 siblings (2.5 to 2.9); 1\u202f204 requests"' in html
    assert any("Of the other 2 processes, 2 work. pod\\-b takes × 2.7 the step time" in text for text in texts)
    assert len(page.dataframe) == 1, "the cold starts: a table of processes is one click away"


def test_many_processes_have_small_tiles_and_names_of_others_are_text():
    told, html = drawn(*(process(instance=f"llama-70b-7f9c-{n}") for n in range(61)))
    assert "tt-tiles small" in html
    assert told[7].endswith("…720.0 ms"), "a name and a number"
    assert "<i>llama-…</i>7</span>" in html
    told, html = drawn(process(instance='<b>"x"</b>'), process(instance='<b>"y"', state="hangs", since=None))
    assert "<b>&quot;" not in html
    assert 'title="&lt;b&gt;&quot;x&quot;&lt;/b&gt;:' in html
    assert "✕ HANGS</b> · 3 open" in html


@pytest.mark.parametrize(
    ("wanted", "left"),
    [("", "abc"), ("slow", "a"), ("HANGS", "b"), ("gpu pod-c", "c"), ("v vllm n", "abc"), ("nobody", "")],
)
def test_a_filter_keeps_processes_that_have_each_of_its_words(wanted, left):
    known = [
        process(instance="pod-a", beside=slow()), process(instance="pod-b", state="hangs"),
        process(instance="pod-c", service="gpu", beside=slow(1.3, None)),
    ]  # fmt: skip
    assert "".join(one["instance"][-1] for one in tiles.matching(known, wanted)) == left


def test_a_ratio_says_whether_chance_is_known():
    assert tiles.slower(slow()) == "× 2.7 the step time of its 2 siblings (2.5 to 2.9)"
    assert tiles.slower(slow(low=None, high=None, siblings=1)) == (
        "× 2.7 the step time of its 1 sibling (too few steps to tell chance)"
    )
    both = [process(instance=name, beside=slow()) for name in "abc"]
    assert engines.sentence(both).endswith("(2.5 to 2.9); and 1 more.")
    assert engines.sentence(both).startswith(":orange[●] 3 processes: 3 work. a takes × 2.7")
