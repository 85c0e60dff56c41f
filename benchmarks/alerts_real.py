"""Faults of real processes for `benchmarks.alerts`: a collector each, a store, an engine, and their load."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from benchmarks.alerts_scenarios import OBJECTIVES, OUTAGE, Page, Scenario, vllm
from tests.support.clickhouse_server import Server
from tests.support.collector import ROOT, Collector
from tests.support.otlp import Request
from tokentrail import semconv
from tokentrail.cli.processes import free_port

SLO_FILE = "slos: [{}]".format(
    ", ".join(
        f'{{name: {name}, objective: "{objective}", window: 30d, thresholds: {{e2e: 60s}}}}'
        for name, objective in OBJECTIVES.items()
    )
)
MODEL = "smollm2-135m-instruct"
STORE_AWAY_S = 300.0
HOUR_PER_S = 5.0
STOP_S = 300
"""A collector drains before it ends, which takes long on a busy machine."""
ENGINE_START_S = 240.0
LONG_S = 40
"""How long the requests take that announce themselves: longer than a silence after which a request is lost."""

Failed = Callable[[float, int], bool]
"""Whether a request fails, by the seconds since the fault and its number."""
Event = tuple[float, Callable[[], Any]]
"""Actions by their time in seconds since the fault."""


class Real:
    """A collector of its own, its load, and the faults that it meets."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        expected: frozenset[str] = frozenset(),
        may_follow: frozenset[str] = frozenset(),
        needs_s: float = 0.0,
        failed: Failed = lambda _, __: False,
        per_s: float = 1.0,
        store: str = "chdb://",
        pages: Mapping[str, Page] = MappingProxyType({}),
        begins_s: float = 0.0,
    ) -> None:
        folder.mkdir(parents=True)
        (folder / "slos.yaml").write_text(SLO_FILE)
        self.collector = Collector(folder / "data", "--slos", str(folder / "slos.yaml"), store=store)  # type: ignore[no-untyped-call]
        self.scenario = Scenario(name, {"c": self._page, **pages}, expected, may_follow, needs_s, begins_s)
        self.events: list[Event] = []
        self.took_s: dict[str, float] = {}
        """How long those actions took that must be quick for the run to count."""
        self._failed, self._per_s = failed, per_s
        self._load: Load | None = None

    def start(self) -> None:
        """Start the collector."""
        self.collector.start()  # type: ignore[no-untyped-call]

    def load(self, fault_at: float) -> None:
        """Begin to send requests."""
        self._load = Load(self.collector, fault_at, self._per_s, self._failed)
        self._load.start()

    def restart(self) -> None:
        """Stop the collector and start it again; senders keep their spans meanwhile."""
        began = time.monotonic()
        self.collector.stop(STOP_S)  # type: ignore[no-untyped-call]
        self.collector.start()  # type: ignore[no-untyped-call]
        self.took_s["restart_s"] = round(time.monotonic() - began, 1)

    def stop(self) -> None:
        """Stop the load, then the collector. Nothing is measured any more, so it need not drain."""
        if self._load:
            self._load.over.set()
            self._load.join()
        if self.collector.process:
            self.collector.kill()  # type: ignore[no-untyped-call]

    def _page(self, _: float) -> str:
        """The collector's own page; an empty one while it does not answer."""
        try:
            answer = httpx.get(f"{self.collector.urls['api']}/metrics", headers={"accept": "text/plain"}, timeout=5)
        except (httpx.HTTPError, KeyError):
            return ""
        return answer.text if answer.status_code == 200 else ""


class StoreAway(Real):
    """The collector's ClickHouse server is killed, and comes back after five minutes."""

    def __init__(self, folder: Path) -> None:
        self._server = Server(folder / "server")  # type: ignore[no-untyped-call]
        super().__init__(
            folder,
            "store away for 5 minutes, a real collector",
            expected=frozenset({"TokentrailCollectorDown"}),
            needs_s=STORE_AWAY_S + 200,
            store=self._server.url,
            begins_s=-200.0,
        )
        self._server.folder.mkdir()
        self.events = [(-200.0, self._server.kill), (STORE_AWAY_S - 200.0, self._server.start)]

    def start(self) -> None:
        """The server first."""
        self._server.start()  # type: ignore[no-untyped-call]
        super().start()

    def stop(self) -> None:
        """The server last."""
        super().stop()
        self._server.kill()  # type: ignore[no-untyped-call]


