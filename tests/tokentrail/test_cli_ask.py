"""The commands that ask a collector, on a real one that holds three requests of the SDK."""

import itertools
import json
import re
import shlex
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from typer.testing import CliRunner

from tests.contract.commands import PAGES, commands
from tests.support.collector import Collector
from tokentrail import KvEvent, Phase, Trail
from tokentrail.cli.api import Api
from tokentrail.cli.app import app
from tokentrail.cli.request import WIDTH, lines
from tokentrail.cli.requests import follow, line
from tokentrail.shared import perfetto

MS = 1_000_000
ASKING = ("status", "slos", "incidents", "requests", "request", "explain", "spans", "doctor", "tail", "backup")
NOBODY = "http://127.0.0.1:9"
"""A proxy that no command uses."""
SHOWN = sorted(
    {
        tuple("FILE" if word == "TARGET" else word for word in words)
        for page in PAGES
        for program, *words in commands(page.read_text())
        if program.rpartition("/")[2] == "tokentrail" and words[:1] and words[0] in ASKING
    }
    - {
        ("request",),
        ("backup",),
        ("explain", "[ID|QUERY]"),
        ("slos", "[init]"),
    }  # names of commands, which need an argument, or show one
    - {("tail", "-f")}  # test_tail_prints_the_newest_last_and_follows
)
"""The commands of the documentation that ask a collector."""


def run(*arguments, **env):
    env = {"COLUMNS": "200", "HTTP_PROXY": NOBODY, **env}
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def record(url, *, model="m", tokens=12, error=None, step=0):
    """One request of 10 ms queue, 90 ms prefill and 10 ms a token, of which the fourth waits 100 ms more."""
    trail = Trail(endpoint=url, service_name="cli")
    start = time.time_ns() - 1000 * MS
    labels = {"model": model, "slo_class": "chat", "request_id": f"chatcmpl-{model}", "labels": {"app": model[:1]}}
    request = trail.start_request(operation="chat", input_tokens=5, arrival_ns=start, **labels)
    request.phase(Phase.PREFILL, start + 10 * MS)
    at = start + 10 * MS
    for i in range(tokens):
        begin, at = at, at + (90 if i == 0 else 110 if i == 3 else 10) * MS
        counts = {"prefill_tokens": 512 if i == 3 else 0, "running": 2, "waiting": 0}
        trail.step(step + i, begin, at, emitted=[request], **counts)
        if i == 0:
            request.phase(Phase.DECODE, at)
    trail.kv_event(KvEvent.EVICT, blocks=4, reason="preemption", step=step, start_ns=at - 5 * MS, request=request)
    request.end(at, error_type=error) if error else request.end(at, finish_reason="stop")
    assert trail.shutdown(120)
    return request


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    slos = tmp_path_factory.mktemp("slos") / "slos.yaml"
    slos.write_text(
        "slos:\n- {name: chat, objective: 0.9, window: 30d, select: {slo_class: [chat]}, thresholds: {ttft: 500ms}}\n"
        "- {name: none, objective: 0.9, window: 30d, select: {slo_class: [other]}, thresholds: {ttft: 500ms}}\n"
    )
    running = Collector(tmp_path_factory.mktemp("ask") / "data", "--slos", str(slos)).start()
    for model, error in (("first", None), ("second", None), ("broken", "timeout")):
        record(running.urls["otlp-http"], model=model, error=error)
        running.wait_until(lambda m=model: running.get(f"/api/v1/requests?model={m}").json()["total"] == 1)
    yield running
    running.stop()


@pytest.fixture
def api(collector):
    return ("--api", collector.urls["api"])


def test_the_status_says_how_it_stands_and_what_to_type_next(collector, api):
    told = run("status", *api)
    assert told.exit_code == 3
    head, *_, following = told.stdout.splitlines()
    assert head.startswith("chat is not kept over 30 d: its budget is spent since ")
    assert head.endswith(" UTC, and 66.66 % were good in the last hour, 90 % promised.")
    assert ["chat", "90", "%", "66.66", "%", "3", "1", "−233", "%"] in [
        text.split()[:9] for text in told.stdout.splitlines()
    ]
    assert following.startswith("next: tokentrail requests '20")
    assert following.endswith("Z slo:chat verdict:bad'")
    assert len(run(*shlex.split(following)[2:], *api).stdout.splitlines()) == 1 + 1, "the command lists what is bad"
    as_json = run("status", *api, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["state"]) == (3, "spent")
    quiet = run("status", *api, "--start=-2h", "--end=-1h")
    assert (quiet.exit_code, quiet.stdout.splitlines()[0]) == (4, "No request ended in this range. None has ended yet.")
    nobody = run("status", "--api", NOBODY)
    assert (nobody.exit_code, "does not answer" in nobody.stderr) == (1, True)


