"""A changed SLO file is taken while the collector runs, by all that hold SLOs; a bad one is refused and said."""

import json
import logging
import os
from functools import partial

import pytest
import yaml

from collector.app.service import check_slos
from collector.slo.file import SloFile
from collector.slo.model import SloFileError
from tests.collector.access.test_keys import Monotonic
from tests.collector.rows import NOW, SECOND
from tests.support.api import build_shared_api
from tokentrail.shared.regular_files import MOST_BYTES

CHAT = {"name": "chat", "objective": "0.95", "window": "30d", "thresholds": {"e2e": "2s"}}


def text(*slos):
    return yaml.safe_dump({"slos": list(slos)})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text(text(CHAT))
    return path


@pytest.fixture
def seconds():
    return Monotonic()


@pytest.fixture
def write(path, seconds):
    """Writes the file, and lets a second pass."""

    def write(content):
        path.write_text(content)
        seconds.now += 1

    return write


def told(changes):
    return [(one.name, one.before.partition(" (")[0], one.now.partition(" (")[0]) for one in changes]


@pytest.fixture
def opened(path, seconds, clock, tmp_path):
    def opened(**more):
        return SloFile(path, folder=tmp_path, clock=clock, monotonic_s=seconds, **more)

    return opened


class TestFile:
    def test_a_change_is_taken_within_a_second_and_remembered_also_by_the_next_process(self, opened, write, clock):
        file = opened()
        assert file.changes(0, clock() + 1) == []
        clock.now += SECOND
        write(text(CHAT | {"objective": "0.99"}, CHAT | {"name": "new", "thresholds": {"ttft": "500ms", "e2e": "1m"}}))
        assert [(slo.name, str(slo.objective)) for slo in file.slos()] == [("chat", "0.99"), ("new", "0.95")]
        clock.now += SECOND
        write(text(CHAT | {"name": "new"}))
        assert [slo.name for slo in file.slos()] == ["new"]
        expected = [
            ("chat", "95 % over 30 d, e2e ≤ 2 s", "99 % over 30 d, e2e ≤ 2 s"),
            ("new", "", "95 % over 30 d, ttft ≤ 500 ms, e2e ≤ 1 min"),
            ("chat", "99 % over 30 d, e2e ≤ 2 s", ""),
            ("new", "95 % over 30 d, ttft ≤ 500 ms, e2e ≤ 1 min", "95 % over 30 d, e2e ≤ 2 s"),
        ]
        clock.now += SECOND
        write(text(CHAT | {"name": "new", "select": {"model": ["a"]}}))  # while it is away
        for one in (file, opened()):
            *found, last = one.changes(0, clock() + 1) if one is not file else [*one.changes(0, clock()), None]
            assert told(found) == expected
        assert last.before.partition(" (")[0] == last.now.partition(" (")[0]
        assert last.before != last.now  # the hash tells them apart
        assert [one.at_ns - NOW for one in found] == [SECOND, SECOND, 2 * SECOND, 2 * SECOND]
        assert told(opened().changes(NOW + 2 * SECOND, NOW + 3 * SECOND)) == expected[2:]

    def test_words_about_an_slo_are_no_change(self, opened, write, clock):
        file = opened()
        write(text(CHAT | {"description": "reads well", "owner": "me"}))
        assert file.slos()[0].owner == "me"
        assert file.changes(0, clock() + 1) == []

    def test_one_that_cannot_hold_here_is_refused_at_the_start_and_later(self, opened, write):
        def check(slos):
            if slos[0].name != "chat":
                raise ValueError(f"slos[0]: {slos[0].name} cannot be kept")

        file = opened(check=check)
        write(text(CHAT | {"name": "long"}))
        assert [slo.name for slo in file.slos()] == ["chat"]
        assert "long cannot be kept" in file.problem
        for start in (partial(SloFile, slos=opened().slos()), opened):
            with pytest.raises(ValueError, match="long cannot be kept"):
                start(check=check)

    def test_those_that_tell_too_many_requests_apart_are_refused_together(self, opened, write):
        file = opened(check=check_slos)
        for number, problem in ((50, ""), (65, "too many different values to be judged together")):
            write(text(*(CHAT | {"name": f"s{i}", "select": {f"label.l{i}": ["a"]}} for i in range(number))))
            assert len(file.slos()) == 50
            assert problem in file.problem

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("slos: [", "is not YAML"),
            (text(CHAT | {"objektive": 1}), "slos[0].objektive: unknown field"),
            ("", "the file: must be a mapping"),
            (None, "cannot be read"),
            ("pipe", "cannot be read: it is no regular file"),
            (" " * (MOST_BYTES + 1), "cannot be read: it has more than 1,048,576 bytes"),
        ],
    )
    def test_a_bad_one_leaves_the_old_ones_and_is_said_once(
        self, opened, write, path, seconds, caplog, content, problem
    ):
        file = opened()
        if content is None:
            path.unlink()
            seconds.now += 1
        elif content == "pipe":
            path.unlink()
            os.mkfifo(path)
            seconds.now += 1
        else:
            write(content)
        for _ in range(3):
            assert [slo.name for slo in file.slos()] == ["chat"]
            seconds.now += 1
        assert problem in file.problem
        assert file.refused == 1
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert line.startswith(str(path))
        assert line.endswith("(the SLOs stay as they were)")
        path.unlink(missing_ok=True)
        write(text(CHAT | {"name": "good"}))
        assert [slo.name for slo in file.slos()] == ["good"]
        assert (file.problem, file.refused) == ("", 1)
        write("slos: [")
        with pytest.raises(SloFileError, match="is not YAML"):
            opened()

    @pytest.mark.parametrize("content", ["{", '[["a", {}]]', "[1]", '[[1, {"chat": 3}]]'])
    def test_a_history_that_cannot_be_read_is_begun_anew(self, opened, write, tmp_path, clock, caplog, content):
        (tmp_path / "slo_history.json").write_text(content)
        file = opened()
        assert "earlier changes of the SLOs are not known" in caplog.text
        write(text(CHAT | {"objective": "0.9"}))
        file.slos()
        assert len(file.changes(0, clock() + 1)) == 1
        assert len(json.loads((tmp_path / "slo_history.json").read_text())) == 2


