"""`tokentrail demo`: every process on one machine, under a load that causes a cold start and KV-cache evictions."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from tokentrail.cli import parts
from tokentrail.cli.api import Api
from tokentrail.cli.home import owned
from tokentrail.cli.live import LiveView
from tokentrail.cli.output import own_name, progress
from tokentrail.cli.processes import ProcessFailed, terminated
from tokentrail.cli.result import report, verify
from tokentrail.cli.stack import START_S, Stack, choose_addresses
from tokentrail.load import CHAT, COMPLETION, LONG_GENERATION, Observation, PlannedRequest, burst, poisson
from tokentrail.load import run as run_load

MODEL = "smollm2-135m-instruct"
ENGINE_FLAGS = (
    "--kv-blocks", "80", "--block-size", "16", "--watermark-blocks", "0", "--max-seqs", "16", "--variant", "demo",
)  # fmt: skip
"""The KV cache holds 1,280 tokens: enough for the steady traffic, too few for a burst of long generations.

Without a watermark the engine admits the whole burst, and then takes blocks from running requests.
"""
ENGINES_PAGE = "https://github.com/tokentrail/tokentrail/tree/main/docs/engines"
ENGINE_THREADS = max(1, (os.cpu_count() or 2) - 1)
"""One core is left to the other processes: the engine's threads wait for each other at every matrix product."""
RATES = {CHAT: 0.25, COMPLETION: 0.2}
"""Requests per second of each profile. Two CPU cores that run the whole demo can answer more than this."""
BURST = 8
BURST_EVERY_S = 90.0
DRAIN_S = 25.0
PATIENCE_S = 60.0
"""Requests still open this long after the load's end are cancelled. If none ended in this time, the engine hangs.

While the engine loads its model, the time does not begin.
"""
REFRESH_S = 3.0
"""Seconds between two refreshes of the view. Each queries the store on the cores that the engine computes on."""


def workload(seconds: float, *, seed: int) -> Iterator[PlannedRequest]:
    """Two requests at once, which wait for the cold start; Poisson traffic; every 90 s a burst of long generations."""
    first_burst = min(30.0, seconds / 3)
    starts = itertools.takewhile(lambda at: at < seconds - 5, itertools.count(first_burst, BURST_EVERY_S))
    bursts = (r for i, at in enumerate(starts) for r in burst(LONG_GENERATION, count=BURST, at_s=at, seed=seed + 1 + i))
    return heapq.merge(
        burst(CHAT, count=2, at_s=0.0, seed=seed),
        poisson(RATES, seconds=seconds, seed=seed),
        bursts,
        key=lambda r: r.at_s,
    )


def run(
    console: Console,
    *,
    seconds: float | None,
    home: Path,
    slos: Path | None,
    seed: int,
    ports: Mapping[str, int | None],
) -> list[str]:
    """Run for about `seconds`, or until Ctrl-C. Returns the problems found, in words; empty when there are none.

    In a terminal, and without `seconds`, the dashboard stays open after the summary until the next Ctrl-C.
    Raises ProcessFailed when a process does not start or dies, or when `home` is in use or
    holds files of somebody else.
    """
    try:
        parts.require("collector", "dashboard", "instrumented_engine")
    except ProcessFailed as error:
        raise ProcessFailed(f"{error}, or see a day without an engine: tokentrail demo --day") from None
    with owned(home, command="demo", empty=True) as folder:
        shutil.copyfile(slos or parts.folder() / "alerts" / "slos.demo.yaml", folder / "slos.yaml")
        stack = Stack(home=folder, slos=folder / "slos.yaml", addresses=choose_addresses(ports), named=ports)
        return _run(console, stack, seconds=seconds, seed=seed, ports=ports)


def _run(
    console: Console, stack: Stack, *, seconds: float | None, seed: int, ports: Mapping[str, int | None]
) -> list[str]:
    seen: list[Observation] = []
    problems: list[str] = []
    try:
        _start(console, stack)
        api = Api(stack.urls["API"])
        began = time.time()
        load_s = math.inf if seconds is None else max(10.0, seconds - DRAIN_S)
        to_the_end = False
        with contextlib.suppress(KeyboardInterrupt):  # who sees the addresses may end the demo, and gets the summary
            _tell(console, stack, ports)
            limit = Limit(began + load_s)
            done = asyncio.run(_drive(console, stack, api, workload(load_s, seed=seed), seen, began, limit))
            to_the_end = True
            if not done and not answered_lately(seen, time.time()):
                problems.append(limit.reason)
        with progress(console, "comparing the collector's numbers with the clients' clock"):
            result = verify(api, seen, since=began, prometheus=stack.urls.get("Prometheus"), to_the_end=to_the_end)
        report(console, result, urls=stack.urls, problems=problems)
        problems += result.problems
        if seconds is None and console.is_terminal and not terminated.is_set():
            _stay(console, stack)
    finally:
        _write_client_log(stack.home / "client.jsonl", seen)
        unclean = stack.stop(lambda line: console.print(f"[dim]{line}[/]"))
        console.print(f"Open this recording again: {own_name()} up --data-dir {stack.home}", soft_wrap=True)
        console.print(f"Watch your own engine next, there is a page for each: {ENGINES_PAGE}", soft_wrap=True)
    return problems + [f"{name} did not stop cleanly; its log: {stack.home / 'logs' / name}.log" for name in unclean]


