"""The collector runs the explainer, unless it is told not to."""

import threading

import pytest

from collector.app.service import Service
from collector.causes.stage import stage
from collector.causes.stage.stage import Explainer, pause_after
from collector.pipeline.settings import Settings
from tests.collector.rows import NOW, SECOND
from tests.support.stores import new_store


@pytest.mark.parametrize("explain", [True, False])
def test_a_setting_switches_it_off_and_else_it_tells_the_counters_of_metrics(tmp_path, explain, monkeypatch):
    told = []
    monkeypatch.setattr(Explainer, "on_explained", lambda _, callback: told.append(callback.__name__))
    free = dict.fromkeys(("otlp_http", "otlp_grpc", "api"), "127.0.0.1:0")
    new_store(tmp_path / "store")
    service = Service(Settings(data_dir=tmp_path, explain=explain, **free))
    service.start()
    try:
        assert ("explainer" in {thread.name for thread in threading.enumerate()}) == explain
    finally:
        assert service.stop()
    assert "explainer" not in {thread.name for thread in threading.enumerate()}
    assert told == ["on_explained"] * explain


@pytest.mark.parametrize(
    ("took_s", "done", "pause_s"),
    [(0.1, True, 10), (0.3, True, 14.7), (1, True, 49), (10, True, 60), (30, True, 90), (0.1, False, 0.3)],
)
def test_a_round_is_a_small_part_of_the_time_also_while_requests_wait_for_it(took_s, done, pause_s):
    assert pause_after(took_s, done=done) == pytest.approx(pause_s)


def test_while_there_is_nothing_new_the_store_is_asked_once(rows, status, monkeypatch):
    rounds, looks, done = [], [], threading.Event()

    def clock():
        looks.append(len(rounds))
        if len(looks) == 8:
            done.set()
        return NOW / SECOND

    explainer = Explainer(rows.store, status, clock=clock)
    run_once = explainer.run_once
    monkeypatch.setattr(stage, "_ROUND_S", 0.001)
    monkeypatch.setattr(explainer, "run_once", lambda: (rounds.append(1), run_once())[1])
    explainer.start()
    assert done.wait(120)
    assert explainer.stop(120)
    assert len(rounds) == 1
