"""The processes that `up` and `demo` run on this machine: the same ones that a deployment runs."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml
from rich.console import Console

from tokentrail.cli import parts
from tokentrail.cli.processes import HOST, PORTS, Child, ProcessFailed, free_port, uninterrupted

_TRIES = 3
"""Starts of a process whose port somebody takes each time."""
START_S = 300
"""A busy or small machine may need this long to start one process."""


def choose_addresses(asked: Mapping[str, int | None]) -> dict[str, str]:
    """Host and port of every listener. `asked` holds the ports that the user named; None: the default.

    A default that is taken is replaced by a free port. Raises ProcessFailed when a port that the user named is taken.
    """
    chosen: dict[str, int] = {}
    for name in sorted(PORTS, key=lambda listener: asked.get(listener) is None):  # those that the user named come first
        named = asked.get(name)
        port = free_port(PORTS[name] if named is None else named, chosen.values())
        if named not in (None, port):
            other = next((known for known in chosen if chosen[known] == named), "another process")
            raise ProcessFailed(
                f"port {named} ({name}) is in use by {other}: name another one, or leave the option out"
            )
        chosen[name] = port
    return {name: f"{HOST}:{chosen[name]}" for name in PORTS}


@dataclass
class Stack:
    """Starts each process when told to, and stops all of them in the order in which data flows."""

    home: Path
    """Folder for the logs and the generated configuration."""
    slos: Path
    running: dict[str, Child] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=lambda: choose_addresses({}))
    """Host and port of every listener: a process that is started again listens where it did before."""
    named: Mapping[str, int | None] = field(default_factory=dict)
    """The ports that the user named. Another one that somebody takes before its process listens is chosen again."""

    @property
    def urls(self) -> dict[str, str]:
        """URLs of the processes that run."""
        listeners = {"collector": ("OTLP/HTTP", "OTLP/gRPC", "API"), "prometheus": ("Prometheus",)}
        listening = [name for part in self.running for name in listeners.get(part, (part,))]
        return {name: f"http://{self.addresses[name]}" for name in listening}

    def collector(self, data_dir: Path) -> str:
        """Start the collector with its embedded store. Returns the URL of its API."""

        def start() -> Child:
            http, grpc, api = (self.addresses[name] for name in ("OTLP/HTTP", "OTLP/gRPC", "API"))
            command = parts.command("collector", "--data-dir", str(data_dir), "--slos", str(self.slos))
            return self._start("collector", [*command, "--otlp-http", http, "--otlp-grpc", grpc, "--api", api])

        return self._listening(start, "API", "/readyz", "OTLP/HTTP", "OTLP/gRPC")

    def engine(self, *flags: str) -> str:
        """Start the engine, which exports to the collector. Returns its URL as soon as it listens.

        Its weights are loaded after that.
        """
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.urls["OTLP/HTTP"], "OTEL_BSP_SCHEDULE_DELAY": "500"}

        def start() -> Child:
            command = parts.command("instrumented_engine", "--host", HOST, "--port", self._port("engine"), *flags)
            return self._start("engine", command, env=env)

        return self._listening(start, "engine", "/healthz")

    def engine_loads(self) -> bool:
        """Whether the engine has no model yet. One that does not answer within a second has none."""
        try:
            return httpx.get(f"{self.urls['engine']}/readyz", timeout=1, trust_env=False).status_code != httpx.codes.OK
        except httpx.TransportError:
            return True

    def dashboard(self) -> str:
        """Start the Streamlit dashboard. Returns its URL."""

        def start() -> Child:
            options = ["--server.address", HOST, "--server.port", self._port("dashboard"), "--server.headless", "true"]
            command = parts.dashboard(*options, "--browser.gatherUsageStats", "false")
            return self._start("dashboard", command, env={"TOKENTRAIL_API_URL": self.urls["API"]})

        return self._listening(start, "dashboard", "/_stcore/health")

    def prometheus(self) -> str | None:
        """Start Prometheus with the rules for these SLOs. Returns its URL, or None when it is not installed."""
        binary = shutil.which("prometheus")
        if binary is None:
            return None
        rules = self.home / "rules"
        generate = parts.command("alerts", "--slos", str(self.slos), "--out", str(rules))
        subprocess.run(generate, check=True, env=parts.environment(), stdout=subprocess.DEVNULL)
        config = self.home / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._prometheus_config(rules)))

        def start() -> Child:
            options = [f"--config.file={config}", f"--storage.tsdb.path={self.home / 'prometheus'}"]
            return self._start("prometheus", [binary, *options, f"--web.listen-address={self.addresses['Prometheus']}"])

        return self._listening(start, "Prometheus", "/-/ready")

    def moved(self, asked: Mapping[str, int | None]) -> list[str]:
        """A sentence for each listener that runs on another port than its default. `asked`: ports that options name."""
        ports = {name: int(url.rpartition(":")[2]) for name, url in self.urls.items()}
        return [
            f"{name} listens on port {port}, not on {PORTS[name]}. A sender or reader that uses {PORTS[name]} does not "
            f"reach it."
            for name, port in ports.items()
            if port not in (PORTS[name], asked.get(name))
        ]

    def tell(self, console: Console, asked: Mapping[str, int | None], width: int) -> None:
        """Print the addresses, behind names of so many columns, and the listeners on other ports than theirs."""
        for name, url in self.urls.items():
            console.print(f"  {name:<{width}} {url}")
        for sentence in self.moved(asked):
            console.print(f"[yellow]note:[/] {sentence}", soft_wrap=True, highlight=False)
        if (api := self.urls.get("API")) and int(api.rpartition(":")[2]) != PORTS["API"]:
            told = f"For tokentrail status and the like, in another terminal: export TOKENTRAIL_API_URL={api}"
            console.print(told, soft_wrap=True, highlight=False)

    def check(self) -> None:
        """Raise ProcessFailed when any process has ended."""
        for child in self.running.values():
            child.check()

    def stop(self, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Stop engine, collector, dashboard, Prometheus, in this order. Returns the names that did not end cleanly."""
        order = ("engine", "collector", "dashboard", "prometheus")
        failed = []
        with uninterrupted():
            for name in [n for n in order if n in self.running]:
                with contextlib.suppress(OSError, SystemExit):  # the output's reader is gone, and rich would end us
                    say(f"stopping {name}")
                if not self.running.pop(name).stop():
                    failed.append(name)
        return failed

    def _port(self, listener: str) -> str:
        return self.addresses[listener].rpartition(":")[2]

    def _listening(self, start: Callable[[], Child], listener: str, path: str, *others: str) -> str:
        """Start a process until it answers; returns its URL.

        It gets another port if somebody else takes one that nobody named, before or while it starts.
        """
        for tries_left in reversed(range(_TRIES)):
            self._choose_again(listener, *others)
            child = start()
            try:
                child.wait_ready(f"{self.urls[listener]}{path}", timeout_s=START_S)
                break
            except ProcessFailed:
                if not tries_left or not child.ended or not self._choose_again(listener, *others):
                    raise
        return self.urls[listener]

    def _choose_again(self, *listeners: str) -> bool:
        """Replace the ports that are not free any more, and that nobody named; tells whether there were some."""
        before = dict(self.addresses)
        for name in listeners:
            if self.named.get(name) is None:
                given_out = [int(self._port(other)) for other in self.addresses if other != name]
                self.addresses[name] = f"{HOST}:{free_port(int(self._port(name)), given_out)}"
        return self.addresses != before

    def _start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> Child:
        environment = {**parts.environment(), "PYTHONUNBUFFERED": "1", **(env or {})}
        child = Child(name, command, self.home / "logs" / f"{name}.log", environment)
        self.running[name] = child
        return child

    def _prometheus_config(self, rules: Path) -> dict[str, object]:
        """alerts/prometheus.yml with the addresses of this stack in place of the shipped ones."""
        config: dict[str, object] = yaml.safe_load((parts.folder() / "alerts" / "prometheus.yml").read_text())
        config["rule_files"] = [str(rules / "*.yml")]
        config.pop("alerting", None)
        jobs: list[dict[str, object]] = config["scrape_configs"]  # type: ignore[assignment] # as shipped, and tested
        listeners = {"tokentrail-collector": "API", "tokentrail-engine": "engine"}
        config["scrape_configs"] = [
            {**job, "static_configs": [{"targets": [self.addresses[listeners[str(job["job_name"])]]]}]}
            for job in jobs
            if job["job_name"] in listeners
        ]
        return config
