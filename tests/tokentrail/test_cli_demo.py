"""The parts of `tokentrail demo`: its load, its numbers beside the clients', its end. tests/e2e runs the whole."""

import asyncio
import contextlib
import io
import itertools
import subprocess
import time

import httpx
import pytest
from rich.console import Console

from tokentrail.cli import demo, live, result
from tokentrail.cli.day import show
from tokentrail.cli.demo import Limit, answered_lately, workload
from tokentrail.cli.processes import ProcessFailed
from tokentrail.cli.result import _settled_rows, report, verify
from tokentrail.cli.stack import Stack
from tokentrail.load import Observation


@pytest.mark.parametrize(("status", "started"), [(0, ["model", "engine"]), (1, ["model"])])
def test_a_demo_has_its_model_before_its_engine_starts(status, started, monkeypatch, tmp_path):
    """The requests of the first demo do not wait for a download."""
    done = []

    class Fake(Stack):
        def collector(self, data_dir):
            return ""

        dashboard = prometheus = lambda _: None

        def engine(self, *_):
            done.append("engine")
            return ""

    def fetch(command, **_):
        assert command[1:] == ["-m", "instrumented_engine.model.download", demo.MODEL]
        done.append("model")
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", fetch)
    with contextlib.suppress(ProcessFailed) if status else contextlib.nullcontext():
        demo._start(Console(quiet=True), Fake(tmp_path, tmp_path / "slos.yaml"))
    assert done == started


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("end", [KeyboardInterrupt, ProcessFailed])
def test_a_day_is_opened_again_when_it_was_made(made, end, monkeypatch, tmp_path):
    def stopped(*_):
        raise end

    monkeypatch.setattr(Stack, "collector", stopped)
    monkeypatch.setattr(show, "_fill", (lambda *_: []) if made else stopped)
    told = io.StringIO()
    with contextlib.suppress(ProcessFailed):
        show.run(Console(file=told), seconds=None, home=tmp_path / "home", slos=None, seed=7, ports={})
    assert ("up --data-dir" in told.getvalue()) is made


def test_the_demo_load_has_a_cold_start_and_bursts():
    plan = list(workload(200.0, seed=7))
    assert [p.at_s for p in plan] == sorted(p.at_s for p in plan)
    assert [p.at_s for p in plan[:2]] == [0.0, 0.0]
    bursts = [
        (at, len(list(group))) for at, group in itertools.groupby(plan, key=lambda p: p.at_s if p.ignore_eos else -1)
    ]
    assert [b for b in bursts if b[0] >= 0] == [(30.0, 8), (120.0, 8)]


REQUEST = {"trace_id": "t", "span_id": "s", "request_id": "r", "status": "ok", "input_tokens": 4, "output_tokens": 2}
REQUEST |= {"ttft_s": 0.1, "tpot_s": 0.1, "e2e_s": 0.2}
LATENCY = dict.fromkeys(("p50", "p90", "p95", "p99", "max"), 0.1) | {"count": 1}
ANSWERS = {
    "processes": {"processes": [{"preemptions": 3}, {"preemptions": None}]},
    "summary": {"requests": {"ok": 1, "failed": 0, "cancelled": 0, "good": 1, "in_flight": 0}}
    | dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "gap_s"), LATENCY)
    | {"ttft_is_e2e": 0},
    "slos": {"slos": []},
    "explain": {"selected": {"requests": 1, "explained": 1}, "sentence": "What the TTFT took was 90 % cold start."},
    "cold_starts": {"cold_starts": [{"duration_s": 3.0, "phases": [{"name": "load_weights", "duration_s": 2.0}]}]},
    "requests/t": {
        "phases": [{"name": n, "duration_s": s} for n, s in (("queue", 0.05), ("decode", 0.09), ("queue", 0.06))],
        "tokens": [{"duration_s": 0.1}, {"duration_s": 0.1}],
    },
}


class FakeApi:
    """Answers as a collector would that recorded one request, with some answers replaced."""

    def __init__(self, **changed):
        self.answers = ANSWERS | changed

    def get(self, path, **_):
        return self.answers[path]

    def requests(self, **_):
        return [REQUEST]


def observed(**changed):
    base = {"slo_class": "chat", "sent_ns": 0, "request_id": "r", "input_tokens": 4, "output_tokens": 2}
    return Observation(**(base | {"chunks_ns": [101_000_000, 201_000_000], "ended_ns": 201_000_000} | changed))


def printed(api, seen):
    console = Console(record=True, width=200)
    result = verify(api, seen, since=0.0, prometheus=None)
    report(console, result, urls={"API": "http://127.0.0.1:8080", "dashboard": "http://dashboard"})
    return result.problems, console.export_text()


