"""The process's way to its exit code, within the test process: `main` with a model that does not load."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from instrumented_engine import __main__ as program
from instrumented_engine.model.errors import ModelError
from instrumented_engine.server.service import Service


@pytest.fixture
def flags(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr("sys.argv", ["instrumented_engine", "--model", __file__, "--port", "0", "--device", "cpu"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("error", [OSError("the disk is gone"), ModelError("it is no model")])
def test_a_model_that_cannot_load_ends_the_process(flags, monkeypatch, capsys, caplog, error):
    """Where a wrong model or setting was noticed in the code helps nobody."""

    def load(settings, observer):
        raise error

    monkeypatch.setattr(program, "load", load)
    assert program.main() == 1
    assert f"error: the engine failed: {error}" in capsys.readouterr().err
    (record,) = [r for r in caplog.records if r.message == f"the engine could not start: {error}"]
    assert bool(record.exc_info) is isinstance(error, OSError)


@pytest.mark.timeout(300)
def test_sigterm_does_not_wait_for_a_model_that_loads(flags, monkeypatch, capfd):
    """A request that waits for the model is refused at once, and so the process does not wait for it either."""
    stopped, admitted, answers, codes = threading.Event(), threading.Event(), [], []

    def load(settings, observer):
        told = ""
        while "\n" not in told:
            time.sleep(0.01)
            told += capfd.readouterr().out
        client = threading.Thread(target=ask, args=(told.split()[-1] + "/v1/completions",))
        client.start()
        assert admitted.wait(120)
        os.kill(os.getpid(), signal.SIGTERM)
        stopped.wait()
        client.join()

    def ask(url):
        body = {"model": Path(__file__).name, "prompt": "hi"}
        answers.append(httpx.post(url, json=body, timeout=120))

    class Waiting(Service):
        async def admit(self, *args, **options):
            admitted.set()
            return await super().admit(*args, **options)

    monkeypatch.setattr(program, "load", load)
    monkeypatch.setattr(program, "Service", Waiting)
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("sys.argv", [*sys.argv, "--shutdown-grace-s", "3600"])
    try:
        program.main()
    except SystemExit as end:  # the signal again, once uvicorn has stopped
        codes.append(end.code or 0)
    finally:
        stopped.set()
    assert set(codes) == {0}
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(503, "engine_unavailable")]