def test_slos_and_incidents_are_listed(collector, api):
    listed = run("slos", *api)
    assert [text.split()[0] for text in listed.stdout.splitlines()] == ["SLO", "chat", "none"]
    assert "none: The SLO selected 0 of 3 requests of the last day" in listed.stderr
    assert [slo["name"] for slo in json.loads(run("slos", *api, "--json", "--end=-1h").stdout)["slos"]] == [
        "chat",
        "none",
    ]
    heads, evicted, following = run("incidents", *api).stdout.splitlines()
    assert heads.split()[:2] == ["cause", "since"]
    assert [word in evicted for word in ("kv_eviction", "cli", "takes KV-cache blocks from running requests")] == [
        True
    ] * 3
    assert len(run(*shlex.split(following)[2:], *api).stdout.splitlines()) == 1 + 3, "the command lists its requests"
    assert json.loads(run("incidents", *api, "--json").stdout)["incidents"][0]["requests_affected"] == 3
    assert "no incident since -1d" in run("incidents", *api, "--model", "nobody").stderr


def test_an_empty_filter_is_refused_by_the_collector(api):
    refused = run("requests", "--status", "", *api)
    assert (refused.exit_code, "status" in refused.stderr) == (2, True)


def test_a_line_says_what_options_say(api):
    def listed(*arguments):
        return re.findall(r"chatcmpl-(\w+)", run("requests", *arguments, *api, "--json").stdout)

    assert listed("-model:first ttft>50ms -1h label.app:s slo:chat") == ["second"]
    assert listed("-1h", "--model=first") == listed("-model:second -model:broken -1h") == ["first"]
    assert listed("model:first", "--model", "second") == ["second", "first"], "beside the options"
    assert listed("ttft>200ms") == []
    assert listed("-2h/-1h") == []
    assert listed("--start", "-1h", "model:first") == ["first"]
    berlin = run("requests", "2026-11-21 10:00-11:00", "--json", *api, TOKENTRAIL_TZ="Europe/Berlin")
    assert json.loads(berlin.stdout)["window"]["start"] == "2026-11-21T09:00:00Z"
    told = json.loads(run("explain", "model:first -1h metric:ttft", *api, "--json").stdout)
    assert told["selected"]["requests"] == 1
    assert "is an option of this call" in run("requests", "slo:chat", "--slo", "none", *api).stderr
    nobody = run("explain", "verdict:bad", *api)
    assert (nobody.exit_code, "'verdict:bad': this question takes no verdict" in nobody.stderr) == (2, True)
    assert run("check", "-1h", "--slo", "chat", *api).exit_code == 64, "a gate has its times in options"


