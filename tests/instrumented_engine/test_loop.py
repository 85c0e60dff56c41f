import threading

import pytest

from instrumented_engine.core.loop import EngineLoop


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