class EngineKilled(Real):
    """The engine of this project starts, gets requests, and is killed while it works on them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            "dead engine, a real engine that is killed",
            expected=frozenset({"TokentrailEngineLost", "TokentrailColdStart"}),
            may_follow=frozenset({"TokentrailSloBurn"}),
        )
        self._url = f"http://127.0.0.1:{free_port(0)}"
        self._log = (folder / "engine.log").open("wb")
        self._engine: subprocess.Popen[bytes] | None = None
        self.events = [(-20.0, self._ask), (0.0, self._kill)]

    def start(self) -> None:
        """The collector, then the engine: the clock begins when it can serve. Exits when it cannot in time."""
        super().start()
        began = time.monotonic()
        self._start_engine()
        while not self._is_ready():
            if time.monotonic() - began > ENGINE_START_S:
                said = Path(self._log.name).read_text(errors="replace")[-2000:]
                sys.exit(f"the engine was not ready within {ENGINE_START_S:.0f} s:\n{said}")
            time.sleep(0.5)
        self.took_s["engine_start_s"] = round(time.monotonic() - began, 1)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self._url}/readyz", timeout=5, trust_env=False).status_code == 200
        return False

    def stop(self) -> None:
        """An engine that no event has killed is killed now."""
        self._kill()
        self._log.close()
        super().stop()

    def _start_engine(self) -> None:
        command = [
            sys.executable,
            "-m",
            "instrumented_engine",
            "--model",
            MODEL,
            "--port",
            self._url.rpartition(":")[2],
        ]
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.urls["otlp-http"]}
        self._engine = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=self._log, stderr=self._log)

    def _ask(self) -> None:
        """Three requests for more tokens than the engine will live to make."""
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
        for _ in range(3):
            threading.Thread(target=self._post, args=(body,), daemon=True).start()

    def _post(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.HTTPError):  # the engine dies meanwhile
            httpx.post(f"{self._url}/v1/completions", json=body, timeout=60)

    def _kill(self) -> None:
        if self._engine:
            self._engine.kill()
            self._engine.wait()


def real_faults(folder: Path, well_s: float) -> list[Real]:
    """The faults that are played in real time."""
    restarted = Real(
        folder / "restarted",
        "total outage, a real collector that was restarted",
        expected=OUTAGE,
        may_follow=frozenset({"TokentrailSloBurn"}),
        failed=lambda t, _: t >= 0,
    )
    # Senders keep what they have while the collector is away, and it is counted when it comes. So the restart is at the
    # beginning: five minutes before the fault, the shares of `page-outage` have nothing of it any more.
    restarted.events = [(-well_s, restarted.restart)]
    return [restarted, StoreAway(folder / "store"), EngineKilled(folder / "engine")]


def normal_hour(folder: Path) -> Real:
    """Normal load for rules whose times are `HOUR_PER_S` times shorter: half of the smallest budget is bad."""
    chance = random.Random(2)
    budget = min(1 - float(objective) for objective in OBJECTIVES.values())
    return Real(
        folder / "hour",
        "normal load of an hour, compressed",
        failed=lambda _, __: chance.random() < budget / 2,
        per_s=HOUR_PER_S,
        pages={"vllm": vllm()},
    )


class Load(threading.Thread):
    """Requests to a real collector. One in forty takes 40 s and announces itself every 5 s; the others take 200 ms."""

    def __init__(self, collector: Collector, fault_at: float, per_s: float, failed: Failed) -> None:
        super().__init__(daemon=True)
        self._collector, self._fault_at, self._per_s, self._failed = collector, fault_at, per_s, failed
        self.over = threading.Event()

    def run(self) -> None:
        """Send until `over`. A body that is not acknowledged is sent again, as any exporter does."""
        waiting: list[bytes] = []
        long: dict[int, float] = {}
        for number in itertools.count(1):
            if self.over.wait(1 / self._per_s):
                return
            now = time.time()
            if number % 40 == 1:
                long[number] = now
            elif number % 5 == 0:
                waiting += [announcement(one, began) for one, began in long.items()]
            for one in [one for one, began in long.items() if now - began >= LONG_S]:
                waiting.append(self._ended(one, LONG_S))
                del long[one]
            waiting.append(self._ended(number, 0.2))
            with contextlib.suppress(httpx.HTTPError, KeyError):
                while waiting and self._collector.post(waiting[0]).status_code == 200:  # type: ignore[no-untyped-call]
                    waiting.pop(0)

    def _ended(self, number: int, took_s: float) -> bytes:
        failed = self._failed(time.time() - self._fault_at, number)
        code = Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_OK
        attributes = {"gen_ai.usage.output_tokens": 1}
        trace = number if took_s < 1 else number + 10**9
        return span("chat m", trace, time.time() - took_s, kind=2, attributes=attributes, status=Status(code=code))


def announcement(number: int, began_s: float) -> bytes:
    """A request that is open since then, as an OTLP body."""
    return span(semconv.OPEN_SPAN, number + 10**9, began_s, parent=1)


def span(name: str, trace: int, began_s: float, *, attributes: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A span that ends now, as an OTLP body."""
    request, start = Request(), int(began_s * 1e9)  # type: ignore[no-untyped-call]
    known = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    request.span(  # type: ignore[no-untyped-call]
        name,
        trace=trace,
        span=2 if name == semconv.OPEN_SPAN else 1,
        start=start,
        ns=time.time_ns() - start,
        attributes=known | (attributes or {}),
        **fields,
    )
    body: bytes = request.body()  # type: ignore[no-untyped-call]
    return body


def play(events: Sequence[Event], fault_at: float) -> list[threading.Timer]:
    """Do each at its time, in a thread of its own."""
    timers = [threading.Timer(max(0.0, fault_at + at - time.time()), action) for at, action in events]
    for timer in timers:
        timer.start()
    return timers
