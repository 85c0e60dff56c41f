"""`tokentrail check`: verdicts become a status, a table and JUnit's XML, also while a collector restarts."""

import json
from io import StringIO
from xml.etree import ElementTree

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tokentrail.cli import asking
from tokentrail.cli.app import app
from tokentrail.cli.check import EXIT, seconds, show, status, until_decided, write_junit


def _answer(verdict="not decided", **numbers):
    return {
        "verdict": verdict,
        "reason": "why",
        "slo": "chat",
        "empty": None,
        "warnings": ["both sides are of the time in which both ran"],
        "window": {"start": "2026-11-21T09:00:00Z", "end": "2026-11-21T10:00:00Z"},
        "numbers": [
            {"name": name, "verdict": of, "a": 0.01, "b": 0.2, "evidence_of_worse": 3e9, "evidence_of_good": 0.5}
            for name, of in numbers.items()
        ],
    }


class _Clock:
    now = 0.0

    def sleep(self, s):
        assert s > 0
        self.now += s

    def __call__(self):
        return self.now


def _asked(answers, wait_s):
    clock, starts, told = _Clock(), [], []
    left = iter(answers)

    def ask(start):
        starts.append(start)
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = until_decided(ask, wait_s, tell=told.append, sleep=clock.sleep, clock=clock)
    return found["verdict"], starts, told, clock.now


def test_it_asks_until_the_verdict_is_there_about_one_start():
    verdict, starts, told, waited = _asked([_answer(), _answer(), _answer("worse")], 900)
    assert verdict == "worse"
    assert starts == [None, "2026-11-21T09:00:00Z", "2026-11-21T09:00:00Z"]
    assert told == ["why: asked again"] * 2
    assert waited == 30


def test_it_asks_once_without_a_wait_and_at_the_end_of_one():
    assert _asked([_answer()], 0)[0] == "not decided"
    assert _asked([_answer()] * 4, 40) == (
        "not decided",
        [None, *["2026-11-21T09:00:00Z"] * 3],
        ["why: asked again"] * 3,
        40,
    )


def test_a_collector_that_restarts_is_asked_again_and_one_that_refuses_is_not():
    gone = httpx.ConnectError("refused")
    assert _asked([gone, _answer(), gone, _answer("good")], 900)[0] == "good"
    with pytest.raises(httpx.ConnectError):
        _asked([gone] * 5, 40)
    request = httpx.Request("GET", "http://c/")
    forbidden = httpx.HTTPStatusError("no", request=request, response=httpx.Response(403, request=request))
    with pytest.raises(httpx.HTTPStatusError):
        _asked([forbidden, _answer("good")], 900)


def test_durations_have_a_unit():
    assert [seconds(text) for text in ("90s", "15m", "1h", "0s")] == [90, 900, 3600, 0]
    for text in ("15", "m", "-1h", "1.5h", "1d", ""):
        with pytest.raises(ValueError, match="such as 90s, 15m or 1h"):
            seconds(text)


def test_statuses_are_of_the_verdict_and_no_answer_is_not_decided():
    assert EXIT == {"good": 0, "worse": 1, "not decided": 2}
    for wrong in (["--wait", "soon"], ["--against-time", "-1h"], ["--relevant", "much"], ["--varaint", "new"]):
        assert CliRunner().invoke(app, ["check", "--slo", "chat", *wrong]).exit_code == 64
    assert CliRunner().invoke(app, ["check"]).exit_code == 64
    assert [status({"verdict": one, "empty": "new"}) for one in EXIT] == [0, 1, 3]


def test_json_and_junit_are_written_also_without_an_answer(monkeypatch, tmp_path):
    def asked(*options):
        path = tmp_path / "junit.xml"
        path.unlink(missing_ok=True)
        done = CliRunner().invoke(app, ["check", "--slo", "chat", "--json", "--junit", str(path), *options])
        suite = ElementTree.parse(path).getroot()
        return done.exit_code, json.loads(done.stdout), (suite.get("tests"), suite.get("skipped"))

    code, answer, cases = asked("--api", "http://127.0.0.1:9")
    assert (code, answer["verdict"], cases) == (2, "not decided", ("1", "1"))
    assert answer["reason"].startswith("the collector at http://127.0.0.1:9 does not answer (")
    for option, value, why in (("--wait", "soon", "--wait: "), ("--against-time", "-1h", "--against-time: START/END")):
        code, answer, cases = asked(option, value)
        assert (code, answer["verdict"], cases) == (64, "not decided", ("1", "1"))
        assert answer["reason"].startswith(why)

    for wrong, why in (
        (["--relevant", "much"], "Invalid value for '--relevant': "),
        (["--varaint", "new"], "No such option: --varaint"),
        (["--label", "region"], "--label: NAME=VALUE, such as region=eu, not 'region'"),
        (["--label", "region", f"--junit={tmp_path / 'junit.xml'}"], "--label: NAME=VALUE"),
    ):
        code, answer, cases = asked(*wrong)
        assert (code, answer["verdict"], answer["slo"], cases) == (64, "not decided", "chat", ("1", "1"))
        assert why in answer["reason"]
    path = tmp_path / "other.xml"
    done = CliRunner().invoke(app, ["check", f"--junit={path}", "--slo", "chat", "--wrong"])
    assert (done.exit_code, done.stdout, path.exists()) == (64, "", True)
    done = CliRunner().invoke(app, ["check", "--json", "--junit", str(tmp_path / "no" / "junit.xml")])
    assert (done.exit_code, json.loads(done.stdout)["reason"]) == (64, "Missing option '--slo'.")

    def interrupted(_ask, _wait_s, *, keep, tell):
        keep(_answer(**{"bad share": "not decided", "P99 TTFT": "not decided"}))
        raise KeyboardInterrupt

    monkeypatch.setattr("tokentrail.cli.check.until_decided", interrupted)
    assert asked()[::2] == (130, ("2", "2"))


def test_junit_has_a_case_for_each_number(tmp_path):
    path = tmp_path / "junit.xml"
    write_junit(path, _answer("worse", **{"bad share": "worse", "P99 TTFT": "not decided", "P99 <E2E>": "good"}))
    suite = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    worse, open_, good = suite.findall("testcase")
    assert (worse.get("name"), worse.find("failure").get("message")) == ("bad share", "20 %, not 1 %")
    assert open_.find("skipped") is not None
    assert (good.get("name"), list(good)) == ("P99 <E2E>", [])
    with pytest.raises(OSError, match="No such file"):
        write_junit(tmp_path / "no" / "junit.xml", _answer())


def test_the_table_has_a_line_for_each_number():
    console = Console(width=200, record=True, file=StringIO())
    show(console, _answer("worse", **{"bad share": "worse", "P99 TTFT": "good"}))
    text = console.export_text()
    assert text.startswith("worse: why")
    assert "note: both sides are of the time in which both ran" in text
    assert "bad share" in text
    assert "1 %" in text
    assert "200 ms" in text
    assert "> 1 million" in text


def test_a_junit_file_that_cannot_be_written_is_named_and_is_no_verdict(monkeypatch, tmp_path):
    monkeypatch.setattr(asking, "ask", lambda *_, **__: _answer("worse", **{"bad share": "worse"}))
    for folder, code, told in ((tmp_path, EXIT["worse"], ""), (tmp_path / "no", 64, "name another file")):
        done = CliRunner().invoke(app, ["check", "--slo", "chat", "--junit", str(folder / "junit.xml")])
        assert done.exit_code == code
        assert told in done.stderr