def test_requests_are_listed_filtered_and_sorted(api):
    head, *rows = run("requests", *api).stdout.splitlines()
    assert head.split()[:3] == ["end", "(UTC)", "status"]
    models = ["broken", "second", "first"]
    assert [next(model for model in models if model in row) for row in rows] == models
    assert "5→12" in rows[1]
    assert "100 ms" in rows[1]
    assert "decode 68 %" in rows[1]
    assert "error timeout" in rows[0]
    assert {"good", "server", "tokentrail"} <= {*rows[1].split()}
    for sort, part in (("ttft", "prefill 90 %"), ("tpot", "decode 100 %"), ("e2e", "decode 68 %")):
        assert part in run("requests", *api, "--sort", sort).stdout.splitlines()[1]
    only = run("requests", *api, "--model", "first", "--model", "second", "--status", "ok", "--json").stdout
    assert [row["model"] for row in json.loads(only)["requests"]] == ["second", "first"]
    for given, found in ((("app=f",), ["first"]), (("app=f", "app=s"), ["second", "first"]), (("app=",), [])):
        asked = [word for one in given for word in ("--label", one)]
        only = run("requests", *api, *asked, "--json").stdout
        assert [row["model"] for row in json.loads(only)["requests"]] == found
    for given, found in (("label.app=f", ["broken", "second"]), ("model=second", ["broken", "first"])):
        others = run("requests", *api, "--not", given, "--json").stdout
        assert [row["model"] for row in json.loads(others)["requests"]] == found
    sides = run("compare", *api, "--a", "label.app=f", "--b", "label.app=s", "--json").stdout
    assert [json.loads(sides)[side]["requests"]["total"] for side in "ab"] == [1, 1]
    for command in (
        "requests",
        "status",
        "slos",
        "incidents",
        "explain",
        "tail",
        "differences",
        "timeouts",
        "compare",
        "check",
    ):
        needed = {"check": ("--slo", "chat"), "compare": ("--at", "-1h")}.get(command, ())
        usage = 64 if command == "check" else 2
        wrong = run(command, *needed, *api, "--label", "app")
        assert (wrong.exit_code, "NAME=VALUE, such as region=eu" in wrong.stderr) == (usage, True)
        wrong = run(command, *needed, *api, "--not", "app")
        assert (wrong.exit_code, "NAME=VALUE, such as model=llama" in wrong.stderr) == (usage, True)
        unknown = run(command, *needed, *api, "--label", "9=x")
        assert (unknown.exit_code, "is no label's name" in unknown.stderr) == (usage, True), unknown.stderr
    few = run("requests", *api, "--limit", "1")
    told = re.fullmatch(r"data until \d\d:\d\d:\d\d UTC\n1 of 3 requests; --limit prints more\n", few.stderr)
    assert (len(few.stdout.splitlines()), bool(told)) == (2, True), few.stderr
    past = run("requests", *api, "--start=-15m", "--end=-1m")
    assert "data until" not in past.stderr
    plain = ("status", "slos", "incidents", "explain", "differences", "timeouts", "tail", "spans")
    before = ("compare", "--a", "start=-1h", "--a", "end=-30m")
    for command in (*((one,) for one in plain), ("requests", "--model", "nobody"), before):
        assert "data until" in run(*command, *api).stderr
    for command in ("slos", "requests"):
        assert "data until" not in run(command, *api, "--json").stderr


def test_an_empty_answer_says_so_beside_the_output(api):
    nobody = ("--model", "nobody")
    for arguments, told in (
        (("requests", *nobody), "--start -1d"),
        (("tail", *nobody), "no request has ended"),
        (("spans",), "no span since -1h is of an unknown engine; --start -1d"),
        (("spans", "nobody", "--start", "-2h"), "no span since -2h has the name nobody"),
    ):
        empty = run(*arguments, *api)
        assert (empty.exit_code, empty.stdout, told in empty.stderr) == (0, "", True)


def test_wrong_values_have_the_collectors_own_words(api):
    refused = run("requests", *api, "--sort", "colour")
    assert refused.exit_code == 2, "as an option that the command itself refuses"
    assert "sort" in refused.stderr
    yesterday = run("status", *api, "--start", "yesterday")
    assert (yesterday.exit_code, "'yesterday' is not a time" in yesterday.stderr) == (2, True)
    alike = run("compare", *api)
    assert (alike.exit_code, "--a variant=old --b variant=new, or --at -1h" in alike.stderr) == (2, True)
    assert "http" not in refused.stderr
    assert run("request", "0" * 32, *api).exit_code == 1
    away = run("tail", "--api", "http://127.0.0.1:9")
    assert away.exit_code == 1
    assert "does not answer (Connection refused)" in away.stderr


def detail_of(collector, model):
    (row,) = collector.get(f"/api/v1/requests?model={model}").json()["requests"]
    return row, collector.get(f"/api/v1/requests/{row['trace_id']}").json()