def test_a_demo_whose_numbers_agree_has_no_problems():
    problems, text = printed(FakeApi(), [observed()])
    assert problems == []
    assert [len(line) for line in text.splitlines() if " summary " in line] == [80]
    assert "cold start: 3.00 s (load_weights 2.00 s)" in text
    assert "KV pressure: 3 preemptions took blocks" in text
    assert "everything adds up" in text
    assert text.rstrip().endswith("What the TTFT took was 90 % cold start."), "it explains its own P99"
    assert "TTFT p99 100 ms · TPOT p99 100 ms · 1 of 1 requests good" in text
    assert "Slowest TTFT 100 ms: queue 50.0 ms, decode 50.0 ms" in text
    assert "Slowest E2E 200 ms: queue 110 ms, decode 90.0 ms" in text
    assert "its tokens in a terminal: tokentrail request t\n" in text
    assert "its tokens in the browser: http://dashboard/request?trace_id=t" in text
    assert "clock, 1 token by token" in text


@pytest.mark.parametrize(("step_s", "loads"), [(None, True), (0.1, False)])
def test_a_log_of_the_demo_says_that_the_engine_loads_its_model(step_s, loads):
    rates = {"throughput": {"output_tokens_per_s": None}, "goodput": {"requests_per_s": 0.0}}
    printed = io.StringIO()
    with live.LiveView(Console(file=printed, width=400)) as view:
        for _ in range(2):  # a line each ten seconds
            view.update(
                {
                    "summary": ANSWERS["summary"] | rates,
                    "processes": {"processes": [{"step_p50_s": step_s}]},
                    "alerts": [],
                }
            )
    (line,) = printed.getvalue().splitlines()
    assert line.endswith(live.LOADING if loads else "alerts: none")


def test_a_long_demo_compares_some_requests_token_by_token():
    asked = []
    api = FakeApi()
    api.requests = lambda **_: [REQUEST | {"request_id": f"r{n}"} for n in range(150)]
    api.get = lambda path, **_: (asked.append(path), ANSWERS[path])[1]
    assert verify(api, [observed(request_id="r1")], since=0.0, prometheus=None, to_the_end=False).details == 50
    assert asked.count("requests/t") == 52


def test_a_demo_waits_for_requests_that_were_cancelled_at_its_end(monkeypatch):
    in_flight, waited, api = iter([2, 1, 0]), [], FakeApi()
    api.get = lambda *_, **__: {"requests": {"in_flight": next(in_flight)}}
    monkeypatch.setattr("tokentrail.cli.result.time.sleep", waited.append)
    assert _settled_rows(api, {"r"}, 0.0) == [REQUEST]
    assert len(waited) == 2


def test_a_cancelled_request_is_waited_for_if_its_client_knows_its_id(monkeypatch):
    waited_for = []
    monkeypatch.setattr(
        result, "_settled_rows", lambda _api, expected, _since: waited_for.append(expected) or [REQUEST]
    )
    ended = observed(request_id="c", status="cancelled")
    seen = [observed(), ended, observed(request_id="", status="cancelled"), observed(request_id="e", status="error")]
    verify(FakeApi(), seen, since=0.0, prometheus=None, to_the_end=False)
    assert waited_for == [{"r", "c"}]


def test_an_engine_that_ends_no_request_hangs():
    now_s = 1_000.0
    ended = observed(ended_ns=950 * 10**9)
    assert answered_lately([ended], now_s)
    assert not answered_lately([ended], now_s + 20)
    assert not answered_lately([observed(ended_ns=999 * 10**9, status="cancelled")], now_s)
    assert answered_lately([observed(ended_ns=999 * 10**9, status="error")], now_s)


@pytest.mark.parametrize(
    ("loaded_after", "passes_after", "reason"),
    [
        (5, 80, "answered nothing for 60 s"),  # the load takes 20 s, and the requests of its end have 60 s
        (200, 260, "answered nothing for 60 s"),  # those that waited for a slow start have 60 s, too
        (10_000, 320, "did not load its model within 300 s"),
    ],
)
def test_the_time_in_which_the_engine_loads_its_model_is_not_counted(loaded_after, passes_after, reason):
    limit = Limit(load_ends=1_020.0)
    passed = (s for s in range(10_000) if limit.passed(1_000.0 + s, loading=s <= loaded_after))
    assert next(passed) == passes_after
    assert reason in limit.reason


@pytest.mark.parametrize(
    ("answer", "loads"), [(httpx.Response(503), True), (httpx.ReadTimeout("busy"), True), (httpx.Response(200), False)]
)
def test_an_engine_loads_until_it_is_ready(answer, loads, monkeypatch, tmp_path):
    def get(url, **_):
        assert url == "http://127.0.0.1:1/readyz"
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr(Stack, "urls", {"engine": "http://127.0.0.1:1"})
    assert Stack(tmp_path, tmp_path / "slos.yaml").engine_loads() is loads


@pytest.mark.parametrize("error", [BrokenPipeError(), SystemExit(1)])  # rich makes one of the other
def test_no_process_outlives_a_pipe_whose_reader_is_gone(tmp_path, error):
    """`tokentrail up | head`: the line about a stop cannot be written, and the processes stop."""
    stopped = []

    class Process:
        def __init__(self, name, ends):
            self.name, self.ends = name, ends

        def stop(self):
            stopped.append(self.name)
            return self.ends

    def say(_):
        raise error

    stack = Stack(tmp_path, tmp_path / "slos.yaml")
    stack.running |= {"dashboard": Process("dashboard", False), "collector": Process("collector", True)}  # type: ignore[dict-item]
    assert stack.stop(say) == ["dashboard"]
    assert stopped == ["collector", "dashboard"]


