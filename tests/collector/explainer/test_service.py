"""The collector runs the explainer, unless it is told not to."""

import threading

import pytest

from collector.explainer.stage import Explainer
from collector.service import Service
from collector.settings import Settings
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