def test_a_request_is_found_by_its_first_digits_and_by_its_clients_id(collector, api):
    row, _ = detail_of(collector, "second")
    for asked in (row["trace_id"].upper(), row["trace_id"][:8], row["request_id"]):
        assert f"trace {row['trace_id']}" in run("request", asked, *api).stdout
    for asked in ("nobody", "deadbeef", "../../metrics"):
        unknown = run("request", asked, *api)
        assert unknown.exit_code == 1
        assert f"has the id {asked}, and no trace id begins with it" in unknown.stderr
    too_short = run("request", row["trace_id"][:7], *api)
    assert "of a trace id it needs the first eight digits or more" in too_short.stderr


@pytest.fixture(scope="module")
def website():
    """The address of a server that answers everything with a page, as Streamlit does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_another_server_a_wrong_address_and_a_wrong_key_are_named(website):
    other = run("requests", "--api", website)
    assert (other.exit_code, "does not answer as a collector's API does: another server" in other.stderr) == (1, True)
    found = json.loads(run("doctor", "--api", website, "--json").stdout)
    assert [f["state"] for f in found if f["name"] == "API"] == ["fail"]
    assert "name the collector's address" in found[-1]["fix"]
    for command in ("requests", "doctor"):
        assert "is no address of a collector" in run(command, "--api", "http://[::1").stderr
        wrong_key = run(command, "--api", website, TOKENTRAIL_API_KEY="tokentrail_…")
        assert "copy the key again" in wrong_key.stderr


@pytest.mark.parametrize(
    "command", [["requests"], ["request", "a" * 32], ["tail"], ["tail", "-f"], ["spans"], ["doctor"]]
)
def test_an_answer_of_another_version_is_named(command, monkeypatch):
    """It lacks what the command reads, or has something else there."""
    told = {"status": "ready", "version": "9.9.9", "spans": None, "up": 1}

    def answer(request):
        return httpx.Response(200, json=told, request=request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda _, request: answer(request))
    lists = {
        "requests": [[]],
        "next": None,
        "names": [[]],
        "engines": [[]],
        "trace_id": "a",
        "phases": [[]],
        "tokens": [],
    }
    for more, kinds in (({}, "KeyError"), (lists, "TypeError|AttributeError|KeyError")):
        told |= more
        result = run(*command, "--api", "http://collector:8080")
        assert isinstance(result.exception, SystemExit), result.exception
        output = result.output + result.stderr
        assert re.search(rf"is of another form than this command reads \(({kinds}): ", output)
        assert "install the same version" in output


@pytest.mark.parametrize("kind", [KeyError, IndexError, AttributeError, TypeError, ValueError])
def test_an_answer_whose_reading_fails_in_any_way_is_of_another_version(kind, monkeypatch):
    def read(*_, **__):
        raise kind("p99")

    monkeypatch.setattr("tokentrail.cli.api.Api.get", read)
    result = run("requests", "--api", "http://collector:8080")
    assert f"of another form than this command reads ({kind.__name__}: " in result.stderr


def test_one_request_is_a_waterfall(collector, api):
    row, _ = detail_of(collector, "first")
    text = run("request", row["trace_id"], *api).stdout
    top, _, drawing = text.partition("\n\n")
    head, about, ids, labels, *_ = top.splitlines()  # and its causes, once they are known
    queued, prefill, decode, tokens, evicted, *rest = drawing.splitlines()
    assert head == "chat first · ok stop · 5 → 12 tokens · TTFT 100 ms · TPOT 19.1 ms · E2E 310 ms · longest gap 110 ms"
    assert "class chat" in about
    assert "cached –" in about
    assert row["trace_id"] in ids
    assert labels == "app f"
    assert [part.split()[0] for part in (queued, prefill, decode)] == ["queued", "prefill", "decode"]
    assert queued.split()[1:] == ["██", "10.0", "ms", "3.2", "%"]
    assert prefill.index("█") == 13 + 2
    assert decode.rstrip().endswith("67.7 %")
    assert tokens.split()[-1] == "12"
    assert tokens.index("█") == 13 + int(100 / 310 * WIDTH)
    assert evicted.split()[0] == "kv.evict"
    assert evicted.endswith("preemption 4 blocks")
    _, interference, _, title, worst, *others = rest
    assert interference.startswith("Prefill interference: 1 step, 110 ms in all, prefilled 512 prompt tokens of other")
    assert title == "longest waits between tokens:"
    assert worst.split(maxsplit=2)[2] == (
        "before token 3, 230 ms after the start, in decode, step 3 with 512 prefill tokens, 2 running"
    )
    assert [other.split(maxsplit=2)[2] for other in others[:1]] == [
        "before token 1, 110 ms after the start, in decode, step 1, 2 running"
    ]
    assert len(others) == 4


def test_what_was_missed_and_where_the_time_went_stand_first():
    miss = {"threshold": "ttft", "limit_s": 1.0, "value_s": 11.0, "over_s": 10.0}
    row = dict.fromkeys(
        ("e2e_s", "ttft_s", "tpot_s", "gap_s", "input_tokens", "output_tokens", "cached_tokens", "preemptions")
    )
    row |= dict.fromkeys(("operation", "model", "error_type", "finish_reason", "service", "instance", "tenant"), "")
    row |= {"status": "ok", "engine": "vllm", "slo_class": "", "start": "2026-11-22T10:00:00Z", "request_id": ""}
    row |= {
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "labels": {},
        "verdicts": [{"slo": "chat", "verdict": "bad", "missed": [miss]}],
    }
    causes = [
        {"cause": name, "of": of, "time_s": seconds, "excess_s": beyond}
        for name, of, seconds, beyond in (
            ("own_prompt", "ttft", 7.0, 6.5), ("others_prompts", "ttft", 4.0, None), ("alone", "rest", 2.0, -1.0),
            ("wait_kv", "ttft", 0.5, 0.5), ("cold_start", "ttft", 0.1, 0.1), ("stall", "rest", 0.0, None),
        )
    ]  # fmt: skip
    detail = {
        "request": row,
        "phases": [],
        "tokens": [],
        "events": [],
        "steps": None,
        "waits": [],
        "interference": None,
    }
    detail |= {"longest_waits": [], "explained": {"level": "steps", "causes": causes}}
    assert lines(detail)[3:7] == [
        "bad for chat: TTFT 11.0 s, 1.00 s promised: 10.0 s over",
        "before the first token: own_prompt 7.00 s (6.50 s beyond typical), others_prompts 4.00 s, wait_kv 500 ms "
        "(500 ms beyond typical)",
        "after it: alone 2.00 s",
        "",
    ]


def test_a_request_in_flight_and_one_without_anything_are_drawn():
    row = dict.fromkeys(
        ("e2e_s", "ttft_s", "tpot_s", "gap_s", "input_tokens", "output_tokens", "cached_tokens", "preemptions")
    )
    row |= dict.fromkeys(("operation", "model", "error_type", "finish_reason", "service", "instance", "tenant"), "")
    row |= {"status": "in_flight", "engine": "vllm", "slo_class": "", "start": "2026-11-22T10:00:00Z", "request_id": ""}
    row |= {"labels": {}, "trace_id": "a" * 32, "span_id": "b" * 16}
    empty = {"request": row, "phases": [], "tokens": [], "events": [], "steps": None}
    empty |= {"waits": [], "interference": None, "longest_waits": [], "explained": None}
    row["verdicts"] = []
    assert lines(empty)[0] == "request – · in_flight · – → – tokens · TTFT – · TPOT – · E2E –"
    phase = {"name": "queued", "offset_s": 0.0, "duration_s": 0.0}
    token = {"index": 0, "offset_s": 2.0, "duration_s": 2.0, "step": None}
    drawn = lines(empty | {"phases": [phase], "tokens": [token]})
    assert drawn[-1].split()[-1] == "1"
    lost = [token | {"index": index, "offset_s": None, "duration_s": 1.0 * index} for index in (2, 3, 9)]
    wait = lost[2] | dict.fromkeys(("phase", "prefill_tokens", "running"))
    drawn = lines(empty | {"tokens": [token, *lost], "request": row | {"e2e_s": 4.0}, "longest_waits": [wait]})
    assert (drawn[4].index("█"), drawn[4].split()[-1]) == (13 + WIDTH // 2, "4")
    assert drawn[-2:] == ["longest waits between tokens:", "     9.00 s before token 9, – after the start"]
    found = {
        "waits": [{"reason": "kv", "time_s": 0.25}, {"reason": "step", "time_s": 0.01}],
        "interference": {"steps": 2, "time_s": 0.26, "prefill_tokens": 768},
    }
    assert lines(empty | found)[-2:] == [
        "Why it waited: too few KV blocks were free (250 ms), a step was under way (10.0 ms)",
        "Prefill interference: 2 steps, 260 ms in all, prefilled 768 prompt tokens of other requests while this one "
        "waited for a token",
    ]
    theirs = [
        {"cause": "others_prompts", "of": of, "time_s": seconds, "excess_s": None}
        for of, seconds in (("ttft", 0.5), ("rest", 0.2))
    ]
    told = lines(empty | found | {"explained": {"level": "steps", "causes": theirs}})[-1]
    assert told.endswith("waited for a token; these prompts took 200 ms of it"), "of the steps behind the first token"
    theirs[1]["time_s"] = 0.27
    told = lines(empty | found | {"explained": {"level": "steps", "causes": theirs}})[-1]
    assert told.endswith("waited for a token"), "no part is more than its whole"
    nothing = {"interference": {"steps": 0, "time_s": 0.0, "prefill_tokens": 0}}
    assert lines(empty | nothing) == lines(empty)
    assert "█" not in lines(empty | {"tokens": lost, "request": row | {"e2e_s": 4.0}})[4]
    slices = [e["name"] for e in perfetto.trace(empty | {"tokens": [token, *lost]})["traceEvents"] if e["ph"] == "X"]
    assert slices == ["token 0"]


def test_a_request_opens_in_perfetto(collector, api, tmp_path):
    row, detail = detail_of(collector, "first")
    file = tmp_path / "trace.json"
    assert run("request", row["trace_id"], *api, "--perfetto", file).exit_code == 0
    written = json.loads(file.read_text())
    assert written == json.loads(json.dumps(perfetto.trace(detail)))
    events = written["traceEvents"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {*names.values()} >= {"phases", "tokens", "events", "steps"}
    slices = [e for e in events if e["ph"] == "X"]
    tokens = [e for e in slices if names[e["pid"], e["tid"]] == "tokens"]
    assert tokens[0]["ts"] == 0
    assert [round(a["ts"] + a["dur"] - b["ts"], 3) for a, b in itertools.pairwise(tokens)] == [0] * 11
    assert sum(e["dur"] for e in tokens) == pytest.approx(row["e2e_s"] * 1e6)
    assert {e["args"]["prefill_tokens"] for e in slices if names[e["pid"], e["tid"]] == "steps"} == {0, 512}
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"running", "waiting"}
    missing = run("request", row["trace_id"], *api, "--perfetto", tmp_path / "no" / "where.json")
    told = f"{tmp_path / 'no' / 'where.json'} cannot be written (No such file or directory): name another file"
    assert (missing.exit_code, told in missing.stderr) == (1, True)


def test_tail_prints_the_newest_last_and_follows(collector, api):
    printed = run("tail", *api, "--limit", "2").stdout.splitlines()
    assert ["second" in printed[0], "broken" in printed[1], len(printed)] == [True, True, 2]
    assert json.loads(run("tail", *api, "--limit", "1", "--json").stdout)["model"] == "broken"

    client = Api(collector.urls["api"])
    models = iter(["followed", "once more"])

    def sleep(_):
        if model := next(models, ""):
            record(collector.urls["otlp-http"], model=model)
            collector.wait_until(lambda: collector.get(f"/api/v1/requests?model={model}").json()["total"] == 1)

    known = [(row["trace_id"], row["span_id"]) for row in client.requests(start="-15m")]
    rows = list(itertools.islice(follow(client, {}, known, sleep=sleep), 2))
    client.close()
    assert [row["model"] for row in rows] == ["followed", "once more"]
    assert "once more" in line(rows[1])


def test_doctor_finds_a_collector_well_and_an_slo_that_judges_nothing(collector, api):
    grpc = collector.urls["otlp-grpc"].removeprefix("http://")
    result = run("doctor", *api, "--otlp-http", collector.urls["otlp-http"], "--otlp-grpc", grpc, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    by_name = {finding["name"]: finding for finding in found if finding["name"] != "engine"}
    assert [by_name[name]["state"] for name in ("OTLP/HTTP", "OTLP/gRPC", "API", "clocks", "version")] == ["ok"] * 5
    total = collector.get("/api/v1/requests?start=-30d").json()["total"]
    slos = {f["detail"].split()[0]: f for f in found if f["name"] == "SLO"}
    assert slos["chat"] == {
        "name": "SLO",
        "state": "ok",
        "detail": f"chat selected {total} of {total} requests",
        "fix": "",
    }
    assert (slos["none"]["state"], slos["none"]["detail"]) == ("warn", f"none selected 0 of {total} requests")
    assert any("cli" in f["detail"] and f["state"] == "ok" for f in found if f["name"] == "engine")
    (untold,) = [f for f in found if "tokentrail cli does not tell: " in f["detail"]]
    assert "cold start" in untold["detail"]
    assert "docs/sdk.md" in untold["fix"]
    text = run("doctor", *api).stdout
    assert "warn SLO          none selected 0" in text
    printed = [line.split() for line in text.splitlines()[:2]]
    assert printed == [
        ["ok", "OTLP/HTTP", collector.urls["otlp-http"]],
        ["ok", "OTLP/gRPC", collector.urls["otlp-grpc"]],
    ]


def test_doctor_names_each_port_that_does_not_answer(collector):
    nobody = "http://127.0.0.1:9"
    result = run("doctor", "--api", nobody, "--otlp-http", collector.urls["api"], "--otlp-grpc", "127.0.0.1:nine")
    assert result.exit_code == 1
    states = [text.split()[:2] for text in result.stdout.splitlines() if not text.startswith("     →")]
    assert states == [["fail", "OTLP/HTTP"], ["fail", "OTLP/gRPC"], ["fail", "API"]]
    assert result.stdout.count("→") == 3


def test_the_port_of_otlp_is_not_taken_for_the_api(collector):
    refused = run("requests", "--api", collector.urls["otlp-http"])
    assert (refused.exit_code, "answers 404, not as a collector's API does" in refused.stderr) == (1, True)


def test_ports_of_a_collector_in_each_others_place_are_named(collector):
    http, grpc, api = (collector.urls[name] for name in ("otlp-http", "otlp-grpc", "api"))
    found = json.loads(run("doctor", "--api", grpc, "--otlp-http", api, "--otlp-grpc", http, "--json").stdout)
    for finding, told in zip(found, (f"{api} is the", f"{http} is the", f"{grpc} is the"), strict=True):
        assert (finding["state"], finding["detail"].startswith(told)) == ("fail", True)
    assert ["--otlp-http" in found[0]["fix"], "--otlp-grpc" in found[1]["fix"], "--api" in found[2]["fix"]] == [
        True
    ] * 3
    of_http = json.loads(run("doctor", "--api", http, "--json").stdout)[2]
    assert f"{http} is the address of a collector's OTLP/HTTP; its API is on port 8080" in of_http["detail"]


def test_doctor_takes_addresses_as_the_collector_prints_them(collector, api):
    printed = [f"{collector.urls[name]}/" for name in ("otlp-http", "otlp-grpc")]
    text = run("doctor", *api, "--otlp-http", printed[0], "--otlp-grpc", printed[1]).stdout
    assert [line.split()[:2] for line in text.splitlines()[:2]] == [["ok", "OTLP/HTTP"], ["ok", "OTLP/gRPC"]]


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_a_command_of_the_documentation_is_answered(collector, tmp_path, words):
    (known, *_) = collector.get("/api/v1/requests?model=first").json()["requests"]
    stands_for = {
        "ID": known["trace_id"],
        "NAME": "chat",
        "FILE": tmp_path / "file",
        "backup.tar": tmp_path / "file.tar",
    }
    given = [str(stands_for.get(word, word)) for word in words]
    if words[0] == "request":
        given[1] = known["trace_id"]
    if "--api" in given:
        given[given.index("--api") + 1] = collector.urls["api"]
    done = run(*given, TOKENTRAIL_API_URL=collector.urls["api"])
    well = 3 if words[0] == "status" else 0  # one of three requests failed
    if words[:2] == ("slos", "init"):
        well = 1
        assert "no model had 20 requests" in done.output  # test_slos_init has the file of more
    assert done.exit_code == well, done.output
    assert done.output


def test_the_documentation_shows_commands_that_ask():
    assert {words[0] for words in SHOWN} == {*ASKING}