@dataclass(slots=True)
class Limit:
    """The time at which a demo waits no longer for its requests, in unix seconds.

    An engine may take `START_S` to load its model, so a slow machine is no engine that hangs.
    """

    load_ends: float
    loading: bool = True
    last_loading: float = 0.0
    """When the engine was last seen without its model."""

    def passed(self, now: float, *, loading: bool) -> bool:
        """Whether the time is over. `loading`: the engine has no model yet."""
        self.loading = loading
        if loading:
            self.last_loading = now
            return now >= self.load_ends + START_S
        return now >= max(self.load_ends, self.last_loading) + PATIENCE_S

    @property
    def reason(self) -> str:
        """The problem, when nothing was answered until now."""
        if self.loading:
            return f"the engine did not load its model within {START_S} s after the load's end; its log says why"
        return f"the engine answered nothing for {PATIENCE_S:.0f} s while requests waited"


def answered_lately(seen: Sequence[Observation], now_s: float) -> bool:
    """Whether the engine ended a request in the last `PATIENCE_S`. A cancelled one was ended by its client."""
    return any(o.status != "cancelled" and o.ended_ns / 1e9 > now_s - PATIENCE_S for o in seen)


def _stay(console: Console, stack: Stack) -> None:
    """Keep the dashboard and the collector open until Ctrl-C."""
    console.print(f"\nThe dashboard stays open at {stack.urls['dashboard']} · Ctrl-C ends the demo", soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            stack.check()
            time.sleep(1)


def _start(console: Console, stack: Stack) -> None:
    with progress(console, "starting the collector"):
        stack.collector(stack.home / "collector")
    with progress(console, "starting the dashboard"):
        stack.dashboard()
    with progress(console, "starting Prometheus"):
        if stack.prometheus() is None:
            console.print("[dim]Prometheus is not installed: the alerts shown are those that the collector computes[/]")
    _fetch_model()
    with progress(console, f"starting the engine with {MODEL}"):
        stack.engine("--model", MODEL, "--threads", str(ENGINE_THREADS), *ENGINE_FLAGS)


def _tell(console: Console, stack: Stack, ports: Mapping[str, int | None]) -> None:
    for name, url in stack.urls.items():
        console.print(f"  {name:<11} {url}")
    console.print(f"  {'logs':<11} {stack.home / 'logs'}\n")
    for sentence in stack.moved(ports):
        console.print(f"[yellow]note:[/] {sentence}", soft_wrap=True, highlight=False)


def _fetch_model() -> None:
    """Download the model if it is not on this machine. Raises ProcessFailed; the reason has been printed then.

    The engine would do it too, while the requests wait: on a slow network, longer than they have time.
    """
    fetch = parts.command("instrumented_engine.model.download", MODEL)
    if subprocess.run(fetch, check=False, env=parts.environment()).returncode != 0:
        raise ProcessFailed(f"the demo has no model: {MODEL} was not downloaded")


async def _drive(
    console: Console,
    stack: Stack,
    api: Api,
    requests: Iterator[PlannedRequest],
    seen: list[Observation],
    began: float,
    limit: Limit,
) -> bool:
    """Send the load and show its progress until every request has ended. False when `limit` passed before that.

    Raises ProcessFailed when a process dies.
    """
    load = asyncio.create_task(run_load(stack.urls["engine"], MODEL, requests, on_observation=seen.append))
    title = f"tokentrail demo · dashboard {stack.urls['dashboard']} · Ctrl-C ends the load"
    show = LiveView(console)
    try:
        with show:
            while not load.done():
                stack.check()
                loading = limit.loading and await asyncio.to_thread(stack.engine_loads)
                if limit.passed(time.time(), loading=loading):
                    break
                with contextlib.suppress(httpx.HTTPError):  # skip this refresh; check() notices a dead collector
                    show.update(await asyncio.to_thread(_state, api, stack, began, title))
                await asyncio.wait({load}, timeout=REFRESH_S)
        return load.done()
    finally:
        load.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await load


def _state(api: Api, stack: Stack, began: float, title: str) -> dict[str, object]:
    return {
        "title": title,
        "summary": api.get("summary", start=began),
        "slos": api.get("slos"),
        "processes": api.get("processes", start=began),
        "alerts": firing(api, stack.urls.get("Prometheus")),
    }


def firing(api: Api, prometheus: str | None) -> list[str]:
    """Names of the alerts that fire, from Prometheus when its URL is given, otherwise from `/api/v1/incidents`."""
    if prometheus is None:
        return sorted({i["title"] for i in api.get("incidents", start="-5m")["incidents"] if i["firing"]})
    alerts = httpx.get(f"{prometheus}/api/v1/alerts", timeout=5, trust_env=False).json()["data"]["alerts"]
    return sorted({a["labels"]["alertname"] for a in alerts if a["state"] == "firing"})


def _write_client_log(path: Path, seen: list[Observation]) -> None:
    if path.parent.exists():
        path.write_text("".join(json.dumps(o.as_dict()) + "\n" for o in seen))