@pytest.fixture
def app_and_live(rows, opened, clock, ingest_status, tmp_path):
    rows.requests([{"ended": NOW - i * SECOND, "e2e": 3 * SECOND, "model": "m"} for i in range(1, 101)])
    return build_shared_api(rows.store, opened(), ingest_status, lost_after_s=30.0, data_dir=tmp_path, clock=clock)


def test_all_that_hold_slos_follow(api, live, write, rows, clock, on_segment):
    def metrics():
        for _ in range(2):  # the first page of a series has 0
            live.refresh()
            api.client.get("/metrics")
        families = [one for of in live.families for one in of]
        samples = {(s.name, *s.labels.values()): s.value for one in families for s in one.samples}
        names = {key[0].removeprefix("tokentrail_"): value for key, value in samples.items() if "chat" in key}
        others = {key[1] for key in samples if key[0].startswith("tokentrail_slo_") and len(key) > 1}
        return names, others, samples

    def now():
        slo = api("slos")["slos"][0]
        burning = [one["slo"] for one in api("incidents")["incidents"]]
        return slo["name"], slo["objective"], slo["attainment"], burning, api("summary")["attainment"]

    rows.requests([{"ended": NOW - SECOND, "e2e": 3 * SECOND, "segment": "1"}] * 20)
    on_segment("1")
    assert now() == ("chat", 0.95, 0.0, ["chat"], 0.0)
    before, names, _ = metrics()
    assert (before["slo_objective_ratio"], before["slo_requests_total"], before["slo_attainment_ratio"]) == (
        0.95,
        20,
        0,
    )
    clock.now += SECOND
    write(text(CHAT | {"objective": "0.9", "thresholds": {"e2e": "4s"}}, CHAT | {"name": "fast"}))
    assert now() == ("chat", 0.9, 1.0, ["fast"], 0.0)
    (goodput,) = api("timeseries", metric="attainment", step="15m", slo="chat")["points"][-1:]
    assert goodput["value"] == 1.0
    rows.requests([{"ended": NOW - SECOND, "e2e": 3 * SECOND, "segment": "2"}] * 5)
    on_segment("2")
    after, names, samples = metrics()
    # What was stored before the refresh that takes the file is counted for the SLOs of before.
    assert (after["slo_objective_ratio"], after["slo_attainment_ratio"], after["slo_requests_total"]) == (0.9, 1.0, 25)
    assert samples["tokentrail_slo_requests_total", "fast", ""] == 0
    rows.requests([{"ended": NOW - SECOND, "e2e": 3 * SECOND, "segment": "3"}] * 7)
    on_segment("3")
    after, names, samples = metrics()
    assert (after["slo_requests_total"], after["slo_good_requests_total"]) == (32, 7)
    assert samples["tokentrail_slo_requests_total", "fast", ""] == 7
    assert names >= {"chat", "fast"}
    write(text(CHAT | {"name": "fast"}))
    after, names, samples = metrics()
    assert not any(name.startswith("slo_") for name in after)
    assert "fast" in names
    assert samples["tokentrail_slo_requests_total", "fast", ""] == 7
    assert [one["name"] for one in api("slos")["slos"]] == ["fast"]
    assert api.client.get("/api/v1/slos/chat").status_code == 404


def test_changes_and_the_verdict_tell_it_and_a_refusal_stands_beside_the_slos(api, live, write, clock):
    assert api("slos")["file_problem"] is None
    clock.now += 2 * SECOND
    write(text(CHAT | {"objective": "0.9"}))
    found = [one for one in api("changes", start="-1m")["changes"] if one["dimension"] == "slo"]
    assert found == []  # it is of the moment at which the window ends
    clock.now += SECOND
    (change,) = [one for one in api("changes", start="-1m", model="nobody")["changes"] if one["dimension"] == "slo"]
    assert (change["at"], change["slo"], change["service"]) == ("2026-11-21T10:00:02Z", "chat", "")
    assert change["value"].startswith("90 % over 30 d, e2e ≤ 2 s (")
    assert change["before"][0].startswith("95 % over 30 d, e2e ≤ 2 s (")
    box = next(one for one in api("verdict")["boxes"] if one["dimension"] == "slo")
    assert box["title"] == f'SLO "chat" is now {change["value"]}'
    assert (box["slo"], box["firing"], box["inside"], box["service"]) == ("chat", False, [], None)
    write("slos: [")
    problem = api("slos")["file_problem"]
    assert "is not YAML" in problem
    assert "\n" not in problem
    assert not problem.endswith("^")
    assert api("slos")["slos"][0]["objective"] == 0.9
    page = api.client.get("/metrics").text
    assert "\ntokentrail_collector_slo_file_refused_total 1.0\n" in page
