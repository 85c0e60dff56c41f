"""The overview is the other endpoints' answers of one moment."""

import gzip
import time
from types import SimpleNamespace

import pytest

from collector.api import overview
from collector.api.overview import step_s
from collector.ask.queries import Queries
from tests.collector.rows import NOW, SECOND

OF_PROCESSES = ("running", "waiting", "kv_usage", "kv_evictions")
OF_REQUESTS = ("ttft", "tpot", "e2e", "requests", "goodput", "attainment")


@pytest.fixture
def busy(rows):
    rows.requests(
        [
            {"ended": NOW - n * 30 * SECOND - 1, "slo_class": "chat", "tenant": f"t{n % 2}", "e2e": (n + 1) * SECOND}
            for n in range(25)
        ]
    )
    rows.open(start=NOW - 9 * SECOND, seen=NOW - SECOND, slo_class="chat")
    rows.step(start=NOW - 9 * SECOND, running=3, waiting=2, kv_blocks_used=3, kv_blocks_total=4)
    rows.kv_event(start=NOW - 60 * SECOND)
    rows.cold_start(start=NOW - 100 * SECOND, duration=30 * SECOND)


def test_a_request_that_was_lost_before_the_window_is_not_in_its_summary(api, rows):
    """The requests in flight are read once, for the SLOs' 30 days too."""
    for seconds in (4 * 3600, 900):
        rows.open(start=NOW - 5 * 3600 * SECOND, seen=NOW - (seconds + 30) * SECOND)
    assert api("overview")["summary"]["requests"]["lost"] == api("summary")["requests"]["lost"] == 1


def test_it_has_the_other_endpoints_answers(api, busy):
    filters = {"tenant": "t1", "slo": "chat"}
    found = api("overview", **filters)
    for name in ("summary", "incidents", "kv", "cold_starts"):
        assert found[name] == api(name, tenant="t1"), name
    assert found["slos"] == api("slos")
    assert found["engines"] == api("engines", start="-30d")
    for metric in (*OF_REQUESTS, *OF_PROCESSES):
        assert found["timeseries"][metric] == api("timeseries", metric=metric, step="10s", **filters), metric
    assert found["timeseries"].keys() == {*OF_REQUESTS, *OF_PROCESSES}


def test_it_shows_the_past_too(api, busy):
    past = {"start": "2026-11-20T09:00:00Z", "end": "2026-11-20T10:00:00Z"}
    assert api("overview", **past)["slos"] == api("slos", **past)


def test_the_steps_follow_the_window_unless_one_is_given(api, busy):
    assert api("overview", step="7s")["timeseries"]["ttft"]["step_s"] == 7.0
    in_s = {1: 1, 180: 2, 300: 5, 900: 10, 901: 15, 1800: 30, 3600: 60}
    in_h = {3: 120, 6: 300, 12: 600, 20: 900, 24: 1800, 72: 3600, 168: 7200, 336: 21_600, 720: 43_200, 1440: 86_400}
    assert {seconds: step_s(seconds) for seconds in in_s} | {h: step_s(h * 3600) for h in in_h} == in_s | in_h
    assert all(seconds / step_s(seconds) <= 90 for seconds in range(1, 90 * 86_400, 9_973))


def test_it_asks_the_store_each_question_once(api, busy, monkeypatch):
    asked = []
    result, array = Queries._result, Queries._array

    def counted_array(self, query, fragments, row, parameters):
        asked.append((query, repr(fragments), repr(parameters)))
        return array(self, query, fragments, row, parameters)

    def counted(self, query, fragments, parameters):
        if query != "day_versions":  # read before and after an answer about whole days
            asked.append((query, repr(fragments), repr(parameters)))
        return result(self, query, fragments, parameters)

    monkeypatch.setattr(Queries, "_result", counted)
    monkeypatch.setattr(Queries, "_array", counted_array)
    api("overview", tenant="t1")
    assert len(asked) == len(set(asked))
    assert {"announced", "ended_announced", "vantages", "timeseries_steps"} <= {name for name, *_ in asked}
    # The tenant's requests in flight and, for the SLOs, everybody's: parts with different windows share them.
    assert len([name for name, *_ in asked if name == "announced"]) == 2
    # The charts of TTFT, TPOT and E2E are read together.
    assert len([name for name, *_ in asked if name == "timeseries_latencies"]) == 1


def test_each_part_may_take_as_long_as_it_may_alone(api, busy, monkeypatch):
    late_s = [0.0]
    began = time.monotonic

    def slowly(answer):
        def answered(*asked):
            late_s[0] += 20  # of the 30 that an answer may take
            return answer(*asked)

        return answered

    for part in ("summary", "slos", "incidents"):
        monkeypatch.setattr(overview, part, slowly(getattr(overview, part)))
    monkeypatch.setattr("collector.api.session.time", SimpleNamespace(monotonic=lambda: began() + late_s[0]))
    assert api("overview")["summary"]["requests"]["total"] == 25


def test_another_request_is_asked_anew_and_has_its_own_clock(api, rows, clock):
    before = api("overview")["summary"]
    rows.request()
    clock.advance(5 * SECOND)
    after = api("overview")["summary"]
    assert (before["requests"]["total"], after["requests"]["total"]) == (0, 1)
    assert before["window"]["end"] != after["window"]["end"]


def test_large_answers_are_compressed_for_those_who_accept_it(api):
    path = "/openapi.json"
    packed = api.client.get(path, headers={"accept-encoding": "gzip"})
    plain = api.client.get(path, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert api.client.get(path, headers={"accept-encoding": "br, gzip;q=0.5"}).headers["content-encoding"] == "gzip"
    for refusing in ("identity", "gzip;q=0", "GZip; q=0.000, *", "deflate, gzip;q=0 , br"):
        answer = api.client.get(path, headers={"accept-encoding": refusing})
        assert "content-encoding" not in answer.headers
        assert answer.headers["vary"] == "Accept-Encoding"
    assert packed.json() == plain.json()
    assert len(gzip.compress(plain.content, 3)) < len(plain.content) / 3
    assert "content-encoding" not in api.client.get("/healthz", headers={"accept-encoding": "gzip"}).headers


@pytest.mark.parametrize(("params", "status"), [({"slo": "nobody"}, 404), ({"step": "1ms"}, 400), ({"end": "0"}, 400)])
def test_what_one_part_refuses_the_overview_refuses(api, params, status):
    assert api.client.get("/api/v1/overview", params=params).status_code == status
