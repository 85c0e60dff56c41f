import threading
from queue import SimpleQueue

import pytest

from instrumented_engine.core.loop import EngineLoop

from .support import make_engine, make_sequence


@pytest.mark.timeout(300)
def test_stopping_does_not_wait_for_a_model_that_loads():
    loading, stopped = threading.Event(), threading.Event()

    def load():
        loading.set()
        stopped.wait()
        raise OSError("the test is over")

    never, loop = (EngineLoop(load, deliver=lambda _: None, on_ready=lambda _: None) for _ in range(2))
    assert never.close(), "it was not started"
    loop.start()
    assert loading.wait(120)
    assert not loop.close(timeout_s=3600)
    stopped.set()


def test_an_idle_engine_that_has_nothing_to_cancel_serves_on(trail, monkeypatch):
    engine, told, outputs, aborted = make_engine(trail), SimpleQueue(), SimpleQueue(), threading.Event()
    abort = engine.abort
    monkeypatch.setattr(engine, "abort", lambda *args, **named: (abort(*args, **named), aborted.set()))
    loop = EngineLoop(lambda: engine, deliver=outputs.put, on_ready=told.put)
    loop.start()
    ended, late = (make_sequence(trail, [1], max_tokens=1).request for _ in range(2))
    loop.submit(ended)
    assert outputs.get(timeout=120)[0].finish_reason == "length"
    loop.cancel(ended)
    assert aborted.wait(120)
    loop.submit(late)
    assert outputs.get(timeout=120)[0].error is None
    assert loop.close(timeout_s=120)
    assert [told.get() for _ in range(told.qsize())] == [None]
