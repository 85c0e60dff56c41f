"""`tokentrail tail -f` beside a collector that restarts, is busy, or refuses."""

import itertools

import httpx
import pytest

from tokentrail.cli.requests import follow


class Restarting:
    """An Api whose answers are what `script` says: seconds for which there is none, or rows."""

    def __init__(self, *script):
        self.script, self.asked = list(script), []

    def requests(self, start):
        self.asked.append(start)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [{"trace_id": one, "span_id": ""} for one in answer]


def refusal(status):
    request = httpx.Request("GET", "http://collector")
    return httpx.HTTPStatusError(str(status), request=request, response=httpx.Response(status, request=request))


def test_tail_asks_a_collector_that_restarts_until_it_answers(monkeypatch):
    clock = itertools.count(100.0, 30.0)
    monkeypatch.setattr("tokentrail.cli.requests.time.monotonic", lambda: next(clock))
    away, busy, ready = httpx.ConnectError("refused"), refusal(503), refusal(429)
    api = Restarting(["a"], away, busy, ready, ["meanwhile", "a"], ["after"])
    told = []
    rows = itertools.islice(follow(api, {}, [], sleep=lambda _: None, tell=told.append), 3)
    assert [row["trace_id"] for row in rows] == ["a", "meanwhile", "after"]
    assert api.asked == ["-40.000s", "-40.000s", "-70.000s", "-100.000s", "-130.000s", "-40.000s"]
    assert told == ["the collector does not answer (refused): it is asked until it does", "the collector answers again"]


@pytest.mark.parametrize("error", [refusal(401), refusal(400), httpx.DecodingError("another server is there")])
def test_tail_ends_with_an_answer_that_stays(error):
    with pytest.raises(type(error)):
        next(follow(Restarting(error), {}, [], sleep=lambda _: None))
