"""The engine's thread: it loads the model, steps while there is work, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from instrumented_engine.core.engine import Engine
from instrumented_engine.core.request import Request
from instrumented_engine.core.sequence import Output
from instrumented_engine.model.errors import ModelError
from tokentrail import Status

logger = logging.getLogger(__name__)

Command = Callable[[Engine], None]


class EngineLoop:
    """Runs an engine in a thread of its own. No other thread changes the engine.

    `load` builds the engine in that thread. `deliver` receives the outputs of each step. `on_ready` receives None when
    the engine can serve, or the exception that kept it from loading; it is called again when the engine breaks. After
    `sleep` the thread gives up the engine, calls `on_unload`, and loads again after `wake`.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        *,
        deliver: Callable[[list[Output]], None],
        on_ready: Callable[[Exception | None], None],
        on_unload: Callable[[], None] = lambda: None,
    ) -> None:
        self._load = load
        self._deliver = deliver
        self._on_ready = on_ready
        self._on_unload = on_unload
        self._is_loading = True
        self._asleep = False
        self._inbox: SimpleQueue[Command | None] = SimpleQueue()
        self._submitted = 0  # by the other threads' one
        self._added = 0  # by the engine's thread
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.engine: Engine | None = None

    def start(self) -> None:
        """Start loading."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request for the next step."""
        self._submitted += 1
        self._inbox.put(lambda engine: self._add(engine, request))

    def cancel(self, request: Request, error_type: str = "") -> None:
        """Abort a request before the next step, as cancelled or with an `error_type`; one that has ended stays so."""
        status = Status.ERROR if error_type else Status.CANCELLED
        self._inbox.put(lambda engine: engine.abort([request], status, error_type=error_type))

    def sleep(self) -> None:
        """Give up the engine once it is idle, until `wake`. Submit no request in between."""
        self._inbox.put(self._fall_asleep)

    def wake(self) -> None:
        """Load the engine again; `on_ready` tells when it can serve."""
        self._inbox.put(self._awake)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Cancel the requests that are left and stop. True when the thread has ended.

        Loading cannot be interrupted and nothing waits for it: the answer is False at once.
        """
        self._inbox.put(None)
        if not self._is_loading:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Requests of which no sequence runs, also those that the engine has not taken yet."""
        engine, queued = self.engine, self._submitted - self._added
        return queued + (engine.scheduler.num_waiting_requests if engine else 0)

    def _run(self) -> None:
        steps = 0
        while True:
            self._is_loading = True
            try:
                self.engine = engine = self._load()
            except Exception as error:
                is_told = isinstance(error, ModelError)  # its message names what is wrong: no line of code does
                logger.error("the engine could not start: %s", error, exc_info=None if is_told else error)
                self._on_ready(error)
                return
            engine.steps = steps
            self._is_loading = False
            self._on_ready(None)
            try:
                self._serve(engine)
            except Exception as error:
                logger.exception("the engine broke")
                self._on_ready(error)
                self._fail(engine, error)
            if not self._asleep:
                return
            steps = engine.steps
            self.engine = None
            del engine
            self._on_unload()
            if not self._sleep():
                return

    def _serve(self, engine: Engine) -> None:
        """Step until the thread is told to stop, or to sleep."""
        while self._take_commands(engine):
            if engine.busy:
                if outputs := engine.step():
                    self._deliver(outputs)
            elif self._asleep:
                return
        self._asleep = False
        engine.abort(engine.requests, Status.CANCELLED)

    def _sleep(self) -> bool:
        """Wait until the engine is needed again; False after the command to stop."""
        while (command := self._inbox.get()) != self._awake:
            if command is None:
                return False
        self._asleep = False
        return True

    def _fall_asleep(self, _: Engine) -> None:
        self._asleep = True

    def _awake(self, _: Engine) -> None:
        """The engine is needed again before it was given up; after that, it is loaded already."""
        if self._asleep:
            self._asleep = False
            self._on_ready(None)

    def _add(self, engine: Engine, request: Request) -> None:
        engine.add(request)
        self._added += 1

    def _take_commands(self, engine: Engine) -> bool:
        """Apply all queued commands; when the engine is idle, wait for one first. False after the command to stop."""
        block = not engine.busy
        while True:
            try:
                command = self._inbox.get(block=block)
            except Empty:
                return True
            if command is None:
                return False
            command(engine)
            block = False

    def _fail(self, engine: Engine, error: Exception) -> None:
        """Fail all requests that are left, and those that still come, until the thread is told to stop."""
        while True:
            left = engine.requests
            engine.abort(left, Status.ERROR, error_type=type(error).__name__)
            if left:
                self._deliver(_failed(left, error))
            command = self._inbox.get()
            if command is None:
                return
            command(engine)


def _failed(requests: Iterable[Request], error: Exception) -> list[Output]:
    """One last output for each request."""
    return [Output(request.sequences[0], error=error) for request in requests]