def test_a_demo_asks_for_the_model_until_the_engine_has_it(monkeypatch, tmp_path):
    """A load that never ends, an engine that hangs once it has its model: the demo gives up, and asks no longer."""
    answers = [True, True, False]

    class Fake(Stack):
        check = lambda _: None  # noqa: E731
        urls = {"engine": "", "dashboard": ""}  # noqa: RUF012

        def engine_loads(self):
            return answers.pop(0)

    async def never(*_, **__):
        await asyncio.sleep(3600)

    monkeypatch.setattr(demo, "run_load", never)
    monkeypatch.setattr(demo, "_state", lambda *_: (_ for _ in ()).throw(httpx.ConnectError("")))
    monkeypatch.setattr(demo, "REFRESH_S", 0.01)
    monkeypatch.setattr(demo, "PATIENCE_S", 0.05)
    stack = Fake(tmp_path, tmp_path / "slos.yaml")
    limit = Limit(load_ends=time.time())
    assert not asyncio.run(demo._drive(Console(quiet=True), stack, FakeApi(), iter(()), [], 0.0, limit))
    assert answers == []
    assert not limit.loading


def test_a_moved_collector_is_named_in_the_command():
    console = Console(record=True, width=200)
    result = verify(FakeApi(), [observed()], since=0.0, prometheus=None)
    report(console, result, urls={"API": "http://127.0.0.1:9999", "dashboard": "http://dashboard"})
    assert "tokentrail request t --api http://127.0.0.1:9999\n" in console.export_text()


def test_a_load_that_the_user_ended_had_no_time_for_every_cause():
    nothing_yet = FakeApi(processes={"processes": []}, cold_starts={"cold_starts": []})
    assert verify(nothing_yet, [observed()], since=0.0, prometheus=None, to_the_end=False).problems == []
    wrong = verify(nothing_yet, [observed(output_tokens=3)], since=0.0, prometheus=None, to_the_end=False)
    assert any("output_tokens is 2" in problem for problem in wrong.problems)


@pytest.mark.parametrize(
    ("preemptions", "answers", "problems"),
    [
        (20, [{"TokentrailColdStart"}, {"TokentrailColdStart", "TokentrailKvCacheEvictions"}], []),
        (20, [{"TokentrailColdStart"}], ["KV eviction"]),
        (19, [{"TokentrailColdStart"}], []),
        (19, [set()], ["cold start"]),
    ],
)
def test_alerts_are_waited_for_and_a_few_preemptions_need_none(monkeypatch, preemptions, answers, problems):
    left = [*answers]
    monkeypatch.setattr(result, "_alerts_that_fired", lambda *_: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(result, "ALERT_S", 0.0 if len(answers) == 1 else 120.0)
    monkeypatch.setattr("time.sleep", lambda _: None)
    api = FakeApi(processes={"processes": [{"preemptions": preemptions}]})
    found = verify(api, [observed()], since=0.0, prometheus="http://prometheus").problems
    assert [problem.partition(" alert")[0].removeprefix("the ") for problem in found] == problems


def test_no_alert_is_waited_for_without_prometheus_or_after_ctrl_c(monkeypatch):
    asked = []
    monkeypatch.setattr(result, "_settled_alerts", lambda expected, *_: asked.append(expected) or set())
    api = FakeApi(processes={"processes": [{"preemptions": 20}]})
    assert verify(api, [observed()], since=0.0, prometheus=None).problems == []
    assert verify(api, [observed()], since=0.0, prometheus="http://p", to_the_end=False).problems == []
    assert asked == [set()]


@pytest.mark.parametrize(
    ("changed", "seen", "problem"),
    [
        ({}, [observed(output_tokens=3)], "output_tokens is 2"),
        ({}, [observed(), observed(status="error", error="APITimeoutError")], "a request failed: APITimeoutError"),
        ({}, [], "no request was answered"),
        ({"processes": {"processes": []}}, [observed()], "preempted no request"),
        ({"cold_starts": {"cold_starts": []}}, [observed()], "cold start is not in"),
        (
            {"requests/t": ANSWERS["requests/t"] | {"phases": [{"name": "decode", "duration_s": 0.199999999}]}},
            [observed()],
            "its phases sum to 199999999 ns",
        ),
        (
            {"requests/t": ANSWERS["requests/t"] | {"tokens": [{"duration_s": 0.2}]}},
            [observed()],
            "1 tokens in the trail",
        ),
    ],
)
def test_a_demo_names_each_disagreement(changed, seen, problem):
    problems, text = printed(FakeApi(**changed), seen)
    assert [p for p in problems if problem in p] == problems
    assert len(problems) == 1
    assert problem in text
    assert "everything adds up" not in text
